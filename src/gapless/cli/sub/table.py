"""How are events shown as a table that moves? The newest rows, how many came, and how fast they come."""

from __future__ import annotations

from collections import deque
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Group
from rich.live import Live
from rich.text import Text

from gapless.cli.output.sheet import Sheet
from gapless.cli.output.tables import is_number, rows_that_fit, shortened, table_console
from gapless.cli.output.terminal import tame
from gapless.model.python_values import rows_of

if TYPE_CHECKING:
    from gapless.cli.sub.history import PastRows
    from gapless.client import Batch
    from gapless.model.schema import Schema

#: How many rows are shown where there is no terminal whose height would say it.
ROWS_PLAIN = 50


class LiveTable:
    """The newest events of a subscription."""

    def __init__(self, schema: Schema, *, names: bool) -> None:
        console = table_console()
        self._schema = schema.arrow()
        self._is_terminal = console.is_terminal
        self._names = ("pubend", "tick") if names else ()
        self._rows: deque[list[Any]] = deque(
            maxlen=rows_that_fit(console) if console.is_terminal else ROWS_PLAIN
        )
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
        columns = rows_of(batch.columns.slice(first, rows - first))
        pubends, ticks = batch.pubends[first:rows], batch.ticks[first:rows].tolist()
        for row, pubend, tick in zip(columns, pubends, ticks, strict=True):
            named = [pubend, str(tick)] if self._names else []
            self._rows.append([*named, *row.values()])
        self._count += rows
        self._live.update(self._frame())

    def _frame(self) -> Group:
        rate = self._count / max(monotonic() - self._began, 1e-3)
        noun = "event" if self._count == 1 else "events"
        return Group(self._table(), Text(f"{self._count:,} {noun}, {rate:,.1f} a second"))

    def _table(self) -> Sheet:
        columns = [
            f">{tame(each.name)}" if is_number(each.type) else tame(each.name) for each in self._schema
        ]
        names = [*self._names, *(column.removeprefix(">") for column in columns)]
        # As many columns as fit, from the left.
        sheet = Sheet(
            *self._names, *columns, spare=names[:0:-1], dim=self._names, tells_hidden=self._is_terminal
        )
        for row in self._rows:
            sheet.add(*(shortened(value) for value in row))
        return sheet
