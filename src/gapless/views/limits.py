"""How many rows may views have, and where are they kept? What network files, commands and Spark agree on."""

from __future__ import annotations

from typing import Literal, get_args

#: More rows than this a view may not show, nor a stage keep, unless it is allowed to.
ROWS_MAX = 1_000_000

#: Where Spark keeps the groups of a stage; `auto` is memory where that is enough.
State = Literal["auto", "memory", "rocksdb"]
STATES: tuple[State, ...] = get_args(State)
