"""How does Spark compute an expression of a view? As native columns, without Python per row.

Spark must never end a query because of an event: overflow and division by zero give null, as
`views.expressions` promises. So arithmetic uses the `try_` functions, and every result is cast to the type
that the view declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import reduce
from types import MappingProxyType

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the usual name
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampType,
)

from gapless.spark.xml import xml_number, xml_text
from gapless.views.expressions import Call, ColumnRef, Expression, Literal

#: The Spark type for each column type of a topic.
SPARK_TYPES: Mapping[str, DataType] = MappingProxyType(
    {
        "int": LongType(),
        "float": DoubleType(),
        "string": StringType(),
        "bool": BooleanType(),
        "timestamp": TimestampType(),
        "decimal": DecimalType(38, 9),
        "binary": BinaryType(),
        "xml": BinaryType(),
    }
)


def named(name: str) -> Column:
    """The column of this name, whatever characters it has."""
    return F.col(f"`{name.replace('`', '``')}`")


def column(expression: Expression) -> Column:
    """The Spark column of an expression."""
    match expression:
        case ColumnRef():
            return named(expression.name)
        case Literal():
            return _literal(expression)
        case Call(function="cast", operands=(operand,)):
            return column(operand).try_cast(SPARK_TYPES[expression.kind])
        case Call(function=function) if function in _OF_KIND:
            return _OF_KIND[function](expression, [column(each) for each in expression.operands])
        case Call():
            operands = [column(each) for each in expression.operands]
            return _FUNCTIONS[expression.function](*operands).cast(SPARK_TYPES[expression.kind])


def _literal(literal: Literal) -> Column:
    value = literal.value
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return F.lit(value).cast(SPARK_TYPES[literal.kind])


def _text(expression: Expression) -> str:
    """An operand that is a text literal: `views.functions` has checked it."""
    assert isinstance(expression, Literal), expression
    assert isinstance(expression.value, str), expression
    return expression.value


# ---- functions that depend on types or constants -----------------------------------------------------


def _arithmetic(function: Callable[[Column, Column], Column]) -> Callable[[Call, list[Column]], Column]:
    """Both operands in the type of the result, so that nothing is rounded early; `/` divides floats."""

    def computed(call: Call, operands: list[Column]) -> Column:
        result = SPARK_TYPES[call.kind]
        inner = DoubleType() if call.function == "/" else result
        left, right = (operand.cast(inner) for operand in operands)
        return function(left, right).cast(result)

    return computed


def _negated(call: Call, operands: list[Column]) -> Column:
    if call.kind == "float":
        return F.negate(operands[0])
    kind = SPARK_TYPES[call.kind]
    return F.try_subtract(F.lit(0).cast(kind), operands[0]).cast(kind)


def _absolute(call: Call, operands: list[Column]) -> Column:
    if call.kind == "float":
        return F.abs(operands[0])
    return F.when(operands[0] < 0, _negated(call, operands)).otherwise(operands[0])


def _whole(function: Callable[[Column], Column]) -> Callable[[Call, list[Column]], Column]:
    """Floor and ceiling keep the type. A float beyond 2^53 is already whole, and may not fit an integer."""

    def computed(call: Call, operands: list[Column]) -> Column:
        (operand,) = operands
        kind = SPARK_TYPES[call.kind]
        if call.kind == "int":
            return operand
        if call.kind == "decimal":
            return function(operand).cast(kind)
        return F.when(F.abs(operand) < 2.0**53, function(operand).cast(kind)).otherwise(operand)

    return computed


def _rounded(call: Call, operands: list[Column]) -> Column:
    digits = call.operands[1].value if len(operands) == 2 and isinstance(call.operands[1], Literal) else 0
    assert isinstance(digits, int)
    if call.kind == "int" and digits >= 0:
        return operands[0]
    return F.round(operands[0], digits).cast(SPARK_TYPES[call.kind])


def _like(call: Call, operands: list[Column]) -> Column:
    pattern = _text(call.operands[1])
    if len(operands) == 3:
        return F.like(operands[0], F.lit(pattern), F.lit(_text(call.operands[2])))
    # Without an escape character every character stands for itself; Spark's default is the backslash.
    return F.like(operands[0], F.lit(pattern.replace("\\", "\\\\")))


def _truncated(call: Call, operands: list[Column]) -> Column:
    return F.date_trunc(_text(call.operands[0]), operands[1])


def _case(call: Call, operands: list[Column]) -> Column:
    """Pairs of a condition and a value, then the value for everything else."""
    chosen = F.when(operands[0], operands[1])
    for condition, value in zip(operands[2:-1:2], operands[3:-1:2], strict=True):
        chosen = chosen.when(condition, value)
    return chosen.otherwise(operands[-1]).cast(SPARK_TYPES[call.kind])


_OF_KIND: Mapping[str, Callable[[Call, list[Column]], Column]] = {
    "+": _arithmetic(F.try_add),
    "-": _arithmetic(F.try_subtract),
    "*": _arithmetic(F.try_multiply),
    "/": _arithmetic(F.try_divide),
    "%": _arithmetic(F.try_mod),
    "neg": _negated,
    "abs": _absolute,
    "floor": _whole(F.floor),
    "ceil": _whole(F.ceil),
    "round": _rounded,
    "like": _like,
    "date_trunc": _truncated,
    "case": _case,
}


# ---- functions that Spark has natively ---------------------------------------------------------------


def _of_all(function: Callable[[Column, Column], Column]) -> Callable[..., Column]:
    """The same for any number of operands."""
    return lambda *operands: reduce(function, operands)


def _extreme(function: Callable[..., Column]) -> Callable[..., Column]:
    """Spark needs at least two operands."""
    return lambda *operands: function(*operands) if len(operands) > 1 else operands[0]


_FUNCTIONS: Mapping[str, Callable[..., Column]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "and": _of_all(lambda a, b: a & b),
    "or": _of_all(lambda a, b: a | b),
    "not": lambda a: ~a,
    "is_null": lambda a: a.isNull(),
    "is_not_null": lambda a: a.isNotNull(),
    "in": lambda value, *choices: value.isin(*choices),
    "coalesce": F.coalesce,
    "nullif": F.nullif,
    "greatest": _extreme(F.greatest),
    "least": _extreme(F.least),
    "lower": F.lower,
    "upper": F.upper,
    "trim": F.trim,
    "length": F.length,
    "substring": lambda s, *places: F.substr(s, *(place.cast("int") for place in places)),
    "concat": F.concat,
    "xml_text": xml_text,
    "xml_number": xml_number,
}
