"""How are the simulator's plain values told to a broker? Conditions in normal form, rows as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import pyarrow as pa

from gapless.content import normal
from gapless.content.condition import EVERYTHING
from gapless.content.condition import Condition as ContentCondition
from gapless.content.domain import Domain
from gapless.content.sql.like import parse_like
from gapless.content.terms import ColumnTerm
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.sim.conditions import (
    Begins,
    Between,
    Both,
    Condition,
    Contains,
    Different,
    Either,
    Equal,
    Everything,
    Missing,
    Row,
)
from gapless.sim.topologies import COLUMNS

_SCHEMA = Schema.parse(TopicId("simulated"), COLUMNS)
_ARROW = _SCHEMA.arrow()
_COLUMNS = {column.name: ColumnTerm(column.name, column.type, column.nullable) for column in _SCHEMA.columns}


def condition_of(condition: Condition) -> ContentCondition:
    """The same condition in the words of `gapless.content`."""
    match condition:
        case Everything():
            return EVERYTHING
        case Equal():
            return _compared(condition.column, "=", condition.value)
        case Different():
            return _compared(condition.column, "<>", condition.value)
        case Between():
            low = _compared(condition.column, ">=", condition.low)
            return normal.both([low, _compared(condition.column, "<", condition.high)])
        case Begins():
            return _like(condition.column, f"{condition.start}%")
        case Contains():
            return _like(condition.column, f"%{condition.part}%")
        case Missing():
            column = _COLUMNS[condition.column]
            return normal.within(column, Domain.none(column.kind, null=True))
        case Either():
            return normal.either([condition_of(condition.one), condition_of(condition.other)])
        case Both():
            return normal.both([condition_of(condition.one), condition_of(condition.other)])
        case _:
            assert_never(condition)


def columns_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """The same rows as Arrow columns, in the schema of `topologies.COLUMNS`."""
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in _ARROW]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def columns_of_values(rows: Sequence[Sequence[object]]) -> pa.RecordBatch:
    """The same for rows that are values in the order of the schema."""
    arrays = [
        pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _compared(name: str, operator: normal.AnyComparison, value: float | str) -> ContentCondition:
    column = _COLUMNS[name]
    return normal.within(column, normal.comparison_domain(column.kind, operator, value))


def _like(name: str, pattern: str) -> ContentCondition:
    return normal.like(_COLUMNS[name], parse_like(pattern))
