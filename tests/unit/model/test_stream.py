"""The rows of a stream stay the same, however they are kept; and many small batches do not stay many."""

from random import Random

import numpy as np

from gapless.model.batch import EventBatch
from gapless.model.stream import CHUNKS_APART_MAX, CHUNKS_JOINED, JOINED_BYTES_MAX, StreamRows


def small(tick: int) -> EventBatch:
    return EventBatch.of([tick], {"a": [tick], "b": [f"{tick}"]})


def ticks(rows: StreamRows, start: int, stop: int) -> list[int]:
    return [tick for part in rows.between(start, stop) for tick in part.ticks.tolist()]


def test_ten_thousand_single_rows_are_not_held_as_ten_thousand_batches() -> None:
    rows = StreamRows()
    for tick in range(10_000):
        rows.add(small(tick))
    assert rows.chunks <= CHUNKS_APART_MAX + CHUNKS_JOINED + 10_000 // CHUNKS_JOINED
    assert ticks(rows, 0, 10_000) == [*range(10_000)]
    assert rows.rows == 10_000
    assert [part.columns.to_pydict() for part in rows.between(70, 72)] == [{"a": [70, 71], "b": ["70", "71"]}]


def test_large_batches_are_not_copied() -> None:
    rows = StreamRows()
    large = [
        EventBatch.of([tick], {"a": [b"x" * JOINED_BYTES_MAX]})
        for tick in range(CHUNKS_APART_MAX + 2 * CHUNKS_JOINED)
    ]
    for batch in large:
        rows.add(batch)
    assert all(here is there for here, there in zip(rows.between(0, len(large)), large, strict=True))


def test_joining_chunks_changes_no_result() -> None:
    random = Random(5)
    rows, kept = StreamRows(), set[int]()
    after = 0
    for _ in range(30):
        for _ in range(400):
            after += random.choice([1, 1, 3])
            rows.add(small(after))
            kept.add(after)
        start = random.randrange(after)
        stop = start + random.choice([1, 50, after // 3])
        if random.random() < 0.5:
            start = 0
        assert rows.drop(start, stop) == len({tick for tick in kept if start <= tick < stop})
        kept -= {*range(start, stop)}
        missing = [tick for tick in range(start, stop) if tick < after][:5]
        rows.add(EventBatch.of(missing, {"a": missing, "b": [f"{tick}" for tick in missing]}))
        kept.update(missing)
        assert ticks(rows, 0, after + 1) == sorted(kept)
        assert rows.rows == len(kept)
        assert rows.nbytes == sum(part.nbytes for part in rows.between(0, after + 1))
    rows.drop(0, after + 1)
    assert (rows.rows, rows.nbytes, rows.chunks) == (0, 0, 0)
    rows.add(small(after + 1))
    assert np.array_equal(rows.between(0, after + 2)[0].ticks, [after + 1])
