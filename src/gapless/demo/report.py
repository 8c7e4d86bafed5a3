"""How is the demo reported? In words while it runs, then as a summary; no line is wider than 80.

On a terminal two lines at the bottom say how far it is, and which brokers run; elsewhere there are only the
lines above them, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gapless.cli.output.console import say
from gapless.demo.account import PHASES, Account, LatencyFigures, Record
from gapless.demo.network import (
    EDGES,
    PUBLISHERS,
    REPOSITORY,
    ROUTERS,
    SUBSCRIBERS,
    VICTIM,
    SubscriberPlan,
    router_of,
)

#: Lines fit into this many columns, however wide the terminal is.
WIDTH = 80

PICTURE = """\
             p1            repository: keeps every event, on disk first of all
           ┌─┴──┐
           b1───b2         routers: a cell, where each can do the other's work
           ├─┬┬─┤
           s1   s2         edges: match events with what subscribers want"""

STYLES = {"running": "bold green", "killed": "bold red", "starting": "bold yellow"}

HEADER = """\
                          delivered a second     slowest of the last second
   time   published/s         at s1     at s2           at s1       at s2"""

SURVIVOR = next(router for router in ROUTERS if router != VICTIM)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """Everything that the demo found out."""

    record: Record
    accounts: Sequence[Account]
    #: Neighbours in the total order of one subscriber that are in another order at another one.
    order_differences: int
    #: By edge and pubend, seconds from the kill to the first event that was published after it.
    recovery_s: Mapping[str, Mapping[str, float]]
    figure: Path | None

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not self.order_differences and all(each.kept for each in self.accounts)


def new_console() -> Console:
    """Standard output, 80 columns at most."""
    console = Console(highlight=False)
    return Console(highlight=False, width=min(WIDTH, console.width) if console.is_terminal else WIDTH)


def duration(seconds: float) -> str:
    """A length of time with three digits.

    >>> duration(0.00123), duration(0.0456), duration(0.1234), duration(2.718)
    ('1.2 ms', '46 ms', '123 ms', '2.72 s')
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1_000:.1f} ms" if seconds < 0.01 else f"{seconds * 1_000:.0f} ms"


def milliseconds(seconds: float) -> str:
    """A length of time as a number of milliseconds.

    >>> milliseconds(0.00123), milliseconds(0.0456), milliseconds(2.7183)
    ('1.2', '46', '2718')
    """
    return f"{seconds * 1_000:.1f}" if seconds < 0.01 else f"{seconds * 1_000:.0f}"


def picture() -> Text:
    """The network."""
    text = Text(PICTURE)
    text.highlight_words([REPOSITORY, *ROUTERS, *EDGES], STYLES["running"])
    return text


def introduce(console: Console, seconds: float, rate: float, folder: Path) -> None:
    """Say what will happen, before anything does."""
    say(console, "Gapless: publish/subscribe that never skips.\n", "bold")
    say(console, "Five brokers, each a process of its own on this machine:\n")
    console.print(picture())
    listed = ", ".join(f"{plan.name} ({plan.pubend})" for plan in PUBLISHERS)
    say(console, f"\nPublishers (logs): {listed}.")
    say(
        console,
        f"Together {rate:,.0f} events a second for {seconds:g} s; p1 flushes them to disk (fdatasync)",
    )
    say(console, "before anybody sees them. The others subscribe:\n")
    for plan in SUBSCRIBERS:
        say(console, f"  {plan.edge}  {plan.name:<9} {plan.topic:<7} {wanted_text(plan)}")
    say(console, f"\nAfter a third of the time {VICTIM} is killed with kill -9; after two thirds it is")
    say(console, f"started again. Data and logs, kept with --keep only: {folder}\n")


def wanted_text(plan: SubscriberPlan) -> str:
    """What a subscriber wants, in its own words."""
    order = ", in total order" if plan.order == "total" else ""
    return f"{plan.where or '(everything)'}{order}"


def say_event(console: Console, time_s: float, text: str, style: str) -> None:
    """Print what has happened, after the time of it."""
    first, *rest = text.splitlines()
    say(console, f"{time_s:>5.1f} s  {first}", style)
    for line in rest:
        say(console, f"         {line}", style)


