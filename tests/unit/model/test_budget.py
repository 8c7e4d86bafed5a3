"""An event at the limit fits every hop, whatever its columns are; too much together is cut by rows."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from gapless.model.batch import EventBatch
from gapless.model.budget import (
    BATCH_BYTES_MAX,
    CLIENT_FRAME_BYTES_MAX,
    COLUMN_BYTES,
    EVENT_BYTES_MAX,
    FRAME_BYTES_MAX,
    HOP_BYTES,
    TOGETHER_BYTES_MAX,
    cut_to,
    event_sizes,
)
from gapless.model.epochs import ALWAYS
from gapless.model.ids import CellId, PubendId, TopicId
from gapless.model.packed import PackedRows
from gapless.model.schema import COLUMN_TYPES, COLUMNS_MAX, Schema
from gapless.protocol.messages import KnowledgeMessage, SidewaysMessage
from gapless.store import record
from gapless.wire.broker_codec import BrokerEncoder
from gapless.wire.delivery import SharedColumns, SharedRows
from gapless.wire.rows import RowFormat

#: The value of each type that takes most room in some form.
LARGEST = {
    "int": -(2**63),
    "float": 1.1,
    "string": "",
    "bool": True,
    "timestamp": datetime(9999, 1, 1, tzinfo=UTC),
    "decimal": Decimal("-99999999999999999999999999999.999999999"),
    "binary": b"",
    "xml": b"",
}


def length(parts: list[bytes | memoryview]) -> int:
    return sum(map(len, parts))


def one_row(schema: Schema, **values: object) -> EventBatch:
    row = {column.name: LARGEST[column.type] for column in schema.columns} | values
    return EventBatch(np.asarray([2**61]), pa.RecordBatch.from_pylist([row], schema=schema.arrow()))


def forms_of(schema: Schema, batch: EventBatch) -> dict[str, int]:
    """How many bytes one event takes in each form that it is ever sent or written in."""
    rows = np.asarray([0])
    form = RowFormat(schema)
    told = KnowledgeMessage(
        pubend=PubendId("p" * 256),
        runs=((0, 2**61 + 1, ALWAYS),),
        batch=batch,
        first_time=True,
        final_before=0,
    )
    sideways = SidewaysMessage(cell=CellId("c" * 256), message=told)
    shared = SharedRows(form, batch, rows, [2**32 - 1])
    return {
        "rows": len(form.encode(batch.columns)[0]),
        "columns": len(batch.columns.serialize()),
        "one": len(shared.one(2**32 - 1, 0)),
        "few": length(shared.few(2**32 - 1, [0])),
        "some": length(shared.some([(2**32 - 1, 0)])),
        "delivery of columns": length(SharedColumns(batch, [2**32 - 1]).frame([(2**32 - 1, rows)])),
        "knowledge": length(BrokerEncoder().encode(told)),
        "sideways": length(BrokerEncoder().encode(sideways)),
        "log": record.framed_bytes(record.batch_payload(batch, [(0, b"n" * 2_000)])),
    }


def test_the_limits_of_all_hops_follow_from_the_largest_event() -> None:
    assert CLIENT_FRAME_BYTES_MAX == EVENT_BYTES_MAX + HOP_BYTES == 16 * 2**20
    assert COLUMNS_MAX * COLUMN_BYTES + 64 * 2**10 < HOP_BYTES
    assert BATCH_BYTES_MAX + 2 * HOP_BYTES < FRAME_BYTES_MAX == 64 * 2**20
    assert 2 * (TOGETHER_BYTES_MAX + HOP_BYTES) < record.FRAME_BYTES_MAX


@pytest.mark.parametrize("kind", COLUMN_TYPES)
@pytest.mark.parametrize("nullable", [False, True])
def test_no_encoding_exceeds_the_budgeted_overhead(kind: str, nullable: bool) -> None:
    columns = {f"c{at}": kind + "?" * nullable for at in range(COLUMNS_MAX)}
    schema = Schema.parse(TopicId("t"), columns)
    batch = one_row(schema)
    size = int(event_sizes(batch.columns)[0])
    for form, taken in forms_of(schema, batch).items():
        assert taken - size < COLUMNS_MAX * COLUMN_BYTES + 8_192 < HOP_BYTES, form


@pytest.mark.parametrize("more", [-1, 0])
def test_an_event_at_the_limit_fits_every_encoding(more: int) -> None:
    schema = Schema.parse(TopicId("t"), {"a": "int", "b": "string?", "c": "binary"})
    batch = one_row(schema, b="x" * 1_000, c=bytes(EVENT_BYTES_MAX - 1_016 + more))
    assert event_sizes(batch.columns).tolist() == [EVENT_BYTES_MAX + more]
    for form, taken in forms_of(schema, batch).items():
        assert taken <= CLIENT_FRAME_BYTES_MAX, form


def test_the_size_of_an_event_is_exact_to_the_byte() -> None:
    schema = Schema.parse(TopicId("t"), {"a": "int", "c": "binary"})
    batch = one_row(schema, c=bytes(EVENT_BYTES_MAX - 15))
    assert event_sizes(batch.columns).tolist() == [EVENT_BYTES_MAX + 1]


def test_the_size_of_a_row_of_a_slice_is_its_own() -> None:
    rows = pa.RecordBatch.from_pydict({"a": ["x" * at for at in range(50)], "b": list(range(50))})
    assert event_sizes(rows.slice(7, 5)).tolist() == [23, 24, 25, 26, 27]
    assert event_sizes(rows.slice(0, 0)).tolist() == []


def test_bytes_behind_a_null_count() -> None:
    offsets = pa.py_buffer(np.asarray([0, 100], dtype=np.int32))
    hidden = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"x" * 100), pa.py_buffer(b"\0"), 1)
    assert event_sizes(pa.RecordBatch.from_arrays([hidden], ["a"])).tolist() == [100]


def skewed() -> EventBatch:
    """Few large rows at the beginning, and many small ones: a share by rows says next to nothing."""
    notes = ["x" * 100_000] * 8 + [""] * 4_000
    batch = EventBatch.of(list(range(len(notes))), {"note": notes})
    assert batch.nbytes > 800_000  # so that parts are estimated
    return batch


def test_rows_are_split_by_size_and_not_by_number() -> None:
    batch = skewed()
    pieces = list(cut_to(batch, 250_000))
    assert EventBatch.joined(pieces) == batch
    assert all(len(piece.columns.serialize()) < 260_000 for piece in pieces)


def test_the_rest_of_a_batch_is_measured_where_it_matters() -> None:
    large = skewed().where(np.arange(4_008) < 8)
    assert large.nbytes < 3_000, "an estimate"
    assert not large.weighs_at_most(250_000)
    joined = EventBatch.joined([skewed().slice(0, 4), EventBatch.of([9_000], {"note": ["y"]})])
    assert not joined.weighs_at_most(250_000)
    assert joined.nbytes > 400_000


def test_one_row_is_never_split() -> None:
    batch = EventBatch.of([1], {"note": ["x" * 1_000]})
    assert list(cut_to(batch, 10)) == [batch]


def test_packed_rows_count_their_own_bytes() -> None:
    schema = Schema.parse(TopicId("t"), {"note": "string"}).arrow()
    rows = [msgspec.msgpack.encode(["x" * (100_000 if at < 2 else 1)]) for at in range(60)]
    batch = EventBatch(np.arange(60), PackedRows(schema, rows))
    assert batch.nbytes > 200_000
    assert batch.slice(0, 2).nbytes > 200_000
    pieces = list(cut_to(batch, 120_000))
    assert all(piece.nbytes <= 120_000 for piece in pieces)
    assert EventBatch.joined(pieces) == batch
