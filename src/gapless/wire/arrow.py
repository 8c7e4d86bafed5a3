"""Is an Arrow message laid out as ours are? Checked before Arrow reads it.

Arrow is made to read what other programs write: it decompresses whatever claims to be compressed, even in old
formats, lets many columns share one piece of memory, and accepts buffers of any length for any number of
rows. From a stranger all of these are ways to turn few bytes into much memory or work. So the message is
parsed by hand first: it must be a plain record batch of metadata version 5, and its buffers must lie in the
body one after the other, each as long as the rows need.

Metadata written by our own writer are the same bytes for all batches of a schema, except for some numbers.
That is checked first; only the messages of other writers are parsed table by table.

Implements docs/wire.md, section 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gapless.model.schema import Schema

_CONTINUATION = 0xFFFFFFFF
_VERSION_5 = 4
_RECORD_BATCH = 3
#: Bytes of a node (rows, nulls) and of a buffer (offset, length).
_PAIR_BYTES = 16

#: The padding of a buffer, by the number of bytes.
_ZEROS = [bytes(count) for count in range(8)]

_START = struct.Struct("<III")
_INT = struct.Struct("<i")
_LONG = struct.Struct("<q")
_SHORT = struct.Struct("<H")
_REFERENCE = struct.Struct("<I")

#: Size of a value in bits; None for offsets of 32 bits, and bytes.
_BITS: dict[str, int | None] = {
    "int": 64,
    "float": 64,
    "bool": 1,
    "timestamp": 64,
    "decimal": 128,
    "string": None,
    "binary": None,
    "xml": None,
}


class MalformedError(ValueError):
    """The bytes are not an acceptable message; the text says why."""


class _Numbers(NamedTuple):
    """The contents of a message's metadata."""

    rows: int
    #: For each column, its number of rows and of nulls.
    nodes: tuple[int, ...]
    #: For each buffer, its offset in the body and its length.
    buffers: tuple[int, ...]
    #: Where the body begins, and how long it is.
    body: int
    body_bytes: int


class _Places(NamedTuple):
    """The offsets of these numbers from the first byte."""

    body_bytes: int
    rows: int
    nodes: int
    buffers: int
    body: int


