"""Section 1 of docs/protocol.md: ticks, ranges, runs, batches and schemas."""

import pyarrow as pa
import pytest

from gapless.errors import SchemaError
from gapless.model.batch import EventBatch
from gapless.model.ids import TopicId
from gapless.model.schema import COLUMN_TYPES, Schema
from gapless.model.tickmap import TickMap
from gapless.model.ticks import TICK_MAX, TICK_MIN, TickRange, TickSet
from gapless.protocol.effects import AppendRecord, BatchRecord
from gapless.protocol.events import PublishRequested
from tests.spec.hand import FIRST, PUBEND, Hand, batch, network, rows


def test_a_range_holds_its_start_and_not_its_stop() -> None:
    """Clause 1.2."""
    ticks = TickRange(10, 14)
    assert 10 in ticks
    assert 14 not in ticks
    assert str(ticks) == "10..14"
    assert str(TickRange(TICK_MIN, 14)) == "..14"
    assert str(TickRange(10, TICK_MAX)) == "10.."


def test_equal_ticks_are_equal_sets_however_they_were_made() -> None:
    """Clause 1.3."""
    overlapping = TickSet.of(TickRange(3, 6), TickRange(1, 4), TickRange(6, 7))
    assert overlapping == TickSet.between(1, 7)
    assert list(TickSet.of(TickRange(1, 3), TickRange(5, 6))) == [TickRange(1, 3), TickRange(5, 6)]


def test_touching_runs_of_equal_value_are_one_run() -> None:
    """Clause 1.4."""
    values: TickMap[str] = TickMap()
    for at in range(0, 100, 10):
        values.set_range(at, at + 10, "same")
    assert list(values) == [(0, 100, "same")]
    values.set_range(40, 50, "other")
    assert list(values) == [(0, 40, "same"), (40, 50, "other"), (50, 100, "same")]


def test_joining_batches_keeps_tick_order_and_the_first_of_two_equal_ticks() -> None:
    """Clause 1.5."""
    joined = EventBatch.joined([batch([5, 7], [50, 70]), batch([5, 6], [51, 60])])
    assert joined == batch([5, 6, 7], [50, 60, 70])
    assert joined.between(6, 7) == batch([6], [60])


def test_a_question_mark_allows_nulls_and_the_types_are_eight() -> None:
    """Clause 1.6."""
    assert set(COLUMN_TYPES) == {"int", "float", "string", "bool", "timestamp", "decimal", "binary", "xml"}
    schema = Schema.parse(TopicId("trades"), {name: f"{name}?" for name in COLUMN_TYPES if name != "int"})
    assert all(column.nullable for column in schema.columns)
    with pytest.raises(SchemaError, match="E110"):
        Schema.parse(TopicId("trades"), {"price": "money"})


def test_rows_are_converted_where_nothing_is_lost() -> None:
    """Clause 1.7."""
    schema = Schema.parse(TopicId("trades"), {"price": "float", "note": "string?"})
    given = pa.RecordBatch.from_pydict({"price": pa.array([1, 2], pa.int32())})
    assert schema.checked(given).to_pydict() == {"price": [1.0, 2.0], "note": [None, None]}


def test_a_refused_batch_gets_no_ticks_and_no_record() -> None:
    """Clause 1.7."""
    hand = Hand.started(network())
    wrong = PublishRequested(pubend=PUBEND, token=1, rows=rows(1, None))
    with pytest.raises(SchemaError, match=r"E113 topic 'trades': column 'price' is null in row 1"):
        hand.step("p", wrong)
    right = hand.step("p", PublishRequested(pubend=PUBEND, token=2, rows=rows(7)))
    records = [effect.record for effect in right if isinstance(effect, AppendRecord)]
    batches = [record.batch for record in records if isinstance(record, BatchRecord)]
    assert [(each.ticks.tolist(), each.columns.to_pylist()) for each in batches] == [
        ([FIRST], [{"price": 7}])
    ]
