"""What does Gapless do? In a minute: the network of the paper loses a router, and no subscriber notices.

On a terminal the picture of the network stays below the timeline and changes colour with its brokers;
elsewhere the same lines are printed one after the other.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import which
from time import monotonic

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gapless.cli.output.console import say
from gapless.cli.sim.report import progress_bar, summary_line, tell_finding
from gapless.cli.sim.seeds import collect
from gapless.figures.measures import duration, is_good
from gapless.sim.paper import FAIL_US, PUBLISHING_STARTS_US, STALL_US, Latency, Moment, PaperResult, run_paper
from gapless.sim.world import SECOND_US

#: The paper keeps b1 down for 30 s, in which nothing happens.
OUTAGE_S = 4.0
SEEDS = range(1, 21)

PICTURE = """\
                   p1                    publishes: 4 pubends, 25 messages a second each
          ┌────────┴────────┐
       b1 │ b2           b3 │ b4         route: two brokers share the work of each cell
        ┌─┴──┐          ┌───┼───┐
       s1    s2        s3   s4   s5      deliver: one subscriber at each, who wants everything"""

STALLED_S, FAILED_S = STALL_US / SECOND_US, FAIL_US / SECOND_US

HEADER = """\
                            taken at          slowest of the last second at
   time  published      s1     s2     s3            s1      s2      s3"""


STYLES = {"running": "bold green", "stalled": "bold yellow", "down": "bold red"}


def picture(state: str = "running") -> Text:
    """The network of Figure 3, with b1 coloured by its state."""
    text = Text(PICTURE)
    text.highlight_words(["p1", "b2", "b3", "b4", "s1", "s2", "s3", "s4", "s5"], STYLES["running"])
    text.highlight_words(["b1"], STYLES[state])
    return text


def live_picture(state: str) -> Text:
    """The picture below the timeline, which says the state in words too."""
    return Text("\n").append_text(picture(state)).append(f"\n       b1 is {state}", STYLES[state])


class PaperNarrator:
    """Tells an experiment while it runs: a row every second, and a sentence whenever something happens."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._next_row_s = PUBLISHING_STARTS_US / SECOND_US + 1
        self._cues = [
            (STALLED_S, self._stall),
            (FAILED_S, self._crash),
            (FAILED_S + OUTAGE_S, self._repair),
        ]
        #: How many messages each edge had taken when its last row was printed.
        self._told: Counter[str] = Counter()
        self._published = 0
        self._nacks = 0
        self._asked = False

    def watch(self, moment: Moment) -> None:
        """Tell what is new."""
        if moment.time_s >= self._next_row_s and moment.published > self._published:
            self._row(moment)
            self._next_row_s += 1
            self._published = moment.published
        if self._cues and moment.time_s >= self._cues[0][0]:
            self._cues.pop(0)[1](moment)
        nacks = sum(len(sent) for sent in moment.nacks.values())
        # Told when the last of them is sent, so that they can be counted.
        if moment.nacks.get("s1") and nacks == self._nacks and not self._asked:
            self._asked = True
            self._recovery(moment)
        self._nacks = nacks

    def _row(self, moment: Moment) -> None:
        taken = {edge: moment.latencies[edge] for edge in ("s1", "s2", "s3")}
        counts = "".join(f"{len(each):>7,}" for each in taken.values())
        worst = "".join(f"{self._worst(each[self._told[edge] :]):>8}" for edge, each in taken.items())
        self._told.update({edge: len(each) - self._told[edge] for edge, each in taken.items()})
        say(self._console, f"{moment.time_s:>5.1f} s {moment.published:>10,} {counts}      {worst}", "dim")

    def _worst(self, some: Sequence[Latency]) -> str:
        return duration(max((each.latency_s for each in some), default=0.0))

    def _event(self, time_s: float, text: str, style: str) -> None:
        first, *rest = text.splitlines()
        say(self._console, f"{time_s:>5.1f} s  {first}", style)
        for line in rest:
            say(self._console, f"         {line}", style)

    def _show(self, state: str) -> None:
        if self._live is not None:
            self._live.update(live_picture(state))

    def _stall(self, moment: Moment) -> None:
        self._show("stalled")
        text = "b1 stalls: it accepts messages and forwards none. No link is down, so nobody notices."
        self._event(moment.time_s, text, "yellow")

    def _crash(self, moment: Moment) -> None:
        self._show("down")
        # The other half of the network has what these two lack.
        lost = len(moment.latencies["s3"]) - len(moment.latencies["s1"])
        text = (
            f"b1 crashes, and with it the {lost} messages in its memory that were meant for s1 and s2.\n"
            "Its neighbours see their links break, and send everything through b2 from now on."
        )
        self._event(moment.time_s, text, "bold red")

    def _recovery(self, moment: Moment) -> None:
        below_ms = sum(nack.range_ms for nack in moment.nacks["s1"])
        above_ms = sum(nack.range_ms for nack in moment.nacks.get("b2", ()))
        text = (
            f"s1 and s2 have seen a gap for 200 ms, and each asks b2 for {below_ms:,.0f} ms of ticks.\n"
            f"b2 is asked twice and asks p1 once, for {above_ms:,.0f} ms: questions merge on their way up.\n"
            "p1 still has them all, and its answers go only to those who have asked."
        )
        self._event(min(nack.time_s for nack in moment.nacks["s1"]), text, "bold cyan")

    def _repair(self, moment: Moment) -> None:
        self._show("running")
        text = "b1 is back, remembers nothing, and gets its half of the traffic again."
        self._event(moment.time_s, text, "green")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeAccount:
    """What one subscriber got, counted from the messages that it took."""

    edge: str
    matched: int
    delivered: int
    lost: int
    duplicated: int
    out_of_order: int
    #: The worst latency of what was sent before the stall, from then to the crash, and after the repair.
    before_s: float
    during_s: float
    after_s: float


