"""The verification of the demo finds every kind of fault, and no false ones."""

import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from gapless.cli import demo
from gapless.cli.main import app
from gapless.content.evaluate import mask
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.demo.account import (
    Name,
    Published,
    Record,
    SubscriberArrivals,
    account_of,
    differing_orders,
    recovery_s,
    wanted_by,
)
from gapless.demo.figure import draw
from gapless.demo.network import (
    DESCRIPTION,
    EDGES,
    PUBLISHERS,
    ROUTERS,
    SUBSCRIBERS,
    SubscriberPlan,
    events_of,
    router_of,
)
from gapless.demo.report import WIDTH, DemoOutcome, Narrator, as_json, broken, introduce, report
from gapless.model.ids import BrokerId, CellId, PubendId, TopicId
from gapless.protocol.events import Now
from gapless.protocol.links import Links
from gapless.protocol.network import Network

EVENTS = 200
#: Between two events of a publisher, and from publishing to arrival.
STEP_S, LATENCY_S = 0.01, 0.002
PUBEND = {plan.name: plan.pubend for plan in PUBLISHERS}


def plan_of(name: str) -> SubscriberPlan:
    return next(plan for plan in SUBSCRIBERS if plan.name == name)


@pytest.fixture
def record() -> Record:
    """A run in which everything went well, and nothing was even late."""
    record = Record(
        published={}, arrivals={}, killed_s=0.5, restarted_s=1.0, back_s=1.5, recovered_s=0.6, stopped_s=2.0
    )
    for plan in PUBLISHERS:
        event_of = events_of(plan, seed=1)
        rows = [event_of(number) for number in range(EVENTS)]
        record.published[plan.name] = Published(rows, [STEP_S * number for number in range(EVENTS)])
    for subscriber in SUBSCRIBERS:
        names = sorted(wanted_by(subscriber, record), key=lambda name: (record.sent_s(name), name))
        at_s = [record.sent_s(name) + LATENCY_S for name in names]
        record.arrivals[subscriber.name] = SubscriberArrivals(
            names, [PUBEND[name] for name, _ in names], at_s
        )
    return record


def outcome_of(record: Record) -> DemoOutcome:
    return DemoOutcome(
        record=record,
        accounts=[account_of(plan, record) for plan in SUBSCRIBERS],
        order_differences=differing_orders(SUBSCRIBERS, record),
        recovery_s=recovery_s(SUBSCRIBERS, record),
        figure=Path("demo.png"),
    )


def remove(taken: SubscriberArrivals, at: int) -> Name:
    del taken.pubends[at], taken.at_s[at]
    return taken.names.pop(at)


def insert(taken: SubscriberArrivals, at: int, name: Name) -> None:
    taken.names.insert(at, name)
    taken.pubends.insert(at, PUBEND[name[0]])
    taken.at_s.insert(at, taken.at_s[at - 1])


def lose(taken: SubscriberArrivals) -> None:
    remove(taken, 5)


def duplicate(taken: SubscriberArrivals) -> None:
    insert(taken, 6, taken.names[5])


def reorder(taken: SubscriberArrivals) -> None:
    """Swap two neighbours of one publisher."""
    publisher = taken.names[0][0]
    first, second, *_ = [at for at, name in enumerate(taken.names) if name[0] == publisher]
    taken.names[first], taken.names[second] = taken.names[second], taken.names[first]


def intrude(taken: SubscriberArrivals) -> None:
    """Something that nobody who wants letters has asked for."""
    insert(taken, 5, ("dora", 0))


def test_a_good_run_has_a_clean_account(record: Record) -> None:
    outcome = outcome_of(record)
    assert outcome.kept
    audit = next(each for each in outcome.accounts if each.plan.name == "audit")
    assert (audit.published, audit.matched, audit.delivered) == (3 * EVENTS, 3 * EVENTS, 3 * EVENTS)
    assert all(0 < each.matched < each.published for each in outcome.accounts if each.plan.where)


@pytest.mark.parametrize(
    ("fault", "column"),
    [(lose, "lost"), (duplicate, "duplicated"), (reorder, "out_of_order"), (intrude, "unwanted")],
)
def test_each_fault_is_counted_in_its_column(
    fault: Callable[[SubscriberArrivals], None], column: str, record: Record
) -> None:
    fault(record.arrivals["letter-i"])
    outcome = outcome_of(record)
    account = next(each for each in outcome.accounts if each.plan.name == "letter-i")
    faults = ("lost", "duplicated", "out_of_order", "unwanted")
    assert {name: getattr(account, name) for name in faults} == {name: int(name == column) for name in faults}
    assert not outcome.kept
    assert not as_json(outcome)["kept"]
    assert broken(outcome).startswith("letter-i at s2: 1 ")


