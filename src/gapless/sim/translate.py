"""How are the simulator's plain values told to a broker? Conditions as filters, rows as columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from gapless.content.filters import Between, Equals, Everything, Filter
from gapless.sim.conditions import Condition, Row

_ARROW = pa.schema(
    [("id", pa.int64()), ("group", pa.int64()), ("price", pa.float64()), ("name", pa.string())]
)


def filter_of(condition: Condition) -> Filter:
    """The same condition in the words of `gapless.content`."""
    if condition.column is None:
        return Everything()
    if condition.equal is not None:
        return Equals(condition.column, condition.equal)
    return Between(condition.column, condition.low, condition.high)


def columns_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """The same rows as Arrow columns, in the schema of `topologies.COLUMNS`."""
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in _ARROW]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
