"""How does a wide table fit a narrow terminal? Whole columns are left out, the least important first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

#: Lines that a sheet takes beside its rows: a blank one, the names of the columns, and a rule.
FRAME_LINES = 3
#: A last column that may be shortened keeps this width.
LAST_WIDTH_MIN = 16
_NATURAL = 10_000


class Sheet:
    """A table that leaves out columns where there is no room for all."""

    def __init__(
        self,
        *columns: str,
        spare: Sequence[str] = (),
        last_wraps: bool = False,
        dim: Sequence[str] = (),
        tells_hidden: bool = False,
    ) -> None:
        """Columns with > stand to the right. `spare` may be left out, the first of them first."""
        self._names = [column.removeprefix(">") for column in columns]
        self._right = {column.removeprefix(">") for column in columns if column.startswith(">")}
        self._spare = list(spare)
        assert set(self._spare) <= set(self._names), f"no such column: {set(self._spare) - set(self._names)}"
        #: Whether the last column may be shortened: the rest of the line is its.
        self._last_wraps = last_wraps
        self._dim = set(dim)
        self._tells_hidden = tells_hidden
        self._rows: list[tuple[Text | str, ...]] = []
        self.rows_max: int | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def hidden(self) -> int:
        """How many rows are not shown."""
        return 0 if self.rows_max is None else max(0, len(self._rows) - self.rows_max)

    def add(self, *cells: Text | str) -> None:
        """Put a row below the others; cells that are missing are empty."""
        self._rows.append((*cells, *[""] * (len(self._names) - len(cells))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out: set[str] = set()
        natural = options.update(width=_NATURAL)
        for name in [None, *self._spare]:
            if name is not None:
                left_out.add(name)
            table = self._table([each for each in self._names if each not in left_out])
            excess = table.__rich_measure__(console, natural).maximum - options.max_width
            if excess <= 0:
                break
            if self._last_wraps and self._names[-1] not in left_out:
                width = max((len(row[-1]) for row in self._shown()), default=0) - excess
                if width >= LAST_WIDTH_MIN:
                    table.columns[-1].max_width = width
                    break
        yield ""
        yield table
        if left_out and self._tells_hidden:
            hidden = f"{len(left_out)} of {len(self._names)} columns do not fit"
            text = f"{hidden}: enlarge the terminal, or use --json"
            yield Text(text, style="dim", overflow="ellipsis", no_wrap=True)

    def _shown(self) -> list[tuple[Text | str, ...]]:
        return self._rows[: self.rows_max]

    def _table(self, names: Sequence[str]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for name in names:
            side: Literal["left", "right"] = "right" if name in self._right else "left"
            table.add_column(name, justify=side, no_wrap=True, style="dim" if name in self._dim else "")
        places = [self._names.index(name) for name in names]
        for row in self._shown():
            table.add_row(*(row[place] for place in places))
        return table


def share_lines(sheets: Sequence[Sheet], lines: int) -> None:
    """Let sheets show as many rows as there are lines for: the longest are cut first, to no less than one."""
    room = lines - FRAME_LINES * len(sheets)
    shown = [len(sheet) for sheet in sheets]
    while sum(shown) > room and max(shown, default=0) > 1:
        shown[shown.index(max(shown))] -= 1
    for sheet, count in zip(sheets, shown, strict=True):
        sheet.rows_max = count