class Layout:
    """How the batches of one schema are laid out."""

    __slots__ = ("_bits", "_buffers", "_fixed", "_nodes", "_nodes_at", "_rows_max", "_sample", "_sample_body")

    def __init__(self, schema: Schema, rows_max: int) -> None:
        self._rows_max = rows_max
        self._bits = [_BITS[column.type] for column in schema.columns]
        self._nodes = struct.Struct(f"<{2 * len(self._bits)}q")
        self._buffers = struct.Struct(f"<{2 * sum(2 if bits else 3 for bits in self._bits)}q")
        sample = memoryview(_sample(schema.arrow()).serialize())
        places = self._walked(sample)
        #: The metadata of our writer in one struct: constant bytes, and the numbers between them.
        self._sample = self._woven(places)
        found = self._sample.unpack_from(sample)
        self._fixed = tuple(each for each in found if isinstance(each, bytes))
        #: Where the numbers of the nodes begin in it.
        self._nodes_at = 6 + self._buffers.size // _LONG.size
        self._sample_body = places.body

    def look(self, part: memoryview, *, wholly: bool) -> tuple[bool, bool]:
        """Whether the buffers have the right lengths, and whether all bytes are as we write them.

        The second only on request. Raises MalformedError when they must not be read at all.
        """
        try:
            numbers = self._own_numbers(part)
            ours = numbers is not None
            numbers = numbers or self._read(part, self._walked(part))
            if self._is_snug(part, numbers):
                return True, wholly and ours and self._is_clean(part, numbers)
            self._check(part, numbers)
        except struct.error as error:
            raise MalformedError("its metadata are truncated, or point outside themselves") from error
        return False, False

    def _woven(self, places: _Places) -> struct.Struct:
        """A struct of all metadata of a message."""
        assert places.body_bytes < places.rows < places.buffers < places.nodes < places.body, places
        form, at = "<", 0
        for place, size in (
            (places.body_bytes, _LONG.size),
            (places.rows, _LONG.size),
            (places.buffers, self._buffers.size),
            (places.nodes, self._nodes.size),
            (places.body, 0),
        ):
            form += f"{place - at}s{size // _LONG.size}q"
            at = place + size
        return struct.Struct(form)

    def _own_numbers(self, part: memoryview) -> _Numbers | None:
        """The contents of metadata of our writer; None for those of others."""
        if len(part) < self._sample_body:
            return None
        found = self._sample.unpack_from(part)
        at = self._nodes_at
        if (found[0], found[2], found[4], found[at - 1], found[-1]) != self._fixed:
            return None
        return _Numbers(found[3], found[at:-1], found[5 : at - 1], self._sample_body, found[1])

    def _walked(self, part: memoryview) -> _Places:
        """The offsets in the metadata of another writer. Arrow checks the rest later."""
        continuation, metadata_bytes, root = _START.unpack_from(part)
        if continuation != _CONTINUATION or metadata_bytes % 8:
            raise MalformedError("it is not an Arrow message")
        metadata = part[: 8 + metadata_bytes]
        message = 8 + root
        version = _field(metadata, message, 0)
        kind = _field(metadata, message, 1)
        header = _field(metadata, message, 2)
        body_bytes = _field(metadata, message, 3)
        if version is None or _SHORT.unpack_from(metadata, version)[0] != _VERSION_5:
            raise MalformedError("its metadata are not of version 5")
        if kind is None or header is None or metadata[kind : kind + 1] != bytes([_RECORD_BATCH]):
            raise MalformedError("it is not a record batch")
        if _field(metadata, message, 4) is not None:
            raise MalformedError("it has its own metadata")
        batch = header + _REFERENCE.unpack_from(metadata, header)[0]
        if _field(metadata, batch, 3) is not None:
            raise MalformedError("it is compressed")
        variadic = _field(metadata, batch, 4)
        if variadic is not None and _vector(metadata, variadic)[1]:
            raise MalformedError("it has a variable number of buffers")
        rows = _field(metadata, batch, 0)
        if body_bytes is None or rows is None:
            raise MalformedError("it has no rows")
        nodes, node_count = _vector(metadata, _field(metadata, batch, 1))
        buffers, buffer_count = _vector(metadata, _field(metadata, batch, 2))
        if node_count * _PAIR_BYTES != self._nodes.size or buffer_count * _PAIR_BYTES != self._buffers.size:
            raise MalformedError(f"it has {node_count} columns and {buffer_count} buffers")
        return _Places(body_bytes, rows, nodes, buffers, len(metadata))

    def _read(self, part: memoryview, places: _Places) -> _Numbers:
        metadata = part[: places.body]
        return _Numbers(
            _LONG.unpack_from(metadata, places.rows)[0],
            self._nodes.unpack_from(metadata, places.nodes),
            self._buffers.unpack_from(metadata, places.buffers),
            places.body,
            _LONG.unpack_from(metadata, places.body_bytes)[0],
        )

    def _is_snug(self, part: memoryview, numbers: _Numbers) -> bool:
        """Whether the buffers are laid out as by our writer: adjacent, and as long as the rows need."""
        rows, nodes, buffers, body, body_bytes = numbers
        nulls_of = nodes[1::2]
        if (
            nodes[::2].count(rows) != len(self._bits)
            or not 0 < rows <= self._rows_max
            or min(nulls_of) < 0
            or max(nulls_of) > rows
            or body + body_bytes != len(part)
        ):
            return False
        bitmap = (rows + 7) >> 3
        free = at = 0
        for bits, nulls in zip(self._bits, nulls_of, strict=True):
            length = buffers[at + 1]
            # The writer pads the buffers of a slice to a multiple of 64 bytes.
            if buffers[at] != free or not (bitmap <= length <= bitmap + 63 & -64 if nulls else length == 0):
                return False
            free = free + length + 7 & -8
            needed = rows * bits + 7 >> 3 if bits else 4 * rows + 4
            offset, length = buffers[at + 2], buffers[at + 3]
            if offset != free or not needed <= length <= needed + 63 & -64:
                return False
            free = free + length + 7 & -8
            at += 4
            if not bits:
                if free > body_bytes:
                    return False
                [first] = _INT.unpack_from(part, body + offset)
                [needed] = _INT.unpack_from(part, body + offset + 4 * rows)
                length = buffers[at + 1]
                if buffers[at] != free or first or not needed <= length <= needed + 63 & -64:
                    return False
                free = free + length + 7 & -8
                at += 2
        return free == body_bytes

    def _is_clean(self, part: memoryview, numbers: _Numbers) -> bool:
        """Whether the padding of a buffer to a multiple of 8 is zeros."""
        for offset, length in _pairs(numbers.buffers):
            if length & 7:
                end = numbers.body + offset + length
                if part[end : end + 7 & -8] != _ZEROS[-length & 7]:
                    return False
        return True

    def _check(self, part: memoryview, numbers: _Numbers) -> None:
        """Raise MalformedError unless the buffers are disjoint and long enough."""
        rows, nodes, buffers, body, body_bytes = numbers
        if body + body_bytes != len(part):
            raise MalformedError(f"a body of {body_bytes} bytes in a message of {len(part)}")
        if not 0 < rows <= self._rows_max:
            raise MalformedError(f"{rows} rows: 1 to {self._rows_max} are allowed")
        free = at = 0
        for bits, (count, nulls) in zip(self._bits, _pairs(nodes), strict=True):
            if count != rows or not 0 <= nulls <= rows:
                raise MalformedError(f"a column of {count} rows in {rows}, {nulls} of them null")
            needed = [(rows + 7) >> 3 if nulls else 0, rows * bits + 7 >> 3 if bits else 4 * rows + 4]
            for place in range(2 if bits else 3):
                offset, length = buffers[at], buffers[at + 1]
                if place == 2:
                    needed.append(_texts_end(part, body + buffers[at - 2], rows))
                if offset % 8 or offset < free or length < needed[place] or offset + length > body_bytes:
                    raise MalformedError(
                        f"a buffer of {length} bytes at {offset} of {body_bytes}: "
                        f"{needed[place]} bytes are needed, at {free} or later"
                    )
                free = offset + length
                at += 2


