"""Any range of the past, planned and read, against lists that say what it has to be."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.content.language import parse_condition
from gapless.errors import UsageError
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MAX, TickRange
from gapless.protocol.effects import BatchRecord, ReleaseRecord
from gapless.store import history as history_module
from gapless.store.archive import Archive
from gapless.store.contract import RecordLog
from gapless.store.history import History, Wanted
from gapless.store.log import Log, LogOptions
from gapless.store.memory import MemoryLog

PUBEND = PubendId("trades-1")
SCHEMA = Schema.parse(TopicId("trades"), {"x": "int", "tick": "int?", "y": "int?"})


def batch(ticks: list[int]) -> EventBatch:
    columns = pa.RecordBatch.from_pydict(
        {"x": ticks, "tick": [-tick for tick in ticks], "y": [None] * len(ticks)}, schema=SCHEMA.arrow()
    )
    return EventBatch(np.array(ticks, dtype=np.int64), columns)


def filled(log: RecordLog, batches: list[list[int]]) -> History:
    for token, ticks in enumerate(batches):
        log.append(token, BatchRecord(batch=batch(ticks)))
        log.flush()
    return History(PUBEND, SCHEMA, log)


def rows(history: History, start: int, stop: int, **wanted: object) -> list[int]:
    read = history.read(TickRange(start, stop), Wanted(**wanted))  # type: ignore[arg-type]
    return [tick for each in read for tick in each.column(0).to_pylist()]


@st.composite
def _batches(draw: st.DrawFn) -> list[list[int]]:
    """Batches whose ticks ascend; of some every tick is an event, and others have gaps."""
    at, found = draw(st.integers(0, 5)), []
    for size, step in draw(st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1, 1, 3])), max_size=8)):
        found.append([at + step * row for row in range(size)])
        at = found[-1][-1] + 1 + draw(st.integers(0, 4))
    return found


@given(_batches(), st.integers(0, 60), st.integers(0, 80), st.integers(1, 20), st.none() | st.integers(1, 30))
def test_a_plan_is_a_whole_range_in_parts_or_as_much_of_it_as_allowed(
    batches: list[list[int]], start: int, length: int, size: int, rows_max: int | None
) -> None:
    history = filled(MemoryLog(), batches)
    stop = start + length
    parts = history.plan(TickRange(start, stop), size, rows_max)
    inside = [tick for ticks in batches for tick in ticks if start <= tick < stop]
    ends = [start, *(part[1] for part in parts)]
    assert [part[0] for part in parts] == ends[:-1], "end to end"
    assert all(low < high for low, high, _ in parts)
    for low, high, count in parts:
        assert len([tick for tick in inside if low <= tick < high]) <= count
        # No more than one batch beyond what was asked for.
        assert count < size + 12
    planned = [tick for tick in inside if tick < ends[-1]]
    if rows_max is None or len(inside) <= rows_max:
        assert ends[-1] == stop or not length
        assert planned == inside
    else:
        # Batches that are cut by the start of the range may be counted for more than they have there.
        assert len(planned) <= rows_max
        assert planned, "there is always something to go on with"


def test_a_read_has_the_requested_columns_under_unique_names(tmp_path: Path) -> None:
    history = filled(Log.open(tmp_path, PUBEND, SCHEMA.arrow()), [[1, 2, 3], [7, 9]])
    [both] = history.read(TickRange(0, 100), Wanted())
    assert both.schema.names == ["tick", "x", "tick_", "y"]
    assert both.column("tick_").to_pylist() == [-1, -2, -3, -7, -9]
    condition = parse_condition("x >= 3 AND tick < -3", SCHEMA)
    [some] = history.read(TickRange(2, 9), Wanted(condition=condition, columns=("y", "tick_")))
    assert some.to_pydict() == {"tick": [7], "y": [None], "tick_": [-7]}
    assert some.schema.equals(history.arrow(("y", "tick_")))
    assert rows(history, 0, 100, columns=()) == [1, 2, 3, 7, 9]
    with pytest.raises(UsageError, match=r"^E198 topic 'trades' has no column 'z': it has x, tick_, y"):
        history.arrow(("z",))


def test_segments_deleted_during_a_read_come_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "BATCH_ROWS", 3)
    options = LogOptions(segment_bytes_max=1)
    log = Log.open(tmp_path / "log", PUBEND, SCHEMA.arrow(), options=options)
    folder = tmp_path / "archive"
    filled(log, [[10 * at, 10 * at + 1] for at in range(1, 9)])
    history = History(PUBEND, SCHEMA, log, folder)
    log.append(100, ReleaseRecord(before=61))
    log.flush()
    read = history.read(TickRange(10, 90), Wanted(columns=("x",)))
    first = next(read)
    log.trim(61, TICK_MAX, Archive(folder, PUBEND, SCHEMA.arrow()))
    kept = history.kept()
    assert kept.log_oldest > 50
    assert kept.oldest == 10, "the first segment had no events, and nobody can tell from the archive"
    assert len(kept.files) >= 5
    found = [tick for each in [first, *read] for tick in each.column(0).to_pylist()]
    assert found == [tick for at in range(1, 9) for tick in (10 * at, 10 * at + 1)]
    assert rows(history, 10, 90) == found
    assert sum(count for _, _, count in history.plan(TickRange(10, 90), 4)) == len(found)
