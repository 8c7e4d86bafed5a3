"""How are a few rows kept? As the bytes they arrived in, and as columns only on demand.

Making Arrow columns of one row takes as long as everything else that happens to it: about fifteen
microseconds for each column, and as much again to write and to read them. A single event that everybody gets
needs none of that: its bytes are logged and delivered unchanged. A row is a MessagePack array with a value
for each column.

Implements docs/wire.md, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from gapless.errors import SchemaError
from gapless.model.schema import Schema

#: Above this number of rows, columns are cheaper.
PACKED_ROWS_MAX: Final = 64
#: The types whose values are the same in a row and in Python.
PACKED_TYPES: Final = frozenset({"int", "float", "string", "bool", "binary"})
#: Overhead of a row beyond its bytes.
_ROW_BYTES = 48

_decode = msgspec.msgpack.Decoder(tuple[object, ...]).decode


def is_packable(schema: Schema) -> bool:
    """Whether rows of this schema may be kept as bytes.

    >>> [is_packable(Schema.parse("t", columns)) for columns in ({"a": "int", "b": "string?"}, {"a": "xml"})]
    [True, False]
    """
    return all(column.type in PACKED_TYPES for column in schema.columns)


class PackedRows:
    """A few rows that fit a schema, as bytes.

    >>> import msgspec
    >>> schema = Schema.parse("t", {"a": "int", "b": "string?"}).arrow()
    >>> rows = PackedRows(schema, [msgspec.msgpack.encode(row) for row in ((1, "x"), (2, None))])
    >>> rows.slice(1, 1).columns().to_pylist()
    [{'a': 2, 'b': None}]
    """

    __slots__ = ("nbytes", "rows", "schema")

    def __init__(self, schema: pa.Schema, rows: Sequence[bytes]) -> None:
        """The caller has checked that the rows fit."""
        self.schema = schema
        self.rows = rows
        #: Their size in memory, for bounds.
        self.nbytes = sum(map(len, rows)) + _ROW_BYTES * len(rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedRows):
            return NotImplemented
        return list(self.rows) == list(other.rows) and self.schema.equals(other.schema)

    __hash__ = None  # type: ignore[assignment]  # rows are a value, but too big a one to hash

    @property
    def num_rows(self) -> int:
        """Their number, named as in Arrow."""
        return len(self.rows)

    def slice(self, offset: int, length: int | None = None) -> PackedRows:
        """Consecutive rows; without a length, all from `offset` on."""
        stop = len(self.rows) if length is None else offset + length
        if offset == 0 and stop >= len(self.rows):
            return self
        return PackedRows(self.schema, self.rows[offset:stop])

    def take(self, rows: Sequence[int]) -> PackedRows:
        """The rows at these positions."""
        return PackedRows(self.schema, [self.rows[row] for row in rows])

    def columns(self) -> pa.RecordBatch:
        """The same as columns."""
        columns = zip(*map(_decode, self.rows), strict=True)
        arrays = [pa.array(values, field.type) for field, values in zip(self.schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def put_together(parts: Sequence[pa.RecordBatch | PackedRows]) -> pa.RecordBatch | PackedRows:
    """Rows of one schema as one: packed when all are, and few. There must be at least one part.

    Consecutive packed parts become columns together: a column costs the same for one row and for many.
    """
    if len(parts) == 1:
        return parts[0]
    rows: list[bytes] = []
    columns: list[pa.RecordBatch] = []
    schema: pa.Schema = parts[0].schema
    for part in parts:
        if isinstance(part, PackedRows):
            rows += part.rows
            continue
        if rows:
            columns.append(PackedRows(schema, rows).columns())
            rows = []
        columns.append(part)
    if not columns:
        packed = PackedRows(schema, rows)
        return packed if len(rows) <= PACKED_ROWS_MAX else packed.columns()
    if rows:
        columns.append(PackedRows(schema, rows).columns())
    return pa.concat_batches(columns)


def as_columns(rows: pa.RecordBatch | PackedRows) -> pa.RecordBatch:
    """The rows as columns, however they are stored."""
    return rows.columns() if isinstance(rows, PackedRows) else rows


def fitting(rows: pa.RecordBatch | PackedRows, schema: Schema) -> pa.RecordBatch | PackedRows:
    """The rows in the schema of a topic. Raises SchemaError when they do not have it."""
    if not isinstance(rows, PackedRows):
        return schema.checked(rows)
    arrow = schema.arrow()
    if rows.schema is not arrow and not rows.schema.equals(arrow):
        raise SchemaError("E111", f"the rows do not have the schema of topic '{schema.topic}'")
    return rows
