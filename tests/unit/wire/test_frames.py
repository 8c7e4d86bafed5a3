"""Frames: whatever the bytes, whole frames or one clear error, and little is kept."""

import pytest

from gapless.errors import PeerError
from gapless.wire.frames import (
    FRAME_BYTES_MAX,
    FROM_BROKER,
    FROM_CHALLENGED,
    FROM_CHALLENGER,
    FROM_CLIENT,
    FROM_DIALED_NODE,
    FROM_STRANGER,
    HEADER_BYTES,
    HELLO_BYTES_MAX,
    JOINED_BYTES_MAX,
    MAGIC,
    PARTS_MAX,
    RESERVE_TIMES,
    ROOM_BYTES_MIN,
    Frame,
    FrameReader,
    Kind,
    encode_frame,
)

EVERY_KIND = frozenset(Kind)


def frame_bytes(kind: Kind, head: bytes, *parts: bytes) -> bytes:
    return b"".join(encode_frame(kind, head, parts))


def header(*, version: int = 1, kind: int = 0x12, length: int = 0, rest: str = "") -> bytes:
    start = MAGIC + bytes([version, kind]) + length.to_bytes(4, "little")
    return start + bytes.fromhex(rest or "00000000 0000 0000")


def test_a_frame_has_the_documented_layout() -> None:
    data = frame_bytes(Kind.KNOWLEDGE, b"head!", b"12345678", b"abc")
    assert data.hex(" ", 4) == (
        "47a70110 20000000 05000000 02000000 "  # magic, version, kind; length; head; parts, zero
        "08000000 03000000 "  # the lengths of the parts
        "68656164 21000000 "  # the head, filled up
        "31323334 35363738 "  # the first part
        "61626300 00000000"  # the second, filled up
    )
    assert len(data) == HEADER_BYTES + 0x20


def test_frames_are_the_same_wherever_the_bytes_are_split() -> None:
    data = b"".join(
        [
            frame_bytes(Kind.NACK, b""),
            frame_bytes(Kind.KNOWLEDGE, b"head", b"", b"part", b"x" * 17),
            frame_bytes(Kind.LINK_STATUS, b"y" * 30),
        ]
    )
    whole = FrameReader(FROM_BROKER).feed(data)
    assert [frame.kind for frame in whole] == [Kind.NACK, Kind.KNOWLEDGE, Kind.LINK_STATUS]
    for at in range(len(data) + 1):
        reader = FrameReader(FROM_BROKER)
        assert reader.feed(data[:at]) + reader.feed(data[at:]) == whole
    reader = FrameReader(FROM_BROKER)
    assert [frame for byte in data for frame in reader.feed(bytes([byte]))] == whole


def test_whole_frames_are_views_of_the_received_bytes() -> None:
    data = frame_bytes(Kind.KNOWLEDGE, b"head", b"part")
    [frame] = FrameReader(FROM_BROKER).feed(data)
    assert frame.parts[0].obj is data


def test_bytes_that_may_change_are_copied_first() -> None:
    buffer = bytearray(frame_bytes(Kind.KNOWLEDGE, b"head", b"part"))
    [frame] = FrameReader(FROM_BROKER).feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert bytes(frame.parts[0]) == b"part"


def test_large_parts_are_sent_without_a_copy_and_small_ones_as_one_piece() -> None:
    large = bytes(JOINED_BYTES_MAX)
    assert any(piece is large for piece in encode_frame(Kind.KNOWLEDGE, b"", [large]))
    assert len(encode_frame(Kind.KNOWLEDGE, b"", [b"small", b"too"])) == 1


def test_a_large_frame_in_many_small_pieces_is_kept_once() -> None:
    data = frame_bytes(Kind.KNOWLEDGE, b"", bytes(200_000))
    reader = FrameReader(FROM_BROKER)
    for at in range(0, len(data) - 100, 100):
        assert reader.feed(data[at : at + 100]) == []
        assert reader.pending_bytes == at + 100
    [frame] = reader.feed(data[reader.pending_bytes :])
    assert reader.pending_bytes == 0
    assert len(frame.parts[0]) == 200_000


def received(reader: FrameReader, data: bytes, size: int) -> list[Frame]:
    """What a reader makes of data that a socket hands over as a connection takes it."""
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        room = reader.room()
        piece = data[at : at + (size if room is None else min(size, len(room)))]
        if room is None:
            frames += reader.feed(memoryview(bytearray(piece)))
        else:
            room[: len(piece)] = piece
            frames += reader.filled(len(piece))
        at += len(piece)
    return frames


@pytest.mark.parametrize("size", [7, 16, 1_000, 20_000, 250_000, 10**6])
def test_receiving_into_room_is_the_same_as_feeding(size: int) -> None:
    parts = [bytes(range(256)) * 800, b"x" * 20_000, b""]
    data = frame_bytes(Kind.NACK, b"a") + frame_bytes(Kind.KNOWLEDGE, b"head", *parts)
    data += frame_bytes(Kind.NACK, b"b")
    assert received(FrameReader(FROM_BROKER), data, size) == FrameReader(FROM_BROKER).feed(data)


def test_the_rest_of_a_large_frame_is_received_in_place() -> None:
    data = frame_bytes(Kind.KNOWLEDGE, b"", bytes(100_000))
    reader = FrameReader(FROM_BROKER)
    assert reader.room() is None
    reader.feed(data[:20_000])
    room = reader.room()
    assert room is not None
    assert len(room) == len(data) - 20_000
    room[:] = data[20_000:]
    [frame] = reader.filled(len(room))
    assert frame.parts[0].obj is room.obj
    assert reader.room() is None


