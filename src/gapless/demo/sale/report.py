"""How is the ticket sale reported? In words while it runs, then as a summary; no line is wider than 80.

On a terminal the table itself is at the bottom, as the client at the first edge shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gapless.cli.output.console import say
from gapless.demo.account import PHASES
from gapless.demo.network import EDGES, ROUTERS
from gapless.demo.report import STYLES, duration, latency_cells, latency_columns, plain_table, say_event
from gapless.demo.sale.account import Row, Sale, WatchAccount, counts
from gapless.demo.sale.run import TicketSale
from gapless.demo.sale.tickets import ITEMS, SQL, VIEW

#: Maximum number of rows on the terminal: those with the fewest tickets left.
ROWS = 10

HEADER = """\
                             items   tickets        waits to be shown
   time   published/s   for sale      left        at s1       at s2"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaleOutcome:
    """Everything that the second act found out."""

    sale: Sale
    accounts: Sequence[WatchAccount]
    figure: Path | None

    @property
    def kept(self) -> bool:
        """Whether every table was right."""
        return all(each.kept for each in self.accounts)


def introduce(console: Console, rate: float, victim: str) -> None:
    """Say what will happen, before anything does."""
    say(console, "\nSecond act: the ticket sale of the SMILE paper, a live view on Spark.", "bold")
    say(console, f"The view '{VIEW}' merges, sums, joins, extends and selects:\n")
    for line in SQL.splitlines():
        say(console, f"  {line}", "cyan")
    say(console, f"\nSellers offer {len(ITEMS)} items; buyers in the east and in the west buy them. All of")
    say(console, f"them publish {rate:,.0f} events a second. Clients at s1 and s2 watch the view.")
    say(console, f"{victim}, the router that carries it, is killed with kill -9, and while it is away")
    say(console, "the Spark application is, too. Both are started again. Spark takes a while ...\n")


class SaleNarrator:
    """Tells the sale while it runs: a row every second, and a sentence whenever something happens."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        #: What does not run, and what it does instead.
        self._down: dict[str, str] = {}
        self._published = 0
        self._row_s = 0.0

    def tell(self, what: str, sale: Sale) -> None:
        """Something has happened."""
        victim = sale.victim
        match what:
            case "opened":
                self._published = sale.events
                say(self._console, f"The view runs, {duration(sale.start_s)} after it was created.")
                say(self._console, f"\n{HEADER}", "bold")
            case "router killed":
                self._down[victim] = "killed"
                other = next(each for each in ROUTERS if each != victim)
                text = f"kill -9 {victim}. {other} must carry the view now."
                self._event(sale.router_killed_s, text, "bold red")
            case "spark killed":
                self._down["Spark"] = "killed"
                text = "kill -9 Spark: the application and its virtual machine. The clients\n"
                self._event(
                    sale.spark_killed_s, f"{text}keep what they have shown; nothing new comes.", "bold red"
                )
            case "spark restarted":
                self._down["Spark"] = "starting"
                self._event(sale.spark_restarted_s, "Spark is started again.", "yellow")
            case "router back":
                self._down.pop(victim, None)
                self._event(sale.router_back_s, f"{victim} is back.", "green")
            case "spark back":
                self._down.pop("Spark", None)
                took = duration(sale.spark_back_s - sale.spark_killed_s)
                text = f"Spark is back: both clients show what was published since,\n{took} after the kill."
                self._event(sale.spark_back_s, text, "bold cyan")
            case "stopped":
                self._event(sale.stopped_s, "The sale ends. Now the table has to be right ...", "bold")
            case _:
                raise AssertionError(f"nothing is known of {what!r}")

    def _event(self, time_s: float, text: str, style: str) -> None:
        say_event(self._console, time_s, text, style)

    def row(self, running: TicketSale, now_s: float) -> None:
        """Tell what the time since the last row was like."""
        rows = running.tables[EDGES[0]]
        rate = (running.sale.events - self._published) / (now_s - self._row_s)
        left = sum(count for _, count in rows.values())
        waits = "".join(f"{duration(running.behind_s(edge)):>12}" for edge in EDGES)
        line = f"{now_s:>5.1f} s {rate:>13,.0f} {len(rows):>10,} {left:>9,} {waits}"
        say(self._console, line, "dim")
        self._published, self._row_s = running.sale.events, now_s

    def show(self, running: TicketSale, now_s: float) -> None:
        """Bring the table at the bottom of a terminal up to date."""
        if self._live is None:
            return
        sale, rows = running.sale, running.tables[EDGES[0]]
        text = Text(f" {now_s:>4.0f} s", "bold")
        text.append(f"    {sale.events:,} events    {len(sale.shown[EDGES[0]]):,} states    ")
        for name in (*ROUTERS, "Spark"):
            state = self._down.get(name, "running")
            text.append(f" {name}" if state == "running" else f" {name} {state}", STYLES[state])
        self._live.update(Group(view_table(rows, ROWS), text))


def view_table(rows: Mapping[str, Row], count: int) -> Table:
    """The first rows of the view, those with the fewest tickets left first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 1))
    table.add_column("item", width=24, no_wrap=True)
    table.add_column("price", justify="right", width=9)
    table.add_column("avail", justify="right", width=7)
    ordered = sorted(rows.items(), key=lambda row: (row[1][1], row[0]))
    for item, (price, left) in ordered[:count]:
        table.add_row(item, f"{price:.2f}", f"{left:,}", style="yellow" if left <= count else "")
    table.add_row(Text(f"... and {max(0, len(rows) - count)} more", "dim"), "", "")
    return table


