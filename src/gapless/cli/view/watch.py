"""How are the rows of a view shown in a terminal? A live table; recent changes are bright."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gapless.cli.files.cells import bytes_text
from gapless.cli.files.cells import row_text as json_text
from gapless.cli.output.tables import add_row, empty_table, rows_that_fit, table_console
from gapless.model.python_values import rows_of

if TYPE_CHECKING:
    from gapless.client.table import Change
    from gapless.client.view import View

#: How long changed rows stay in colour.
BRIGHT_SECONDS = 2.0


def row_text(row: Mapping[str, Any]) -> str:
    """A row as a line of JSON; bytes as `bytes_text` has them.

    >>> row_text({"total": float("nan"), "key": b"\\x00\\xff", "doc": b"<a/>"})
    '{"total": "nan", "key": "AP8=", "doc": "<a/>"}'
    """
    values = ((name, bytes_text(each) if isinstance(each, bytes) else each) for name, each in row.items())
    return json_text(dict(values))


def as_of_time(as_of: Mapping[Any, Mapping[Any, int]]) -> str:
    """As of when a state is: the lowest of its horizons, as a time. Topics without events have none.

    >>> as_of_time({"sales": {"sales-p1": 1769860800000000}})
    'as of 2026-01-31 12:00:00.000'
    >>> as_of_time({}), as_of_time({"sales": {"sales-p1": 0}})
    ('not computed yet', 'no events yet')
    """
    if not as_of:
        return "not computed yet"
    ticks = [tick for ticks in as_of.values() for tick in ticks.values() if tick > 0]
    if not ticks:
        return "no events yet"
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=min(ticks))
    return f"as of {moment.replace(tzinfo=None).isoformat(sep=' ', timespec='milliseconds')}"


def print_rows(rows: pa.Table) -> None:
    """All rows, as a table."""
    table_console().print(_table(rows, set()))


async def watched(table: View, *, as_json: bool, limit: int | None) -> None:
    """Show a view until Ctrl-C, or until it has changed this many times."""
    console = table_console()
    if as_json or not console.is_terminal:
        await _printed(table, limit)
    else:
        await _drawn(table, console, limit)


async def _printed(table: View, limit: int | None) -> None:
    count = 0
    async for change in table.changes():
        for weight, row in change.rows():
            typer.echo(f'{{"weight": {weight}, "row": {row_text(row)}}}')
        as_of = json.dumps(change.as_of)
        typer.echo(f'{{"as_of": {as_of}}}')
        sys.stdout.flush()
        count += 1
        if limit is not None and count >= limit:
            return


async def _drawn(table: View, console: Console, limit: int | None) -> None:
    count = 0
    #: Rows that have just changed, and until when they are bright.
    bright: dict[str, float] = {}
    with Live(console=console, screen=False, auto_refresh=False) as live:
        live.update(_frame(table, bright, console, count), refresh=True)
        try:
            async for change in table.changes():
                count += 1
                _brighten(bright, change, first=count == 1)
                live.update(_frame(table, bright, console, count - 1), refresh=True)
                if limit is not None and count >= limit:
                    return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()


def _brighten(bright: dict[str, float], change: Change, *, first: bool) -> None:
    now = monotonic()
    for row in [row for row, until in bright.items() if until < now]:
        del bright[row]
    if not first:
        bright.update((row_text(row), now + BRIGHT_SECONDS) for row in rows_of(change.added.slice(0, 1_000)))


def _frame(table: View, bright: Mapping[str, float], console: Console, count: int) -> Group:
    rows = table.to_arrow()
    noun = "change" if count == 1 else "changes"
    caption = f"{table.name}: {rows.num_rows:,} rows, {count:,} {noun}, {as_of_time(table.as_of)}"
    return Group(_table(rows.slice(0, rows_that_fit(console)), set(bright)), Text(caption, style="dim"))


def _table(rows: pa.Table, bright: set[str]) -> Table:
    table = empty_table(rows.schema)
    for row in rows_of(rows):
        add_row(table, row.values(), "bold green" if bright and row_text(row) in bright else "")
    return table