def rows_of(part: memoryview) -> int:
    """The number of rows that a message of any schema claims to have; 1 when unreadable."""
    try:
        message = 8 + _START.unpack_from(part)[2]
        header = _field(part, message, 2)
        if header is not None:
            rows = _field(part, header + _REFERENCE.unpack_from(part, header)[0], 0)
            if rows is not None:
                claimed: int = _LONG.unpack_from(part, rows)[0]
                return max(1, claimed)
    except struct.error:
        pass
    return 1


def slimmed(columns: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of the rows without anything else. They must be valid."""
    made = pa.RecordBatch.from_arrays([_slim(array) for array in columns.columns], schema=columns.schema)
    return pa.ipc.read_record_batch(made.serialize(), columns.schema)


def _slim(array: pa.Array) -> pa.Array:
    """An array of buffers that are exactly as long as necessary."""
    rows, nulls = len(array), array.null_count
    validity, *buffers = array.buffers()
    validity = validity.slice(0, (rows + 7) >> 3) if nulls and validity is not None else None
    if len(buffers) == 1:
        bytes_needed = (rows * array.type.bit_width + 7) >> 3
        return pa.Array.from_buffers(array.type, rows, [validity, buffers[0].slice(0, bytes_needed)], nulls)
    offsets = np.frombuffer(buffers[0], np.int32, rows + 1)
    first, last = int(offsets[0]), int(offsets[-1])
    data = pa.py_buffer(b"") if buffers[1] is None else buffers[1].slice(first, last - first)
    return pa.Array.from_buffers(array.type, rows, [validity, pa.py_buffer(offsets - first), data], nulls)


def _texts_end(part: memoryview, offsets: int, rows: int) -> int:
    """The last offset of a column of texts."""
    [first] = _INT.unpack_from(part, offsets)
    [last] = _INT.unpack_from(part, offsets + 4 * rows)
    if not 0 <= first <= last:
        raise MalformedError(f"texts from {first} to {last}")
    end: int = last
    return end


def _pairs(numbers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Consecutive pairs of numbers."""
    return zip(numbers[::2], numbers[1::2], strict=True)


def _field(part: memoryview, table: int, number: int) -> int | None:
    """Where a field of a FlatBuffers table is; None when absent."""
    vtable = table - _INT.unpack_from(part, table)[0]
    if vtable < 0:
        raise struct.error
    entry = 4 + 2 * number
    if entry >= _SHORT.unpack_from(part, vtable)[0]:
        return None
    offset: int = _SHORT.unpack_from(part, vtable + entry)[0]
    return table + offset if offset else None


def _vector(part: memoryview, field: int | None) -> tuple[int, int]:
    """Where the elements of a vector begin, and how many there are."""
    if field is None:
        return 0, 0
    vector = field + _REFERENCE.unpack_from(part, field)[0]
    return vector + 4, _REFERENCE.unpack_from(part, vector)[0]


def _sample(schema: pa.Schema) -> pa.RecordBatch:
    """A row of nulls, even in columns that are not nullable: it is never read."""
    return pa.RecordBatch.from_arrays(
        [pa.nulls(1, field.type) for field in schema], schema=pa.schema([(f.name, f.type) for f in schema])
    )
