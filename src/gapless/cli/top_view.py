"""How is the state of a network drawn? Tables of brokers, links, pubends and subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gapless.cli.reports import Answer

#: How wide tables are where there is no terminal to fit into.
PLAIN_WIDTH = 140
#: So many rows of each of the longer tables are drawn.
ROWS_MAX = 40

_BAD, _GOOD = "bold red", "green"


def new_console() -> Console:
    """Standard output, as wide as the terminal."""
    # Names are no markup, whatever brackets are in them.
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=PLAIN_WIDTH)


def duration(seconds: float) -> str:
    """A span of time, in the two units that matter.

    >>> duration(0.25), duration(75), duration(7_300), duration(200_000)
    ('0.2 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def lag(milliseconds: float | None) -> str:
    """How far something is behind, or how long it takes.

    >>> lag(None), lag(0.25), lag(250), lag(75_000)
    ('-', '0.25 ms', '250 ms', '1 min 15 s')
    """
    if milliseconds is None:
        return "-"
    if milliseconds >= 1_000:
        return duration(milliseconds / 1_000)
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def size(count: float) -> str:
    """Bytes for people.

    >>> size(900), size(1_500_000)
    ('900 B', '1.4 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1_024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_024
    raise AssertionError("unreachable")


def frame(answers: Sequence[Answer], *, title: str = "") -> RenderableType:
    """One picture of a whole network."""
    reports = [answer.report for answer in answers if answer.report is not None]
    parts: list[RenderableType] = [_summary(answers, title), broker_table(answers)]
    for answer in answers:
        if answer.report is None:
            parts.append(Text(f"{answer.name} is down: {answer.error}", style=_BAD))
    if any(report["pubends"] for report in reports):
        parts.append(pubend_table(reports))
    if any(report["links"] for report in reports):
        parts.append(link_table(reports))
    if any(_in_trouble(report) for report in reports):
        parts.append(subscription_table(reports, ROWS_MAX, troubled=True))
    return Group(*parts)


def _summary(answers: Sequence[Answer], title: str) -> Text:
    reports = [answer.report for answer in answers if answer.report is not None]
    into = sum(report["rates"].get("events_accepted", 0) for report in reports)
    out = sum(report["rates"].get("rows_delivered", 0) for report in reports)
    subscriptions = sum(report["subscriptions"]["count"] for report in reports)
    down = len(answers) - len(reports)
    text = Text(f"{title}{len(answers)} brokers")
    if down:
        text.append(f", {down} down", style=_BAD)
    return text.append(f"; {into:,.0f} events/s in, {out:,.0f}/s out, {subscriptions:,} subscriptions")


def _table(*columns: str) -> Table:
    """A table whose columns are named; those with > stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        name = column.removeprefix(">")
        table.add_column(name, justify="right" if name != column else "left", no_wrap=True)
    return table


def broker_table(answers: Sequence[Answer]) -> Table:
    """A line for each broker: is it there, what goes in and out, how fast, how much does it hold?"""
    table = _table(
        "broker", "state", ">in/s", ">out/s", ">flush p50", ">p99", ">behind", ">gaps", ">nacks/s",
        ">links", ">clients", ">subs", ">slow", ">held", ">memory",
    )  # fmt: skip
    for answer in answers:
        report = answer.report
        if report is None:
            table.add_row(answer.name, Text("down", style=_BAD))
            continue
        rates, links, subs = report["rates"], report["links"], report["subscriptions"]
        up = sum(link["up"] for link in links)
        state = Text("up", style=_GOOD) if report["ready"] else Text("waits", style="yellow")
        behind = [each["horizon_lag_ms"] for each in report["pubends"] if each["horizon_lag_ms"] is not None]
        slow = subs["lagging"] + subs["parked"]
        table.add_row(
            answer.name,
            state,
            f"{rates.get('events_accepted', 0):,.0f}",
            f"{rates.get('rows_delivered', 0):,.0f}",
            *(
                lag(report["flush_ms"][share] if report["totals"]["flushes"] else None)
                for share in ("p50", "p99")
            ),
            lag(max(behind, default=None)),
            _count(sum(each["gaps"] for each in report["pubends"])),
            f"{rates.get('nacks_sent', 0):,.0f}",
            Text(f"{up}/{len(links)}", style="" if up == len(links) else _BAD),
            f"{report['clients']['count']:,}",
            f"{subs['count']:,}",
            _count(slow),
            size(report["memory"]["row_bytes"]),
            size(report["process"]["resident_bytes"]) if "process" in report else "-",
        )
    return table


def _count(number: int) -> Text:
    return Text(f"{number:,}", style="yellow" if number else "")


def pubend_table(reports: Sequence[dict[str, Any]]) -> Table:
    """A line for each pubend at each broker: how far is it known, handed out and acknowledged?"""
    table = _table(
        "pubend", "at", ">frontier", ">handed out", ">acked", ">released", ">gaps", ">asked",
        ">laggards", ">rows", ">log",
    )  # fmt: skip
    listed = [(entry["pubend"], report["broker"], entry) for report in reports for entry in report["pubends"]]
    # Where it lives first: what the others know, they know from there.
    listed.sort(key=lambda each: (each[0], not each[2]["here"], each[1]))
    for name, broker, entry in listed[:ROWS_MAX]:
        frontier = entry["frontier"]
        table.add_row(
            name,
            Text(broker, style="bold" if entry["here"] else ""),
            "-" if frontier is None else str(frontier),
            _behind(frontier, entry["horizon"]),
            _behind(frontier, entry["acked"]),
            _behind(frontier, entry.get("released")) if entry["here"] else "",
            _count(entry["gaps"]),
            _count(entry["asked"]),
            _count(entry["laggards"]),
            f"{entry['rows']:,}",
            size(entry["log_bytes"]) if entry["here"] else "",
        )
    return table


def _behind(frontier: int | None, tick: int | None) -> str:
    """A position as its distance from the frontier: people compare times, not ticks."""
    if frontier is None or tick is None or tick <= 0:
        return "-"
    missing = frontier - tick
    if missing < 1_000:
        return "all" if missing <= 0 else f"-{missing} \N{MICRO SIGN}s"
    return f"-{lag(missing / 1_000)}"


def link_table(reports: Sequence[dict[str, Any]]) -> Table:
    """A line for each end of a link."""
    table = _table("link", "state", ">for", ">round trip", ">unsent", ">dropped", ">times up")
    listed = [(report["broker"], link) for report in reports for link in report["links"]]
    # Those that are down first.
    listed.sort(key=lambda each: (each[1]["up"], each[0], each[1]["broker"]))
    for broker, link in listed[:ROWS_MAX]:
        table.add_row(
            f"{broker} - {link['broker']}",
            Text("up", style=_GOOD) if link["up"] else Text("down", style=_BAD),
            duration(link["seconds"]),
            lag(link["round_trip_ms"]),
            size(link["backlog_bytes"]),
            _count(link["dropped"]),
            f"{link['ups']:,}",
        )
    return table


def _in_trouble(report: dict[str, Any]) -> bool:
    return any(each["state"] != "live" for each in report["subscriptions"]["list"])


def subscription_table(reports: Sequence[dict[str, Any]], rows_max: int, *, troubled: bool = False) -> Table:
    """A line for each subscription, those that need attention first; or only those."""
    table = _table("subscription", "at", "topic", "state", ">behind", "where")
    listed = [(report["broker"], each) for report in reports for each in report["subscriptions"]["list"]]
    listed.sort(key=lambda each: each[1]["state"] == "live")
    for broker, each in listed[:rows_max]:
        if troubled and each["state"] == "live":
            continue
        behind = [value for value in each["lag_ms"].values() if value is not None]
        style = "" if each["state"] == "live" else "yellow"
        where = Text(each["where"] or "everything", overflow="ellipsis")
        table.add_row(
            each["name"] or each["subscription"],
            broker,
            each["topic"],
            Text(each["state"], style=style),
            lag(max(behind, default=None)),
            where,
        )
    return table