def test_total_orders_that_differ_are_noticed(record: Record) -> None:
    # Of two publishers, so that neither has its own events out of order.
    taken = record.arrivals["ledger"]
    at = next(at for at, (one, other) in enumerate(pairwise(taken.names)) if one[0] != other[0])
    taken.names[at], taken.names[at + 1] = taken.names[at + 1], taken.names[at]
    outcome = outcome_of(record)
    assert outcome.order_differences == 1
    assert all(each.kept for each in outcome.accounts)
    assert broken(outcome) == "1 places where total orders differ"


def test_what_was_on_its_way_at_the_kill_belongs_to_the_outage(record: Record) -> None:
    taken = record.arrivals["audit"]
    late = next(at for at, at_s in enumerate(taken.at_s) if at_s > record.killed_s - 0.1)
    taken.at_s[late] = record.killed_s + 0.3
    latency = account_of(plan_of("audit"), record).latency
    assert latency["before"].max_s == pytest.approx(LATENCY_S)
    assert latency["during"].max_s > 0.3
    assert latency["after"].p50_s == pytest.approx(LATENCY_S)
    assert sum(each.events for each in latency.values()) == 3 * EVENTS


def test_recovery_is_the_first_event_that_is_newer_than_the_kill(record: Record) -> None:
    found = recovery_s(SUBSCRIBERS, record)
    assert found.keys() == set(EDGES)
    # Everything goes to the audit at s2, and the next event after the kill is one step away.
    assert found["s2"]["tokyo"] == pytest.approx(STEP_S + LATENCY_S)
    for taken in record.arrivals.values():
        for at in reversed(range(len(taken.names))):
            if taken.pubends[at] == "news" and record.sent_s(taken.names[at]) > record.killed_s:
                remove(taken, at)
    assert "news" not in recovery_s(SUBSCRIBERS, record)["s1"]


@pytest.mark.parametrize("plan", SUBSCRIBERS, ids=lambda plan: plan.name)
def test_a_judge_says_what_the_condition_says(plan: SubscriberPlan, record: Record) -> None:
    schema = Network.load(DESCRIPTION).topics[TopicId(plan.topic)]
    rows = [dict(row) for _, row in record.of_topic(plan.topic)]
    for row in rows:
        if "document" in row:
            row["document"] = str(row["document"]).encode()
    batch = pa.RecordBatch.from_pylist(rows, schema=schema.arrow())
    told = mask(parse_condition(plan.where, schema), Rows(batch))
    assert told.tolist() == [plan.wants(row) for row in rows]


def test_routers_share_the_pubends_as_the_demo_says() -> None:
    network = Network.load(DESCRIPTION)
    for alive in (ROUTERS, ("b1",), ("b2",)):
        links = Links(network, BrokerId("p1"))
        for router in alive:
            links.up(BrokerId(router), Now(ms=0, clock=0))
        for pubend in ("tokyo", "london", "news"):
            assert links.route(PubendId(pubend), CellId("b"), ()) == router_of(pubend, alive)


def test_nothing_that_is_told_is_wider_than_a_terminal(record: Record) -> None:
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    introduce(console, 20, 1_000, Path("/tmp/gapless-demo-12345678"))
    narrator = Narrator(console, None, 20)
    for second, what in enumerate(("started", "killed", "recovered", "restarted", "back", "stopped"), 1):
        narrator.tell(what, record)
        narrator.row(record, float(second))
    for taken in record.arrivals.values():
        taken.at_s = [at_s + 12.345 * (at % 2) for at, at_s in enumerate(taken.at_s)]
    report(console, outcome_of(record))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert "\N{HORIZONTAL ELLIPSIS}" not in text, "a table was too wide, and something was left out"
    assert "nothing lost, nothing twice, nothing out of order" in text
    assert "b2 took over news and tokyo" in text


@pytest.mark.parametrize("as_object", [False, True])
def test_a_broken_promise_prints_one_line_and_exits_with_status_1(
    as_object: bool, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(*_: object) -> Record:
        return record

    lose(record.arrivals["video"])
    monkeypatch.setattr(demo, "_narrated", told)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", "--no-spark", *(["--json"] if as_object else [])])
    assert done.exit_code == demo.EXIT_BROKEN
    assert done.stderr == "demo: a promise was broken: video at s2: 1 lost\n"
    if as_object:
        assert json.loads(done.stdout)["figure"] == str(demo.FIGURES / "demo.png")
    assert (tmp_path / demo.FIGURES / "demo.png").is_file()


def test_the_figure_is_a_picture(record: Record, tmp_path: Path) -> None:
    draw(record, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
