"""The judge of the chaos suite can fail: whatever is removed, repeated, swapped or forged is found."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gapless.protocol.network import Network
from gapless.sim.conditions import Between, Everything
from tests.chaos.history import History, digest
from tests.chaos.judge import EDGE_DEATHS, Verdict, judge
from tests.chaos.report import story
from tests.chaos.stage import NETWORK
from tests.chaos.wishes import Pattern, encode, some_row

SEED = 7
EVENTS = 120
#: Subscriptions, their topics and orders.
WISHES: dict[str, tuple[str, Any, bool]] = {
    "all": ("trades", Everything(), False),
    "some": ("trades", Between("price", 20, 80), False),
    "total": ("trades", Everything(), True),
    "xpath": ("news", Pattern("//headline"), False),
}
PUBENDS = {"trades-1": "trades", "trades-2": "trades", "news-1": "news"}


def recorded() -> list[dict[str, Any]]:
    """What the clients of a faultless network write down."""
    chance = random.Random(SEED)
    lines: list[dict[str, Any]] = []
    for name, (topic, wants, total) in WISHES.items():
        starts = {pubend: 100 for pubend, fed in PUBENDS.items() if fed == topic}
        wish = {"topic": topic, "wants": encode(wants), "total": total, "durable": False, "slow": False}
        lines.append({"kind": "wish", "at": 1.0, "of": name, **wish})
        lines.append({"kind": "start", "at": 2.0, "of": name, "ticks": starts})
    for number in range(EVENTS):
        pubend = sorted(PUBENDS)[number % 3]
        topic, at, row_id = PUBENDS[pubend], 3.0 + number / 100, 1_000 + number
        row = some_row(topic, row_id, chance)
        event = {"id": row_id, "by": f"to {pubend}", "number": number // 3, "topic": topic, "row": row}
        lines.append({"kind": "pub", "at": at, **event})
        receipt = {"id": row_id, "pubend": pubend, "tick": 200 + number}
        lines.append({"kind": "receipt", "at": at + 0.001, **receipt})
        for name, (wanted_topic, wants, _) in WISHES.items():
            if wanted_topic == topic and wants.accepts(row):
                got = {"pubend": pubend, "tick": 200 + number, "id": row_id, "digest": digest(row)}
                lines.append({"kind": "got", "at": at + 0.002, "of": name, **got})
    return lines


def judged(lines: list[dict[str, Any]], folder: Path, *, is_over: bool = True) -> Verdict:
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = History(folder)
    history.refresh()
    return judge(history, Network.parse(tomllib.loads(NETWORK)), is_over=is_over)


def found(verdict: Verdict) -> set[tuple[str, str]]:
    return {(each.checker, each.subject) for each in verdict.violations}


def of(lines: list[dict[str, Any]], name: str) -> list[int]:
    """Where in the lines the deliveries to a subscription are."""
    return [at for at, line in enumerate(lines) if line["kind"] == "got" and line["of"] == name]


def test_a_faultless_history_is_found_faultless(tmp_path: Path) -> None:
    verdict = judged(recorded(), tmp_path)
    assert verdict.violations == []
    assert (verdict.published, verdict.accepted, verdict.refused) == (EVENTS, EVENTS, 0)
    assert verdict.delivered == len([line for line in recorded() if line["kind"] == "got"])


def remove(lines: list[dict[str, Any]], places: list[int]) -> None:
    del lines[places[5]]


def remove_last(lines: list[dict[str, Any]], places: list[int]) -> None:
    del lines[places[-1]]


def repeat(lines: list[dict[str, Any]], places: list[int]) -> None:
    lines.insert(places[6], lines[places[5]])


def swap(lines: list[dict[str, Any]], places: list[int]) -> None:
    """Of one pubend, so that it is out of order even for who wants no total order."""
    first = places[5]
    later = next(at for at in places[6:] if lines[at]["pubend"] == lines[first]["pubend"])
    lines[first], lines[later] = lines[later], lines[first]


def forge(lines: list[dict[str, Any]], places: list[int]) -> None:
    lines[places[5]] = {**lines[places[5]], "digest": 1}


def invent(lines: list[dict[str, Any]], places: list[int]) -> None:
    lines[places[5]] = {**lines[places[5]], "id": 77}


@pytest.mark.parametrize("name", sorted(WISHES))
@pytest.mark.parametrize(
    ("harm", "checkers"),
    [
        (remove, {"gapless"}),
        (remove_last, {"liveness", "gapless"}),
        (repeat, {"exactly_once", "order"}),
        (swap, {"gapless", "order"}),
        (forge, {"exactly_once"}),
        (invent, {"exactly_once"}),
    ],
)
def test_one_harmed_delivery_is_found(
    harm: Callable[[list[dict[str, Any]], list[int]], None], checkers: set[str], name: str, tmp_path: Path
) -> None:
    lines = recorded()
    harm(lines, of(lines, name))
    verdict = judged(lines, tmp_path)
    assert {subject for _, subject in found(verdict)} == {name}
    assert {checker for checker, _ in found(verdict)} <= checkers


def test_total_order_is_more_than_the_order_of_each_pubend(tmp_path: Path) -> None:
    lines = recorded()
    for name in ("all", "total"):
        places = of(lines, name)
        pair = next(
            at for at in range(5, 20) if lines[places[at]]["pubend"] != lines[places[at + 1]]["pubend"]
        )
        first, second = places[pair], places[pair + 1]
        lines[first], lines[second] = lines[second], lines[first]
    assert {subject for _, subject in found(judged(lines, tmp_path))} == {"total"}


def test_unwanted_deliveries_are_reported(tmp_path: Path) -> None:
    lines = recorded()
    at = next(
        at
        for at in of(lines, "all")
        if not any(lines[at]["id"] == lines[each]["id"] for each in of(lines, "some"))
    )
    lines.insert(at, {**lines[at], "of": "some"})
    assert ("filter", "some") in found(judged(lines, tmp_path))


def test_an_event_that_was_stored_twice_is_found(tmp_path: Path) -> None:
    """Under another tick, so that no subscriber can tell it from a new one."""
    lines = recorded()
    for name in ("all", "total"):
        places = of(lines, name)
        lines.insert(places[-1] + 1, {**lines[places[-2]], "tick": 9_999})
    assert "durability" in {checker for checker, _ in found(judged(lines, tmp_path))}


def test_an_event_that_was_refused_and_is_delivered_is_found(tmp_path: Path) -> None:
    lines = recorded()
    at = next(at for at, line in enumerate(lines) if line["kind"] == "receipt")
    lines[at] = {"kind": "refused", "at": lines[at]["at"], "id": lines[at]["id"], "why": "E182"}
    assert {checker for checker, _ in found(judged(lines, tmp_path))} == {"exactly_once"}


def test_a_start_that_moved_beyond_what_is_published_after_it_is_found(tmp_path: Path) -> None:
    lines = recorded()
    start = next(line for line in lines if line["kind"] == "start" and line["of"] == "all")
    start["ticks"] = {"trades-1": 250, "trades-2": 100}
    assert ("start", "all") in found(judged(lines, tmp_path))


def test_events_of_one_publisher_in_another_order_are_found(tmp_path: Path) -> None:
    lines = recorded()
    published = [line for line in lines if line["kind"] == "pub" and line["by"] == "to trades-1"]
    published[3]["number"], published[4]["number"] = published[4]["number"], published[3]["number"]
    assert ("order", "trades-1") in found(judged(lines, tmp_path))


def test_an_event_without_a_receipt_is_found(tmp_path: Path) -> None:
    lines = [line for line in recorded() if not (line["kind"] in ("receipt", "got") and line["id"] == 1_100)]
    assert {checker for checker, _ in found(judged(lines, tmp_path))} == {"liveness"}
    assert judged(lines, tmp_path, is_over=False).violations == []


@pytest.mark.parametrize(
    ("target", "checkers"), [("s1", set()), ("b1", {"release"}), (None, {"release"})], ids=str
)
def test_a_gap_with_events_is_forgiven_only_after_the_death_of_an_edge(
    target: str | None, checkers: set[str], tmp_path: Path
) -> None:
    lines = recorded()
    places = [at for at in of(lines, "all") if lines[at]["pubend"] == "trades-1"]
    gone, after = lines[places[8]], lines[places[9]]
    gap = {"kind": "gap", "at": after["at"], "of": "all", "pubend": "trades-1"}
    lines[places[8]] = {**gap, "start": gone["tick"], "stop": after["tick"]}
    # Ticks without an event are no loss, whatever the client library says of them.
    lines.insert(places[3], {**gap, "start": lines[places[3]]["tick"] - 2, "stop": lines[places[3]]["tick"]})
    if target is not None:
        fault = {"number": 1, "what": EDGE_DEATHS[1], "target": target}
        lines.append({"kind": "fault", "at": after["at"] - 1, **fault})
    verdict = judged(lines, tmp_path)
    assert verdict.forfeited == 1
    assert {checker for checker, _ in found(verdict)} == checkers


def test_a_violation_has_a_story_from_its_publisher_to_the_logs(tmp_path: Path) -> None:
    lines = recorded()
    lost = lines.pop(of(lines, "some")[5])
    lines.append({"kind": "clock", "at": 3.0, "now": 1_794_798_599.0})
    lines.append({"kind": "fault", "at": lost["at"], "number": 3, "what": "link cut", "target": "b1--s1"})
    [violation] = judged(lines, tmp_path).violations
    for broker, second in (("b1", 58), ("s1", 10)):
        told = {"time": f"2026-11-16T03:09:{second}.424Z", "event": f"what {broker} said"}
        (tmp_path / f"{broker}.log").write_text(
            json.dumps(told) + "\n" + json.dumps({**told, "time": "2026-11-16T04:00:00Z"}) + "\n"
        )
    history = History(tmp_path)
    history.refresh()
    told_lines = story(violation, history, tmp_path)
    text = "\n".join(told_lines)
    assert told_lines[0] == str(violation)
    assert f"to {lost['pubend']} published" in text
    assert f"receipt: {lost['pubend']}@{lost['tick']}" in text
    assert "all got it" in text
    assert "some got it" not in text
    assert "fault 3: link cut b1--s1" in text
    assert sum("what b1 said" in line for line in told_lines) == 1, (
        "what was logged at other times is left out"
    )
    assert sum("what s1 said" in line for line in told_lines) == 2, (
        "who logged nothing then is shown as it ended"
    )


def test_who_comes_back_without_a_memory_is_owed_what_it_had_not_acknowledged(tmp_path: Path) -> None:
    lines = recorded()
    places = of(lines, "some")
    again = [dict(lines[at]) for at in places[10:12]]
    ticks = {line["pubend"]: line["tick"] for line in reversed(again)}
    lines[places[11] + 1 : places[11] + 1] = [
        {"kind": "resume", "at": again[-1]["at"], "of": "some", "ticks": ticks},
        *again,
    ]
    assert judged(lines, tmp_path).violations == []
    del lines[places[11] + 2]
    assert {subject for _, subject in found(judged(lines, tmp_path))} == {"some"}
