"""Which rows does a subscriber want? A second, deliberately simple, opinion about conditions.

The checkers judge `gapless.content`, so they must not ask it. Here a condition is evaluated row by row on
plain dictionaries, and it is only handed to the brokers after `translate.condition_of` has said it in
their words. Each kind accepts what it is true of: a null is wanted only by who asks for nulls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

#: One event as the outside world sees it: column name to value.
Row: TypeAlias = Mapping[str, int | float | str | None]


@dataclass(frozen=True, slots=True)
class Everything:
    """Accepts every row."""

    def accepts(self, row: Row) -> bool:  # noqa: ARG002  # whatever the row is
        """Whether a subscriber with this condition wants the row."""
        return True

    def __str__(self) -> str:
        return "everything"


@dataclass(frozen=True, slots=True)
class Equal:
    """The column has this value."""

    column: str
    value: int | str

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        return row[self.column] == self.value

    def __str__(self) -> str:
        return f"{self.column} = {self.value!r}"


@dataclass(frozen=True, slots=True)
class Different:
    """The column has a value, and another one than this."""

    column: str
    value: int | str

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        found = row[self.column]
        return found is not None and found != self.value

    def __str__(self) -> str:
        return f"{self.column} <> {self.value!r}"


@dataclass(frozen=True, slots=True)
class Between:
    """The column holds a number with `low <= number < high`.

    >>> Between("price", 3, 9).accepts({"price": 9.0})
    False
    """

    column: str
    low: float
    high: float

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        found = row[self.column]
        assert not isinstance(found, str), f"column {self.column} holds the text {found!r}"
        return found is not None and self.low <= found < self.high

    def __str__(self) -> str:
        return f"{self.low} <= {self.column} < {self.high}"


@dataclass(frozen=True, slots=True)
class Begins:
    """The column holds a text that begins so."""

    column: str
    start: str

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        found = row[self.column]
        return isinstance(found, str) and found.startswith(self.start)

    def __str__(self) -> str:
        return f"{self.column} begins with {self.start!r}"


@dataclass(frozen=True, slots=True)
class Contains:
    """The column holds a text with this somewhere inside."""

    column: str
    part: str

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        found = row[self.column]
        return isinstance(found, str) and self.part in found

    def __str__(self) -> str:
        return f"{self.column} contains {self.part!r}"


@dataclass(frozen=True, slots=True)
class Missing:
    """The column is null."""

    column: str

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        return row[self.column] is None

    def __str__(self) -> str:
        return f"{self.column} is null"


@dataclass(frozen=True, slots=True)
class Either:
    """One of two conditions, or both."""

    one: Condition
    other: Condition

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        return self.one.accepts(row) or self.other.accepts(row)

    def __str__(self) -> str:
        return f"({self.one} or {self.other})"


@dataclass(frozen=True, slots=True)
class Both:
    """Two conditions at once."""

    one: Condition
    other: Condition

    def accepts(self, row: Row) -> bool:
        """Whether a subscriber with this condition wants the row."""
        return self.one.accepts(row) and self.other.accepts(row)

    def __str__(self) -> str:
        return f"({self.one} and {self.other})"


Condition: TypeAlias = Everything | Equal | Different | Between | Begins | Contains | Missing | Either | Both
