"""`gapless sim`: does the protocol keep its promises when everything goes wrong?

This file holds the options and decides which of four things is asked for: many seeds, one seed again, an
experiment of the paper, or the demonstration. Everything is checked before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console

from gapless.cli.exits import EXIT_INTERRUPTED
from gapless.cli.output.console import new_console, say, say_json
from gapless.cli.readers import seconds, whole_number
from gapless.cli.sim.report import (
    progress_bar,
    run_json,
    source_tree,
    summary_json,
    tell_replay,
    tell_run,
    tell_summary,
    trace_lines,
)
from gapless.cli.sim.scenario import SCENARIOS, overridden, run_scenario
from gapless.cli.sim.seeds import SeedOutcome, Tally, collect, outcome_of
from gapless.demo.simulated import demonstrate
from gapless.errors import ParameterError, UsageError
from gapless.figures.measures import is_good
from gapless.model.ids import PubendId
from gapless.protocol.trace import Entry, story
from gapless.sim.run import run
from gapless.sim.topologies import FIGURE3_PUBENDS

SEEDS = 100
FIRST_SEED = 1
#: Below the folders that version control ignores.
FIGURES_FOLDER = Path("out/figures")
#: Some promise was broken.
EXIT_BROKEN = 1
#: What shells report for a command that Ctrl-C has ended.


#: For each option, the ways to run that it belongs to.
BELONGS_TO = {
    "--first": ("--seeds",),
    "--quiet": ("--seeds",),
    "--require-all": ("--seeds",),
    "--jobs": ("--seeds", "--demo"),
    "--story": ("--seed", "--scenario"),
    "--trace": ("--seed", "--scenario"),
    "--out": ("--scenario",),
    "--outage": ("--scenario",),
    "--parameter": ("--scenario",),
    "--json": ("--seeds", "--seed", "--scenario"),
}

_Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=whole_number("--seeds", 1), help=f"How many seeds to run.  [default: {SEEDS}]"
    ),
]
_First = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=whole_number("--first", 0), help=f"The first of them.  [default: {FIRST_SEED}]"
    ),
]
_Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number("--jobs", 1, 1_024),
        help="How many runs at the same time.  [default: one per core]",
    ),
]
_Quiet = Annotated[bool, typer.Option("--quiet", help="No line for a run that went well.")]
_RequireAll = Annotated[
    bool,
    typer.Option(
        "--require-all", help="Fail, too, when a kind of fault or a branch of the protocol was never reached."
    ),
]
_Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number("--seed", 0),
        help="Replay this one seed exactly, and tell what it drew; 0x1f and 31 are the same.",
    ),
]
_Story = Annotated[
    tuple[str, str] | None,
    typer.Option("--story", metavar="PUBEND TICK", help="Tell all that happened to one tick of one pubend."),
]
_Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write every event and effect of the run to a file, one per line."),
]
_Scenario = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"Replay a failure of the paper: {', '.join(SCENARIOS)}."),
]
_Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help=f"Where its figure is written.  [default: {FIGURES_FOLDER}]"),
]
_Outage = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        parser=seconds("--outage"),
        help="How long the failure lasts.  [default: as in the paper]",
    ),
]
_Parameter = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Change a parameter of the paper, such as gap_curiosity_ms=100; repeatable.",
    ),
]
_Demo = Annotated[bool, typer.Option("--demo", help="A minute that shows what Gapless does.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON objects, one per line, and nothing else.")]


def sim(
    *,
    seeds: _Seeds = None,
    first: _First = None,
    jobs: _Jobs = None,
    quiet: _Quiet = False,
    require_all: _RequireAll = False,
    seed: _Seed = None,
    story_of: _Story = None,
    trace: _Trace = None,
    scenario: _Scenario = None,
    out: _Out = None,
    outage: _Outage = None,
    parameter: _Parameter = None,
    demo: _Demo = False,
    json: _Json = False,
) -> None:
    """Simulate networks under faults, and check every promise.

    A seed decides everything: the network, its load, and what goes wrong. While faults strike and after
    they have healed, independent checkers compare what every subscriber took with what was logged. A broken
    promise ends the run with the story of the tick that broke, and with the command that shows it again.

    \b
    Examples:
      gapless sim                          100 seeds on all cores
      gapless sim --seeds 500 --quiet      more of them, and only the summary
      gapless sim --seed 0x5f3a            one of them again, event for event
      gapless sim --seed 3 --trace t.txt   ... with everything that happened
      gapless sim --scenario b1-crash      the paper's crash of a router: table and figure
      gapless sim --demo                   a minute that shows what Gapless does

    Exit status: 0 when every promise was kept, 1 when one was broken, 2 when the command was refused.
    """
    mode = _mode({"--seeds": seeds, "--seed": seed, "--scenario": scenario, "--demo": demo or None})
    _refuse_strays(
        mode,
        {
            "--first": first is not None,
            "--quiet": quiet,
            "--require-all": require_all,
            "--jobs": jobs is not None,
            "--story": story_of is not None,
            "--trace": trace is not None,
            "--out": out is not None,
            "--outage": outage is not None,
            "--parameter": bool(parameter),
            "--json": json,
        },
    )
    jobs = jobs or len(os.sched_getaffinity(0))
    asked = _Asked(trace, story_of)
    if demo:
        code = _exit_code(demonstrate(new_console(), jobs))
    elif scenario is not None:
        folder = out or FIGURES_FOLDER
        code = _replay_scenario(scenario, parameter or [], outage, folder=folder, asked=asked, json=json)
    elif seed is not None:
        code = _replay_seed(seed, asked, json)
    else:
        start = FIRST_SEED if first is None else first
        code = _run_seeds(range(start, start + (seeds or SEEDS)), jobs, quiet, require_all, json)
    raise typer.Exit(code)


def _mode(given: dict[str, object]) -> str:
    """Which of the ways to run was asked for. Raises UsageError when it was more than one."""
    modes = [option for option, value in given.items() if value is not None]
    if len(modes) > 1:
        raise UsageError("E151", f"{modes[0]} and {modes[1]} do not go together: choose one")
    return modes[0] if modes else "--seeds"


def _refuse_strays(mode: str, given: dict[str, bool]) -> None:
    for option in (each for each, is_given in given.items() if is_given):
        if mode not in BELONGS_TO[option]:
            homes = " or ".join(BELONGS_TO[option])
            raise UsageError("E151", f"{option} goes with {homes}, not with {mode}")


def _exit_code(kept: bool) -> int:
    return 0 if kept else EXIT_BROKEN


# ---- many seeds --------------------------------------------------------------------------------------


def _run_seeds(seeds: range, jobs: int, quiet: bool, require_all: bool, json: bool) -> int:
    console = new_console()
    source_tree()

    def tell(outcome: SeedOutcome) -> None:
        if json:
            say_json(run_json(outcome))
        elif not (quiet and outcome.ok):
            tell_run(console, outcome)

    started = monotonic()
    with progress_bar(console, enabled=not json) as bar:
        task = bar.add_task("simulating", total=len(seeds))
        tally, interrupted = collect(seeds, jobs, tell=tell, finished=partial(bar.advance, task))
    elapsed_s = monotonic() - started
    if json:
        say_json(summary_json(tally, elapsed_s, interrupted))
    else:
        tell_summary(console, tally, elapsed_s, interrupted)
    return _seeds_code(tally, interrupted, require_all)


def _seeds_code(tally: Tally, interrupted: bool, require_all: bool) -> int:
    incomplete = require_all and bool(tally.faults_missing or tally.marks_missing)
    if tally.failed or (incomplete and not interrupted):
        return EXIT_BROKEN
    return EXIT_INTERRUPTED if interrupted else 0


# ---- one run, told in full ---------------------------------------------------------------------------


class _Asked:
    """What is wanted of a trace: a file, and the story of a tick."""

    def __init__(self, path: Path | None, story_of: tuple[str, str] | None) -> None:
        """Check what can be checked before the run. Raises UsageError."""
        self._path = path
        self._pubend = None if story_of is None else PubendId(story_of[0])
        self._tick = 0 if story_of is None else whole_number("--story", 0)(story_of[1])
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError("E154", f"--trace {path}: not a file in an existing folder")

    def check(self, pubends: Iterable[str]) -> None:
        """Raises UsageError when the story is about a pubend that is not there."""
        if self._pubend is not None and self._pubend not in (known := sorted(pubends)):
            raise UsageError("E155", f"--story: no pubend {self._pubend!r}: there are {', '.join(known)}")

    def write(self, console: Console | None, trace: Sequence[Entry]) -> None:
        """Write the file and tell the story; with no console, the file only."""
        if self._path is not None:
            try:
                with self._path.open("w", encoding="utf-8") as file:
                    file.writelines(trace_lines(trace))
            except OSError as error:
                raise UsageError("E154", f"--trace {self._path}: cannot write: {error.strerror}") from error
        if console is None:
            return
        if self._path is not None:
            say(console, f"trace: {self._path} (the last {len(trace):,} events and effects)")
        if self._pubend is not None:
            text = story(trace, self._pubend, self._tick) or "nothing happened to it"
            say(console, f"\nthe story of {self._pubend}@{self._tick} (milliseconds, broker, what happened):")
            say(console, text)


def _replay_seed(seed: int, asked: _Asked, json: bool) -> int:
    result = run(seed)
    asked.check(result.network.pubends)
    outcome = outcome_of(result)
    if json:
        say_json(run_json(outcome))
        asked.write(None, result.trace)
    else:
        console = new_console()
        tell_replay(console, result, outcome)
        asked.write(console, result.trace)
    return _exit_code(result.ok)


def _replay_scenario(
    name: str, settings: list[str], outage_s: float | None, *, folder: Path, asked: _Asked, json: bool
) -> int:
    if name not in SCENARIOS:
        raise ParameterError("E152", f"no scenario {name!r}: there are {', '.join(SCENARIOS)}")
    parameters = overridden(settings)
    asked.check(FIGURE3_PUBENDS)
    console = new_console()
    result = run_scenario(
        console, name, parameters=parameters, outage_s=outage_s, folder=folder, machine_readable=json
    )
    asked.write(None if json else console, result.trace)
    return _exit_code(is_good(result))
