"""How does a stranger write an Arrow message? By hand, so that each number in it can be a lie.

The metadata of a record batch are FlatBuffers: tables that point to where their fields are. `message` lays
them out plainly, each table behind the one that points to it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: What Arrow writes in `Message.header_type` and `Message.version`.
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
V4, V5 = 3, 4
LZ4, ZSTD = 0, 1

Pair = tuple[int, int]


class Plain(NamedTuple):
    """A plain record batch: of each column its rows and nulls, of each buffer its offset and length."""

    rows: int
    nodes: Sequence[Pair]
    buffers: Sequence[Pair]
    body: bytes


def laid_out(rows: int, columns: Sequence[Sequence[bytes]], nulls: Sequence[int] | None = None) -> Plain:
    """Columns as their buffers one after the other, each filled up to a multiple of 8."""
    body, buffers = b"", []
    for column in columns:
        for data in column:
            buffers.append((len(body), len(data)))
            body += data + bytes(-len(data) % 8)
    counts = [0] * len(columns) if nulls is None else nulls
    return Plain(rows, [(rows, count) for count in counts], buffers, body)


def message(
    plain: Plain,
    *,
    version: int = V5,
    kind: int = RECORD_BATCH,
    custom: Mapping[str, str] | None = None,
    compression: int | None = None,
    variadic: Sequence[int] | None = None,
    body_bytes: int | None = None,
) -> bytes:
    """A record batch message."""
    data = bytearray(4)

    def vtable(size: int, fields: Sequence[int]) -> int:
        data.extend(bytes(-len(data) % 2))
        at = len(data)
        data.extend(struct.pack(f"<{2 + len(fields)}H", 4 + 2 * len(fields), size, *fields))
        return at

    def table(vtable_at: int, size: int) -> int:
        data.extend(bytes(-len(data) % 8))
        at = len(data)
        data.extend(struct.pack("<i", at - vtable_at) + bytes(size - 4))
        return at

    def refer(place: int, target: int | None = None) -> None:
        struct.pack_into("<I", data, place, (len(data) if target is None else target) - place)

    def pairs(place: int, values: Sequence[Pair]) -> None:
        data.extend(bytes((4 - len(data)) % 8))
        refer(place)
        data.extend(struct.pack("<I", len(values)))
        data.extend(b"".join(struct.pack("<qq", *map(_wrapped, value)) for value in values))

    def text(place: int, value: str) -> None:
        data.extend(bytes(-len(data) % 4))
        refer(place)
        data.extend(struct.pack("<I", len(value)) + value.encode() + b"\0")

    top = table(vtable(24, [4, 6, 16, 8, 20 if custom is not None else 0]), 24)
    refer(0, top)
    told = len(plain.body) if body_bytes is None else body_bytes
    struct.pack_into("<hBxq", data, top + 4, version, kind, _wrapped(told))
    optional = [20 if compression is not None else 0, 24 if variadic is not None else 0]
    batch = table(vtable(32, [8, 4, 16, *optional]), 32)
    refer(top + 16, batch)
    struct.pack_into("<q", data, batch + 8, _wrapped(plain.rows))
    pairs(batch + 4, plain.nodes)
    pairs(batch + 16, plain.buffers)
    if compression is not None:
        packed = table(vtable(8, [4, 5]), 8)
        struct.pack_into("<bb", data, packed + 4, compression, 0)
        refer(batch + 20, packed)
    if variadic is not None:
        data.extend(bytes((4 - len(data)) % 8))
        refer(batch + 24)
        data.extend(struct.pack(f"<I{len(variadic)}q", len(variadic), *variadic))
    if custom is not None:
        data.extend(bytes(-len(data) % 4))
        refer(top + 20)
        data.extend(struct.pack("<I", len(custom)))
        places = [len(data) + 4 * at for at in range(len(custom))]
        data.extend(bytes(4 * len(custom)))
        for place, (key, value) in zip(places, custom.items(), strict=True):
            pair = table(vtable(12, [4, 8]), 12)
            refer(place, pair)
            text(pair + 4, key)
            text(pair + 8, value)
    data.extend(bytes(-len(data) % 8))
    return struct.pack("<II", 0xFFFFFFFF, len(data)) + bytes(data) + plain.body


def _wrapped(number: int) -> int:
    """A number as 64 bits have it."""
    return (number + 2**63) % 2**64 - 2**63
