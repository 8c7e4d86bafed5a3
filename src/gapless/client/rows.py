"""How do a program's events become columns? Arrow converts and checks each value, once.

`Shape` copies the values of a mapping when it is published, so that the program may change it afterwards. The
columns are built when the events are sent, all at once; an event that does not fit fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeGuard

import msgspec
import pyarrow as pa

from gapless.client.receipts import Piece, Row
from gapless.errors import GaplessError, SchemaError, UsageError
from gapless.model.bounds import ROWS_MAX
from gapless.model.budget import CLIENT_FRAME_BYTES_MAX, EVENT_BYTES_MAX, event_sizes
from gapless.model.packed import PACKED_ROWS_MAX, PackedRows, is_packable
from gapless.model.python_values import times_of
from gapless.model.schema import COLUMN_TYPES, Column, Schema
from gapless.wire.codec import schema_fingerprint

#: Batches with more bytes or rows are cut into several frames.
PIECE_BYTES_MAX = CLIENT_FRAME_BYTES_MAX // 4
PIECE_ROWS_MAX = ROWS_MAX // 16

#: The Python type of values that need no conversion, by column type.
_PLAIN: dict[str, type] = {"int": int, "float": float, "string": str, "bool": bool, "binary": bytes}
_encode = msgspec.msgpack.Encoder().encode
_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Shape:
    """Converts events of one topic to columns."""

    __slots__ = (
        "_arrow",
        "_integers",
        "_is_packable",
        "_kinds",
        "_names",
        "fingerprint",
        "schema",
        "values",
        "width",
    )

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.fingerprint = schema_fingerprint(schema)
        self.width = len(schema.columns)
        self._arrow = schema.arrow()
        self._is_packable = is_packable(schema)
        #: The value types of an event that can be packed directly, and the indexes of integers.
        self._kinds = tuple(_PLAIN.get(column.type, object) for column in schema.columns)
        self._integers = [at for at, column in enumerate(schema.columns) if column.type == "int"]
        self._names = tuple(column.name for column in schema.columns)
        #: The values of an event that has all columns. Raises KeyError if one is missing.
        self.values: Callable[[Mapping[str, object]], Row] = (
            itemgetter(*self._names) if self.width > 1 else _single(self._names[0])
        )

        # Arrow imports pandas, if installed, when it builds its first array. That takes a third of a second,
        # which no event should wait for.
        pa.array((), pa.int64())

    def completed(self, event: Mapping[str, object]) -> Row:
        """The values of an event that lacks columns or has unknown ones. Raises SchemaError."""
        topic = self.schema.topic
        for name in event:
            if name not in self._names:
                wanted = ", ".join(self._names)
                raise SchemaError("E111", f"topic '{topic}' has no column {name!r}: it has {wanted}")
        for column in self.schema.columns:
            if not column.nullable and column.name not in event:
                raise SchemaError("E112", f"topic '{topic}': column '{column.name}' is missing")
        return tuple(event.get(name) for name in self._names)

    def pieces(self, rows: Sequence[Row]) -> tuple[Sequence[Piece], dict[int, GaplessError]]:
        """The columns of these rows, cut to fit frames, and the errors of rows left out."""
        failed: dict[int, GaplessError] = {}
        packed = self._packed(rows) if self._is_packable and len(rows) < PACKED_ROWS_MAX else None
        if packed is not None:
            return [packed], failed
        try:
            return cut(self._columns(rows)), failed
        except UsageError:
            # One row does not fit; the others must not fail with it.
            good: list[Row] = []
        for index, row in enumerate(rows):
            try:
                cut(self._columns([row]))
            except UsageError as error:
                failed[index] = error
            else:
                good.append(row)
        return (cut(self._columns(good)) if good else []), failed

    def _packed(self, rows: Sequence[Row]) -> PackedRows | None:
        """A few rows as bytes; None if Arrow has to convert a value or report a mistake."""
        for row in rows:
            if tuple(map(type, row)) != self._kinds:
                return None
            for at in self._integers:
                if row[at].bit_length() > 63:  # type: ignore[attr-defined]  # an integer, by its kind
                    return None
        try:
            packed = PackedRows(self._arrow, [_encode(row) for row in rows])
        except (UnicodeEncodeError, ValueError):
            return None
        return packed if packed.nbytes <= PIECE_BYTES_MAX else None

    def _columns(self, rows: Sequence[Row]) -> pa.RecordBatch:
        columns = zip(self.schema.columns, zip(*rows, strict=True), strict=True)
        arrays = [self._array(column, values) for column, values in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _array(self, column: Column, values: Sequence[object]) -> pa.Array:
        topic = self.schema.topic
        try:
            # Given the type int, Arrow would truncate fractions; casting the inferred type does not.
            kind = None if column.type == "int" else COLUMN_TYPES[column.type]
            array = times_of(values, kind) if column.type == "timestamp" else pa.array(values, kind)
            if column.type == "int" and array.type != pa.int64():
                array = array.cast(pa.int64())
        except _MISFITS as error:
            # Arrow says "bytes" for text.
            reason = (str(error).splitlines() or [""])[0].replace("Expected bytes", "expected text")
            raise SchemaError(
                "E114", f"topic '{topic}': column '{column.name}' must be {column.type}: {reason}"
            ) from error
        if array.null_count and not column.nullable:
            raise SchemaError("E113", f"topic '{topic}': column '{column.name}' is null")
        return array

    def batches(self, data: object) -> list[pa.RecordBatch]:
        """A program's batch as columns of this topic. Raises UsageError."""
        if _is_records(data):
            rows = [self.completed(event) for event in data]
            return cut(self._columns(rows)) if rows else []
        table = self._of_mapping(data) if isinstance(data, Mapping) else _as_table(data)
        checked = [self.schema.checked(batch) for batch in table.to_batches() if batch.num_rows]
        return [piece for batch in checked for piece in cut(batch)]

    def _of_mapping(self, data: Mapping[str, Any]) -> pa.Table:
        known = {column.name: column for column in self.schema.columns}
        arrays = {}
        for name, values in data.items():
            column = known.get(name)
            if isinstance(values, pa.Array | pa.ChunkedArray):
                arrays[name] = values
            elif column is None:
                arrays[name] = pa.nulls(len(values))
            else:
                arrays[name] = self._array(column, list(values))
        if len({len(values) for values in arrays.values()}) > 1:
            lengths = ", ".join(f"'{name}' {len(values)}" for name, values in arrays.items())
            raise UsageError("E192", f"the columns of a batch have different lengths: {lengths}")
        return pa.table(arrays)


