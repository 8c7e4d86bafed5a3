"""`gapless demo`: kill a router and Spark in a network of real processes, without losing an event.

The first act, about events, is in `gapless.demo`; the second, about a live view, in `gapless.demo.sale`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gapless.cli.nodes import run
from gapless.cli.output.console import say, say_json
from gapless.demo.account import Record, account_of, differing_orders, recovery_s
from gapless.demo.network import EDGES, SUBSCRIBERS
from gapless.demo.report import (
    DemoOutcome,
    Narrator,
    as_json,
    broken,
    introduce,
    new_console,
    report,
)
from gapless.demo.run import Demo
from gapless.demo.sale import report as demo_sale_report
from gapless.demo.sale.account import Sale
from gapless.demo.sale.account import account_of as sale_account_of
from gapless.demo.sale.report import SaleNarrator, SaleOutcome
from gapless.demo.sale.run import TicketSale
from gapless.demo.spark import missing
from gapless.errors import ParameterError, UsageError
from gapless.figures.plots import check_plots

SECONDS, SECONDS_MIN, SECONDS_MAX = 20.0, 2.0, 3_600.0
RATE, RATE_MIN, RATE_MAX = 1_000.0, 10.0, 20_000.0
#: Where the figures go unless everything is kept somewhere.
FIGURES = Path("out/figures")
#: How often the lines at the bottom of a terminal change.
SHOW_SECONDS = 0.25
#: While nothing new is shown, a row is told so much later.
QUIET_SECONDS = 4.0
#: The exit status when an event was lost, came twice or out of order, or a table was wrong.
EXIT_BROKEN = 1


def demo(
    *,
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long events are published in each act.")
    ] = SECONDS,
    rate: Annotated[float, typer.Option("--rate", help="How many events a second.")] = RATE,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave the second act out.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep", metavar="FOLDER", help="Keep logs, data, the report and the figures in a new folder."
        ),
    ] = None,
    as_object: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Watch a network of real processes lose a router, and no subscriber lose an event.

    gapless demo --seconds 60 --keep demo-1

    Starts five brokers, publishers and subscribers on this machine, kills a router with -9 while events flow,
    starts it again, and verifies exactly-once delivery: published, matched, delivered, lost, duplicated, ...

    The second act is a ticket sale, where the table of what is left is a live view on Spark. A router and the
    Spark application are killed; every table that was shown is compared with one computed from all events. It
    needs PySpark and Java, and is left out without them.

    Exit status: 0 when every promise was kept, 1 when not.
    """
    _check("--seconds", seconds, SECONDS_MIN, SECONDS_MAX)
    _check("--rate", rate, RATE_MIN, RATE_MAX)
    check_plots()
    console = None if as_object else new_console()
    with _folder(keep) as folder:
        outcome = _first_act(Path(folder), keep, seconds, rate, console)
        skipped = "--no-spark" if no_spark else missing()
        sale = None if skipped else _second_act(Path(folder), keep, seconds, rate, console)
        report_json = {
            **as_json(outcome),
            "kept": outcome.kept and (sale is None or sale.kept),
            "sale": None if sale is None else demo_sale_report.as_json(sale),
            "sale_skipped": skipped,
        }
        if keep is not None:
            (keep / "account.json").write_text(json.dumps(report_json, indent=2), encoding="utf-8")
    if console is None:
        say_json(report_json)
    else:
        _end(console, skipped)
    faults = [] if outcome.kept else [broken(outcome)]
    if sale is not None and not sale.kept:
        faults.append(demo_sale_report.broken(sale))
    if faults:
        typer.echo(f"demo: a promise was broken: {'; '.join(faults)}", err=True)
        raise typer.Exit(EXIT_BROKEN)


def _end(console: Console, skipped: str | None) -> None:
    if skipped:
        say(console, f"\nThe second act, a live view on Spark, is left out: {skipped}", "bold yellow")
    say(console, "\nNext: gapless demo --help, or gapless sim --demo for stranger faults.")


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


