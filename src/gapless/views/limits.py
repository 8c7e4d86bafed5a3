"""How many rows may views have, and where are they kept? Shared by network files, commands and Spark."""

from __future__ import annotations

from typing import Literal, get_args

#: Default maximum number of rows that a view may show, and a stage keep.
ROWS_MAX = 1_000_000

#: Where Spark keeps the groups of a stage; `auto` is memory where that is enough.
State = Literal["auto", "memory", "rocksdb"]
STATES: tuple[State, ...] = get_args(State)
