"""What may an event of a topic hold? Named, typed, nullable columns, checked before anything changes.

A schema is checked where events enter, once per batch and never per row. A mismatch is refused with one error
that names the topic, the column and the first bad row.

Implements docs/protocol.md, section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from gapless.errors import SchemaError
from gapless.model.ids import TopicId

#: The column types of a topic, by the names that people write in a network description.
COLUMN_TYPES: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "int": pa.int64(),
        "float": pa.float64(),
        "string": pa.string(),
        "bool": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "decimal": pa.decimal128(38, 9),
        "binary": pa.binary(),
        # One document, as bytes: a document declares its own encoding.
        "xml": pa.binary(),
    }
)

#: Maximum number of columns, against hostile descriptions.
COLUMNS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, the name of its type, and whether it may be null."""

    name: str
    type: str
    nullable: bool = False


@cache
def _arrow(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(c.name, COLUMN_TYPES[c.type], nullable=c.nullable) for c in columns])


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns that every event of a topic has."""

    topic: TopicId
    columns: tuple[Column, ...]

    @staticmethod
    def parse(topic: TopicId, columns: Mapping[str, str]) -> Schema:
        """A schema from `{"price": "float", "note": "string?"}`; a question mark allows nulls.

        >>> Schema.parse(TopicId("trades"), {"price": "float?"}).columns[0].nullable
        True

        Raises SchemaError naming the topic and the column.
        """
        if not columns:
            raise SchemaError("E110", f"topic '{topic}' has no columns: name at least one")
        if len(columns) > COLUMNS_MAX:
            raise SchemaError("E110", f"topic '{topic}' has {len(columns)} columns, at most {COLUMNS_MAX}")
        return Schema(topic, tuple(_parsed(topic, name, text) for name, text in columns.items()))

    def arrow(self) -> pa.Schema:
        """The same columns as an Arrow schema."""
        return _arrow(self.columns)

    def checked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in this schema's column order and types.

        Raises SchemaError naming the topic, the column and the first bad row; nothing is changed then.
        """
        if rows.schema.equals(self.arrow()) and all(
            column.nullable or not rows.column(at).null_count for at, column in enumerate(self.columns)
        ):
            return rows
        known = {column.name for column in self.columns}
        for name in rows.schema.names:
            if name not in known:
                wanted = ", ".join(column.name for column in self.columns)
                raise SchemaError("E111", f"topic '{self.topic}' has no column {name!r}: it has {wanted}")
        arrays = [self._checked_column(rows, column) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow())

    def _checked_column(self, rows: pa.RecordBatch, column: Column) -> pa.Array:
        wanted = COLUMN_TYPES[column.type]
        at = rows.schema.get_field_index(column.name)
        if at < 0:
            if rows.schema.names.count(column.name) > 1:
                raise SchemaError("E111", f"topic '{self.topic}': column '{column.name}' is given twice")
            if not column.nullable:
                raise SchemaError("E112", f"topic '{self.topic}': column '{column.name}' is missing")
            return pa.nulls(rows.num_rows, wanted)
        array = rows.column(at)
        if array.type != wanted:
            array = self._cast(array, column, wanted)
        if not column.nullable and array.null_count:
            row = pc.index(array.is_null(), True).as_py()
            raise SchemaError("E113", f"topic '{self.topic}': column '{column.name}' is null in row {row}")
        return array

    def _cast(self, array: pa.Array, column: Column, wanted: pa.DataType) -> pa.Array:
        try:
            return array.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).splitlines()[0]
            row = _first_bad_row(array, wanted)
            raise SchemaError(
                "E114",
                f"topic '{self.topic}': column '{column.name}' must be {column.type}, "
                f"got {array.type}{'' if row is None else f' in row {row}'}: {reason}",
            ) from error


def _first_bad_row(array: pa.Array, wanted: pa.DataType) -> int | None:
    """The first row that cannot be cast; None when the type is to blame and not a row."""
    if not _can_cast(array.slice(0, 0), wanted):
        return None
    good, bad = 0, len(array)  # the first `good` rows can be cast, the first `bad` cannot
    while bad - good > 1:
        middle = (good + bad) // 2
        if _can_cast(array.slice(good, middle - good), wanted):
            good = middle
        else:
            bad = middle
    return good


def _can_cast(array: pa.Array, wanted: pa.DataType) -> bool:
    try:
        array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _parsed(topic: TopicId, name: str, text: str) -> Column:
    if not name.isidentifier():
        raise SchemaError(
            "E110", f"topic '{topic}': {name!r} is not a column name: use letters, digits and _"
        )
    nullable = text.endswith("?")
    kind = text.removesuffix("?")
    if kind not in COLUMN_TYPES:
        names = ", ".join(COLUMN_TYPES)
        raise SchemaError("E110", f"topic '{topic}': column '{name}' has unknown type {kind!r}: use {names}")
    return Column(name, kind, nullable)
