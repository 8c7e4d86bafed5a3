"""EventBatch against a plain list of (tick, row) pairs."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.model.batch import EventBatch
from gapless.model.ticks import TICK_MAX, TICK_MIN
from tests.properties.strategies import DOMAIN, spans, ticks

Row = tuple[int | None, str | None]
COLUMNS = pa.schema([("n", pa.int64()), ("text", pa.string())])

rows = st.tuples(st.none() | st.integers(-5, 5), st.none() | st.sampled_from(["", "a", "ä"]))
twins = st.dictionaries(ticks, rows, max_size=12).map(lambda found: sorted(found.items()))
positions = st.integers(0, 15)


def batch_of(twin: list[tuple[int, Row]]) -> EventBatch:
    columns = {"n": [n for _, (n, _) in twin], "text": [text for _, (_, text) in twin]}
    made = pa.RecordBatch.from_pydict(columns, schema=COLUMNS)
    return EventBatch(np.asarray([tick for tick, _ in twin], dtype=np.int64), made)


def twin_of(batch: EventBatch) -> list[tuple[int, Row]]:
    batch.check()
    assert batch.ticks.dtype == np.int64
    assert batch.columns.schema == COLUMNS
    values = [(row["n"], row["text"]) for row in batch.columns.to_pylist()]
    return list(zip(batch.ticks.tolist(), values, strict=True))


@given(twins, spans)
def test_between_keeps_the_rows_with_ticks_in_the_span(twin, span: tuple[int, int]) -> None:
    start, stop = span
    batch = batch_of(twin)
    assert twin_of(batch.between(start, stop)) == [(t, row) for t, row in twin if start <= t < stop]
    assert twin_of(batch.between(TICK_MIN, TICK_MAX)) == twin_of(batch) == twin


@given(twins, positions, positions)
def test_a_slice_keeps_the_rows_at_those_positions(twin, start: int, stop: int) -> None:
    assert twin_of(batch_of(twin).slice(start, stop)) == twin[start:stop]


@given(twins, positions, positions, spans)
def test_a_part_of_a_part_is_a_part(twin, start: int, stop: int, span: tuple[int, int]) -> None:
    part = batch_of(twin).slice(start, stop).between(*span)
    assert twin_of(part) == [(t, row) for t, row in twin[start:stop] if span[0] <= t < span[1]]
    assert part.array("text").tolist() == [text for _, (_, text) in twin_of(part)]


@given(twins, st.data())
def test_where_keeps_the_marked_rows(twin, data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(twin), max_size=len(twin)))
    batch = batch_of(twin)
    kept = batch.where(np.asarray(mask, dtype=np.bool_))
    assert twin_of(kept) == [pair for pair, marked in zip(twin, mask, strict=True) if marked]
    assert batch.where(np.ones(len(twin), dtype=np.bool_)) is batch


@given(twins, st.integers(1, 5))
def test_pieces_are_small_and_joined_again_are_the_whole(twin, rows_max: int) -> None:
    batch = batch_of(twin)
    pieces = batch.pieces(rows_max)
    assert all(0 < len(piece) <= rows_max for piece in pieces)
    assert all(len(piece) == rows_max for piece in pieces[:-1])
    assert [pair for piece in pieces for pair in twin_of(piece)] == twin
    assert EventBatch.joined([*pieces, batch.slice(0, 0)]) == batch


@given(st.lists(twins, min_size=1, max_size=4))
def test_joining_sorts_by_tick_and_keeps_the_first_row_of_each(several) -> None:
    expected: dict[int, Row] = {}
    for twin in several:
        expected = dict(twin) | expected
    batches = [batch_of(twin) for twin in several]
    assert twin_of(EventBatch.joined(batches)) == sorted(expected.items())
    assert [twin_of(batch) for batch in batches] == several, "a joined batch was changed"


@given(twins, twins)
def test_batches_are_equal_exactly_when_their_rows_are(one, other) -> None:
    assert (batch_of(one) == batch_of(other)) == (one == other)


@given(twins)
def test_a_batch_knows_its_size_and_its_ends(twin) -> None:
    batch = batch_of(twin)
    assert len(batch) == len(twin)
    assert batch.nbytes == batch.columns.nbytes + 8 * len(twin)
    if twin:
        assert (batch.first, batch.last) == (twin[0][0], twin[-1][0])
        assert type(batch.first) is type(batch.last) is int
        assert repr(batch) == f"EventBatch({len(twin)} events {twin[0][0]}..{twin[-1][0] + 1})"
    else:
        assert repr(batch) == "EventBatch(0 events)"


def test_an_empty_batch_can_be_cut_and_joined() -> None:
    empty = batch_of([])
    assert empty.pieces(3) == []
    assert EventBatch.joined([empty, empty]) == empty
    assert empty.between(0, DOMAIN) == empty
    assert empty.where(np.zeros(0, dtype=np.bool_)) == empty
    assert batch_of([(1, (1, "a"))]).where(np.zeros(1, dtype=np.bool_)) == empty


def test_ticks_at_the_ends_of_time_are_cut_exactly() -> None:
    batch = EventBatch.of([TICK_MIN, 0, TICK_MAX - 1], {"n": [1, 2, 3]})
    assert batch.between(TICK_MIN, TICK_MAX) == batch
    assert batch.between(TICK_MIN + 1, TICK_MAX - 1).ticks.tolist() == [0]
    assert batch.last + 1 == TICK_MAX


def test_columns_are_read_only() -> None:
    batch = batch_of([(1, (None, "a")), (2, (4, None))])
    for name in ("n", "text"):
        with pytest.raises(ValueError, match="read-only"):
            batch.array(name)[0] = None
    assert batch.array("n") is batch.array("n")


def test_a_batch_needs_one_tick_for_each_row() -> None:
    with pytest.raises(AssertionError, match="2 ticks for 1 rows"):
        EventBatch.of([1, 2], {"n": [1]})


def test_a_mask_of_another_length_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="a mask of 1 rows for a batch of 2"):
        EventBatch.of([1, 2], {"n": [1, 2]}).where(np.ones(1, dtype=np.bool_))


def test_joining_nothing_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="no batches"):
        EventBatch.joined([])


@pytest.mark.parametrize("ticks", [[2, 1], [1, 1]])
def test_check_notices_ticks_that_do_not_ascend(ticks: list[int]) -> None:
    with pytest.raises(AssertionError, match="ascend"):
        EventBatch.of(ticks, {"n": [1, 2]}).check()


def test_a_batch_is_a_value_but_no_key() -> None:
    batch = EventBatch.of([1], {"n": [1]})
    assert batch != [1]
    with pytest.raises(TypeError, match="unhashable"):
        hash(batch)
