"""A few published rows as bytes, from whomever: rows of the schema, as Arrow would have them, or refused."""

from __future__ import annotations

import random
import struct

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.errors import PeerError, UsageError
from gapless.model.ids import TopicId
from gapless.model.packed import PACKED_ROWS_MAX, PackedRows
from gapless.model.schema import Schema
from gapless.protocol.sessions.messages import Publish
from gapless.wire.client_codec import ClientDecoder
from gapless.wire.codec import schema_fingerprint
from gapless.wire.frames import Frame, Kind
from gapless.wire.rows import RowFormat
from tests.properties.test_wire import damage

PLAIN = Schema.parse(
    TopicId("plain"),
    {
        "a": "int",
        "b": "float",
        "c": "string",
        "d": "bool",
        "e": "binary",
        "f": "int?",
        "g": "float?",
        "h": "string?",
        "i": "bool?",
        "j": "binary?",
    },
)
FORM = RowFormat(PLAIN)
DECODER = ClientDecoder({PLAIN.topic: PLAIN})
HEAD = msgspec.msgpack.encode(["plain", None, "me", 1, schema_fingerprint(PLAIN), None, None])
#: Texts that no text is: a surrogate, one byte of two, a letter in more bytes than it needs.
WRONG_TEXTS = [b"\xa3\xed\xa0\x80", b"\xa1\xc3", b"\xa2\xc0\x80", b"\xa1\xff"]

integers = st.integers(-(2**63), 2**63 - 1)
values = {
    "int": integers,
    "float": st.floats() | st.floats(width=32),
    "string": st.text(max_size=20),
    "bool": st.booleans(),
    "binary": st.binary(max_size=20),
}
rows = st.tuples(
    *(st.none() | values[column.type] if column.nullable else values[column.type] for column in PLAIN.columns)
)
#: What may stand where a value is expected.
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.datetimes(timezones=st.just(None) | st.timezones())
)
things = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


def frame_of(lengths: bytes, data: bytes) -> Frame:
    return Frame(Kind.PUBLISH_ROWS, memoryview(HEAD), (memoryview(lengths), memoryview(data)))


def frame_with(*encoded: bytes) -> Frame:
    return frame_of(struct.pack(f"<{len(encoded)}I", *map(len, encoded)), b"".join(encoded))


def decoded(frame: Frame) -> PackedRows | None:
    """What a node makes of it; None when it refuses."""
    try:
        message = DECODER.decode(frame)
    except (PeerError, UsageError):
        return None
    assert isinstance(message, Publish)
    if message.rows is None:
        assert message.damage is not None
        return None
    assert isinstance(message.rows, PackedRows)
    return message.rows


def sound(frame: Frame) -> bool:
    """Refuse it, or give rows that are what Arrow would have made of these bytes. Whether there are any."""
    found = decoded(frame)
    if found is None:
        return False
    lengths, data = frame.parts
    sizes = struct.unpack(f"<{len(lengths) // 4}I", lengths)
    assert 0 < len(sizes) <= PACKED_ROWS_MAX
    assert sum(sizes) == len(data), "all bytes are of some row"
    columns = found.columns()
    columns.validate(full=True)
    assert columns.schema.equals(PLAIN.arrow())
    for column, array in zip(PLAIN.columns, columns.columns, strict=True):
        assert column.nullable or array.null_count == 0
    assert FORM.encode(columns) == list(found.rows), "they are kept as we would have written them"
    plain: list[list[object]] = []
    at = 0
    for size in sizes:
        plain.append(msgspec.msgpack.decode(bytes(data[at : at + size])))
        at += size
    expected = [
        pa.array([as_arrow_wants(row[place], column.type) for row in plain], columns.schema.field(place).type)
        for place, column in enumerate(PLAIN.columns)
    ]
    twin = pa.RecordBatch.from_arrays(expected, schema=columns.schema)
    # As bytes, because what is no number does not equal itself.
    assert FORM.encode(twin) == list(found.rows)
    return True


def as_arrow_wants(value: object, kind: str) -> object:
    """A number in a column of floats is a float, whatever it was written as, and a whole float an integer."""
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind == "int" and isinstance(value, float):
        assert value.is_integer(), "no digits are lost"
        return int(value)
    return value


@given(st.lists(rows, min_size=1, max_size=5))
def test_rows_are_read_as_they_were_written(drawn: list[tuple[object, ...]]) -> None:
    encoded = [msgspec.msgpack.encode(row) for row in drawn]
    assert sound(frame_with(*encoded))
    found = decoded(frame_with(*encoded))
    assert found is not None
    assert list(found.rows) == encoded


@given(st.lists(rows, min_size=1, max_size=4), st.integers(0, 2**32))
def test_damaged_rows_are_refused_or_sound(drawn: list[tuple[object, ...]], seed: int) -> None:
    chance = random.Random(seed)
    whole = [part.tobytes() for part in frame_with(*map(msgspec.msgpack.encode, drawn)).parts]
    for _ in range(10):
        parts = [bytearray(part) for part in whole]
        for _ in range(chance.choice([1, 1, 2, 4])):
            damage(chance, chance.choice([part for part in parts if part] or [bytearray(1)]))
        sound(frame_of(*map(bytes, parts)))


@given(st.binary(max_size=40), st.binary(max_size=80))
def test_any_bytes_are_refused_or_sound(lengths: bytes, data: bytes) -> None:
    sound(frame_of(lengths, data))
    sound(frame_with(data))
    sound(frame_with(b"\x9a" + data))


@given(st.lists(rows, max_size=2), st.lists(things, min_size=9, max_size=11) | things)
def test_any_message_among_rows_is_refused_or_sound(drawn: list[tuple[object, ...]], thing: object) -> None:
    sound(frame_with(*map(msgspec.msgpack.encode, [*drawn, thing])))


@given(rows, st.integers(0, len(PLAIN.columns) - 1), scalars)
def test_a_value_of_another_kind_is_refused_or_sound(
    row: tuple[object, ...], place: int, value: object
) -> None:
    column = PLAIN.columns[place]
    is_sound = sound(frame_with(msgspec.msgpack.encode((*row[:place], value, *row[place + 1 :]))))
    if value is None:
        assert is_sound == column.nullable
    elif isinstance(value, bool):
        assert is_sound == (column.type == "bool")
    elif isinstance(value, int) and column.type == "int":
        assert is_sound == (-(2**63) <= value < 2**63)
    elif isinstance(value, str):
        assert is_sound == (column.type == "string")
    elif isinstance(value, bytes):
        assert is_sound == (column.type == "binary")


@pytest.mark.parametrize("text", WRONG_TEXTS)
@pytest.mark.parametrize("place", [2, 7])
def test_texts_that_are_no_utf_8_are_refused(text: bytes, place: int) -> None:
    row: list[object] = [1, 2.0, "x", True, b"y", None, None, None, None, None]
    pieces = [msgspec.msgpack.encode(value) for value in row]
    assert sound(frame_with(b"\x9a" + b"".join(pieces)))
    pieces[place] = text
    assert decoded(frame_with(b"\x9a" + b"".join(pieces))) is None


def test_rows_with_trailing_bytes_are_refused() -> None:
    row = msgspec.msgpack.encode((1, 2.0, "x", True, b"y", None, None, None, None, None))
    assert decoded(frame_with(row, row + b"\xc0")) is None
    assert decoded(frame_of(struct.pack("<I", len(row)), row + b"\xc0")) is None
    for deep in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc1", b""):
        assert decoded(frame_with(deep)) is None
