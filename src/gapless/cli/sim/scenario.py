"""How is an experiment of the paper run from the command line? With a progress bar, a table and a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gapless.cli.output.console import say, say_json
from gapless.errors import ParameterError, UsageError
from gapless.figures.measures import as_json, is_good, rows
from gapless.figures.plots import check_plots
from gapless.protocol.parameters import Parameters
from gapless.sim.paper import PAPER_PARAMETERS, Moment, PaperResult, run_paper
from gapless.sim.run import tell

#: What happens in each experiment.
SCENARIOS: Mapping[str, str] = {
    "b1-s1-link": "the link from b1 to s1 stalls unnoticed, fails, and is mended",
    "b1-crash": "the router b1 stalls unnoticed, crashes, and restarts",
    "p1-crash": "the publishing broker p1 is cut off unnoticed, crashes, and restarts",
}


def overridden(settings: list[str]) -> dict[str, object]:
    """The paper's parameters, changed by texts such as `gap_curiosity_ms=100`. Raises ParameterError.

    >>> overridden(["gap_curiosity_ms=100"])["gap_curiosity_ms"]
    100
    """
    values = dict(PAPER_PARAMETERS)
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ParameterError("E153", f"--parameter {setting!r} is not of the form name=value")
        values[name] = int(text) if text.isascii() and text.removeprefix("-").isdigit() else text
    Parameters.parse(values)
    return values


def run_scenario(
    console: Console,
    name: str,
    *,
    parameters: Mapping[str, object],
    outage_s: float | None,
    folder: Path,
    machine_readable: bool,
) -> PaperResult:
    """Run an experiment, print its table or its JSON object, and write its picture into the folder."""
    check_plots()
    _make(folder)
    if not machine_readable:
        say(console, f"{name}: {SCENARIOS[name]}", "bold")
    # matplotlib is loaded only for drawing.
    from gapless.figures.failures import draw  # noqa: PLC0415

    with _progress(console, enabled=console.is_terminal and not machine_readable) as progress:
        task = progress.add_task("simulating", total=1.0)

        def watch(moment: Moment) -> None:
            progress.update(task, completed=moment.time_s, total=moment.end_s)

        result = run_paper(name, parameters=parameters, outage_s=outage_s, watch=watch)
    picture = folder / f"{name}.png"
    draw(result, picture)
    if machine_readable:
        say_json({**as_json(result), "parameters": parameters, "figure": str(picture)})
    else:
        console.print(table(result))
        tell_violation(console, result, _command(name, parameters, outage_s))
        say(console, f"figure: {picture}")
    return result


def table(result: PaperResult) -> Table:
    """What was measured, beside what the paper reports."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column(result.name, no_wrap=True)
    made.add_column("here")
    made.add_column("in the paper")
    for row in rows(result):
        made.add_row(row.what, row.measured, row.in_the_paper)
    return made


def tell_violation(console: Console, result: PaperResult, command: str) -> None:
    """Print what broke, how, and the command that shows it again; nothing for a good experiment."""
    if is_good(result):
        return
    if result.violation is not None:
        say(console, f"violation: {result.violation}", "bold red")
        say(console, tell(result.violation, result.trace))
    say(console, f"reproduce with:\n  {command}", "bold red")


def _command(name: str, parameters: Mapping[str, object], outage_s: float | None) -> str:
    changed = [
        f" --parameter {each}={value}"
        for each, value in parameters.items()
        if PAPER_PARAMETERS.get(each) != value
    ]
    outage = "" if outage_s is None else f" --outage {outage_s:g}"
    return f"gapless sim --scenario {name}{outage}{''.join(changed)}"


def _make(folder: Path) -> None:
    """Have a folder to write to before the run, so that one that cannot be made costs nobody a minute."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("E154", f"--out {folder}: cannot make this folder: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise UsageError("E154", f"--out {folder}: cannot write to this folder")


def _progress(console: Console, *, enabled: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} s" if enabled else ""),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not enabled,
    )
