"""What does a literal of an SQL condition mean, and which values may be compared?

Every number keeps its exact value: `3.5` is a decimal, `1e3` a float, and the Java spellings of JMS
selectors, `57L`, `0x1F`, `7.0f` and `7d`, are read as well. A time without an offset is in UTC.

Implements docs/content.md, section 3.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from gapless.content.normal import AnyComparison
from gapless.content.sql.scanner import TokenLeaf, shown
from gapless.content.sql.tokens import refuse
from gapless.content.terms import ColumnTerm, Constant, Number, Term, constant
from gapless.content.values import NUMBERS, Value

#: Maximum length of a number; a decimal column has 38 digits.
NUMBER_CHARACTERS_MAX = 100

_NUMBER = re.compile(
    r"0[xX](?P<hex>[0-9a-fA-F]+)(?P<hexlong>[lL]?)"
    r"|(?P<digits>[0-9]+\.?[0-9]*|\.[0-9]+)(?P<exponent>[eE][+-]?[0-9]+)?(?P<suffix>[lLfFdD]?)"
)
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?(?: ?(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?))?"
)
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")

#: The types with an order, for `<`, `<=`, `>`, `>=` and BETWEEN.
ORDERED = NUMBERS | {"string", "timestamp", "binary"}


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a comparison, and its position in the text."""

    #: The type of a column; `null` if it is always null.
    kind: str
    at: int
    #: A column, arithmetic, or a number.
    term: Term | None = None
    #: A literal that is not a number.
    value: Value | None = None

    @property
    def known(self) -> Value | None:
        """The value, when it is the same for every event."""
        return self.term.value if isinstance(self.term, Constant) else self.value

    def __str__(self) -> str:
        match self.term:
            case ColumnTerm():
                return f"column {self.term} ({self.kind})"
            case None | Constant():
                return f"{'an' if self.kind == 'int' else 'a'} {self.kind} value"
            case _:
                return f"arithmetic ({self.kind})"


def literal_operand(leaf: TokenLeaf, text: str) -> Operand:
    """A literal, or NULL, TRUE or FALSE. Raises ContentError for anything else."""
    match leaf.kind:
        case "number":
            return number_operand(number(leaf, text), leaf.at)
        case "string":
            return Operand("string", leaf.at, value=leaf.text)
        case "timestamp":
            return Operand("timestamp", leaf.at, value=timestamp(leaf, text))
        case "binary":
            if not _HEX.fullmatch(leaf.text):
                refuse("E162", "a binary literal is X'' with pairs of hexadecimal digits", text, leaf.at)
            return Operand("binary", leaf.at, value=bytes.fromhex(leaf.text))
        case _:
            assert leaf.kind == "word", f"{leaf} is not a literal"
            if leaf.text == "NULL":
                return Operand("null", leaf.at)
            return Operand("bool", leaf.at, value=leaf.text == "TRUE")


def number_operand(value: Number, at: int) -> Operand:
    """A number as an operand."""
    found = constant(value)
    return Operand(found.kind, at, term=found)


def number(leaf: TokenLeaf, text: str, *, negated: bool = False) -> Number:
    """The number that a literal, or minus a literal, stands for."""
    if len(leaf.text) > NUMBER_CHARACTERS_MAX:
        refuse("E162", f"a number has at most {NUMBER_CHARACTERS_MAX} characters", text, leaf.at)
    found = _NUMBER.fullmatch(leaf.text)
    if found is None:
        message = f"{shown(leaf.text)} is not a number: write 57, 3.5, 1e3, 57L, 7.0f or 0x1F"
        refuse("E162", message, text, leaf.at)
    if found["hex"]:
        return _int64(int(found["hex"], 16), negated, leaf, text)
    digits = found["digits"]
    if found["exponent"] or found["suffix"] in ("f", "F", "d", "D"):
        value = float(digits + (found["exponent"] or ""))
        if found["suffix"] in ("l", "L") or not math.isfinite(value):
            refuse("E162", f"{shown(leaf.text)} is not a float: floats end at about 1.8e308", text, leaf.at)
        return -value if negated else value
    if found["suffix"]:
        if not digits.isdigit():
            refuse(
                "E162", f"{shown(leaf.text)} is not an integer: leave out the {leaf.text[-1]}", text, leaf.at
            )
        _check_octal(digits, leaf, text)
        return _int64(int(digits), negated, leaf, text)
    if digits.isdigit():
        _check_octal(digits, leaf, text)
        integer = -int(digits) if negated else int(digits)
        return integer if -(2**63) <= integer < 2**63 else Decimal(integer)
    exact = Decimal(digits)
    return exact.copy_negate() if negated else exact


