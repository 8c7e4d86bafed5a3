"""Which rows does a subscriber want? A second, deliberately simple, opinion about filters.

The checkers judge `gapless.content`, so they must not ask it. A `Condition` is evaluated row by row on
plain dictionaries, and is only handed to the brokers after `workload.filter_of` has translated it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

#: One event as the outside world sees it: column name to value.
Row: TypeAlias = Mapping[str, int | float | str | None]


@dataclass(frozen=True, slots=True)
class Condition:
    """`column = equal`, or `low <= column < high`, or everything when no column is named.

    >>> Condition("price", low=3, high=9).accepts({"price": 9.0})
    False
    """

    column: str | None = None
    equal: int | str | None = None
    low: float = 0.0
    high: float = 0.0

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row; a null is never wanted."""
        if self.column is None:
            return True
        value = row[self.column]
        if value is None:
            return False
        if self.equal is not None:
            return value == self.equal
        assert not isinstance(value, str), f"column {self.column} holds the text {value!r}"
        return self.low <= value < self.high

    def __str__(self) -> str:
        if self.column is None:
            return "everything"
        if self.equal is not None:
            return f"{self.column} = {self.equal!r}"
        return f"{self.low} <= {self.column} < {self.high}"
