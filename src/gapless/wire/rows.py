"""How does a single event travel? As a short array of values, encoded once for all recipients.

An Arrow message takes about 400 bytes and several microseconds before its first value. That is nothing for
500 rows and everything for one. So a row can also be a MessagePack array with a value for each column: it is
made once per row, copied into the frame of every subscriber that gets it, and decoded to Python values in one
step.

Implements docs/wire.md, section 6.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from types import GenericAlias
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Meta

from gapless.errors import PeerError
from gapless.model.batch import EventBatch
from gapless.model.packed import PACKED_ROWS_MAX, PackedRows, is_packable
from gapless.model.python_values import LEAST_DECIMAL, time_of
from gapless.model.schema import Schema
from gapless.wire.codec import unreadable
from gapless.wire.frames import Frame, Part

#: Decimals have 38 digits, 9 of them after the point.
_DECIMAL_STOP = Decimal(10) ** 29
_DECIMAL_EXPONENT_MIN = -9

_INTEGER = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_TYPES: Final[dict[str, Any]] = {
    "int": _INTEGER,
    "float": float,
    "string": str,
    "bool": bool,
    "timestamp": _INTEGER,
    "decimal": Decimal,
    "binary": bytes,
    "xml": bytes,
}

_encode = msgspec.msgpack.Encoder().encode


class RowFormat:
    """The rows of one topic as bytes, and back."""

    __slots__ = ("_arrow", "_decoder", "_is_packable", "_special", "_times", "schema")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._arrow = schema.arrow()
        self._is_packable = is_packable(schema)
        types = tuple(
            _TYPES[column.type] | None if column.nullable else _TYPES[column.type]
            for column in schema.columns
        )
        self._decoder: msgspec.msgpack.Decoder[tuple[object, ...]] = msgspec.msgpack.Decoder(
            GenericAlias(tuple, types)
        )
        self._times = [at for at, column in enumerate(schema.columns) if column.type == "timestamp"]
        #: The columns whose values need a second look after decoding.
        self._special = [
            (at, column.type)
            for at, column in enumerate(schema.columns)
            if column.type in {"timestamp", "decimal"}
        ]

    def encoded(self, batch: EventBatch) -> Sequence[bytes]:
        """Each row as bytes; packed rows are returned as they are."""
        return self.encode(batch.columns) if batch.packed is None else batch.packed.rows

    def encode(self, columns: pa.RecordBatch) -> list[bytes]:
        """Each row as bytes."""
        arrays = columns.columns
        for at in self._times:
            arrays[at] = arrays[at].cast(pa.int64())
        return [_encode(row) for row in zip(*[array.to_pylist() for array in arrays], strict=True)]

    def unpacked(self, frame: Frame) -> PackedRows:
        """The rows in the two parts of a frame: the length of each, and their bytes. Raises PeerError.

        Each is decoded and encoded again, so that it has this program's canonical, shortest form.
        """
        lengths, data = frame.parts
        count = len(lengths) // 4
        if not self._is_packable or not 0 < count <= PACKED_ROWS_MAX or len(lengths) % 4:
            raise unreadable(frame, f"{len(lengths)} bytes of lengths, or rows that must come as columns")
        rows: list[bytes] = []
        at = 0
        for length in struct.unpack(f"<{count}I", lengths):
            rows.append(_encode(self.decode(data[at : at + length])))
            at += length
        if at != len(data):
            raise unreadable(frame, "the lengths of its rows do not add up")
        return PackedRows(self._arrow, rows)

    def decode(self, data: memoryview | bytes) -> tuple[object, ...]:
        """The values of a row. Raises PeerError unless they fit the schema."""
        try:
            values = self._decoder.decode(data)
            return self._completed(values) if self._special else values
        except (ValueError, RecursionError) as error:
            raise PeerError(
                "E216",
                f"a row of topic '{self.schema.topic}' does not have its schema, or is damaged: {error}",
            ) from error

    def _completed(self, values: tuple[object, ...]) -> tuple[object, ...]:
        made = list(values)
        for at, kind in self._special:
            value = made[at]
            if isinstance(value, int):
                made[at] = time_of(value)
            elif isinstance(value, Decimal) and not _is_ours(value):
                raise ValueError(f"column '{self.schema.columns[at].name}' cannot be {kind} {value}")
        return tuple(made)


def encode_packed(rows: PackedRows) -> list[Part]:
    """Packed rows as the parts of a frame."""
    return [struct.pack(f"<{len(rows.rows)}I", *map(len, rows.rows)), b"".join(rows.rows)]


def _is_ours(value: Decimal) -> bool:
    """Whether a decimal column can have this value, or could in the past."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        return False
    if exponent < _DECIMAL_EXPONENT_MIN:
        return False
    return value.copy_abs() < _DECIMAL_STOP or value == LEAST_DECIMAL