# ---- the first act: events ---------------------------------------------------------------------------


def _first_act(
    folder: Path, keep: Path | None, seconds: float, rate: float, console: Console | None
) -> DemoOutcome:
    record = run(_narrated(folder, seconds, rate, console))
    from gapless.demo.figure import draw  # noqa: PLC0415  # what draws takes half a second to load

    path = FIGURES / "demo.png" if keep is None else keep / "latency.png"
    outcome = DemoOutcome(
        record=record,
        accounts=[account_of(plan, record) for plan in SUBSCRIBERS],
        order_differences=differing_orders(SUBSCRIBERS, record),
        recovery_s=recovery_s(SUBSCRIBERS, record),
        figure=_drawn(lambda: draw(record, path), path),
    )
    if console is not None:
        report(console, outcome)
    return outcome


def _drawn(draw: Callable[[], None], path: Path) -> Path | None:
    """The figure; None where it cannot be written, as the report matters more."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draw()
        return path
    return None


async def _narrated(folder: Path, seconds: float, rate: float, console: Console | None) -> Record:
    if console is None:
        return await Demo(folder, seconds=seconds, rate=rate, tell=_silence).run()
    introduce(console, seconds, rate, folder)
    with _bottom(console) as live:
        narrator = Narrator(console, live, seconds)
        running = Demo(folder, seconds=seconds, rate=rate, tell=narrator.tell)
        watching = asyncio.create_task(_watch(running, narrator))
        try:
            return await running.run()
        finally:
            watching.cancel()


def _bottom(console: Console) -> AbstractContextManager[Live | None]:
    """Lines at the bottom of a terminal that change all the time."""
    is_terminal = console.is_terminal
    return Live(Text("Starting ..."), console=console, transient=True) if is_terminal else nullcontext()


def _silence(_what: str, _record: object) -> None:
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


# ---- the second act: a live view ---------------------------------------------------------------------


def _second_act(
    folder: Path, keep: Path | None, seconds: float, rate: float, console: Console | None
) -> SaleOutcome:
    sale = run(_sale_told(folder / "sale", seconds, rate, console))
    from gapless.demo.sale.figure import draw  # noqa: PLC0415  # as above

    path = FIGURES / "demo-view.png" if keep is None else keep / "staleness.png"
    outcome = SaleOutcome(
        sale=sale,
        accounts=[sale_account_of(edge, sale) for edge in EDGES],
        figure=_drawn(lambda: draw(sale, path), path),
    )
    if console is not None:
        demo_sale_report.report(console, outcome)
    return outcome


async def _sale_told(folder: Path, seconds: float, rate: float, console: Console | None) -> Sale:
    if console is None:
        return await TicketSale(folder, seconds=seconds, rate=rate, tell=_silence).run()
    with _bottom(console) as live:
        narrator = SaleNarrator(console, live)
        running = TicketSale(folder, seconds=seconds, rate=rate, tell=narrator.tell)
        demo_sale_report.introduce(console, rate, running.sale.victim)
        watching = asyncio.create_task(_watch_sale(running, narrator))
        try:
            return await running.run()
        finally:
            watching.cancel()


async def _watch_sale(running: TicketSale, narrator: SaleNarrator) -> None:
    """Tell a row every second, or fewer while nothing new is shown, and keep the table below up to date."""
    await running.started.wait()
    row_s, states = 1.0, 0
    while True:
        now_s = running.now_s()
        shown = sum(map(len, running.sale.shown.values()))
        is_due = now_s >= row_s + (0.0 if shown > states else QUIET_SECONDS)
        if is_due and now_s < running.sale.stopped_s:
            narrator.row(running, now_s)
            row_s, states = floor(now_s) + 1.0, shown
        narrator.show(running, now_s)
        await asyncio.sleep(SHOW_SECONDS)
