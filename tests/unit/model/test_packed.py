"""A few rows stay bytes: cut, picked and put together like columns, and the same as columns in the end."""

import msgspec
import numpy as np
import pyarrow as pa

from gapless.model.batch import EventBatch
from gapless.model.packed import PACKED_ROWS_MAX, PackedRows, put_together
from gapless.model.schema import Schema

SCHEMA = Schema.parse("t", {"a": "int", "b": "string?", "c": "float", "d": "bool", "e": "binary"}).arrow()


def packed(*numbers: int) -> PackedRows:
    rows = [(number, None if number % 2 else "text", number / 2, number > 3, b"\x00") for number in numbers]
    return PackedRows(SCHEMA, [msgspec.msgpack.encode(row) for row in rows])


def batch(*numbers: int) -> EventBatch:
    return EventBatch(np.array(numbers, dtype=np.int64), packed(*numbers))


def test_columns_have_the_types_of_the_schema() -> None:
    columns = packed(1, 2).columns()
    assert columns.schema == SCHEMA
    assert columns.to_pylist() == [
        {"a": 1, "b": None, "c": 0.5, "d": False, "e": b"\x00"},
        {"a": 2, "b": "text", "c": 1.0, "d": False, "e": b"\x00"},
    ]


def test_a_batch_is_cut_and_picked_without_making_columns() -> None:
    whole = batch(1, 2, 3, 4)
    for part, numbers in (
        (whole.slice(1, 3), [2, 3]),
        (whole.between(3, 10), [3, 4]),
        (whole.where(np.array([True, False, False, True])), [1, 4]),
        (EventBatch.joined([batch(1, 2), batch(5)]), [1, 2, 5]),
        (EventBatch.joined([batch(2, 5), batch(1, 2)]), [1, 2, 5]),
    ):
        assert part.packed is not None
        assert part == EventBatch(np.array(numbers, dtype=np.int64), packed(*numbers).columns())


def test_packed_and_unpacked_rows_become_columns_together() -> None:
    mixed = put_together([packed(1), packed(2).columns()])
    assert isinstance(mixed, pa.RecordBatch)
    assert mixed == packed(1, 2).columns()


def test_many_rows_become_columns() -> None:
    many = put_together([packed(1), packed(*range(PACKED_ROWS_MAX))])
    assert isinstance(many, pa.RecordBatch)
    assert many.num_rows == PACKED_ROWS_MAX + 1


def test_a_batch_weighs_at_least_its_bytes() -> None:
    assert batch(1, 2).nbytes > sum(map(len, packed(1, 2).rows))