def account_of(result: PaperResult, edge: str) -> EdgeAccount:
    """Verify exactly-once delivery to the subscriber at an edge, which wants every message."""
    taken = result.latencies[edge]
    # A pubend sends one message at a time, so that the time tells its messages apart.
    distinct = {(each.pubend, each.sent_s) for each in taken}
    newest: dict[str, float] = {}
    out_of_order = 0
    for each in taken:
        out_of_order += each.sent_s < newest.get(each.pubend, 0.0)
        newest[each.pubend] = max(each.sent_s, newest.get(each.pubend, 0.0))

    def worst_s(start_s: float, stop_s: float) -> float:
        return max((each.latency_s for each in taken if start_s <= each.sent_s < stop_s), default=0.0)

    return EdgeAccount(
        edge=edge,
        matched=result.published,
        delivered=len(taken),
        lost=result.published - len(distinct),
        duplicated=len(taken) - len(distinct),
        out_of_order=out_of_order,
        before_s=worst_s(0, result.stalled_s),
        during_s=worst_s(result.stalled_s, result.failed_s),
        after_s=worst_s(result.repaired_s, float("inf")),
    )


def accounts_table(accounts: Sequence[EdgeAccount]) -> Table:
    """One row per subscriber."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("at")
    for name in ("matched", "delivered", "lost", "duplicated", "out of order", "before", "during", "after"):
        table.add_column(name, justify="right")
    for each in accounts:
        counts = (each.matched, each.delivered, each.lost, each.duplicated, each.out_of_order)
        latencies = (each.before_s, each.during_s, each.after_s)
        table.add_row(each.edge, *(f"{count:,}" for count in counts), *(duration(one) for one in latencies))
    return table


def demonstrate(console: Console, jobs: int) -> bool:
    """Show what Gapless does; True when every promise was kept."""
    say(console, "Gapless: publish/subscribe that never skips.\n", "bold")
    say(console, "This is the network of the Gryphon paper (Figure 3), simulated in virtual time:\n")
    console.print(picture())
    kept = _lose_a_router(console)
    kept &= _random_networks(console, jobs)
    _what_next(console)
    return kept


def _lose_a_router(console: Console) -> bool:
    say(console, "\nSoon its router b1 will fail, with messages on board.\n")
    say(console, HEADER, "bold")
    live = Live(live_picture("running"), console=console, transient=True) if console.is_terminal else None
    with live or nullcontext():
        result = run_paper("b1-crash", outage_s=OUTAGE_S, watch=PaperNarrator(console, live).watch)
    accounts = [account_of(result, edge) for edge in sorted(result.latencies)]
    kept = is_good(result) and not any(each.lost or each.duplicated or each.out_of_order for each in accounts)
    say(
        console,
        f"\nDelivery report: {result.published:,} messages published, 5 subscribers who want them all,",
        "bold",
    )
    say(
        console,
        "and the worst latency of messages sent before the stall, during it, and after the repair.",
        "bold",
    )
    console.print(accounts_table(accounts))
    if kept:
        say(console, "Nothing lost, nothing twice, nothing out of order.", "bold green")
    else:
        say(console, f"A promise was broken: {result.violation or 'see the report'}", "bold red")
    return kept


def _random_networks(console: Console, jobs: int) -> bool:
    say(
        console,
        f"\nNow {len(SEEDS)} random networks, with links cut and stalled, messages lost, brokers crashed,",
    )
    say(console, "clocks set wrong, disks full and subscribers coming and going:\n")
    started = monotonic()
    with progress_bar(console, enabled=True) as bar:
        task = bar.add_task("simulating", total=len(SEEDS))
        tell = partial(tell_finding, console)
        tally, interrupted = collect(SEEDS, jobs, tell=tell, finished=partial(bar.advance, task))
    kept = not tally.failed
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in tally.faults.most_common(8))
    say(console, f"faults: {kinds}, ...")
    say(console, summary_line(tally, monotonic() - started), "bold green" if kept else "bold red")
    return kept and not interrupted


def _what_next(console: Console) -> None:
    program = _program()
    say(console, "\nTry next:", "bold")
    for arguments, meaning in (
        ("sim --seeds 500", "more random networks, and a list of all that was reached"),
        (f"sim --seed {SEEDS[-1]:#x}", "one of them again, event for event, in detail"),
        ("sim --scenario b1-crash", "the failure above as the paper has it, with a figure"),
        ("sim --help", "everything else"),
    ):
        say(console, f"  {f'{program} {arguments}':<44}  {meaning}")


def _program() -> str:
    """How the command was called, when `gapless` alone would not be found."""
    called = Path(sys.argv[0])
    if which("gapless") or called.name != "gapless":
        return "gapless"
    here = Path.cwd()
    return str(called.relative_to(here)) if called.is_relative_to(here) else str(called)
