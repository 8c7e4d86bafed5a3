"""What is inside a frame? What all codecs share: heads, ticks, columns, and their checks.

A head is MessagePack, laid out and bounded by a `msgspec` type: a field that is missing, of another type or
out of its bounds is found while it is decoded. Columns are Arrow record batches without their schema, which
both sides know. `arrow` checks that a message is plain and its buffers have the right lengths, so that
decoding takes no more memory than the peer has sent; a full validation checks that every offset, text and
number in it can be read.

Whatever the bytes are, decoding gives a value or raises PeerError.

Implements docs/wire.md, section 2.
"""

from __future__ import annotations

import zlib
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from gapless.errors import PeerError
from gapless.model.batch import EventBatch
from gapless.model.bounds import ROWS_MAX, TEXT_MAX
from gapless.model.python_values import first_unfit_decimal
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MAX, TICK_MIN, TickArray
from gapless.wire.arrow import Layout, slimmed
from gapless.wire.frames import Frame

#: Below this size, encoding columns again is cheaper than keeping their bytes.
KEPT_BYTES_MIN: Final = 32 * 2**10


class Head(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The head of a frame: an array whose fields are identified by position. New ones come last."""


AnyHead = TypeVar("AnyHead")

_encoder = msgspec.msgpack.Encoder()


def encode_head(head: msgspec.Struct) -> bytes:
    """A head as bytes."""
    return _encoder.encode(head)


def decode_head(decoder: msgspec.msgpack.Decoder[AnyHead], frame: Frame, parts: int = 0) -> AnyHead:
    """The head of a frame that must have `parts` parts. Raises PeerError."""
    if len(frame.parts) != parts:
        raise unreadable(frame, f"{len(frame.parts)} parts instead of {parts}")
    try:
        return decoder.decode(frame.head)
    except (ValueError, RecursionError) as error:
        raise unreadable(frame, str(error)) from error


def shortened(text: str) -> str:
    """A text for people that is not longer than a reader allows."""
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."


def unreadable(frame: Frame, reason: str) -> PeerError:
    """The error for a frame that is not a valid one of its kind."""
    return PeerError("E215", f"a {frame.kind.name} frame cannot be read: {reason}")


# ---- ticks -------------------------------------------------------------------------------------------


def encode_ticks(ticks: TickArray) -> bytes:
    """Ticks as eight bytes each, the lowest first."""
    return ticks.astype("<i8", copy=False).tobytes()


def decode_ticks(part: memoryview, *, strictly: bool = True) -> TickArray:
    """Ticks that ascend, strictly or not. Raises PeerError."""
    if len(part) % 8 or len(part) > 8 * ROWS_MAX:
        raise PeerError("E216", f"{len(part)} bytes of ticks: they must be 8 for each of at most {ROWS_MAX}")
    ticks = np.frombuffer(part, dtype="<i8").astype(np.int64)
    if len(ticks):
        steps = ticks[1:] > ticks[:-1] if strictly else ticks[1:] >= ticks[:-1]
        ascend = np.count_nonzero(steps) == len(steps)
        if not ascend or int(ticks[0]) < TICK_MIN or int(ticks[-1]) >= TICK_MAX:
            raise PeerError("E216", "the ticks of a batch do not ascend, or are invalid")
    return ticks


# ---- columns -----------------------------------------------------------------------------------------


def encode_columns(columns: pa.RecordBatch) -> memoryview:
    """The rows as an Arrow message without its schema."""
    return memoryview(columns.serialize())


def encode_batch(batch: EventBatch) -> memoryview:
    """The rows of a batch as an Arrow message: the one that they came in, where that was kept."""
    return encode_columns(batch.columns) if batch.encoded is None else batch.encoded


class ColumnsFormat:
    """How the rows of one topic are read from an Arrow message."""

    __slots__ = ("_arrow", "_decimals", "_layout", "_required", "schema")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._arrow = schema.arrow()
        self._layout = Layout(schema, ROWS_MAX)
        #: The columns that may have no null.
        self._required = [at for at, column in enumerate(schema.columns) if not column.nullable]
        self._decimals = [at for at, column in enumerate(schema.columns) if column.type == "decimal"]

    def decode(self, part: memoryview) -> pa.RecordBatch:
        """The rows. Raises PeerError unless every value can be read and fits the schema."""
        return self.decode_kept(part)[0]

    def decode_kept(self, part: memoryview) -> tuple[pa.RecordBatch, memoryview | None]:
        """Like `decode`, plus the bytes that the rows were read from, when there are many and all are needed.

        These bytes can be passed on instead of encoding the rows again. They must be the bytes that we would
        write, so that nothing but the values of these rows can hide in them.
        """
        try:
            snug, ours = self._layout.look(part, wholly=len(part) >= KEPT_BYTES_MIN)
            owned = _owned(part)
            columns = pa.ipc.read_record_batch(owned, self._arrow)
            columns.validate(full=True)
        except Exception as error:  # whatever a library finds wrong, the peer sent it
            raise self._damaged((str(error).splitlines() or [""])[0]) from error
        for at in self._required:
            if columns.column(at).null_count:
                raise self._damaged(f"column '{self.schema.columns[at].name}' has a null")
        if not snug:
            return slimmed(columns), None
        return columns, memoryview(owned) if ours else None

    def decode_new(self, part: memoryview) -> tuple[pa.RecordBatch, memoryview | None]:
        """Like `decode_kept`, for rows that enter the system: no value may be one that readers refuse.

        Arrow misses one decimal with more digits than its type allows. Stored rows may hold it, and are still
        read.
        """
        columns, encoded = self.decode_kept(part)
        for at in self._decimals:
            row = first_unfit_decimal(columns.column(at))
            if row is not None:
                raise self._damaged(
                    f"column '{self.schema.columns[at].name}' has more than 38 digits in row {row}"
                )
        return columns, encoded

    def _damaged(self, reason: str) -> PeerError:
        return PeerError(
            "E216",
            f"a batch of topic '{self.schema.topic}' does not have its schema, or is damaged: {reason}",
        )


def decode_batch(
    ticks: memoryview, columns: memoryview, form: ColumnsFormat, *, strictly: bool = True
) -> EventBatch:
    """Rows with their ticks. Raises PeerError."""
    at = decode_ticks(ticks, strictly=strictly)
    rows, encoded = form.decode_kept(columns)
    if len(at) != rows.num_rows:
        raise PeerError("E216", f"a batch has {rows.num_rows} rows and {len(at)} ticks")
    return EventBatch(at, rows, encoded=encoded)


def _owned(part: memoryview) -> pa.Buffer:
    """An aligned copy of the bytes, unless they fill most of their buffer.

    Decoded values may live for long. They must not keep a large, unaccounted read buffer alive; and arrays
    need to be aligned to multiples of 8.
    """
    buffer = pa.py_buffer(part)
    if buffer.address % 8 or 2 * len(part) < memoryview(part.obj).nbytes:
        return pa.py_buffer(bytes(part))
    return buffer


# ---- schemas -----------------------------------------------------------------------------------------


def column_texts(schema: Schema) -> dict[str, str]:
    """The columns of a schema as `Schema.parse` reads them."""
    return {column.name: f"{column.type}{'?' if column.nullable else ''}" for column in schema.columns}


def schema_fingerprint(schema: Schema) -> int:
    """A number that distinguishes schemas of a topic: 32 bits, the same everywhere."""
    text = "\n".join(f"{name} {kind}" for name, kind in column_texts(schema).items())
    return zlib.crc32(text.encode())
