"""`gapless top`: what is a whole network doing right now?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gapless.cli.nodes import Json, NodesOptions, dials, run
from gapless.cli.output.terminal import tame, tamed
from gapless.cli.readers import number

if TYPE_CHECKING:
    from gapless.cli.reports import Answer, Watch


@dials
def top(
    network: Annotated[
        Path | None,
        typer.Argument(metavar="NETWORK.toml", help="The network: every broker with an address is asked."),
    ] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", parser=number("--every", 0.2, 3_600, "seconds"), help="How often to look."
        ),
    ] = 1.0,
    nodes: NodesOptions,
    as_json: Json = False,
) -> None:
    """Watch a whole network: rates, latency, horizons, gaps, nacks, links.

    \b
    Examples:
      gapless top network.toml
      gapless top --to gapless://edge-1:7400 --to gapless://edge-2:7400
      gapless top network.toml --once --json | jq '.brokers[].rates'

    Positions of a pubend are shown as their distance from its last event: `handed out` is the position of
    subscribers that keep up, `acked` what they have taken, `released` what the log has released. A broker
    that does not answer is shown as down. Ctrl-C ends. Without a terminal, as with --once, there is one
    frame.
    """
    run(_watched(network, nodes, every, once=once, as_json=as_json))


async def _watched(
    network: Path | None, nodes: NodesOptions, every: float, *, once: bool, as_json: bool
) -> None:
    from gapless.cli.reports import Watch, check_answered, places_of  # noqa: PLC0415

    async with Watch(places_of(network, nodes), nodes) as watch:
        if as_json:
            answers = await watch.ask()
            check_answered(answers)
            brokers = [
                answer.report or {"broker": answer.place.broker, "address": answer.place.address,
                                  "down": True, "error": answer.error}
                for answer in answers
            ]  # fmt: skip
            typer.echo(json.dumps({"brokers": brokers}))
        else:
            await _drawn(watch, every, once=once, title=f"{network.name}: " if network else "")


async def _drawn(watch: Watch, every: float, *, once: bool, title: str) -> None:
    from rich.live import Live  # noqa: PLC0415  # drawing needs rich

    from gapless.cli.reports import check_answered  # noqa: PLC0415
    from gapless.cli.top.screen import frame, new_console  # noqa: PLC0415

    console = new_console()
    answers = await watch.ask()
    check_answered(answers)
    if once or not console.is_terminal:
        console.print(frame(_tame(answers), title=title))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(frame(_tame(answers), title=title, lines=console.height), refresh=True)
                await asyncio.sleep(every)
                answers = await watch.ask()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()


def _tame(answers: Sequence[Answer]) -> list[Answer]:
    """The same with control characters escaped."""
    return [replace(each, report=tamed(each.report), error=tame(each.error)) for each in answers]
