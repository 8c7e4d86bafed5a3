"""What is computed from the columns of one row? Immutable scalar expressions, with SQL's nulls.

A view must never fail because of an event: overflow and division by zero give null, and `/` always divides as
floats, exactly as in conditions (docs/content.md, section 3). Every expression knows its type, one of the
column types of topics. The position of an expression in its text is kept for messages and is not part of its
identity: two expressions are equal whatever text they came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias

Value: TypeAlias = bool | int | float | Decimal | str | datetime | bytes | None


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column of the input, by its name."""

    name: str
    kind: str
    nullable: bool = True
    at: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `kind` is its type, even for a null."""

    value: Value
    kind: str
    at: int | None = field(default=None, compare=False, repr=False)

    @property
    def nullable(self) -> bool:
        """Whether it is null."""
        return self.value is None


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator with its operands. `views.functions` lists those that there are."""

    function: str
    operands: tuple[Expression, ...]
    kind: str
    nullable: bool = True
    at: int | None = field(default=None, compare=False, repr=False)


Expression: TypeAlias = ColumnRef | Literal | Call


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and all its parts, outermost first."""
    yield expression
    if isinstance(expression, Call):
        for operand in expression.operands:
            yield from walk(operand)


def columns_of(expression: Expression) -> frozenset[str]:
    """The names of the columns that are read.

    >>> sorted(columns_of(Call("+", (ColumnRef("a", "int"), ColumnRef("b", "int")), "int")))
    ['a', 'b']
    """
    return frozenset(each.name for each in walk(expression) if isinstance(each, ColumnRef))
