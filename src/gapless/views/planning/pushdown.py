"""What can the brokers decide? The part of a condition that subscribers could write themselves.

Brokers evaluate conditions of their own language, in `gapless.content`. A conjunct is pushed when it can be
written there with the same meaning: its text is read by the brokers' own parser, and what that refuses stays
with Spark. The text is kept in the parser's normal form, so equivalent conditions make equal leaves.

Comparisons that the two sides would round differently are not pushed: an integer with a float, for example.
"""

from __future__ import annotations

from collections.abc import Iterable

from gapless.content.language import parse_condition
from gapless.content.values import literal
from gapless.errors import ContentError
from gapless.model.schema import Schema
from gapless.views.expressions import Call, ColumnRef, Expression, Literal
from gapless.views.relation import Scan

_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
_ARITHMETIC = frozenset({"+", "-", "*", "/"})


def pushed(scan: Scan, conditions: Iterable[Expression]) -> tuple[str, tuple[Expression, ...]]:
    """The text for the brokers, empty for nothing, and the conditions that are left for Spark."""
    schema = Schema(scan.topic, scan.columns)
    texts: list[str] = []
    left: list[Expression] = []
    for condition in conditions:
        text = _text(condition)
        if text is not None and _is_read(text, schema):
            texts.append(text)
        else:
            left.append(condition)
    if not texts:
        return "", tuple(left)
    whole = " AND ".join(f"({text})" for text in texts)
    try:
        normal = str(parse_condition(whole, schema))
    except ContentError:
        # Each fits and together they are too large: then Spark does it all.
        return "", (*left, *conditions)
    return ("" if normal == "TRUE" else normal), tuple(left)


def _is_read(text: str, schema: Schema) -> bool:
    try:
        parse_condition(text, schema)
    except ContentError:
        return False
    return True


def _text(condition: Expression) -> str | None:
    """The condition in the brokers' language; None if it has no equivalent there."""
    match condition:
        case Literal(value=bool() as value):
            return "TRUE" if value else "FALSE"
        case ColumnRef(kind="bool"):
            return f"{condition.name} = TRUE"
        case Call(function="and" | "or" as word):
            return _joined(f" {word.upper()} ", condition.operands)
        case Call(function="not", operands=(operand,)):
            text = _text(operand)
            return None if text is None else f"NOT ({text})"
        case Call(function="is_null", operands=(ColumnRef() as column,)):
            return f"{column.name} IS NULL"
        case Call(function="is_not_null", operands=(ColumnRef() as column,)):
            return f"{column.name} IS NOT NULL"
        case Call(function="in", operands=(ColumnRef() as column, *values)):
            return _membership(column, values)
        case Call(function="like", operands=(ColumnRef() as column, Literal(value=str() as pattern))):
            return f"{column.name} LIKE {literal(pattern)}"
        case Call(
            function="like",
            operands=(ColumnRef() as column, Literal(value=str() as pattern), Literal(value=str() as escape)),
        ):
            return f"{column.name} LIKE {literal(pattern)} ESCAPE {literal(escape)}"
        case Call(function=operator, operands=(left, right)) if operator in _COMPARISONS:
            return _comparison(left, operator, right)
        case _:
            return None


def _joined(word: str, conditions: Iterable[Expression]) -> str | None:
    texts = [_text(condition) for condition in conditions]
    return None if None in texts else word.join(f"({text})" for text in texts)


def _membership(column: ColumnRef, values: Iterable[Expression]) -> str | None:
    texts = []
    for value in values:
        text = _value(value) if isinstance(value, Literal) and _fits(column, value) else None
        if text is None:
            return None
        texts.append(text)
    return f"{column.name} IN ({', '.join(texts)})"


def _comparison(left: Expression, operator: str, right: Expression) -> str | None:
    if isinstance(left, Literal) and not isinstance(right, Literal):
        left, right = right, left
        operator = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
    first, second = _value(left), _value(right)
    if first is None or second is None or not _fits(left, right):
        return None
    return f"{first} {operator} {second}"


def _fits(left: Expression, right: Expression) -> bool:
    """Whether both sides compare these types alike.

    Brokers compare a number with a float constant exactly, Spark as floats. For integers that is the same,
    unless the constant is so large that integers beside it become the same float.
    """
    if left.kind == right.kind:
        return left.kind != "xml"
    if isinstance(right, Literal) and isinstance(right.value, float):
        return left.kind == "int" and abs(right.value) < 2**53
    return True


def _value(value: Expression) -> str | None:
    match value:
        case ColumnRef():
            return value.name
        case Literal(value=None):
            return None
        case Literal(value=float() as number) if number - number != 0:
            return None  # infinity and NaN have no text
        case Literal():
            assert value.value is not None
            return literal(value.value)
        case Call(function=operator, operands=(left, right)) if operator in _ARITHMETIC:
            return _calculation(value, operator, left, right)
        case _:
            return None


def _calculation(whole: Call, operator: str, left: Expression, right: Expression) -> str | None:
    """Only where rounding is the same: Spark alone gives decimals a column's digits."""
    is_constant = isinstance(left, Literal) and isinstance(right, Literal)
    if is_constant or "decimal" in (whole.kind, left.kind, right.kind):
        return None
    first, second = _value(left), _value(right)
    return None if first is None or second is None else f"({first} {operator} {second})"
