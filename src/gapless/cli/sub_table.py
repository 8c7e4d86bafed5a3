"""How are events shown as a table that moves? The newest rows, how many came, and how fast they come."""

from __future__ import annotations

from collections import deque
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gapless.cli.match_cells import shown

if TYPE_CHECKING:
    from gapless.cli.sub_history import PastRows
    from gapless.client import Batch
    from gapless.model.schema import Schema

#: How many rows are shown where there is no terminal whose height would say it.
ROWS_PLAIN = 50
#: Lines of the terminal that the table needs beside its rows.
FRAME_LINES = 5
#: How wide a table is where there is no terminal.
PLAIN_WIDTH = 120


class LiveTable:
    """The newest events of a subscription."""

    def __init__(self, schema: Schema, *, names: bool, console: Console | None = None) -> None:
        console = console or Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=PLAIN_WIDTH, file=console.file)
        height = max(3, console.height - FRAME_LINES) if console.is_terminal else ROWS_PLAIN
        self._schema = schema
        self._names = names
        self._rows: deque[list[str]] = deque(maxlen=height)
        self._count = 0
        self._began = monotonic()
        self._live = Live(self._frame(), console=console, refresh_per_second=8, redirect_stdout=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, batch: Batch | PastRows, rows: int) -> None:
        """Add the first rows of a batch."""
        first = max(0, rows - (self._rows.maxlen or rows))
        columns = batch.columns.slice(first, rows - first).to_pylist()
        pubends, ticks = batch.pubends[first:rows], batch.ticks[first:rows].tolist()
        for row, pubend, tick in zip(columns, pubends, ticks, strict=True):
            named = [pubend, str(tick)] if self._names else []
            self._rows.append([*named, *(_text(value) for value in row.values())])
        self._count += rows
        self._live.update(self._frame())

    def _frame(self) -> Group:
        rate = self._count / max(monotonic() - self._began, 1e-3)
        noun = "event" if self._count == 1 else "events"
        return Group(self._table(), Text(f"{self._count:,} {noun}, {rate:,.1f} a second"))

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        for name in ("pubend", "tick") if self._names else ():
            table.add_column(name, style="dim", no_wrap=True)
        for column in self._schema.columns:
            is_number = column.type in ("int", "float", "decimal")
            table.add_column(column.name, justify="right" if is_number else "left", no_wrap=True)
        for row in self._rows:
            table.add_row(*(Text(cell, overflow="ellipsis") for cell in row))
        return table


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case bytes():
            return value.decode(errors="replace")
        case _:
            return shown(value).strip('"')