def test_reserved_memory_is_a_few_times_the_received_bytes() -> None:
    reader = FrameReader(FROM_BROKER)
    reader.feed(frame_bytes(Kind.KNOWLEDGE, b"", bytes(FRAME_BYTES_MAX // 2))[:100])
    room = reader.room()
    assert room is not None
    assert len(room) < RESERVE_TIMES * (ROOM_BYTES_MIN + 100)


def test_a_frame_that_is_no_longer_allowed_has_no_room() -> None:
    reader = FrameReader(FROM_CLIENT)
    reader.feed(frame_bytes(Kind.PUBLISH, b"", bytes(100_000))[:100])
    reader.allow(FROM_BROKER)
    assert reader.room() is None
    with pytest.raises(PeerError, match="E213"):
        reader.feed(b"more")


@pytest.mark.parametrize("start", [16, 20_000])
def test_lengths_that_do_not_add_up_are_refused_in_a_large_frame(start: int) -> None:
    good = frame_bytes(Kind.KNOWLEDGE, b"", bytes(100_000))
    bad = good[:16] + bytes.fromhex("00000000") + good[20:]
    reader = FrameReader(FROM_BROKER)
    reader.feed(bad[:start])
    with pytest.raises(PeerError, match="E214"):
        received(reader, bad[start:], len(bad))
    assert reader.pending_bytes == 0


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"GET / HTTP/1.1\r\n", "E210", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "E210", "TLS"),
        (b"\x00", "E210", "right port"),
        (b"\xff" * 40, "E210", "not a Gapless frame"),
        (header(version=2), "E211", "version 2 .*speaks 1"),
        (header(version=0), "E211", "version 0"),
        (header(version=1, kind=Kind.REFUSE), "E211", "version 1"),
        (header(kind=0), "E213", "kind 0 "),
        (header(kind=0xEE), "E213", "kind 238"),
        (header(kind=Kind.PUBLISH), "E213", "PUBLISH"),
        (header(length=2**32 - 16), "E212", "4294967296 bytes"),
        (header(length=FRAME_BYTES_MAX), "E212", "NACK"),
        (header(length=8, rest="09000000 0000 0000"), "E214", "contradicts"),
        (header(length=8, rest="08000000 0000 0100"), "E214", "contradicts"),
        (header(length=8, rest="00000000 0900 0000"), "E214", "contradicts"),
        (header(length=7), "E214", "contradicts"),
    ],
)
def test_an_invalid_frame_is_refused_at_its_header(data: bytes, code: str, says: str) -> None:
    reader = FrameReader(FROM_BROKER)
    with pytest.raises(PeerError, match=f"{code}.*{says}"):
        reader.feed(data)
    assert reader.pending_bytes == 0
    with pytest.raises(PeerError, match=code):  # for ever
        reader.feed(frame_bytes(Kind.NACK, b""))


def feed_in_pieces(reader: FrameReader, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])


@pytest.mark.parametrize(
    "body",
    [
        header(length=16, rest="00000000 0000 0000") + bytes(16),
        header(length=16, rest="00000000 0100 0000") + bytes.fromhex("ffffffff") + bytes(12),
        header(length=16, rest="00000000 0100 0000") + bytes.fromhex("00000000") + bytes(12),
        header(length=8, rest="08000000 0100 0000") + bytes(8),
        header(length=8, rest="00000000 0800 0000") + bytes(8),
    ],
)
def test_lengths_that_do_not_add_up_are_refused(body: bytes) -> None:
    for split in (len(body), 20):
        reader = FrameReader(FROM_BROKER)
        with pytest.raises(PeerError, match="E214"):
            feed_in_pieces(reader, body, split)


def test_a_stranger_may_only_say_hello_and_only_briefly() -> None:
    reader = FrameReader(FROM_STRANGER, bytes_max=HELLO_BYTES_MAX)
    with pytest.raises(PeerError, match="E213"):
        reader.feed(frame_bytes(Kind.KNOWLEDGE, b""))
    reader = FrameReader(FROM_STRANGER, bytes_max=HELLO_BYTES_MAX)
    with pytest.raises(PeerError, match="E212"):
        reader.feed(frame_bytes(Kind.HELLO, bytes(HELLO_BYTES_MAX)))
    reader = FrameReader(FROM_STRANGER, bytes_max=HELLO_BYTES_MAX)
    assert [frame.kind for frame in reader.feed(frame_bytes(Kind.HELLO, b"x"))] == [Kind.HELLO]
    reader.allow(FROM_CLIENT)
    assert reader.feed(frame_bytes(Kind.PUBLISH, b"x"))
    with pytest.raises(PeerError, match="E213"):
        reader.feed(frame_bytes(Kind.HELLO, b"x"))


def test_every_peer_may_send_only_its_own_kinds() -> None:
    assert not FROM_BROKER & FROM_CLIENT - {Kind.PING, Kind.PONG, Kind.REFUSE}
    handshake = FROM_STRANGER | FROM_CHALLENGED | FROM_CHALLENGER
    assert handshake | FROM_BROKER | FROM_CLIENT | FROM_DIALED_NODE == EVERY_KIND


def test_a_frame_has_as_many_parts_as_are_allowed() -> None:
    parts = [bytes([at]) for at in range(PARTS_MAX)]
    [frame] = FrameReader(EVERY_KIND).feed(frame_bytes(Kind.KNOWLEDGE, b"", *parts))
    assert frame == Frame(Kind.KNOWLEDGE, memoryview(b""), tuple(map(memoryview, parts)))
