"""How do rows become a table in a terminal? Numbers to the right, one line each, as many as fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gapless.cli.files.cells import bytes_text, shown
from gapless.cli.output.terminal import tame

#: Lines of the terminal that a table needs beside its rows.
FRAME_LINES = 5
#: A longer value ends in dots.
CELL_WIDTH_MAX = 36
#: How wide a table is where there is no terminal.
PLAIN_WIDTH = 120


def table_console() -> Console:
    """Standard output, as wide as the terminal."""
    # Names are not markup, even if they contain brackets.
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=PLAIN_WIDTH)


def rows_that_fit(console: Console) -> int:
    """How many rows the terminal has room for."""
    return max(3, console.height - FRAME_LINES)


def empty_table(schema: pa.Schema, *before: str) -> Table:
    """A table with these columns; what comes before them is dim."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in before:
        table.add_column(name, style="dim", no_wrap=True)
    for each in schema:
        side: Literal["left", "right"] = "right" if is_number(each.type) else "left"
        table.add_column(tame(each.name), justify=side, no_wrap=True)
    return table


_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of this type stand to the right."""
    return any(test(kind) for test in _NUMBERS)


def shortened(value: Any) -> Text:
    """A value as people read it, in no more than `CELL_WIDTH_MAX` columns of the terminal."""
    text = Text(cell(value))
    text.truncate(CELL_WIDTH_MAX, overflow="ellipsis")
    return text


def add_row(table: Table, values: Iterable[Any], style: str = "") -> None:
    """Put a row below the others; what is too wide ends in dots."""
    table.add_row(*(Text(cell(value), overflow="ellipsis") for value in values), style=style)


def cell(value: Any) -> str:
    """A value as people read it; null is nothing.

    >>> cell(None), cell("a"), cell(b"<a/>"), cell(1.5)
    ('', 'a', '<a/>', '1.5')

    Control characters are escaped:

    >>> cell("a\\x1b[31mb\\n")
    'a\\\\x1b[31mb\\\\n'
    """
    match value:
        case None:
            return ""
        case str():
            return tame(value)
        case bytes():
            return _bytes(value)
        case _:
            return shown(value).strip('"')


def _bytes(value: bytes) -> str:
    """Bytes as the text that they are, if they are one."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return bytes_text(value)
    return text if text.isprintable() else tame(bytes_text(value))
