"""What is the value of an expression? Computed in plain Python, one row at a time: slow and obvious.

This is the meaning that Spark's native expressions must have as well: nulls as in SQL, NaN above every number
and equal to itself, null for overflow and division by zero. A decimal has 38 digits, 9 of them after the
point; more are rounded, halves away from zero.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Decimal,
    InvalidOperation,
    localcontext,
)
from typing import Any

from gapless.content.xml.document import parse_root
from gapless.errors import ContentError
from gapless.views.expressions import Call, ColumnRef, Expression, Literal, Value

_DIGITS = Decimal("0.000000001")
_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)?(?:Z|[+-]\d{2}:\d{2})?", re.ASCII
)


def value_of(expression: Expression, row: Mapping[str, Value]) -> Value:
    """The value that an expression has for one row.

    >>> value_of(Call("/", (Literal(5, "int"), ColumnRef("n", "int")), "float"), {"n": 2})
    2.5
    """
    match expression:
        case ColumnRef():
            return row[expression.name]
        case Literal():
            return expression.value
        case Call():
            return _called(expression, row)


def order_key(value: Value) -> Any:
    """Values of one type in the order of SQL: NaN above all numbers, minus zero equal to zero."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
    return value


def is_same(left: Value, right: Value) -> bool:
    """Whether two values that are not null are equal."""
    first, second = _alike(left, right)
    return bool(order_key(first) == order_key(second))


