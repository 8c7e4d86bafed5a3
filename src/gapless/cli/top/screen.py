"""How is the state of a network drawn? Tables of brokers, links, pubends and subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gapless.cli.output.sheet import Sheet, share_lines
from gapless.cli.reports import Answer

#: How wide tables are where there is no terminal to fit into.
PLAIN_WIDTH = 140
#: Maximum number of rows drawn of each of the longer tables.
ROWS_MAX = 40

#: The states of subscriptions that need no attention.
CALM = ("live", "holding")
_BAD, _GOOD = "bold red", "green"


def new_console() -> Console:
    """Standard output, as wide as the terminal."""
    # Names are not markup, even if they contain brackets.
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


def frame(answers: Sequence[Answer], *, title: str = "", lines: int | None = None) -> RenderableType:
    """One picture of a whole network, in as many lines as the terminal has; None for as many as it takes."""
    reports = [answer.report for answer in answers if answer.report is not None]
    downs = [
        Text(f"{answer.name} is down: {answer.error}", style=_BAD, overflow="ellipsis", no_wrap=True)
        for answer in answers
        if answer.report is None
    ]
    sheets = [broker_table(answers)]
    if any(report["pubends"] for report in reports):
        sheets.append(pubend_table(reports))
    if any(report["links"] for report in reports):
        sheets.append(link_table(reports))
    if any(_in_trouble(report) for report in reports):
        sheets.append(subscription_table(reports, ROWS_MAX, troubled=True))
    if lines is not None:
        # One for the summary, and one to say what is hidden.
        share_lines(sheets, lines - 2 - len(downs))
    parts: list[RenderableType] = [_summary(answers, title), sheets[0], *downs, *sheets[1:]]
    hidden = sum(sheet.hidden for sheet in sheets)
    if hidden:
        parts.append(Text(f"{hidden:,} more rows: enlarge the terminal, or use --json", style="dim"))
    return Group(*parts)


def _summary(answers: Sequence[Answer], title: str) -> Text:
    reports = [answer.report for answer in answers if answer.report is not None]
    into = sum(report["rates"].get("events_accepted", 0) for report in reports)
    out = sum(report["rates"].get("rows_delivered", 0) for report in reports)
    subscriptions = sum(report["subscriptions"]["count"] for report in reports)
    down = len(answers) - len(reports)
    text = Text(f"{title}{len(answers)} broker{'' if len(answers) == 1 else 's'}")
    if down:
        text.append(f", {down} down", style=_BAD)
    noun = "subscription" if subscriptions == 1 else "subscriptions"
    return text.append(f"; {into:,.0f} events/s in, {out:,.0f}/s out, {subscriptions:,} {noun}")


def broker_table(answers: Sequence[Answer]) -> Sheet:
    """A line for each broker: is it there, what goes in and out, how fast, how much does it hold?"""
    table = Sheet(
        "broker", "state", ">in/s", ">out/s", ">flush p50", ">p99", ">behind", ">gaps", ">nacks/s",
        ">links", ">clients", ">subs", ">slow", ">held", ">memory",
        spare=("held", "nacks/s", "flush p50", "clients", "links", "gaps", "memory", "p99", "slow", "subs"),
    )  # fmt: skip
    for answer in answers:
        report = answer.report
        if report is None:
            table.add(answer.name, Text("down", style=_BAD))
            continue
        rates, links, subs = report["rates"], report["links"], report["subscriptions"]
        up = sum(link["up"] for link in links)
        state = Text("up", style=_GOOD) if report["ready"] else Text("waits", style="yellow")
        behind = [each["horizon_lag_ms"] for each in report["pubends"] if each["horizon_lag_ms"] is not None]
        slow = subs["lagging"] + subs["parked"]
        table.add(
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


def pubend_table(reports: Sequence[dict[str, Any]]) -> Sheet:
    """A line for each pubend at each broker: how far is it known, handed out and acknowledged?"""
    table = Sheet(
        "pubend", "at", ">frontier", ">handed out", ">acked", ">released", ">gaps", ">asked",
        ">laggards", ">rows", ">log",
        spare=("frontier", "rows", "asked", "released", "gaps", "log", "laggards", "acked"),
    )  # fmt: skip
    listed = [(entry["pubend"], report["broker"], entry) for report in reports for entry in report["pubends"]]
    # Where it lives first: what the others know, they know from there.
    listed.sort(key=lambda each: (each[0], not each[2]["here"], each[1]))
    for name, broker, entry in listed[:ROWS_MAX]:
        frontier = entry["frontier"]
        # A node of an earlier version does not tell where its last event is.
        end = entry.get("events_stop", frontier)
        table.add(
            name,
            Text(broker, style="bold" if entry["here"] else ""),
            "-" if frontier is None else str(frontier),
            _behind(end, entry["horizon"]),
            _behind(end, entry["acked"]),
            _released(entry, end) if entry["here"] else "",
            _count(entry["gaps"]),
            _count(entry["asked"]),
            _count(entry["laggards"]),
            f"{entry['rows']:,}",
            size(entry["log_bytes"]) if entry["here"] else "",
        )
    return table


def _released(entry: dict[str, Any], end: int | None) -> str:
    """How much the log has let go of."""
    return "none" if not entry.get("oldest_tick") else _behind(end, entry.get("released"))


def _behind(end: int | None, tick: int | None) -> str:
    """A position as its distance from the last event: people compare times, not ticks."""
    if end is None or tick is None or tick <= 0:
        return "-"
    missing = end - tick
    if missing < 1_000:
        return "all" if missing <= 0 else f"-{missing} \N{MICRO SIGN}s"
    return f"-{lag(missing / 1_000)}"


def link_table(reports: Sequence[dict[str, Any]]) -> Sheet:
    """A line for each end of a link."""
    table = Sheet(
        "link", "state", ">for", ">round trip", ">unsent", ">dropped", ">times up",
        spare=("times up", "unsent", "dropped", "round trip"),
    )  # fmt: skip
    listed = [(report["broker"], link) for report in reports for link in report["links"]]
    # Those that are down first.
    listed.sort(key=lambda each: (each[1]["up"], each[0], each[1]["broker"]))
    for broker, link in listed[:ROWS_MAX]:
        table.add(
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
    return any(each["state"] not in CALM for each in report["subscriptions"]["list"])


def subscription_table(reports: Sequence[dict[str, Any]], rows_max: int, *, troubled: bool = False) -> Sheet:
    """A line for each subscription, those that need attention first; or only those."""
    table = Sheet(
        "subscription", "at", "topic", "state", ">behind", "where",
        spare=("topic", "where", "at"), last_wraps=True,
    )  # fmt: skip
    listed = [(report["broker"], each) for report in reports for each in report["subscriptions"]["list"]]
    listed.sort(key=lambda each: each[1]["state"] in CALM)
    for broker, each in listed[:rows_max]:
        if troubled and each["state"] in CALM:
            continue
        behind = [value for value in each["lag_ms"].values() if value is not None]
        style = "" if each["state"] in CALM else "yellow"
        where = Text(each["where"] or "everything", overflow="ellipsis")
        table.add(
            each["name"] or each["subscription"],
            broker,
            each["topic"],
            Text(each["state"], style=style),
            lag(max(behind, default=None)),
            where,
        )
    return table