class Narrator:
    """Tells the demo while it runs: a row every second, and a sentence whenever something happens."""

    def __init__(self, console: Console, live: Live | None, seconds: float) -> None:
        self._console = console
        self._live = live
        self._seconds = seconds
        self._state = "running"
        #: What had been published, and had come to each subscriber, when the last row was told.
        self._published = 0
        self._taken = dict.fromkeys((plan.name for plan in SUBSCRIBERS), 0)
        self._row_s = 0.0

    def tell(self, what: str, record: Record) -> None:
        """Something has happened."""
        match what:
            case "started":
                say(self._console, HEADER, "bold")
            case "killed":
                self._state = "killed"
                self._event(
                    record.killed_s,
                    f"kill -9 {VICTIM}. It carried {' and '.join(taken_over())}; what it had in memory\n"
                    f"is gone. {SURVIVOR} must now do the work of both.",
                    "bold red",
                )
            case "recovered":
                self._event(
                    record.recovered_s,
                    f"{SURVIVOR} has taken over: s1 and s2 hear of all publishers again,\n"
                    f"{duration(record.recovered_s - record.killed_s)} after the kill.",
                    "bold cyan",
                )
            case "restarted":
                self._state = "starting"
                self._event(record.restarted_s, f"{VICTIM} is started again.", "yellow")
            case "back":
                self._state = "running"
                text = f"{VICTIM} is back, remembers nothing, and gets its share again."
                self._event(record.back_s, text, "green")
            case "stopped":
                self._event(record.stopped_s, "Publishing ends. Now everything has to arrive ...", "bold")
            case _:
                raise AssertionError(f"nothing is known of {what!r}")

    def row(self, record: Record, now_s: float) -> None:
        """Tell what the time since the last row was like."""
        published = sum(len(each.rows) for each in record.published.values())
        elapsed_s = now_s - self._row_s
        counts = dict.fromkeys(EDGES, 0)
        worst_s = dict.fromkeys(EDGES, 0.0)
        for plan in SUBSCRIBERS:
            taken = record.arrivals[plan.name]
            first, self._taken[plan.name] = self._taken[plan.name], len(taken.names)
            counts[plan.edge] += len(taken.names) - first
            for name, at_s in zip(taken.names[first:], taken.at_s[first:], strict=True):
                worst_s[plan.edge] = max(worst_s[plan.edge], at_s - record.sent_s(name))
        rates = "".join(f"{counts[edge] / elapsed_s:>10,.0f}" for edge in EDGES)
        worst = "".join(f"{duration(worst_s[edge]) if counts[edge] else '-':>12}" for edge in EDGES)
        rate = (published - self._published) / elapsed_s
        say(self._console, f"{now_s:>5.1f} s {rate:>13,.0f}    {rates}    {worst}", "dim")
        self._published, self._row_s = published, now_s

    def _event(self, time_s: float, text: str, style: str) -> None:
        say_event(self._console, time_s, text, style)

    def show(self, record: Record, now_s: float) -> None:
        """Bring the lines at the bottom of a terminal up to date."""
        if self._live is None:
            return
        published = sum(len(each.rows) for each in record.published.values())
        delivered = sum(len(each.names) for each in record.arrivals.values())
        text = Text(f"\n {min(now_s, self._seconds):>4.0f} of {self._seconds:g} s", "bold")
        text.append(f"    {published:,} published    {delivered:,} delivered    ")
        for broker in (REPOSITORY, *ROUTERS, *EDGES):
            state = self._state if broker == VICTIM else "running"
            text.append(f" {broker}" if state == "running" else f" {broker} {state}", STYLES[state])
        self._live.update(text)


def report(console: Console, outcome: DemoOutcome) -> None:
    """Print the deliveries, the latencies, the recovery and the verdict."""
    say(console, "\nDelivery report. What should match was recomputed from all published events, by")
    say(console, "Python functions for SQL and by lxml for XPath; no broker was asked.")
    console.print(accounts_table(outcome.accounts))
    say(console, "Latency from publishing to arrival in milliseconds, with the disk in between:")
    say(console, f"before {VICTIM} was killed, while it was away, and after it was back.")
    console.print(latency_table(outcome.accounts))
    for edge, by_pubend in outcome.recovery_s.items():
        times = ", ".join(f"{pubend} {duration(seconds)}" for pubend, seconds in sorted(by_pubend.items()))
        say(console, f"First new event at {edge} after the kill: {times}.")
    say(console, f"{SURVIVOR} took over {' and '.join(taken_over())}; it had carried the rest before.")
    if outcome.figure is not None:
        say(console, f"Every event as a dot: {outcome.figure}")
    verdict(console, outcome)


