"""What is compared in a condition? A column, a constant, or arithmetic over them.

Arithmetic follows SQL, with two choices made so that a filter never fails on an event: overflow and division
by zero are unknown (null), and `/` always divides as floats, like Spark and DuckDB. Integers stay integers
and decimals stay exact under `+`, `-` and `*`; a float anywhere makes it floats.

Implements docs/content.md, section 3.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Literal, TypeAlias, TypeVar

from gapless.content.values import DECIMAL_DIGITS, literal

Operator: TypeAlias = Literal["+", "-", "*", "/"]
Number: TypeAlias = int | float | Decimal
Exact = TypeVar("Exact", int, Decimal)

#: How tightly an operator binds, for printing without needless parentheses.
_TIGHTNESS = {"+": 1, "-": 1, "*": 2, "/": 2}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Reserved words of conditions; a column of that name is quoted.
KEYWORDS = frozenset(["AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "ESCAPE", "NULL", "TRUE", "FALSE"])


@dataclass(frozen=True, slots=True)
class ColumnTerm:
    """A column of the topic."""

    name: str
    kind: str
    nullable: bool = True

    def __hash__(self) -> int:
        # Columns are the keys of most dictionaries here; the name is almost unique.
        return hash(self.name)

    def __str__(self) -> str:
        plain = _PLAIN_NAME.fullmatch(self.name) and self.name.upper() not in KEYWORDS
        return self.name if plain else f'"{self.name}"'


@dataclass(frozen=True, slots=True)
class Constant:
    """A number inside arithmetic, or one side of a comparison that no domain can express."""

    value: Number
    kind: str

    def __str__(self) -> str:
        return literal(self.value)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operator applied to two terms. Make one with `arithmetic`."""

    operator: Operator
    left: Term
    right: Term
    kind: str

    def __str__(self) -> str:
        here = _TIGHTNESS[self.operator]
        if self.is_negative:
            return f"-{_wrapped(self.right, 3)}"
        # `a - (b - c)` and `a / (b / c)` need their parentheses, and so does `a + (b + c)`:
        # float addition is not associative, so the shape of the tree is kept.
        return f"{_wrapped(self.left, here)} {self.operator} {_wrapped(self.right, here + 1)}"

    @property
    def is_negative(self) -> bool:
        """Whether this is minus a term."""
        return self.operator == "-" and self.left == _ZERO


Term: TypeAlias = ColumnTerm | Constant | Arithmetic

_ZERO = Constant(0, "int")


def arithmetic(operator: Operator, left: Term, right: Term) -> Term | None:
    """An operation on two numbers; constants are computed at once. None for a constant that is null.

    >>> total = arithmetic("+", ColumnTerm("b", "int"), ColumnTerm("a", "int"))
    >>> str(arithmetic("*", Constant(2, "int"), total))
    '(a + b) * 2'
    """
    kind = _kind_of(operator, left.kind, right.kind)
    if isinstance(left, Constant) and isinstance(right, Constant):
        return _folded(operator, left, right, kind)
    if operator in "+*" and _place(left) > _place(right):
        left, right = right, left
    return Arithmetic(operator, left, right, kind)


def negative(term: Term) -> Term | None:
    """Minus a number. The least integer has no opposite: None for that constant."""
    if isinstance(term, Constant):
        return _folded("-", _ZERO, term, term.kind)
    return Arithmetic("-", _ZERO, term, term.kind)


def constant(value: Number) -> Constant:
    """A number, in the one form that it is printed in and read from.

    >>> str(constant(Decimal("2.50"))), str(constant(Decimal(7))), str(constant(-0.0))
    ('2.5', '7.0', '0e0')
    """
    if isinstance(value, float):
        return Constant(value + 0.0, "float")
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return Constant(value, "int")
    # One digit more than any product of two literals has: the one after the point.
    with localcontext(prec=DECIMAL_DIGITS + 1):
        short = (Decimal(value) + 0).normalize()
        exponent = short.as_tuple().exponent
        assert isinstance(exponent, int)
        return Constant(short if exponent < 0 else short.quantize(Decimal("0.1")), "decimal")


def columns_of(term: Term) -> frozenset[ColumnTerm]:
    """The columns that a term reads."""
    match term:
        case ColumnTerm():
            return frozenset({term})
        case Constant():
            return frozenset()
        case Arithmetic():
            return columns_of(term.left) | columns_of(term.right)


def compute(operator: Operator, left: Number, right: Number, kind: str) -> Number | None:
    """The result for two numbers, None when there is none."""
    if kind == "float":
        return _compute_floats(operator, float(left), float(right))
    if kind == "int":
        assert isinstance(left, int)
        assert isinstance(right, int)
        result = _compute_exact(operator, left, right)
        return result if -(2**63) <= result < 2**63 else None
    with localcontext(prec=DECIMAL_DIGITS):
        return _compute_exact(operator, Decimal(left), Decimal(right))


def _compute_exact(operator: Operator, left: Exact, right: Exact) -> Exact:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case _:
            return left * right


def _compute_floats(operator: Operator, left: float, right: float) -> float | None:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return None if right == 0.0 else left / right


def _place(term: Term) -> tuple[bool, str]:
    """The sort key of an operand of `+` or `*`: columns by name, a constant last."""
    return isinstance(term, Constant), str(term)


def _kind_of(operator: Operator, left: str, right: str) -> str:
    if operator == "/" or "float" in (left, right):
        return "float"
    return "decimal" if "decimal" in (left, right) else "int"


def _folded(operator: Operator, left: Constant, right: Constant, kind: str) -> Constant | None:
    value = compute(operator, left.value, right.value, kind)
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None  # infinity and NaN cannot be written, so no condition may need them
    return constant(value)


def _wrapped(term: Term, tightness: int) -> str:
    text = str(term)
    if isinstance(term, Arithmetic):
        here = 2 if term.is_negative else _TIGHTNESS[term.operator]
        return f"({text})" if here < tightness else text
    return f"({text})" if text.startswith("-") and tightness > 1 else text