def _int64(value: int, negated: bool, leaf: TokenLeaf, text: str) -> int:
    value = -value if negated else value
    if not -(2**63) <= value < 2**63:
        refuse("E162", f"{shown(leaf.text)} does not fit 64 bits: write it without L or 0x", text, leaf.at)
    return value


def _check_octal(digits: str, leaf: TokenLeaf, text: str) -> None:
    """Java reads 010 as 8 and SQL as 10: it is ambiguous."""
    if len(digits) > 1 and digits[0] == "0":
        plain = digits.lstrip("0") or "0"
        octal = "" if set(digits) & {"8", "9"} else f", or {int(digits, 8)} for the octal number"
        message = f"{shown(leaf.text)} is octal in Java and decimal in SQL: write {plain}{octal}"
        refuse("E162", message, text, leaf.at)


def timestamp(leaf: TokenLeaf, text: str) -> datetime:
    """The time that a literal stands for."""
    message = (
        f"{shown(leaf.text)} is not a time: write '2026-01-31 23:59:59.123456+00:00', UTC without an offset"
    )
    if not _TIME.fullmatch(leaf.text):
        refuse("E162", message, text, leaf.at)
    try:
        found = datetime.fromisoformat(
            leaf.text.upper().replace(" +", "+").replace(" -", "-").replace(" Z", "Z")
        )
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        refuse("E162", message, text, leaf.at)


def check_comparable(left: Operand, operator: AnyComparison, right: Operand, text: str) -> None:
    """Raise ContentError unless the two types can be compared this way; null is compatible with all."""
    for side in (left, right):
        if side.kind == "xml":
            name = side.term
            message = f"{side} is not compared: write XPATH({name}, '/a/b') or {name} IS NULL"
            refuse("E162", message, text, side.at)
        if operator not in ("=", "<>") and side.kind not in ORDERED and side.kind != "null":
            refuse("E162", f"{side} has no order: use = or <>", text, side.at)
    kinds = {left.kind, right.kind} - {"null"}
    if len(kinds) > 1 and not kinds <= NUMBERS:
        refuse("E162", f"{left} and {right} cannot be compared{_way_out(left, right)}", text, right.at)


def _way_out(left: Operand, right: Operand) -> str:
    column, other = (left, right) if right.known is not None else (right, left)
    if other.known is None or column.known is not None:
        return ": compare numbers with numbers, and otherwise one type with itself"
    match column.kind:
        case "string":
            return ": put the value in quotes"
        case "bool":
            return ": use TRUE or FALSE"
        case "timestamp":
            return ": write TIMESTAMP '2026-01-31 00:00:00'"
        case "binary":
            return ": write the bytes as X'0aff'"
        case _:
            return ": leave out the quotes" if other.kind == "string" else ": write a number"


def compare_constants(left: Value, operator: AnyComparison, right: Value) -> bool:
    """Whether a comparison of two literals holds, as it would for columns."""
    if isinstance(left, float) or isinstance(right, float):
        assert isinstance(left, int | float | Decimal)
        assert isinstance(right, int | float | Decimal)
        left, right = float(left), float(right)
    first, second = left, right
    match operator:
        case "=":
            return first == second
        case "<>":
            return first != second
        case "<":
            return first < second  # type: ignore[operator]  # the types were checked to go together
        case "<=":
            return first <= second  # type: ignore[operator]
        case ">":
            return first > second  # type: ignore[operator]
        case ">=":
            return first >= second  # type: ignore[operator]
