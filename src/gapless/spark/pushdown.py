"""Which of Spark's filters are evaluated where the events are? Those with the same meaning as a condition.

Spark passes its WHERE as simple comparisons, joined by AND. A comparison that means the same to both sides
becomes a part of `where`, and Spark need not evaluate it again; everything else stays with Spark. Comparisons
of ticks bound the range that is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.wire.bulk import OWN_COLUMNS

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
#: Types whose comparisons mean the same in Spark and in conditions (NaN is the greatest number in both), by
#: the Python type of their constants.
_CONSTANTS: dict[str, type] = {
    "int": int,
    "float": float,
    "string": str,
    "bool": bool,
    "timestamp": datetime,
    "decimal": Decimal,
}
_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Pushed:
    """The part that the repository evaluates for Spark."""

    where: str = ""
    start: Tick = TICK_MIN
    stop: Tick = TICK_MAX


def pushed(filters: Sequence[Filter], schema: Schema) -> tuple[Pushed, list[Filter]]:
    """What can be evaluated where the events are, and the filters that Spark still has to evaluate."""
    kinds = {f"{each.name}_" if each.name in OWN_COLUMNS else each.name: each for each in schema.columns}
    texts: list[str] = []
    rest: list[Filter] = []
    start, stop = TICK_MIN, TICK_MAX
    for each in filters:
        bounds = _ticks(each)
        if bounds is not None:
            start, stop = max(start, bounds[0]), min(stop, bounds[1])
            continue
        name = _column(each)
        column = kinds.get(name) if name is not None else None
        text = None if column is None else _text(each, column.name, column.type)
        if text is None:
            rest.append(each)
        else:
            texts.append(text)
    return Pushed(where=" AND ".join(texts), start=start, stop=stop), rest


def joined(one: str, other: str) -> str:
    """A condition that accepts what both accept.

    >>> joined("a > 1 OR b", "c = 2"), joined("", "c = 2")
    ('(a > 1 OR b) AND (c = 2)', 'c = 2')
    """
    return f"({one}) AND ({other})" if one and other else one or other


def _column(each: Filter) -> str | None:
    inner = each.child if isinstance(each, Not) else each
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else None


def _ticks(each: Filter) -> tuple[Tick, Tick] | None:
    """The range of ticks that a filter accepts; None when it is about something else."""
    value = getattr(each, "value", None)
    if _column(each) != "tick" or not isinstance(value, int) or isinstance(value, bool):
        return None
    match each:
        case EqualTo():
            return value, value + 1
        case GreaterThan():
            return value + 1, TICK_MAX
        case GreaterThanOrEqual():
            return value, TICK_MAX
        case LessThan():
            return TICK_MIN, value
        case LessThanOrEqual():
            return TICK_MIN, value + 1
        case _:
            return None


def _text(each: Filter, name: str, kind: str) -> str | None:
    """A filter as a condition; None when that is impossible, or would mean something else."""
    match each:
        case IsNull():
            return f"{name} IS NULL"
        case IsNotNull():
            return f"{name} IS NOT NULL"
        case Not(child=EqualTo(value=value)):
            constant = _constant(value, kind)
            return None if constant is None else f"{name} <> {constant}"
        case Not(child=IsNull()):
            return f"{name} IS NOT NULL"
        case In(value=values) if len(values) <= _MAX:
            constants = [_constant(value, kind) for value in values]
            known = [constant for constant in constants if constant is not None]
            return f"{name} IN ({', '.join(known)})" if known and len(known) == len(values) else None
        case StringStartsWith(value=value) if kind == "string":
            return _like(name, value, "{}%")
        case StringEndsWith(value=value) if kind == "string":
            return _like(name, value, "%{}")
        case StringContains(value=value) if kind == "string":
            return _like(name, value, "%{}%")
        case _:
            operator = _OPERATORS.get(type(each))
            constant = None if operator is None else _constant(getattr(each, "value", None), kind)
            return None if constant is None else f"{name} {operator} {constant}"


def _like(name: str, value: str, form: str) -> str | None:
    if any(character in value for character in "%_!"):
        value = value.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        return f"{name} LIKE {_quoted(form.format(value))} ESCAPE '!'"
    return f"{name} LIKE {_quoted(form.format(value))}"


def _constant(value: object, kind: str) -> str | None:
    """A constant as conditions write it; None for column types where it would mean something else."""
    wanted = _CONSTANTS.get(kind)
    if wanted is None or not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):
        return None
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else None
        case str():
            return None if "\0" in value else _quoted(value)
        case datetime():
            time = value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return f"TIMESTAMP '{time:%Y-%m-%d %H:%M:%S.%f}'"
        case Decimal():
            return format(value, "f") if math.isfinite(value) else None
        case _:
            return None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