def fitted(number: int | float | Decimal, kind: str) -> Value:
    """A number as a value of a type; null when it does not fit."""
    if kind == "float":
        return float(number)
    if kind == "int":
        return int(number) if -(2**63) <= number < 2**63 else None
    if isinstance(number, float):
        if not math.isfinite(number):
            return None
        number = Decimal(repr(number))
    with localcontext(prec=200):
        rounded = Decimal(number).quantize(_DIGITS, ROUND_HALF_UP)
        return rounded if abs(rounded) < Decimal(10) ** 29 else None


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Two numbers of different types: as floats if one is a float, exactly otherwise."""
    if isinstance(left, float) != isinstance(right, float):
        return float(left), float(right)
    return left, right


def _called(call: Call, row: Mapping[str, Value]) -> Value:
    if call.function == "case":
        return _case(call.operands, row)
    values = [value_of(operand, row) for operand in call.operands]
    special = _WITH_NULLS.get(call.function)
    if special is not None:
        return special(values)
    if any(value is None for value in values):
        return None
    if call.function == "cast":
        return _cast(values[0], call.operands[0].kind, call.kind)
    if call.function in _NUMERIC:
        with localcontext(prec=200):
            result = _NUMERIC[call.function](values, call.kind)
        return None if result is None else fitted(result, call.kind)
    return _PLAIN[call.function](*values)


def _case(operands: Sequence[Expression], row: Mapping[str, Value]) -> Value:
    for condition, value in zip(operands[:-1:2], operands[1:-1:2], strict=True):
        if value_of(condition, row) is True:
            return value_of(value, row)
    return value_of(operands[-1], row)


def _and(values: list[Value]) -> Value:
    return False if False in values else None if None in values else True


def _or(values: list[Value]) -> Value:
    return True if True in values else None if None in values else False


def _in(values: list[Value]) -> Value:
    wanted, *others = values
    if wanted is None:
        return None
    if any(other is not None and is_same(wanted, other) for other in others):
        return True
    return None if None in others else False


def _coalesce(values: list[Value]) -> Value:
    return next((value for value in values if value is not None), None)


def _nullif(values: list[Value]) -> Value:
    first, second = values
    return None if first is not None and second is not None and is_same(first, second) else first


def _greatest(values: list[Value]) -> Value:
    return max((value for value in values if value is not None), key=order_key, default=None)


def _least(values: list[Value]) -> Value:
    return min((value for value in values if value is not None), key=order_key, default=None)


#: Functions that are not simply null when an operand is.
_WITH_NULLS: dict[str, Callable[[list[Value]], Value]] = {
    "and": _and,
    "or": _or,
    "is_null": lambda values: values[0] is None,
    "is_not_null": lambda values: values[0] is not None,
    "in": _in,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "greatest": _greatest,
    "least": _least,
}


def _arithmetic(function: str, values: list[Any], kind: str) -> int | float | Decimal | None:
    left, right = (float(value) for value in values) if kind == "float" else values
    match function:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return None if right == 0 else left / right
        case _:
            return _remainder(left, right)


def _remainder(left: Any, right: Any) -> int | float | Decimal | None:
    """It has the sign of the left one."""
    if right == 0:
        return None
    if isinstance(left, float):
        return math.nan if not math.isfinite(left) or math.isnan(right) else math.fmod(left, right)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return Decimal(left) % Decimal(right)
    return _sign(left) * int(abs(left) % abs(right))


def _sign(number: int) -> int:
    return -1 if number < 0 else 1


def _rounded(values: list[Any], kind: str) -> int | float | Decimal | None:
    number = values[0]
    digits = values[1] if len(values) > 1 else 0
    if kind == "float" and (not math.isfinite(number) or digits > 400):
        return float(number)
    with localcontext(prec=800):
        exact = Decimal(repr(number)) if kind == "float" else Decimal(number)
        if exact.as_tuple().exponent >= -digits:  # type: ignore[operator]  # it is finite
            return number  # type: ignore[no-any-return]
        rounded = exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
        return float(rounded) if kind == "float" else int(rounded) if kind == "int" else rounded


def _whole(number: Any, rounding: str) -> int | float | Decimal:
    if isinstance(number, int) or (isinstance(number, float) and not math.isfinite(number)):
        return number
    if isinstance(number, float):
        return float(math.floor(number) if rounding == ROUND_FLOOR else math.ceil(number))
    return Decimal(number).to_integral_value(rounding)


#: Functions whose result has the call's type, and may not fit it.
_NUMERIC: dict[str, Callable[[list[Any], str], int | float | Decimal | None]] = {
    **{sign: functools.partial(_arithmetic, sign) for sign in ("+", "-", "*", "/", "%")},
    "neg": lambda values, _: -values[0],
    "abs": lambda values, _: abs(values[0]),
    "round": _rounded,
    "floor": lambda values, _: _whole(values[0], ROUND_FLOOR),
    "ceil": lambda values, _: _whole(values[0], ROUND_CEILING),
}


def _compared(left: Value, right: Value) -> int:
    first, second = (order_key(each) for each in _alike(left, right))
    return int(first > second) - int(first < second)


def _like(text: str, pattern: str, escape: str | None = None) -> bool:
    parts: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            parts.append(re.escape(next(letters)))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter, re.escape(letter)))
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _substring(text: str, start: int, length: int | None = None) -> str:
    return text[start - 1 :] if length is None else text[start - 1 : start - 1 + length]


def _date_trunc(unit: str, time: datetime) -> datetime:
    time = time.astimezone(UTC).replace(second=0, microsecond=0)
    if unit != "minute":
        time = time.replace(minute=0)
    return time.replace(hour=0) if unit == "day" else time


def _xml_text(document: bytes, path: str) -> str | None:
    try:
        tree = parse_root(document).getroottree()
    except ContentError:
        return None
    if not tree.xpath(path):
        return None
    return str(tree.xpath(f"string(({path})[1])"))


def _xml_number(document: bytes, path: str) -> Value:
    text = _xml_text(document, path)
    return None if text is None else _read_number(text, "float")


#: Functions that give null only for null, and values that always fit.
_PLAIN: dict[str, Callable[..., Value]] = {
    "=": lambda left, right: _compared(left, right) == 0,
    "<>": lambda left, right: _compared(left, right) != 0,
    "<": lambda left, right: _compared(left, right) < 0,
    "<=": lambda left, right: _compared(left, right) <= 0,
    ">": lambda left, right: _compared(left, right) > 0,
    ">=": lambda left, right: _compared(left, right) >= 0,
    "not": lambda value: not value,
    "like": _like,
    "lower": str.lower,
    "upper": str.upper,
    "trim": lambda text: text.strip(" "),
    "length": len,
    "substring": _substring,
    "concat": lambda *texts: "".join(texts),
    "date_trunc": _date_trunc,
    "xml_text": _xml_text,
    "xml_number": _xml_number,
}


def _cast(value: Any, old: str, new: str) -> Value:
    if old == new:
        return value  # type: ignore[no-any-return]
    match new:
        case "string":
            return _written(value, old)
        case "bool":
            return bool(value != 0)
        case "timestamp":
            return _read_time(value)
        case _ if old == "string":
            return _read_number(value, new)
        case "int" if old != "bool":
            if isinstance(value, float) and not math.isfinite(value):
                return None
            return fitted(math.trunc(value), new)
        case _:
            return fitted(value, new)


def _written(value: Any, kind: str) -> str:
    match kind:
        case "bool":
            return "true" if value else "false"
        case "decimal":
            return f"{value:.9f}"
        case "timestamp":
            text = value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            return text.rstrip("0").rstrip(".")  # type: ignore[no-any-return]
        case _:
            return str(value)


def _read_number(text: str, kind: str) -> Value:
    text = text.strip()
    pattern = r"[+-]?\d+" if kind == "int" else r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
    if not re.fullmatch(pattern, text, re.ASCII):
        return None
    try:
        return fitted(int(text) if kind == "int" else float(text) if kind == "float" else Decimal(text), kind)
    except InvalidOperation:
        return None


def _read_time(text: str) -> datetime | None:
    text = text.strip()
    if not _TIME.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
