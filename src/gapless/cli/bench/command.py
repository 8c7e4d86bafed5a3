"""`gapless bench`: how fast is it here, and how soon does an event arrive?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.nodes import Credentials, Json, dials, run
from gapless.cli.readers import number, whole_number
from gapless.errors import UsageError
from gapless.figures.plots import check_plots

if TYPE_CHECKING:
    from gapless.cli.bench.run import BenchPlan, Measured

#: The kinds of picture that can be drawn.
PICTURES = (".png", ".svg", ".pdf")


_To = Annotated[
    str | None,
    typer.Option("--to", metavar="ADDRESS", help="The node to measure.  [default: a new one]"),
]
_Events = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number("--events", 1, 10**9),
        help="How many events.  [default: 3 seconds for each part]",
    ),
]
_Size = Annotated[
    int, typer.Option(metavar="BYTES", parser=whole_number("--size", 9, 2**20), help="Bytes of an event.")
]
_Batch = Annotated[
    int,
    typer.Option(
        metavar="N", parser=whole_number("--batch", 1, 65_536), help="Publish N events with one call."
    ),
]
_Subscribers = Annotated[
    int,
    typer.Option(
        metavar="N", parser=whole_number("--subscribers", 0, 1_000), help="How many get every event."
    ),
]
_Rate = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        parser=number("--rate", 1, 1e7),
        help="Measure latency alone, at N events a second.  [default: both parts, 2,000 a second]",
    ),
]
_InMemory = Annotated[
    bool,
    typer.Option("--in-memory/--durable", help="Whether the new node writes to disk before it confirms."),
]
_Data = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where the new node keeps its data.  [default: temporary files]"),
]
_Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the latencies: .png, .svg or .pdf.")]


@dials
def bench(
    *,
    to: _To = None,
    events: _Events = None,
    size: _Size = 250,
    batch: _Batch = 1,
    subscribers: _Subscribers = 1,
    rate: _Rate = None,
    in_memory: _InMemory = False,
    data: _Data = None,
    plot: _Plot = None,
    door: Credentials,
    as_json: Json = False,
) -> None:
    """Measure throughput and latency, of a new or a running node.

    \b
    Examples:
      gapless bench
      gapless bench --batch 500 --subscribers 4
      gapless bench --rate 10000 --plot latency.svg
      gapless bench --to gapless://edge-1:7400 --events 100000 --json

    The node has a process of its own; this one publishes and subscribes. First as many events as possible,
    then a steady rate for the latency: from `publish` to the receipt, which says that the event is on disk,
    and to the subscriber. What the temporary folder is on matters: name a folder on the disk in question.
    """
    if to is not None and (in_memory or data is not None):
        raise UsageError("E151", "--in-memory and --data are for a node of our own: leave out --to")
    if plot is not None and (plot.suffix.lower() not in PICTURES or not plot.parent.is_dir()):
        kinds = ", ".join(PICTURES)
        raise UsageError(
            "E154", f"--plot {plot}: cannot be written: name a file in a folder that is there: {kinds}"
        )
    if plot is not None:
        check_plots()
    if data is not None and not data.is_dir():
        raise UsageError("E154", f"--data {data}: there is no such folder")
    from gapless.cli.bench.run import BenchPlan  # noqa: PLC0415

    plan = BenchPlan(events=events, size=size, batch=batch, subscribers=subscribers, rate=rate)
    measured = run(_measured(plan, to, door, data, in_memory=in_memory))
    kept = "in memory" if in_memory else "durable"
    report = measured.report(plan, to or f"a process of its own, {kept}")
    if plot is not None:
        _draw(measured, report, plot)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _tell(report)


async def _measured(
    plan: BenchPlan, to: str | None, door: Credentials, data: Path | None, *, in_memory: bool
) -> Measured:
    from gapless.cli.bench.run import Bench, own_node  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        advance = stack.enter_context(_progress())
        if to is None:
            to = await stack.enter_async_context(own_node(data, in_memory=in_memory))
        return await Bench(to, door, plan, advance).run()


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar for each part, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _part, _share: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("measuring {task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        tasks: dict[str, Any] = {}

        def advance(part: str, share: float) -> None:
            if part not in tasks:
                tasks[part] = bar.add_task(part, total=1.0)
            bar.update(tasks[part], completed=share)

        yield advance


def _tell(report: dict[str, Any]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from gapless.cli.top.screen import new_console  # noqa: PLC0415

    console = new_console()
    batch = "one by one" if report["batch"] == 1 else f"{report['batch']:,} at a time"
    what = f"events of {report['event_bytes']:,} bytes, {batch}, {report['subscribers']:,} subscribers"
    console.print(f"{report['node']}; {what}", soft_wrap=True, markup=False)
    throughput = report["throughput"]
    if throughput is not None:
        speeds = f"{throughput['durable_per_s']:,}/s confirmed, {throughput['delivered_per_s']:,}/s delivered"
        console.print(f"throughput: {throughput['events']:,} events, {speeds}", soft_wrap=True)
    latency = report["latency"]
    console.print(f"latency of {latency['events']:,} events at {latency['rate']:,.0f}/s:", soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("from publish to")
    for name in latency["durable_ms"]:
        table.add_column(name, justify="right")
    rows = {"receipt": "durable_ms", "subscriber": "delivery_ms"}
    for title, field in rows.items():
        if field == "durable_ms" or report["subscribers"]:
            table.add_row(title, *(f"{value:,.2f} ms" for value in latency[field].values()))
    console.print(table)


def _draw(measured: Measured, report: dict[str, Any], path: Path) -> None:
    from gapless.figures.latency import draw_latencies  # noqa: PLC0415  # loaded only for drawing

    lines = {"publish to receipt": measured.durable, "publish to subscriber": measured.delivery}
    title = f"{report['event_bytes']} bytes, {report['latency']['rate']:,.0f} events/s: {report['node']}"
    draw_latencies(title, {name: times.sorted() for name, times in lines.items() if times.parts}, path)