def report(console: Console, outcome: SaleOutcome) -> None:
    """Print the states, the staleness and the verdict."""
    sale = outcome.sale
    offers, buys = counts(sale)
    say(console, f"\nReport on {offers:,} offers and {buys:,} buys. From them, plain Python computed")
    say(console, "what each state that was shown must be, as of the ticks that it names.")
    table = plain_table("\nat")
    names = (
        "\nstates",
        "wrong\nstates",
        "rows at\nthe end",
        "rows that\ndiffer",
        "events\nmissing",
        "steps\nback",
    )
    for name in names:
        table.add_column(name, justify="right")
    for each in outcome.accounts:
        faults = (each.states_wrong, each.rows_differ, each.events_missing, each.states_back)
        wrong, differ, missing, back = (Text(f"{n:,}", "bold red" if n else "green") for n in faults)
        table.add_row(each.edge, f"{each.states:,}", wrong, f"{each.rows:,}", differ, missing, back)
    console.print(table)
    say(console, "Staleness, from publishing an event to showing it, in milliseconds:")
    say(console, f"before {sale.victim} was killed, until both were back, and after that.")
    stale = plain_table("\nat")
    latency_columns(stale)
    for each in outcome.accounts:
        stale.add_row(each.edge, *latency_cells(each.staleness))
    console.print(stale)
    if outcome.figure is not None:
        say(console, f"Staleness over time: {outcome.figure}")
    verdict(console, outcome)


def verdict(console: Console, outcome: SaleOutcome) -> None:
    """The last line: kept, or what was broken."""
    if not outcome.kept:
        say(console, f"\nA table was wrong: {broken(outcome)}", "bold red")
        return
    states = sum(each.states for each in outcome.accounts)
    text = f"{outcome.sale.events:,} events, {states:,} states shown, 0 rows that differ."
    say(console, f"\n{text}", "bold green")


def broken(outcome: SaleOutcome) -> str:
    """What went wrong, and where."""
    return "; ".join(
        f"{VIEW} at {each.edge}: {count:,} {what}"
        for each in outcome.accounts
        for count, what in (
            (each.rows_wrong, "wrong rows in its states"),
            (each.rows_differ, "rows that differ in the end"),
            (each.events_missing, "events missing in the end"),
            (each.states_back, "states that go back"),
        )
        if count
    )


def as_json(outcome: SaleOutcome) -> dict[str, object]:
    """The outcome for a program to read; times in seconds."""
    sale = outcome.sale
    offers, buys = counts(sale)
    return {
        "kept": outcome.kept,
        "view": VIEW,
        "sql": SQL,
        "items": len(ITEMS),
        "offers": offers,
        "buys": buys,
        "killed": [sale.victim, "spark"],
        "start_s": sale.start_s,
        "router_killed_s": sale.router_killed_s,
        "router_back_s": sale.router_back_s,
        "spark_killed_s": sale.spark_killed_s,
        "spark_restarted_s": sale.spark_restarted_s,
        "spark_back_s": sale.spark_back_s,
        "stopped_s": sale.stopped_s,
        "watchers": [
            {
                "edge": each.edge,
                "states": each.states,
                "states_wrong": each.states_wrong,
                "states_back": each.states_back,
                "rows": each.rows,
                "rows_differ": each.rows_differ,
                "events_missing": each.events_missing,
                "staleness": {phase: asdict(each.staleness[phase]) for phase in PHASES},
            }
            for each in outcome.accounts
        ],
        "figure": None if outcome.figure is None else str(outcome.figure),
    }
