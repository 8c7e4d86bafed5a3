"""`gapless sub`: print the events of a topic as they come.

Exactly the printed events are acknowledged: with `--name`, a subscriber that was stopped in any way resumes
where its output ended. Ctrl-C and a closed pipe (`| head`) are normal ways to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from gapless.cli.nodes import NodeOptions, dials, run
from gapless.cli.readers import one_of, tick, whole_number
from gapless.errors import ContentError, ParameterError, UsageError, no_topic

if TYPE_CHECKING:
    from gapless.cli.sub.history import Past, PastRows
    from gapless.client import Batch, Client, Subscription
    from gapless.client.options import AckMode, DeliveryOrder
    from gapless.model.schema import Schema
    from gapless.protocol.sessions.messages import Start

#: Prints the first rows of a batch.
Printer = Callable[["Batch | PastRows", int], None]


_Where = Annotated[
    str, typer.Option("--where", metavar="SQL", help="Only events that this condition accepts.")
]
_Xpath = Annotated[
    str | None,
    typer.Option("--xpath", metavar="PATTERN", help="Only events with a document like this."),
]
_Column = Annotated[
    str | None,
    typer.Option("--column", metavar="NAME", help="The column of the documents, if there are several."),
]
_Name = Annotated[
    str | None,
    typer.Option("--name", metavar="TEXT", help="Make it durable: it resumes where it was under this name."),
]
_Start = Annotated[str, typer.Option("--from", metavar="now|earliest|TICK|TIME", help="Where to begin.")]
_Order = Annotated[
    str,
    typer.Option(
        metavar="publisher|total",
        parser=one_of("--order", "publisher", "total"),
        help="The order of each publisher, or one total order.",
    ),
]
_Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", parser=whole_number("--limit", 1), help="Stop after N events."),
]
_Names = Annotated[bool, typer.Option("--names", help="Also print the pubend and the tick of each event.")]
_Table = Annotated[
    bool, typer.Option("--table", help="Show the newest events as a table, instead of lines of JSON.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print lines of JSON (the default).")]
_Ack = Annotated[
    str,
    typer.Option(
        metavar="auto|none",
        parser=one_of("--ack", "auto", "none"),
        help="Acknowledge printed events, or nothing: then the next subscriber gets them again.",
    ),
]
_History = Annotated[
    bool,
    typer.Option("--history", help="Begin with events that only the archive has; for a new subscriber."),
]
_Forget = Annotated[bool, typer.Option("--forget", help="Print nothing: delete the durable subscription.")]


@dials
def sub(
    topic: Annotated[str, typer.Argument(help="The topic to subscribe to.")],
    *,
    where: _Where = "",
    xpath: _Xpath = None,
    column: _Column = None,
    name: _Name = None,
    start: _Start = "now",
    order: _Order = "publisher",
    limit: _Limit = None,
    names: _Names = False,
    table: _Table = False,
    as_json: _Json = False,
    ack: _Ack = "auto",
    history: _History = False,
    forget: _Forget = False,
    node: NodeOptions,
) -> None:
    """Print events as lines of JSON, each exactly once, until stopped.

    \b
    Examples:
      gapless sub trades --where "sym LIKE 'I%' AND price > 100"
      gapless sub news --xpath "/nitf[head/urgency <= 3]//body" --names
      gapless sub trades --name audit --from earliest > audit.jsonl
      gapless sub trades --name audit --from 2024-01-01 --history > audit.jsonl
      gapless sub trades --from 2026-01-31T12:00:00Z --limit 10 --table

    A line on standard error says when the subscription has begun: nothing from then on is missed. Ctrl-C ends
    it; what was printed is acknowledged. With --history a new subscriber also gets events that are only in
    the archive; its name is kept once it has all of them.
    """
    if forget and name is None:
        raise UsageError("E151", "--forget goes with --name: it says what to forget")
    if table and as_json:
        raise UsageError("E151", "choose one of --table and --json")
    if column is not None and xpath is None:
        raise UsageError("E151", "--column goes with --xpath: it says which documents the pattern is about")
    if history:
        _check_history(start, order, named=name is not None, limited=limit is not None)
    begin, acknowledges = parse_start(start), ack == "auto"
    ordering = cast("DeliveryOrder", order)
    request = _Request(topic, where, xpath, column, name, begin, ordering, limit, acknowledges, names, table)
    if forget:
        run(_forgotten(request, node))
    else:
        run(_replayed(request, node) if history else _printed(request, node))


@dataclass(frozen=True, slots=True)
class _Request:
    """What to print, and how."""

    topic: str
    where: str
    xpath: str | None
    column: str | None
    name: str | None
    start: Start
    order: DeliveryOrder
    limit: int | None
    acknowledges: bool
    names: bool
    table: bool


def _check_history(start: str, order: str, *, named: bool, limited: bool) -> None:
    """Raises UsageError for options that conflict with --history."""
    if start == "now":
        raise UsageError("E151", "--history goes with --from: it says where the past begins")
    if order == "total":
        raise UsageError("E151", "--history reads one pubend after another: it cannot have --order total")
    if named and limited:
        raise UsageError("E151", "--history and --name go without --limit: the name is kept after the past")


def parse_start(text: str) -> Start:
    """Where a subscription begins. Raises ParameterError.

    >>> parse_start("earliest"), parse_start("1769860800000000"), parse_start("2026-01-31T12:00:00Z")
    ('earliest', 1769860800000000, 1769860800000000)
    """
    if text == "now":
        return "now"
    if text == "earliest":
        return "earliest"
    found = tick(text)
    if found is not None:
        return found
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ParameterError(
            "E150", f"--from takes now, earliest, a tick or a time such as 2026-01-31T12:00:00Z, got {text!r}"
        ) from None
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return round(time.timestamp() * 1_000_000)


async def _schema_of(client: Client, topic: str) -> Schema:
    topics = await client.topics()
    if topic not in topics:
        raise no_topic(topic, topics)
    return topics[topic].schema


def condition_text(schema: Schema, where: str, xpath: str | None, column: str | None) -> str:
    """The condition of `--where` and `--xpath` together. Raises ContentError, which points at the place."""
    from gapless.content.language import parse_condition  # noqa: PLC0415

    parse_condition(where, schema)
    if xpath is None:
        return where
    documents = [each.name for each in schema.columns if each.type == "xml"]
    if column is None and len(documents) != 1:
        there = f"several xml columns: {', '.join(documents)}" if documents else "no xml column"
        raise ContentError("E161", f"--xpath: topic '{schema.topic}' has {there}: name one with --column")
    chosen = documents[0] if column is None else column
    if chosen not in documents:
        known = ", ".join(documents) or "none"
        raise ContentError("E161", f"--column {chosen}: there is no such xml column: there is {known}")
    if not xpath.lstrip().startswith("/"):
        raise ContentError("E171", "a pattern begins with / or //", text=xpath, at=0)
    quoted = chosen.replace('"', '""')
    pattern = f"""XPATH("{quoted}", '{xpath.replace("'", "''")}')"""
    if len(documents) == 1:
        # As written, to keep the position of a mistake.
        parse_condition(xpath, schema)
    parse_condition(pattern, schema)
    return f"({where}) AND {pattern}" if where.strip() else pattern


async def _forgotten(request: _Request, node: NodeOptions) -> None:
    async with node.client() as client:
        await _schema_of(client, request.topic)
        subscription = client.subscribe(
            request.topic, request.where, name=request.name, order=request.order, start="stored", ack="manual"
        )
        async with subscription as events:
            await events.forget()
    typer.echo(f"forgot '{request.name}'", err=True)


async def _printed(request: _Request, node: NodeOptions) -> None:
    async with node.client() as client:
        schema = await _schema_of(client, request.topic)
        where = condition_text(schema, request.where, request.xpath, request.column)
        await _say_changed(client, request, where)
        async with _subscribed(client, request, where, request.start) as events:
            _say_begun(request, events)
            with _printer(request, schema) as show:
                await _taken(events, request.limit, show)


async def _say_changed(client: Client, request: _Request, where: str) -> None:
    """A name that had another condition keeps it for events from before the change: say so."""
    if request.name is None:
        return
    try:
        known = (await client.inquire(subscription=request.name))["subscription"]
    except UsageError:
        return  # This client may subscribe, and not ask for the status.
    if known is not None and known["where"] != where:
        before = known["where"] or "no condition"
        told = f"'{request.name}' had another condition, which still selects events from before now: {before}"
        typer.echo(told, err=True)


def _subscribed(client: Client, request: _Request, where: str, start: Start) -> Subscription:
    ack: AckMode = "auto" if request.acknowledges else "manual"
    return client.subscribe(
        request.topic, where, name=request.name, order=request.order, start=start, ack=ack
    )


def _say_begun(request: _Request, events: Subscription) -> None:
    # First, so that a caller that has read the line may stop us.
    _stop_with_reader(asyncio.current_task())
    typer.echo(f"subscribed to {request.topic}", err=True)
    if events.awaited:
        typer.echo(f"waiting for pubend {', '.join(events.awaited)}; the others are served", err=True)


@contextlib.contextmanager
def _printer(request: _Request, schema: Schema) -> Iterator[Printer]:
    if not request.table:
        yield line_printer(schema, names=request.names)
        return
    from gapless.cli.sub.table import LiveTable  # noqa: PLC0415  # a table needs rich

    with LiveTable(schema, names=request.names) as live:
        yield live.show


async def _replayed(request: _Request, node: NodeOptions) -> None:
    """Print the past, and then new events. A known name resumes where it was."""
    from gapless.cli.sub.history import HOLD, Past, is_known  # noqa: PLC0415

    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(node.client())
        schema = await _schema_of(client, request.topic)
        where = condition_text(schema, request.where, request.xpath, request.column)
        start, left, past = request.start, request.limit, None
        if request.name is None or not await is_known(client, request.name):
            past = await Past.opened(request.topic, schema, request.start, node)
            stack.callback(past.close)
            start = past.stops
        show = stack.enter_context(_printer(request, schema))
        if past is not None and request.name is not None:
            held = {str(pubend): tick for pubend, tick in past.stops.items()}
            hold = await stack.enter_async_context(client.hold(request.topic, f"{request.name}{HOLD}", held))
            await _past(past, where, show, None)
            events = await stack.enter_async_context(_subscribed(client, request, where, start))
            # From here on the name itself holds what it lacks.
            await hold.forget()
        else:
            events = await stack.enter_async_context(_subscribed(client, request, where, start))
            if past is not None:
                left = await _past(past, where, show, left)
        if left is None or left > 0:
            _say_begun(request, events)
            await _taken(events, left, show)


async def _past(past: Past, where: str, show: Printer, limit: int | None) -> int | None:
    """Print past events; returns how many more are wanted."""
    left = limit
    async for rows in past.rows(where):
        count = len(rows) if left is None else min(left, len(rows))
        show(rows, count)
        left = None if left is None else left - count
        if left == 0:
            break
    return left


async def _taken(events: Subscription, limit: int | None, show: Printer) -> None:
    """Print until there are enough, or we are stopped: then printed events count as taken."""
    left = limit
    try:
        while left is None or left > 0:
            batch = await events.next_batch()
            if batch is None:
                return
            rows = len(batch) if left is None else min(left, len(batch))
            # Only printed events may be acknowledged.
            events.hand_back(batch, 0)
            show(batch, rows)
            events.hand_back(batch, rows)
            left = None if left is None else left - rows
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()


def _stop_with_reader(task: asyncio.Task[None] | None) -> None:
    """End when stopped, and when our output is closed, even if no event comes to show it."""
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        output = sys.stdout.fileno()
        kind = os.fstat(output).st_mode
    except (OSError, ValueError):
        return  # there is no such file
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
        threading.Thread(target=_watch, args=(output, loop, task), daemon=True).start()


def _watch(output: int, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    # In a thread, because watching a file from the loop makes it non-blocking, and lines get lost.
    watcher = select.poll()
    # No events requested: only a closed other end wakes us.
    watcher.register(output, 0)
    watcher.poll()
    with contextlib.suppress(RuntimeError):  # the loop has ended by itself
        loop.call_soon_threadsafe(task.cancel)


def line_printer(schema: Schema, *, names: bool) -> Printer:
    """Prints rows as lines of JSON."""
    from gapless.cli.files.cells import row_text  # noqa: PLC0415
    from gapless.model.python_values import rows_of  # noqa: PLC0415

    documents = [column.name for column in schema.columns if column.type == "xml"]

    def show(batch: Batch | PastRows, rows: int) -> None:
        found: list[dict[str, Any]] = rows_of(batch.columns.slice(0, rows))
        for each in found:
            for name in documents:
                if each[name] is not None:
                    each[name] = each[name].decode(errors="replace")
        if names:
            labels = zip(batch.pubends, batch.ticks.tolist(), found, strict=False)
            found = [{"pubend": pubend, "tick": tick, "event": row} for pubend, tick, row in labels]
        sys.stdout.write("".join(f"{row_text(row)}\n" for row in found))
        sys.stdout.flush()

    return show
