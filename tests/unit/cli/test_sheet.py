"""Tables in a small terminal: whole columns and rows are left out, and what is shown is not cut."""

import io
from typing import Any

import pytest
from rich.console import Console

from gapless.cli.output.sheet import Sheet, share_lines
from gapless.cli.reports import Answer, Place
from gapless.cli.sub.table import LiveTable
from gapless.cli.top.screen import frame
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

BIG = 1_794_901_613_647_095
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def printed(what: Any, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=24)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def report(name: str, pubends: int) -> dict[str, Any]:
    pubend = {
        "here": True, "frontier": BIG, "events_stop": BIG, "horizon": BIG - 200_000, "horizon_lag_ms": 200.0,
        "acked": BIG - 9_000_000, "released": BIG - 604_800_000_000, "oldest_tick": 0, "gaps": 10, "asked": 3,
        "laggards": 12, "rows": 65_536, "log_bytes": 10**9,
    }  # fmt: skip
    return {
        "broker": name,
        "ready": True,
        "rates": {"events_accepted": 123_456, "rows_delivered": 1_234_567, "nacks_sent": 10},
        "links": [
            {
                "broker": "router-2", "up": True, "seconds": 98_765, "round_trip_ms": 0.25,
                "backlog_bytes": 10**6, "dropped": 5, "ups": 3,
            }
        ],
        "clients": {"count": 16_000},
        "subscriptions": {
            "count": 16_000, "lagging": 5, "parked": 7,
            "list": [
                {
                    "name": "audit-of-the-trades", "subscription": "@audit", "topic": "trades",
                    "state": "lagging", "lag_ms": {"a": 7_300_000.0}, "where": "price > 100 AND " * 9,
                }
            ],
        },
        "flush_ms": {"p50": 0.8, "p99": 250.0},
        "totals": {"flushes": 9},
        "memory": {"row_bytes": 10**8},
        "process": {"resident_bytes": 10**9},
        "pubends": [{**pubend, "pubend": f"trades-{at}"} for at in range(pubends)],
    }  # fmt: skip


def test_top_fits_a_terminal_of_80_columns_and_24_lines() -> None:
    answers = [Answer(Place("x"), report(f"repository-{at}", 20)) for at in range(5)]
    answers.append(Answer(Place("y", "edge-9"), None, "E401 no node answers: " + "x" * 200))
    lines = printed(frame(answers, lines=24))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for word in ("broker", "in/s", "out/s", "behind", "pubend", "handed out", "link", "subscription"):
        assert word in text, word
    assert "more rows: enlarge the terminal" in lines[-1]
    # Only what has no bound may be shortened: errors and conditions.
    assert {line.split()[0] for line in lines if ELLIPSIS in line} <= {"edge-9", "audit-of-the-trades"}


def test_a_topic_that_has_dropped_nothing_has_released_nothing() -> None:
    text = "\n".join(printed(frame([Answer(Place("x"), report("n1", 1))]), width=200))
    assert "7 d" not in text
    assert "none" in text


def test_spare_columns_go_in_their_order_and_no_cell_is_cut() -> None:
    sheet = Sheet("name", ">first", ">second", spare=("second", "first"))
    sheet.add("a" * 10, "1" * 10, "2" * 10)
    assert [line.split() for line in printed(sheet, 40)][1] == ["name", "first", "second"]
    assert [line.split() for line in printed(sheet, 30)][1] == ["name", "first"]
    assert [line.split() for line in printed(sheet, 15)][1] == ["name"]
    assert ELLIPSIS not in "".join(printed(sheet, 15))


@pytest.mark.parametrize(("lines", "shown"), [(100, [2, 9]), (12, [2, 4]), (8, [1, 1]), (1, [1, 1])])
def test_the_longest_sheets_are_cut_first(lines: int, shown: list[int]) -> None:
    sheets = [Sheet("a"), Sheet("b")]
    for sheet, rows in zip(sheets, (2, 9), strict=True):
        for at in range(rows):
            sheet.add(str(at))
    share_lines(sheets, lines)
    assert [sheet.rows_max for sheet in sheets] == shown


def test_a_wide_topic_is_shown_as_whole_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    monkeypatch.setattr("gapless.cli.sub.table.table_console", lambda: console)
    columns = {f"column_{at}": "string" for at in range(12)}
    schema = Schema.parse(TopicId("wide"), columns)
    live = LiveTable(schema, names=False)
    live._rows.append(["x" * 100, *["value"] * 11])
    lines = printed(live._frame())
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == [f"column_{at}" for at in range(5)]
    assert lines[3].split() == ["x" * 35 + ELLIPSIS, *["value"] * 4]
    assert lines[4].startswith("7 of 12 columns do not fit")
