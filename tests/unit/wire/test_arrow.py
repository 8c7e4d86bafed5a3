"""Only Arrow messages such as we would write are read, and what is read takes no more than has come."""

from __future__ import annotations

import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from gapless.content.index.index import Index
from gapless.content.language import parse_condition
from gapless.errors import PeerError
from gapless.model.bounds import ROWS_MAX
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.wire.codec import KEPT_BYTES_MIN, ColumnsFormat
from tests.hostile.arrow import DICTIONARY_BATCH, LZ4, V4, ZSTD, Plain, laid_out, message

PAIR = Schema.parse(TopicId("pair"), {"a": "int", "s": "string?"})
FORM = ColumnsFormat(PAIR)


def longs(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


#: Two rows: 7 and 8, "ab" and "c".
PLAIN = laid_out(2, [[b"", longs(7, 8)], [b"", ints(0, 2, 3), b"abc"]])
ROWS = [{"a": 7, "s": "ab"}, {"a": 8, "s": "c"}]


def decoded(data: bytes, form: ColumnsFormat = FORM) -> pa.RecordBatch:
    return form.decode(memoryview(data))


def refused(data: bytes, reason: str, form: ColumnsFormat = FORM) -> None:
    with pytest.raises(PeerError, match=f"E216.*{reason}"):
        decoded(data, form)


def test_a_plain_message_of_another_writer_is_read() -> None:
    assert decoded(message(PLAIN)).to_pylist() == ROWS
    assert decoded(message(PLAIN, variadic=[])).to_pylist() == ROWS


def test_compression_is_refused_in_every_form() -> None:
    old = {"ARROW:experimental_compression": "zstd"}
    refused(message(PLAIN, version=V4, custom=old), "version 5")
    refused(message(PLAIN, custom=old), "its own metadata")
    refused(message(PLAIN, custom={}), "its own metadata")
    for codec in (LZ4, ZSTD):
        refused(message(PLAIN, compression=codec), "compressed")


def test_a_bomb_in_old_metadata_is_refused() -> None:
    """Arrow would unpack it: 5 kB become 50 MB."""
    data = longs(*[0] * 7_000_000)
    packed = [bytes(pa.compress(each, codec="zstd")) for each in (data, ints(*[0] * 7_000_001))]
    told = [struct.pack("<q", size) for size in (56_000_000, 28_000_004)]
    plain = laid_out(7_000_000, [[b"", told[0] + packed[0]], [b"", told[1] + packed[1], b""]])
    bomb = message(plain, version=V4, custom={"ARROW:experimental_compression": "zstd"})
    assert len(bomb) < 10_000
    unpacked = pa.ipc.read_record_batch(pa.py_buffer(bomb), PAIR.arrow())
    assert unpacked.nbytes > 50_000_000, "Arrow honours it"
    refused(bomb, "version 5")


def test_other_versions_and_kinds_of_messages_are_refused() -> None:
    refused(message(PLAIN, version=V4), "version 5")
    refused(message(PLAIN, kind=DICTIONARY_BATCH), "not a record batch")
    refused(message(PLAIN, variadic=[1]), "variable number")
    refused(b"\0" * 64, "not an Arrow message")
    refused(message(PLAIN)[:20], "truncated")
    refused(b"", "truncated")


def test_many_columns_cannot_share_one_piece_of_the_body() -> None:
    schema = Schema.parse(TopicId("wide"), {f"c{at}": "binary" for at in range(100)})
    data = laid_out(1, [[b"", ints(0, 100_000), bytes(100_000)]])
    shared = Plain(1, [(1, 0)] * 100, [*data.buffers] * 100, data.body)
    refused(message(shared), "at", ColumnsFormat(schema))


@pytest.mark.parametrize(
    "rows", [0, -1, 1, 3, ROWS_MAX + 1, 2**62], ids=["none", "negative", "fewer", "more", "too many", "huge"]
)
def test_the_number_of_rows_must_be_that_of_the_columns(rows: int) -> None:
    refused(message(PLAIN._replace(rows=rows)), "rows")
    refused(message(PLAIN._replace(nodes=[(2, 0), (rows, 0)])), "rows")


@pytest.mark.parametrize("nulls", [-1, 3, 2**63 - 1])
def test_an_impossible_null_count_is_refused(nulls: int) -> None:
    refused(message(PLAIN._replace(nodes=[(2, 0), (2, nulls)])), "null")


def test_a_negative_null_count_is_refused_even_with_a_bitmap() -> None:
    """For Arrow -1 means that nobody has counted."""
    plain = laid_out(2, [[b"", longs(7, 8)], [b"\3", ints(0, 2, 3), b"abc"]], nulls=[0, -1])
    refused(message(plain), "null")
    ours = pa.RecordBatch.from_pylist([{"a": 7, "s": "ab"}, {"a": 8, "s": None}], schema=PAIR.arrow())
    data = ours.serialize().to_pybytes()
    assert data.count(longs(2, 1)) == 1
    refused(data.replace(longs(2, 1), longs(2, -1)), "null")


def test_nulls_without_a_bitmap_and_null_counts_that_lie_are_refused() -> None:
    refused(message(PLAIN._replace(nodes=[(2, 0), (2, 1)])), "1 bytes are needed")
    texts = [ints(0, 2, 3), b"abc"]
    refused(message(laid_out(2, [[b"", longs(7, 8)], [b"\x01", *texts]], [0, 2])), "null_count")
    refused(message(laid_out(2, [[b"\x01", longs(7, 8)], [b"", *texts]], [1, 0])), "'a' has a null")


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize(
    ("offset", "length"), [(0, -1), (0, 2**40), (1, 0), (-8, 0), (2**40, 0), (-(2**63), 0)]
)
def test_short_or_misplaced_buffers_are_refused(at: int, offset: int, length: int) -> None:
    buffers = [*PLAIN.buffers]
    buffers[at] = (buffers[at][0] + offset, buffers[at][1] + length)
    refused(message(PLAIN._replace(buffers=buffers)), "")


def test_a_body_of_another_length_is_refused() -> None:
    for told in (0, -8, len(PLAIN.body) + 8, len(PLAIN.body) - 8, 2**62):
        refused(message(PLAIN, body_bytes=told), "body|needed")
    refused(message(PLAIN) + b"hidden!!", "body")


def test_more_or_fewer_columns_are_refused() -> None:
    refused(message(laid_out(2, [[b"", longs(7, 8)]])), "1 columns and 2 buffers")
    refused(message(laid_out(2, [[b"", longs(7, 8)]] * 3)), "3 columns")


OVERSIZED = {
    "numbers": [[b"", longs(7, 8) + bytes(999)], [b"", ints(0, 2, 3), b"abc"]],
    "offsets": [[b"", longs(7, 8)], [b"", ints(0, 2, 3) + bytes(1_001), b"abc"]],
    "texts": [[b"", longs(7, 8)], [b"", ints(0, 2, 3), b"abc" + bytes(1_003)]],
    "offsets that begin later": [[b"", longs(7, 8)], [b"", ints(9, 11, 12), b"not these" + b"abc" + b"nor"]],
    "a bitmap without nulls": [[b"\0", longs(7, 8)], [b"\0", ints(0, 2, 3), b"abc"]],
}


@pytest.mark.parametrize("columns", OVERSIZED.values(), ids=OVERSIZED)
def test_oversized_buffers_are_cut_to_what_the_rows_need(columns: list[list[bytes]]) -> None:
    rows, kept = FORM.decode_kept(memoryview(message(laid_out(2, columns))))
    assert rows.to_pylist() == ROWS
    assert kept is None
    sizes = [buffer.size for array in rows.columns for buffer in array.buffers() if buffer is not None]
    assert sizes == [16, 12, 3]
    assert rows.equals(decoded(rows.serialize().to_pybytes()))


def test_a_gap_between_buffers_is_cut_out() -> None:
    body = PLAIN.body[:16] + b"hidden!!" * 10_000 + PLAIN.body[16:]
    moved = [(at + 80_000 * (at >= 16), size) for at, size in PLAIN.buffers]
    rows, kept = FORM.decode_kept(memoryview(message(PLAIN._replace(buffers=moved, body=body))))
    assert rows.to_pylist() == ROWS
    assert kept is None
    assert rows.get_total_buffer_size() < 100, "nothing keeps the gap alive"


def test_kept_bytes_are_canonical() -> None:
    rows = [{"a": at, "s": None if at % 3 else "x" * (at % 50)} for at in range(3_000)]
    sent = pa.RecordBatch.from_pylist(rows, schema=PAIR.arrow())
    for batch in (sent, sent.slice(1), sent.slice(3, 2_001)):
        data = batch.serialize().to_pybytes()
        assert len(data) > KEPT_BYTES_MIN
        found, kept = FORM.decode_kept(memoryview(data))
        assert kept is not None
        assert kept.tobytes() == data
        assert found.equals(batch)
        assert found.serialize().to_pybytes() == data


def test_bytes_with_something_between_the_buffers_are_not_kept() -> None:
    rows = [{"a": at, "s": "xy" * at} for at in range(301)]
    data = bytearray(pa.RecordBatch.from_pylist(rows, schema=PAIR.arrow()).serialize())
    assert FORM.decode_kept(memoryview(bytes(data)))[1] is not None
    assert data[-4:] == bytes(4)
    data[-1] = 1
    assert FORM.decode_kept(memoryview(bytes(data)))[1] is None


EVERY = Schema.parse(
    TopicId("every"), {"b": "bool?", "d": "decimal?", "s": "string?", "t": "timestamp?", "y": "binary?"}
)


@pytest.mark.parametrize("garbage", [b"\0", b"\xff", b"\xa5"])
def test_garbage_behind_nulls_and_after_the_last_row_changes_nothing(garbage: bytes) -> None:
    valid = bytes([0b10 | garbage[0] & ~0b11])
    decimal = garbage * 16 + (1_500_000_000).to_bytes(16, "little")
    columns = [
        [valid, bytes([0b10 | garbage[0] & ~0b10])],
        [valid, decimal],
        [valid, ints(0, 3, 5), garbage * 3 + b"ab"],
        [valid, garbage * 8 + longs(-(2**63))],
        [valid, ints(0, 3, 5), garbage * 3 + b"ab"],
    ]
    if garbage[0] > 127:
        columns[2][2] = b"uhu" + b"ab"  # texts must be texts, also under a null
    batch = decoded(message(laid_out(2, columns, [1] * 5)), ColumnsFormat(EVERY))
    wheres = ["b", "d = 1.5", "s >= 'ab'", "y = X'6162'", "t < TIMESTAMP '2026-01-01 00:00:00'"]
    index = Index()
    for slot in range(400):
        index.add(slot, parse_condition(wheres[slot % 5] + f" AND d < {slot + 2}", EVERY))
    rows, slots = index.match(batch)
    assert rows.tolist() == [1] * 400
    assert slots.tolist() == [*range(400)]
    assert batch.column("d").to_pylist() == [None, Decimal("1.5")]
