"""How does a stranger talk to a node? Frames packed by hand from docs/wire.md, and a plain blocking socket.

Attacks must not pass through our own encoder, which would refuse half of them. So this is a second, much
smaller implementation of the wire: a header, a head in MessagePack, raw parts. `Raw` says what it is told to
say, however wrong that is.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

#: Nothing here takes this long; a test that waits for longer has found a bug.
PATIENCE_SECONDS = 30

KINDS = {
    "HELLO": 0x01, "WELCOME": 0x02, "REFUSE": 0x03, "PING": 0x04, "PONG": 0x05,
    "CHALLENGE": 0x06, "PROOF": 0x07,
    "KNOWLEDGE": 0x10, "ACK": 0x11, "NACK": 0x12, "ACK_EXPECTED": 0x13, "START_REQUEST": 0x14,
    "START_GRANT": 0x15, "ADVERTISEMENT": 0x16, "ADVERTISEMENT_ACK": 0x17, "LINK_STATUS": 0x18,
    "SIDEWAYS": 0x19, "TOPICS_CREATED": 0x1A,
    "PUBLISH": 0x20, "SUBSCRIBE": 0x21, "CHANGE_FILTER": 0x22, "UNSUBSCRIBE": 0x23, "CREDIT": 0x24,
    "ACKNOWLEDGE": 0x25, "LIST_TOPICS": 0x26, "CREATE_TOPIC": 0x27, "ASK_STATUS": 0x28, "PUBLISH_ROWS": 0x29,
    "RECEIPT": 0x40, "PUBLISH_REFUSED": 0x41, "CONFIRMED": 0x42, "ROWS": 0x43, "COLUMNS": 0x44,
    "DONE": 0x45, "REQUEST_REFUSED": 0x46, "TOPICS": 0x47, "STATUS_REPORT": 0x48,
}  # fmt: skip
NAMES = {number: name for name, number in KINDS.items()}

_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.decode


def padded(data: bytes) -> bytes:
    """Bytes filled up with zeros to a multiple of 8."""
    return data + bytes(-len(data) % 8)


def frame_bytes(kind: str, head: bytes, parts: Sequence[bytes] = ()) -> bytes:
    """A frame whose head is these very bytes."""
    table = padded(b"".join(struct.pack("<I", len(part)) for part in parts))
    body = table + padded(head) + b"".join(map(padded, parts))
    version = 0 if kind in ("HELLO", "WELCOME", "REFUSE", "CHALLENGE", "PROOF") else 1
    header = struct.pack("<2sBBIIHH", b"G\xa7", version, KINDS[kind], len(body), len(head), len(parts), 0)
    return header + body


def frame(kind: str, head: object, parts: Sequence[bytes] = ()) -> bytes:
    """A frame with a head in MessagePack."""
    return frame_bytes(kind, _pack(head), parts)


def hello(name: str = "mallory", **fields: object) -> bytes:
    """The first frame of a client, or with `role="broker"` of a broker."""
    head: dict[str, object] = {
        "role": "client",
        "name": name,
        "network": "",
        "software": "by hand",
        "token": None,
        "version_min": 1,
        "version_max": 1,
    }
    return frame("HELLO", head | fields)


def fingerprint(columns: Mapping[str, str]) -> int:
    """The fingerprint of a schema, as docs/wire.md says: `{"price": "float"}`."""
    return zlib.crc32("\n".join(f"{name} {kind}" for name, kind in columns.items()).encode())


def publish(
    topic: str,
    columns: Mapping[str, str],
    rows: pa.RecordBatch | bytes,
    *,
    first: int = 0,
    pubend: str | None = None,
    publisher: str = "mallory",
    more: Sequence[object] = (None, None),
) -> bytes:
    """A Publish. `rows` may be any bytes in place of the Arrow message; `more` ends the head."""
    message = rows if isinstance(rows, bytes) else rows.serialize().to_pybytes()
    head = [topic, pubend, publisher, first, fingerprint(columns), *more]
    return frame("PUBLISH", head, [message])


def publish_rows(
    topic: str,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[object]],
    *,
    first: int = 0,
    pubend: str | None = None,
    publisher: str = "mallory",
    more: Sequence[object] = (None, None),
) -> bytes:
    """A PublishRows: each row a MessagePack array."""
    packed = [_pack(list(row)) for row in rows]
    lengths = b"".join(struct.pack("<I", len(row)) for row in packed)
    head = [topic, pubend, publisher, first, fingerprint(columns), *more]
    return frame("PUBLISH_ROWS", head, [lengths, b"".join(packed)])


def delivered_rows(head: bytes) -> list[tuple[int, int, list[Any]]]:
    """What a ROWS frame delivers, in order: the subscription, the tick, and the values."""
    pairs, count = struct.unpack_from("<II", head)
    to = [struct.unpack_from("<II", head, 8 + 8 * at) for at in range(pairs)]
    at = 8 + 8 * pairs
    found: list[tuple[int, list[Any]]] = []
    for _ in range(count):
        tick, _, size = struct.unpack_from("<qII", head, at)
        found.append((tick, _unpack(head[at + 16 : at + 16 + size])))
        at += 16 + size + -size % 8
    return [(subscription, *found[place]) for subscription, place in to]


class Heard(NamedTuple):
    """A frame that a node sent: its head unpacked where it is MessagePack, else as it is."""

    kind: str
    head: Any
    parts: tuple[bytes, ...]


class Raw:
    """One connection to a node, driven by hand. Use it as a context manager."""

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout=PATIENCE_SECONDS)

    @staticmethod
    def accepted(listening: socket.socket) -> Raw:
        """A connection that a node makes to a socket of ours."""
        raw = Raw.__new__(Raw)
        listening.settimeout(PATIENCE_SECONDS)
        raw.socket, _ = listening.accept()
        raw.socket.settimeout(PATIENCE_SECONDS)
        return raw

    @staticmethod
    def welcomed(port: int, name: str = "mallory", **fields: object) -> Raw:
        """A connection whose HELLO was answered with WELCOME."""
        raw = Raw(port)
        raw.send(hello(name, **fields))
        heard = raw.hear()
        assert heard is not None, "the node hung up without a word"
        assert heard.kind == "WELCOME", heard
        return raw

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def hear(self) -> Heard | None:
        """The next frame, or None when the node has hung up."""
        header = self._read(16)
        if header is None:
            return None
        _, _, kind, length, head_bytes, count, _ = struct.unpack("<2sBBIIHH", header)
        body = self._read(length)
        if body is None:
            return None
        lengths = struct.unpack_from(f"<{count}I", body)
        at = (count + count % 2) * 4
        head: Any = body[at : at + head_bytes]
        at += head_bytes + -head_bytes % 8
        parts = []
        for size in lengths:
            parts.append(body[at : at + size])
            at += size + -size % 8
        name = NAMES.get(kind, hex(kind))
        return Heard(name, head if name == "ROWS" else _unpack(head), tuple(parts))

    def hear_kind(self, *kinds: str) -> Heard:
        """The next frame of one of these kinds; others are passed over."""
        while (heard := self.hear()) is not None:
            if heard.kind in kinds:
                return heard
        raise AssertionError(f"the node hung up, and none of {kinds} had come")

    def ask(self, *frames: bytes) -> Heard | None:
        """Send, and hear the next frame."""
        self.send(*frames)
        return self.hear()

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                more = self.socket.recv(min(count - len(data), 2**20))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return bytes(data)
