"""`gapless demo`: see a network of real processes lose a router, and nobody lose an event.

The network and its people are in `demo_network`, what happens in `demo_run`, the account in `demo_account`,
and how it is told in `demo_report` and `demo_figure`.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager, nullcontext, suppress
from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gapless.cli.demo_account import Record, account_of, differing_orders, recovery_s
from gapless.cli.demo_network import SUBSCRIBERS
from gapless.cli.demo_report import (
    Narrator,
    Outcome,
    as_json,
    broken,
    introduce,
    new_console,
    report,
)
from gapless.cli.demo_run import Demo
from gapless.cli.nodes import run
from gapless.cli.sim_report import say_json
from gapless.errors import ParameterError, UsageError

SECONDS, SECONDS_MIN, SECONDS_MAX = 20.0, 2.0, 3_600.0
RATE, RATE_MIN, RATE_MAX = 1_000.0, 10.0, 20_000.0
#: Where the figure goes unless everything is kept somewhere.
FIGURE = Path("out/figures/demo.png")
#: How often the lines at the bottom of a terminal change.
SHOW_SECONDS = 0.25
#: The exit status when an event was lost, came twice or out of order.
EXIT_BROKEN = 1


def demo(
    *,
    seconds: Annotated[float, typer.Option("--seconds", help="How long events are published.")] = SECONDS,
    rate: Annotated[float, typer.Option("--rate", help="How many events a second.")] = RATE,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep", metavar="FOLDER", help="Keep logs, data, the account and the figure in a new folder."
        ),
    ] = None,
    as_object: Annotated[
        bool, typer.Option("--json", help="Print the account as one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Watch a network of real processes lose a router, and nobody lose an event.

    gapless demo --seconds 60 --keep demo-1

    Starts five brokers, publishers and subscribers on this machine, kills a router with -9 while events flow,
    starts it again, and settles the account: published, matched, delivered, lost, duplicated, out of order.

    Exit status: 0 when every promise was kept, 1 when not.
    """
    _check("--seconds", seconds, SECONDS_MIN, SECONDS_MAX)
    _check("--rate", rate, RATE_MIN, RATE_MAX)
    console = None if as_object else new_console()
    with _folder(keep) as folder:
        outcome = _outcome(Path(folder), keep, seconds, rate, console)
        if keep is not None:
            (keep / "account.json").write_text(json.dumps(as_json(outcome), indent=2), encoding="utf-8")
    if console is None:
        say_json(as_json(outcome))
    else:
        report(console, outcome)
    if not outcome.kept:
        typer.echo(f"demo: a promise was broken: {broken(outcome)}", err=True)
        raise typer.Exit(EXIT_BROKEN)


def _check(option: str, value: float, least: float, most: float) -> None:
    # Written so that what is not a number is refused, too.
    if not least <= value <= most:
        raise ParameterError("E150", f"{option} takes a number from {least:g} to {most:g}, got {value:g}")


def _folder(keep: Path | None) -> AbstractContextManager[str | Path]:
    """Where everything goes. Raises UsageError when it cannot."""
    if keep is None:
        return TemporaryDirectory(prefix="gapless-demo-")
    try:
        keep.mkdir(parents=True)
    except OSError as error:
        reason = "it is there already" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError("E154", f"--keep {keep} cannot be made: {reason}") from error
    return nullcontext(keep)


def _outcome(
    folder: Path, keep: Path | None, seconds: float, rate: float, console: Console | None
) -> Outcome:
    run_of: list[Record] = []

    async def story() -> None:
        run_of.append(await _told(folder, seconds, rate, console))

    run(story())
    record = run_of[0]
    return Outcome(
        record=record,
        accounts=[account_of(plan, record) for plan in SUBSCRIBERS],
        order_differences=differing_orders(SUBSCRIBERS, record),
        recovery_s=recovery_s(SUBSCRIBERS, record),
        figure=_drawn(record, FIGURE if keep is None else keep / "latency.png"),
    )


def _drawn(record: Record, path: Path) -> Path | None:
    """The figure; None where it cannot be written, as the account matters more."""
    from gapless.cli.demo_figure import draw  # noqa: PLC0415  # what draws takes half a second to load

    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(record, path)
        return path
    return None


async def _told(folder: Path, seconds: float, rate: float, console: Console | None) -> Record:
    if console is None:
        return await Demo(folder, seconds=seconds, rate=rate, tell=_silence).run()
    introduce(console, seconds, rate, folder)
    live = Live(Text("Starting ..."), console=console, transient=True) if console.is_terminal else None
    with live or nullcontext():
        narrator = Narrator(console, live, seconds)
        running = Demo(folder, seconds=seconds, rate=rate, tell=narrator.tell)
        watching = asyncio.create_task(_watch(running, narrator))
        try:
            return await running.run()
        finally:
            watching.cancel()


def _silence(_what: str, _record: Record) -> None:
    pass


async def _watch(running: Demo, narrator: Narrator) -> None:
    """Tell a row every second, and keep the lines below up to date."""
    await running.started.wait()
    row_s = 1.0
    while (now_s := running.now_s()) < running.record.stopped_s:
        if now_s >= row_s:
            narrator.row(running.record, now_s)
            row_s = floor(now_s) + 1.0
        narrator.show(running.record, now_s)
        await asyncio.sleep(min(SHOW_SECONDS, max(0.0, row_s - now_s)))
