"""Where does one frame end and the next begin? Bytes in, frames out.

A frame is a header of 16 bytes, a *head* (a message without its bulk) and a few *parts*: raw bytes such as
an Arrow batch, which are never copied into anything. Everything begins at a multiple of 8 bytes, so that
arrays can be read where they lie.

The reader believes nothing. What is no frame, or is too long, or of a kind that has no business here, is
refused as soon as its header is there, before anything is kept for it. It never holds more than one
unfinished frame, in memory that grows with what has come of it. A byte that is received into `room` is never
copied, and one that is fed at most once or twice.

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

#: What can be handed to a vectored write.
Part: TypeAlias = bytes | memoryview

#: The first two bytes of every frame: no text and no TLS record begins like this.
MAGIC: Final = b"G\xa7"
#: The version of everything but the handshake that this program speaks, from and to.
VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
#: The frames of the handshake are the same in all versions, and say so with this one.
VERSION_OF_HANDSHAKE: Final = 0

HEADER_BYTES: Final = 16
#: The longest frame that anybody may send before it was welcomed.
HELLO_BYTES_MAX: Final = 8 * 2**10
PARTS_MAX: Final = 8
#: Frames up to this size are sent as one piece: copying is cheaper than one more piece to write.
JOINED_BYTES_MAX: Final = 32 * 2**10

#: From so many missing bytes on, the rest of a frame is received where it will stay.
ROOM_BYTES_MIN: Final = 16 * 2**10
#: Memory is reserved for an unfinished frame up to so many times what has come of it.
RESERVE_TIMES: Final = 8

_ALIGNMENT = 8
#: Magic, version, kind, bytes after the header, bytes of the head, number of parts, zero.
_HEADER = struct.Struct("<2sBBIIHH")
_LENGTHS = [struct.Struct(f"<{count}I") for count in range(PARTS_MAX + 1)]
_PADDING = [bytes(count) for count in range(_ALIGNMENT)]
_NOTHING = memoryview(b"")


class Kind(IntEnum):
    """What a frame holds."""

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


_KINDS: Final = {int(kind): kind for kind in Kind}
_HANDSHAKE: Final = frozenset({Kind.HELLO, Kind.WELCOME, Kind.REFUSE, Kind.CHALLENGE, Kind.PROOF})
_ALIVE: Final = frozenset({Kind.PING, Kind.PONG, Kind.REFUSE})

#: What may come from whom: pass one of these to a FrameReader.
FROM_STRANGER: Final = frozenset({Kind.HELLO})
#: A broker that was challenged proves that it knows the secret, and whoever it dialled has challenged it.
FROM_CHALLENGED: Final = frozenset({Kind.PROOF, Kind.REFUSE})
#: One that welcomes it instead is read, to be told that this proves nothing.
FROM_CHALLENGER: Final = frozenset({Kind.CHALLENGE, Kind.WELCOME, Kind.REFUSE})
FROM_BROKER: Final = _ALIVE | {kind for kind in Kind if 0x10 <= kind < 0x20}
FROM_CLIENT: Final = _ALIVE | {kind for kind in Kind if 0x20 <= kind < 0x40}
FROM_NODE: Final = _ALIVE | {kind for kind in Kind if 0x40 <= kind < 0x60}
#: Whoever dials hears the answer to its hello, and what follows it, through one reader.
FROM_DIALED_BROKER: Final = FROM_BROKER | {Kind.WELCOME, Kind.CHALLENGE}
FROM_DIALED_NODE: Final = FROM_NODE | {Kind.WELCOME}


class Frame(NamedTuple):
    """One frame. Its views keep the bytes alive that they were cut from."""

    kind: Kind
    head: memoryview
    parts: tuple[memoryview, ...] = ()


class FrameReader:
    """Cuts what a peer sends into frames, however it is chopped up on the way.

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
        #: Where a frame is put together whose end has not come yet, and how many bytes of it are there.
        self._partial = _NOTHING
        self._have = 0
        self._broken: PeerError | None = None

    def allow(self, kinds: frozenset[Kind], *, bytes_max: int = FRAME_BYTES_MAX) -> None:
        """From now on these kinds may come, and frames of this size: the peer is known now."""
        self._kinds = kinds
        self._bytes_max = bytes_max

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished frame are kept."""
        return self._have

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that are complete now. Bytes that may change later are copied first.

        Raises PeerError when this is no frame that may come here: close the connection. The frames that
        came with the bad one are lost, as if the connection had broken a moment earlier; the reader
        gives the same error for ever.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._cut(data)
        except PeerError as error:
            self._fail(error)
            raise

    def room(self) -> memoryview | None:
        """Where the rest of a large unfinished frame may be received into, None when there is no such frame.

        So its bytes are never copied. Tell `filled` how many came; until then, nothing else may be called.
        """
        if self._have < HEADER_BYTES or self._broken is not None:
            return None
        try:
            size = self._size(self._partial, 0)
        except PeerError:
            # It may not come any more since the last `allow`: `feed` refuses it.
            return None
        if size - self._have < ROOM_BYTES_MIN:
            return None
        self._reserve(min(self._have + ROOM_BYTES_MIN, size), size)
        return self._partial[self._have :]

    def filled(self, count: int) -> list[Frame]:
        """So many bytes were received into `room`: the frame, if that was the last of it."""
        self._have += count
        frames: list[Frame] = []
        try:
            self._finish(self._size(self._partial, 0), frames)
        except PeerError as error:
            self._fail(error)
            raise
        return frames

    def _fail(self, error: PeerError) -> None:
        self._broken = error
        self._partial, self._have = _NOTHING, 0

    def _cut(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        view = memoryview(data)
        if not view.c_contiguous:
            view = memoryview(bytes(view))
        view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
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
        """Add to the unfinished frame what is missing; says how many bytes were taken."""
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
        """Add bytes to the unfinished frame, of which `size` are known to come; says how many they were."""
        have = self._have + len(data)
        self._reserve(have, size)
        self._partial[self._have : have] = data
        self._have = have
        return len(data)

    def _reserve(self, wanted: int, size: int) -> None:
        """Have space for `wanted` bytes of a frame of `size`, and for no more than a few times that many."""
        if wanted > len(self._partial):
            grown = np.empty(min(size, RESERVE_TIMES * wanted), dtype=np.uint8).data
            grown[: self._have] = self._partial[: self._have]
            self._partial = grown

    def _finish(self, size: int, frames: list[Frame]) -> None:
        """Give out the unfinished frame when all of it is there."""
        if self._have == size:
            whole = self._partial.toreadonly()
            self._partial, self._have = _NOTHING, 0
            frames.append(_frame(whole))

    def _size(self, data: memoryview, at: int) -> int:
        """How many bytes the frame that begins here has, once its header is found to be in order."""
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
            raise PeerError("E213", f"a frame of kind {_kind_text(number)} may not come here, or not yet")
        size = HEADER_BYTES + int(length)
        if size > self._bytes_max:
            raise PeerError(
                "E212",
                f"a {kind.name} frame of {size} bytes is announced, at most {self._bytes_max} may come",
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
    # What may be large is cut into several frames before it comes here.
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
    """The frame that fills `view`, whose header is in order."""
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
    raise PeerError("E210", f"this is no Gapless frame: it begins with {start!r}; {guess}")


def _kind_text(number: int) -> str:
    kind = _KINDS.get(number)
    return f"{number}" if kind is None else kind.name