def cut(columns: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut rows into batches that each fit a frame. Raises UsageError if a single row does not."""
    rows = columns.num_rows
    if columns.nbytes <= PIECE_BYTES_MAX and rows <= PIECE_ROWS_MAX:
        return [columns]
    if rows == 1:
        size = int(event_sizes(columns)[0])
        if size <= EVENT_BYTES_MAX:
            return [columns]
        raise UsageError(
            "E194",
            f"an event has {size} bytes, at most {EVENT_BYTES_MAX} can be sent: split it, or publish where "
            "to find the rest",
        )
    middle = rows // 2
    return [*cut(columns.slice(0, middle)), *cut(columns.slice(middle))]


def _single(name: str) -> Callable[[Mapping[str, object]], Row]:
    return lambda event: (event[name],)


def _is_records(data: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    return isinstance(data, list | tuple) and all(isinstance(each, Mapping) for each in data)


def _as_table(data: Any) -> pa.Table:
    """An Arrow table from Arrow, pandas, Polars, or anything else that exports Arrow."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if type(data).__module__.split(".")[0] == "pandas":
            return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "to_arrow"):
            return pa.table(data.to_arrow())
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return pa.table(data)
    except _MISFITS as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError("E192", f"a batch of {type(data).__name__} cannot be read: {reason}") from error
    raise UsageError(
        "E192",
        f"a batch cannot be a {type(data).__name__}: give an Arrow table or batch, a pandas or Polars data "
        "frame, a dict of lists, or a list of dicts",
    )
