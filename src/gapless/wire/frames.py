"""Where does one frame end and the next begin? Bytes in, frames out.

A frame is a header of 16 bytes, a *head* (a message without its bulk) and a few *parts*: raw bytes such as an
Arrow batch, which are never copied into anything. Everything begins at a multiple of 8 bytes, so that arrays
can be read in place.

The reader trusts nothing. Anything that is not a frame, or is too long, or of a kind not allowed here, is
refused as soon as its header has arrived, before any memory is reserved. The reader never holds more than one
unfinished frame, in memory that grows with the received bytes. A byte that is received into `room` is never
copied, and one that is fed is copied at most twice.

Implements docs/wire.md, section 1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gapless.errors import PeerError
from gapless.model.budget import FRAME_BYTES_MAX

#: Accepted by a vectored write.
Part: TypeAlias = bytes | memoryview

#: The first two bytes of every frame: no text and no TLS record begins with them.
MAGIC: Final = b"G\xa7"
#: The versions that this program speaks, lowest and highest; the handshake has none.
VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
#: The frames of the handshake are the same in all versions, and say so with this one.
VERSION_OF_HANDSHAKE: Final = 0

HEADER_BYTES: Final = 16
#: Maximum size of a frame from a peer that has not been welcomed yet.
HELLO_BYTES_MAX: Final = 8 * 2**10
PARTS_MAX: Final = 8
#: Frames up to this size are sent as one piece: copying is cheaper than one more piece to write.
JOINED_BYTES_MAX: Final = 32 * 2**10

#: From this many missing bytes on, the rest of a frame is received in its final place.
ROOM_BYTES_MIN: Final = 16 * 2**10
#: Memory reserved for an unfinished frame is at most this many times the received bytes.
RESERVE_TIMES: Final = 8

_ALIGNMENT = 8
#: Magic, version, kind, bytes after the header, bytes of the head, number of parts, zero.
_HEADER = struct.Struct("<2sBBIIHH")
_LENGTHS = [struct.Struct(f"<{count}I") for count in range(PARTS_MAX + 1)]
_PADDING = [bytes(count) for count in range(_ALIGNMENT)]
_NOTHING = memoryview(b"")


class Kind(IntEnum):
    """The kind of a frame."""

    HELLO = 0x01
    WELCOME = 0x02
    REFUSE = 0x03
    PING = 0x04
    PONG = 0x05
    CHALLENGE = 0x06
    PROOF = 0x07

    KNOWLEDGE = 0x10
    ACK = 0x11
    NACK = 0x12
    ACK_EXPECTED = 0x13
    START_REQUEST = 0x14
    START_GRANT = 0x15
    ADVERTISEMENT = 0x16
    ADVERTISEMENT_ACK = 0x17
    LINK_STATUS = 0x18
    SIDEWAYS = 0x19
    TOPICS_CREATED = 0x1A
    LOG_KNOWN = 0x1B

    PUBLISH = 0x20
    SUBSCRIBE = 0x21
    CHANGE_FILTER = 0x22
    UNSUBSCRIBE = 0x23
    CREDIT = 0x24
    ACKNOWLEDGE = 0x25
    LIST_TOPICS = 0x26
    CREATE_TOPIC = 0x27
    ASK_STATUS = 0x28
    PUBLISH_ROWS = 0x29
    RELEASE_PUBLISHER = 0x2A

    RECEIPT = 0x40
    PUBLISH_REFUSED = 0x41
    CONFIRMED = 0x42
    ROWS = 0x43
    COLUMNS = 0x44
    DONE = 0x45
    REQUEST_REFUSED = 0x46
    TOPICS = 0x47
    STATUS_REPORT = 0x48
    HORIZON = 0x49


_KINDS: Final = {int(kind): kind for kind in Kind}
_HANDSHAKE: Final = frozenset({Kind.HELLO, Kind.WELCOME, Kind.REFUSE, Kind.CHALLENGE, Kind.PROOF})
_ALIVE: Final = frozenset({Kind.PING, Kind.PONG, Kind.REFUSE})

#: Which kinds a peer may send: pass one of these to a FrameReader.
FROM_STRANGER: Final = frozenset({Kind.HELLO})
#: A challenged broker proves that it knows the secret, and the broker it dialled has challenged it.
FROM_CHALLENGED: Final = frozenset({Kind.PROOF, Kind.REFUSE})
#: One that welcomes it instead is read, to be told that this proves nothing.
FROM_CHALLENGER: Final = frozenset({Kind.CHALLENGE, Kind.WELCOME, Kind.REFUSE})
FROM_BROKER: Final = _ALIVE | {kind for kind in Kind if 0x10 <= kind < 0x20}
FROM_CLIENT: Final = _ALIVE | {kind for kind in Kind if 0x20 <= kind < 0x40}
FROM_NODE: Final = _ALIVE | {kind for kind in Kind if 0x40 <= kind < 0x60}
#: The dialler reads the answer to its hello, and everything after it, through one reader.
FROM_DIALED_BROKER: Final = FROM_BROKER | {Kind.WELCOME, Kind.CHALLENGE}
FROM_DIALED_NODE: Final = FROM_NODE | {Kind.WELCOME}


class Frame(NamedTuple):
    """One frame. Its views keep their buffer alive."""

    kind: Kind
    head: memoryview
    parts: tuple[memoryview, ...] = ()


class FrameReader:
    """Splits a stream of bytes into frames, however it was fragmented.

    >>> reader = FrameReader(FROM_BROKER)
    >>> [data] = encode_frame(Kind.NACK, b"head", [b"part"])
    >>> reader.feed(data[:20])
    []
    >>> [(frame.kind.name, bytes(frame.head), bytes(frame.parts[0])) for frame in reader.feed(data[20:])]
    [('NACK', b'head', b'part')]
    """

    __slots__ = ("_broken", "_bytes_max", "_have", "_kinds", "_partial")

    def __init__(self, kinds: frozenset[Kind], *, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._kinds = kinds
        self._bytes_max = bytes_max
        #: The buffer of the unfinished frame, and its number of received bytes.
        self._partial = _NOTHING
        self._have = 0
        self._broken: PeerError | None = None

    def allow(self, kinds: frozenset[Kind], *, bytes_max: int = FRAME_BYTES_MAX) -> None:
        """Allow these kinds, and frames of this size: the peer is known now."""
        self._kinds = kinds
        self._bytes_max = bytes_max

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of an unfinished frame that are kept."""
        return self._have

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that are now complete. Bytes that may change later are copied first.

        Raises PeerError for a frame that is invalid or not allowed here: close the connection. The frames
        that arrived with the bad one are lost, as if the connection had broken a moment earlier; the reader
        raises the same error from then on.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._cut(data)
        except PeerError as error:
            self._fail(error)
            raise

    def room(self) -> memoryview | None:
        """Where to receive the rest of a large unfinished frame; None when there is no such frame.

        This avoids copying its bytes. Call `filled` with the number received; until then, call nothing else.
        """
        if self._have < HEADER_BYTES or self._broken is not None:
            return None
        try:
            size = self._size(self._partial, 0)
        except PeerError:
            # It is no longer allowed since the last `allow`: `feed` refuses it.
            return None
        if size - self._have < ROOM_BYTES_MIN:
            return None
        self._reserve(min(self._have + ROOM_BYTES_MIN, size), size)
        return self._partial[self._have :]

    def filled(self, count: int) -> list[Frame]:
        """This many bytes were received into `room`; returns the frame, if that completes it."""
        self._have += count
        frames: list[Frame] = []
        try:
            self._finish(self._size(self._partial, 0), frames)
        except PeerError as error:
            self._fail(error)
            raise
        return frames

    def _fail(self, error: PeerError) -> None:
        # Not the error itself: it refers to the stack, and the stack to this reader.
        self._broken = PeerError(error.code, error.message, retry=error.retry)
        self._partial, self._have = _NOTHING, 0

    def _cut(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        view = memoryview(data)
        if not view.c_contiguous:
            view = memoryview(bytes(view))
        view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        if not self._have and len(view) >= HEADER_BYTES and self._size(view, 0) == len(view):
            # The common path: one frame came, and nothing else.
            return [_frame(view if view.readonly else memoryview(bytes(view)))]
        frames: list[Frame] = []
        at = self._complete(view, frames) if self._have else 0
        sizes: list[int] = []
        stop = at
        while len(view) - stop >= HEADER_BYTES:
            size = self._size(view, stop)
            if len(view) - stop < size:
                break
            sizes.append(size)
            stop += size
        if stop < len(view):
            _check_magic(view[stop:])
        whole = view[at:stop] if view.readonly else memoryview(bytes(view[at:stop]))
        at = 0
        for size in sizes:
            frames.append(_frame(whole[at : at + size]))
            at += size
        if stop < len(view):
            left = view[stop:]
            self._put(left, self._size(left, 0) if len(left) >= HEADER_BYTES else HEADER_BYTES)
        return frames

    def _complete(self, view: memoryview, frames: list[Frame]) -> int:
        """Complete the unfinished frame; returns how many bytes were used."""
        taken = 0
        if self._have < HEADER_BYTES:
            taken = self._put(view[: HEADER_BYTES - self._have], HEADER_BYTES)
            if self._have < HEADER_BYTES:
                _check_magic(self._partial[: self._have])
                return taken
        size = self._size(self._partial, 0)
        taken += self._put(view[taken : taken + size - self._have], size)
        self._finish(size, frames)
        return taken

    def _put(self, data: memoryview, size: int) -> int:
        """Add bytes to the unfinished frame, of which `size` are expected; returns how many were added."""
        have = self._have + len(data)
        self._reserve(have, size)
        self._partial[self._have : have] = data
        self._have = have
        return len(data)

    def _reserve(self, wanted: int, size: int) -> None:
        """Reserve space for `wanted` bytes of a frame of `size`, and for at most a few times that many."""
        if wanted > len(self._partial):
            grown = np.empty(min(size, RESERVE_TIMES * wanted), dtype=np.uint8).data
            grown[: self._have] = self._partial[: self._have]
            self._partial = grown

    def _finish(self, size: int, frames: list[Frame]) -> None:
        """Return the unfinished frame once it is complete."""
        if self._have == size:
            whole = self._partial.toreadonly()
            self._partial, self._have = _NOTHING, 0
            frames.append(_frame(whole))

    def _size(self, data: memoryview, at: int) -> int:
        """The size of the frame that begins here, after checking its header."""
        magic, version, number, length, head, parts, zero = _HEADER.unpack_from(data, at)
        if magic != MAGIC:
            _check_magic(memoryview(data)[at:])
        kind = _KINDS.get(number)
        if kind is not None and kind in _HANDSHAKE:
            good = version == VERSION_OF_HANDSHAKE
        else:
            good = VERSION_MIN <= version <= VERSION_MAX
        if not good:
            raise PeerError(
                "E211",
                f"a frame of protocol version {version} (kind {number}); this side speaks "
                f"{versions_text(VERSION_MIN, VERSION_MAX)}: upgrade the older of the two",
            )
        if kind is None or kind not in self._kinds:
            raise PeerError("E213", f"a frame of kind {_kind_text(number)} is not allowed here, or not yet")
        size = HEADER_BYTES + int(length)
        if size > self._bytes_max:
            raise PeerError(
                "E212",
                f"a {kind.name} frame of {size} bytes was announced, at most {self._bytes_max} are allowed",
            )
        if parts > PARTS_MAX or zero or head > length or size % _ALIGNMENT:
            raise PeerError("E214", f"the header of a {kind.name} frame contradicts itself")
        return size


def encode_frame(kind: Kind, head: bytes, parts: Sequence[Part] = ()) -> list[Part]:
    """A frame as pieces to write one after the other; a small one is a single piece."""
    count = len(parts)
    lengths = [len(part) for part in parts]
    table = _LENGTHS[count].pack(*lengths)
    if count % 2:
        table += _PADDING[4]
    start = [table, head, _PADDING[-len(head) % _ALIGNMENT]]
    size = HEADER_BYTES + sum(map(len, start)) + sum(each + -each % _ALIGNMENT for each in lengths)
    # Large contents are split into several frames before they get here.
    assert size <= FRAME_BYTES_MAX, f"a {kind.name} frame of {size} bytes"
    version = VERSION_OF_HANDSHAKE if kind in _HANDSHAKE else VERSION_MAX
    header = _HEADER.pack(MAGIC, version, kind, size - HEADER_BYTES, len(head), count, 0)
    pieces: list[Part] = [b"".join([header, *start])]
    for part in parts:
        pieces.append(part)
        if len(part) % _ALIGNMENT:
            pieces.append(_PADDING[-len(part) % _ALIGNMENT])
    return [b"".join(pieces)] if size <= JOINED_BYTES_MAX and count else pieces


def versions_text(low: int, high: int) -> str:
    """A range of versions as people read it.

    >>> versions_text(1, 1), versions_text(2, 4)
    ('1', '2 to 4')
    """
    return str(low) if low == high else f"{low} to {high}"


def _frame(view: memoryview) -> Frame:
    """The frame that fills `view`, whose header is valid."""
    _, _, number, _, head, count, _ = _HEADER.unpack_from(view)
    kind = _KINDS[number]
    at = HEADER_BYTES + (count + count % 2) * 4
    if not count:
        if len(view) != at + head + -head % _ALIGNMENT:
            raise PeerError("E214", f"the lengths in a {kind.name} frame do not add up")
        return Frame(kind, view[at : at + head])
    if at + head > len(view):
        raise PeerError("E214", f"the lengths in a {kind.name} frame do not add up")
    lengths = _LENGTHS[count].unpack_from(view, HEADER_BYTES)
    body = view[at : at + head]
    at += head + -head % _ALIGNMENT
    parts = []
    for length in lengths:
        parts.append(view[at : at + length])
        at += length + -length % _ALIGNMENT
    if at != len(view):
        raise PeerError("E214", f"the lengths in a {kind.name} frame do not add up")
    return Frame(kind, body, tuple(parts))


def _check_magic(data: memoryview) -> None:
    """Raise unless this may be the beginning of a frame."""
    start = bytes(data[:8])
    if start[:2] == MAGIC[: len(start)]:
        return
    if start[:2] == b"\x16\x03"[: len(start)]:
        guess = "it looks like TLS, which is not configured here"
    elif start[:3] in {b"GET", b"POS", b"HEA", b"PUT", b"OPT"}:
        guess = "it looks like HTTP"
    else:
        guess = "is this the right port, with TLS on both sides or on neither?"
    raise PeerError("E210", f"this is not a Gapless frame: it begins with {start!r}; {guess}")


def _kind_text(number: int) -> str:
    kind = _KINDS.get(number)
    return f"{number}" if kind is None else kind.name
