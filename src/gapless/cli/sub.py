"""`gapless sub`: print the events of a topic as they come."""

from __future__ import annotations

from typing import Annotated

import typer

from gapless.cli.match_cells import row_text
from gapless.cli.nodes import ADDRESS, TO, run
from gapless.client import connect
from gapless.errors import ParameterError
from gapless.wire.client_messages import Start


def sub(
    topic: Annotated[str, typer.Argument(help="The topic to subscribe to.")],
    *,
    where: Annotated[str, typer.Option("--where", help="A condition in SQL or XPath.")] = "",
    start: Annotated[
        str, typer.Option("--from", metavar="now|earliest|TICK", help="Where to begin.")
    ] = "now",
    order: Annotated[
        str, typer.Option("--order", metavar="publisher|total", help="In which order.")
    ] = "publisher",
    limit: Annotated[int | None, typer.Option("--limit", help="Stop after so many events.")] = None,
    names: Annotated[
        bool, typer.Option("--names", help="Print the pubend and tick of each event, too.")
    ] = False,
    to: Annotated[str, TO] = ADDRESS,
) -> None:
    """Print events as lines of JSON, each exactly once, until stopped.

    gapless sub trades --where "sym LIKE 'I%' AND price > 100"

    A line on standard error says when the subscription has begun: nothing from then on is missed.
    """
    if order not in ("publisher", "total"):
        raise ParameterError("E150", f"--order takes publisher or total, got {order!r}")
    run(_printed(topic, where, _start(start), order, limit, names=names, to=to))


async def _printed(
    topic: str, where: str, start: Start, order: str, limit: int | None, *, names: bool, to: str
) -> None:
    async with connect(to) as client, client.subscribe(topic, where, order=order, start=start) as events:
        typer.echo(f"subscribed to {topic}", err=True)
        count = 0
        while limit is None or count < limit:
            event = await anext(events)
            row: dict[str, object] = dict(event)
            if names:
                row = {"pubend": event.pubend, "tick": event.tick, "event": row}
            typer.echo(row_text(row))
            count += 1


def _start(text: str) -> Start:
    if text == "now":
        return "now"
    if text == "earliest":
        return "earliest"
    try:
        return int(text)
    except ValueError:
        raise ParameterError("E150", f"--from takes now, earliest or a tick, got {text!r}") from None