def taken_over() -> list[str]:
    """The pubends whose events the killed router carried."""
    return sorted({plan.pubend for plan in PUBLISHERS if router_of(plan.pubend) == VICTIM})


def accounts_table(accounts: Sequence[Account]) -> Table:
    """One row per subscriber."""
    table = plain_table("\nat", "\nwho")
    names = (
        "\npublished",
        "\nmatched",
        "\ndelivered",
        "\nlost",
        "dupli-\ncated",
        "out of\norder",
        "not\nwanted",
    )
    for name in names:
        table.add_column(name, justify="right")
    for each in accounts:
        counts = (each.published, each.matched, each.delivered)
        faults = (each.lost, each.duplicated, each.out_of_order, each.unwanted)
        shown = [Text(f"{count:,}", "bold red" if count else "green") for count in faults]
        table.add_row(each.plan.edge, each.plan.name, *(f"{count:,}" for count in counts), *shown)
    return table


def latency_table(accounts: Sequence[Account]) -> Table:
    """One row per subscriber."""
    table = plain_table("\nat", "\nwho")
    latency_columns(table)
    for each in accounts:
        table.add_row(each.plan.edge, each.plan.name, *latency_cells(each.latency))
    return table


def latency_columns(table: Table) -> None:
    """Add the columns of three figures for each phase."""
    for phase in PHASES:
        for figure in ("50%", "99%", "max"):
            table.add_column(f"{phase if figure == '50%' else ''}\n{figure}", justify="right", no_wrap=True)


def latency_cells(latency: Mapping[str, LatencyFigures]) -> list[str]:
    """What goes into them, in milliseconds."""
    cells: list[str] = []
    for phase in PHASES:
        found = latency[phase]
        figures = (found.p50_s, found.p99_s, found.max_s)
        cells += [milliseconds(one) if found.events else "-" for one in figures]
    return cells


def plain_table(*names: str) -> Table:
    """A table without a frame, with these columns of text first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def verdict(console: Console, outcome: DemoOutcome) -> None:
    """The last line: kept, or what was broken."""
    if outcome.kept:
        delivered = sum(each.delivered for each in outcome.accounts)
        text = f"{delivered:,} deliveries: nothing lost, nothing twice, nothing out of order."
        say(console, f"\n{text}", "bold green")
        return
    say(console, f"\nA promise was broken: {broken(outcome)}", "bold red")


def broken(outcome: DemoOutcome) -> str:
    """What went wrong, and for whom."""
    found = [
        f"{each.plan.name} at {each.plan.edge}: {count:,} {what}"
        for each in outcome.accounts
        for count, what in (
            (each.lost, "lost"),
            (each.duplicated, "duplicated"),
            (each.out_of_order, "out of order"),
            (each.unwanted, "not wanted"),
        )
        if count
    ]
    if outcome.order_differences:
        found.append(f"{outcome.order_differences:,} places where total orders differ")
    return "; ".join(found)


def as_json(outcome: DemoOutcome) -> dict[str, object]:
    """The outcome for a program to read; times in seconds."""
    record = outcome.record
    return {
        "kept": outcome.kept,
        "published": {name: len(each.rows) for name, each in record.published.items()},
        "killed": VICTIM,
        "took_over": SURVIVOR,
        "killed_s": record.killed_s,
        "restarted_s": record.restarted_s,
        "back_s": record.back_s,
        "stopped_s": record.stopped_s,
        "recovery_s": outcome.recovery_s,
        "total_order_differences": outcome.order_differences,
        "subscribers": [
            {
                "name": each.plan.name,
                "edge": each.plan.edge,
                "topic": each.plan.topic,
                "where": each.plan.where,
                "order": each.plan.order,
                "published": each.published,
                "matched": each.matched,
                "delivered": each.delivered,
                "lost": each.lost,
                "duplicated": each.duplicated,
                "out_of_order": each.out_of_order,
                "unwanted": each.unwanted,
                "latency": {phase: asdict(found) for phase, found in each.latency.items()},
            }
            for each in outcome.accounts
        ],
        "figure": None if outcome.figure is None else str(outcome.figure),
    }
