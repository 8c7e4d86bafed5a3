"""How are simulated runs reported? Lines, tables and JSON objects for terminals, files and programs."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path
from shutil import which

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import gapless
from gapless.cli.output.console import say
from gapless.cli.sim.seeds import SeedOutcome, Tally
from gapless.protocol.marks import MARKS
from gapless.protocol.network import Network
from gapless.protocol.parameters import Parameters
from gapless.protocol.trace import Entry, describe
from gapless.sim.faults import KINDS
from gapless.sim.run import RunResult

#: How many kinds of fault the line of a run names.
RUN_FAULTS_MAX = 3

FAULT_MEANINGS = {
    "loss": "a message was lost on its way",
    "duplication": "a message arrived twice",
    "reordering": "a message overtook another one",
    "delay_spike": "a link became slow for a while",
    "link_cut": "a link broke, and both ends saw it",
    "link_stall": "a link accepted messages and forwarded none, unnoticed",
    "broker_stall": "a broker accepted everything and did nothing, unnoticed",
    "broker_crash": "a broker lost everything but its disk",
    "pubend_crash": "a publishing broker crashed while its disk lagged behind",
    "disk_full": "a record could not be written",
    "clock_forward": "a wall clock jumped ahead",
    "clock_backward": "a wall clock jumped back",
    "connection_cut": "the connection of a client broke, at any byte",
    "connection_stall": "the connection of a client accepted bytes and carried none, unnoticed",
    "publisher_kill": "a publishing program died, with or without a memory",
    "subscriber_kill": "a subscribing program with a name died, and came back without a memory",
    "churn": "a subscriber came or went",
    "slow_subscriber": "a subscriber stopped reading for a while",
    "folder_loss": "a broker lost its whole folder, and started without it",
    "folder_rollback": "a broker's folder was replaced by an older copy",
    "unsynced_loss": "a crash lost records that were not flushed",
    "torn_write": "a crash left a record half written",
    "queue_overflow": "a subscriber fell so far behind that its queue overflowed",
    "clock_leap": "the wall clock of a repository leapt an hour ahead",
    "fell_behind": "a broker learned that others had seen a later life of it, and started again",
    "older_copy_noticed": "a broker learned that one of its logs is an older copy, and started again",
    "reserve_refused": "the disk had no room for reservations; then a crash and an earlier clock",
    "reserve_crash": "a crash soon after a reservation became durable, then an earlier clock",
    "grant_crash": "a crash soon after a start tick was granted, then an earlier clock",
    "grant_orphaned": "events were refused by the disk, a start tick above them was kept; then a crash",
    "publish_refused": "the disk refused events, and others of the same publisher came close behind",
    "link_burst": "a link let go at once what it had held back, and somebody subscribed to it",
}


def progress_bar(console: Console, *, enabled: bool) -> Progress:
    """A bar of finished runs, on a terminal only."""
    return Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (enabled and console.is_terminal),
    )


# ---- one run -----------------------------------------------------------------------------------------


def run_line(outcome: SeedOutcome) -> str:
    """One run in one line."""
    verdict = "ok    " if outcome.finding is None else "FAILED"
    return (
        f"seed {outcome.seed:#06x}  {verdict} {outcome.brokers:>3} brokers {outcome.published:>6,} published "
        f"{outcome.delivered:>7,} delivered {outcome.virtual_seconds:>5.1f} s  {_faults_text(outcome.faults)}"
    )


def _faults_text(faults: Counter[str]) -> str:
    """How many faults, and which were most frequent."""
    often = ", ".join(f"{kind} {count}" for kind, count in faults.most_common(RUN_FAULTS_MAX))
    more = ", ..." if len(faults) > RUN_FAULTS_MAX else ""
    return f"{faults.total():>5,} faults: {often}{more}" if faults else "   no faults"


def tell_run(console: Console, outcome: SeedOutcome) -> None:
    """Print the line of a run, and when it failed, why and how to see it again."""
    say(console, run_line(outcome), "" if outcome.ok else "bold red")
    tell_finding(console, outcome)


def tell_finding(console: Console, outcome: SeedOutcome) -> None:
    """Print what broke, the story of how, and the command that shows it again; nothing for a good run."""
    finding = outcome.finding
    if finding is None:
        return
    say(console, f"\nviolation: {finding.text}\n", "red")
    what = f"the story of {finding.pubend}@{finding.tick}" if finding.tick is not None else "the last lines"
    say(console, f"{what} (milliseconds, broker, what happened):")
    say(console, finding.story)
    say(console, "\nreproduce with:", "bold")
    for command in reproductions(outcome.seed):
        say(console, f"  {command}")
    say(console, "")


def reproductions(seed: int) -> list[str]:
    """The commands that show a run again."""
    tree = source_tree()
    made = [] if tree is None else [f"make sim SEED={seed:#x} {tree}"]
    return [f"gapless sim --seed {seed:#x}", *made]


@cache
def source_tree() -> str | None:
    """The commit that we run from, for `make sim`; None when there is no checkout.

    Call it before a long run: the tree may be changed while the run goes on with what it has loaded.
    """
    git, root = which("git"), Path(gapless.__file__).parents[2]
    if git is None or not (root / ".git").exists():
        return None

    def answer(*arguments: str) -> str:
        command = [git, "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # no user input
        return done.stdout.strip()

    commit = answer("rev-parse", "--short", "HEAD")
    changed = "  # with changes that are not committed" if answer("status", "--porcelain", "src") else ""
    return f"COMMIT={commit}{changed}" if commit else None


def run_json(outcome: SeedOutcome) -> dict[str, object]:
    """One run for a program to read."""
    finding = outcome.finding
    return {
        "kind": "run",
        "seed": outcome.seed,
        "ok": outcome.ok,
        "brokers": outcome.brokers,
        "published": outcome.published,
        "delivered": outcome.delivered,
        "steps": outcome.steps,
        "virtual_seconds": round(outcome.virtual_seconds, 6),
        "fingerprint": f"{outcome.fingerprint:08x}",
        "faults": dict(sorted(outcome.faults.items())),
        "marks": dict(sorted(outcome.marks.items())),
        "violation": None
        if finding is None
        else {
            "checker": finding.checker,
            "subject": finding.subject,
            "pubend": finding.pubend,
            "tick": finding.tick,
            "text": finding.text,
            "story": finding.story.splitlines(),
            "reproduce": reproductions(outcome.seed),
        },
    }


# ---- many runs ---------------------------------------------------------------------------------------


def tell_summary(console: Console, tally: Tally, seconds: float, interrupted: bool) -> None:
    """Print what all runs together came to, and what none of them reached."""
    console.print(_counts_table("fault injected", tally.faults, tally.faults_runs, FAULT_MEANINGS, KINDS))
    console.print(_counts_table("branch reached", tally.marks, tally.marks_runs, MARKS, MARKS))
    say(console, summary_line(tally, seconds), "bold green" if not tally.failed else "bold red")
    say(console, *_missing_line("kinds of fault", "injected", tally.faults_missing, len(KINDS)))
    say(console, *_missing_line("branches", "reached", tally.marks_missing, len(MARKS)))
    if interrupted:
        say(console, "interrupted: the seeds after these were not run", "yellow")
    for seed in tally.failed:
        say(console, f"failed: {'   or: '.join(reproductions(seed))}", "red")


def _missing_line(what: str, verb: str, missing: list[str], total: int) -> tuple[str, str]:
    """What was never met, and the style to say it in."""
    if not missing:
        return f"all {total} {what} were {verb}", ""
    return f"{len(missing)} of {total} {what} were never {verb}: {', '.join(missing)}", "yellow"


def summary_line(tally: Tally, seconds: float) -> str:
    """All runs in one line."""
    violations = f"{len(tally.failed)} violation{'' if len(tally.failed) == 1 else 's'}"
    return (
        f"{tally.runs} seeds: {violations}; {tally.faults.total():,} faults, {tally.published:,} events "
        f"published, {tally.delivered:,} delivered; {tally.virtual_seconds:,.0f} s of virtual time in "
        f"{seconds:.0f} s"
    )


def _counts_table(
    title: str, counts: Counter[str], runs: Counter[str], meanings: dict[str, str], names: Iterable[str]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title, no_wrap=True)
    table.add_column("times", justify="right")
    table.add_column("in runs", justify="right")
    table.add_column("meaning")
    for name in names:
        style = "" if counts[name] else "yellow"
        table.add_row(name, f"{counts[name]:,}", f"{runs[name]:,}", meanings.get(name, ""), style=style)
    return table


def summary_json(tally: Tally, seconds: float, interrupted: bool) -> dict[str, object]:
    """All runs for a program to read; every kind of fault and every mark is named, with 0 when missing."""
    return {
        "kind": "summary",
        "runs": tally.runs,
        "violations": len(tally.failed),
        "failed_seeds": tally.failed,
        "published": tally.published,
        "delivered": tally.delivered,
        "virtual_seconds": round(tally.virtual_seconds, 6),
        "seconds": round(seconds, 3),
        "faults": {kind: tally.faults[kind] for kind in KINDS},
        "marks": {name: tally.marks[name] for name in MARKS},
        "faults_never_injected": tally.faults_missing,
        "marks_never_reached": tally.marks_missing,
        "interrupted": interrupted,
    }


# ---- one run in detail -------------------------------------------------------------------------------


def tell_replay(console: Console, result: RunResult, outcome: SeedOutcome) -> None:
    """Print what a seed drew, what happened, and what it came to."""
    say(console, f"seed {result.seed:#x} draws this network:", "bold")
    for line in network_lines(result.network):
        say(console, f"  {line}")
    kinds = ", ".join(result.profile.kinds) or "none"
    say(console, f"and these faults, at intensity {result.profile.intensity}:", "bold")
    say(console, f"  {kinds}")
    say(console, "what happened:", "bold")
    for counted, meanings in ((result.faults, FAULT_MEANINGS), (result.marks, MARKS)):
        for name in (each for each in meanings if counted[each]):
            say(console, f"  {counted[name]:>7,}  {name}: {meanings[name]}")
    tell_finding(console, outcome)
    say(console, str(result), "bold green" if result.ok else "bold red")
    say(console, f"fingerprint {result.fingerprint:08x}: every replay at this commit ends with the same")


def network_lines(network: Network) -> list[str]:
    """A network in a few lines; of the parameters, those that are not as we ship them."""
    cells = "  ".join(f"{cell}({' '.join(brokers)})" for cell, brokers in network.cells.items())
    links = "  ".join(f"{one}--{other}" for one, other in network.links) or "none"
    pubends = "  ".join(f"{name}@{place.broker}" for name, place in network.pubends.items())
    parameters = network.parameters
    changed = "  ".join(
        f"{each.name}={'infinite' if value is None else value}"
        for each in fields(Parameters)
        for value in [getattr(parameters, each.name)]
        if value != each.default
    )
    return [
        f"cells       {cells}",
        f"links       {links}",
        f"pubends     {pubends}",
        f"edges       {' '.join(sorted(network.edges))}",
        f"parameters  {changed or 'as shipped'}",
    ]


def trace_lines(trace: Iterable[Entry]) -> Iterable[str]:
    """A whole run as text, one line per event and effect: milliseconds, broker, what."""
    for time_ms, broker, item in trace:
        yield f"{time_ms:>8}  {broker:<6}  {describe(item)}\n"
