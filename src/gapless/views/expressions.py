"""What is computed from the columns of one row? Immutable scalar expressions, with SQL's nulls.

A view must never fail because of an event: what overflows and what is divided by zero is null, and `/` always
divides as floats, exactly as conditions do it (docs/content.md, section 3). Every expression knows its type,
one of those that a topic's columns have. Where an expression stood in a text is remembered for messages and
is no part of what it is: two expressions are equal whatever text they came from.
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
    """A constant. `kind` is the type that a null has as well."""

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
    """The expression and all that it is made of, outermost first."""
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
