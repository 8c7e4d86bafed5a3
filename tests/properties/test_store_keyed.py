"""A log of the newest rows gives what a dictionary would give, whatever is tidied, restarted or cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MAX, Tick, TickRange
from gapless.protocol.effects import BatchRecord, StartRecord
from gapless.store.keyed import KeyedLog
from gapless.store.log import Log, LogOptions
from gapless.store.memory import MemoryLog
from gapless.store.retention import Keep, Retention
from tests.budget import examples, parts
from tests.contracts.events import start
from tests.contracts.faulty import FaultyFiles, Killed, failing, killing

NEWEST = Retention(keep=Keep.NEWEST, columns=("a", "b"))
RELATION = Retention(keep=Keep.RELATION, columns=("gapless_key",))
SCHEMAS = {
    NEWEST: pa.schema(
        [pa.field("a", pa.string()), pa.field("b", pa.int64()), pa.field("value", pa.int64(), nullable=False)]
    ),
    RELATION: pa.schema(
        [
            pa.field("gapless_kind", pa.int64(), nullable=False),
            pa.field("gapless_key", pa.string()),
            pa.field("value", pa.int64(), nullable=False),
        ]
    ),
}
#: A row: its kind, its key (0 to 5, 6 for none) and its value, which makes it different from all others.
Row = tuple[int, int]
FOLDER = Path("/log")
PUBEND = PubendId("view")


def batch_of(retention: Retention, ticks: Sequence[Tick], rows: Sequence[Row]) -> EventBatch:
    values = [int(tick) for tick in ticks]
    if retention.keep is Keep.NEWEST:
        told = {
            "a": [None if key == 6 else "ab"[key % 2] for _, key in rows],
            "b": [key // 2 for _, key in rows],
            "value": values,
        }
    else:
        told = {
            "gapless_kind": [kind for kind, _ in rows],
            "gapless_key": [None if kind == 2 or key == 6 else f"key {key}" for kind, key in rows],
            "value": values,
        }
    return EventBatch(
        np.asarray(ticks, dtype=np.int64), pa.RecordBatch.from_pydict(told, schema=SCHEMAS[retention])
    )


class Twin:
    """All rows, and the plain reading of which of them count."""

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.rows: list[tuple[Tick, Row]] = []

    def alive(self) -> list[Tick]:
        found: dict[object, Tick] = {}
        if self.retention.keep is Keep.NEWEST:
            for tick, (_, key) in self.rows:
                found[key] = tick
            return sorted(found.values())
        markers = [tick for tick, (kind, _) in self.rows if kind == 2]
        last = markers[-1] if markers else -1
        for tick, (kind, key) in self.rows:
            unnamed = key == 6 and kind != 2
            if tick > last or unnamed:
                found[tick] = tick
            else:
                found["marker" if kind == 2 else key + 0.5] = tick
        return sorted(found.values())


class Store:
    def __init__(self, retention: Retention, opened: Callable[[], KeyedLog]) -> None:
        self.retention, self.open = retention, opened
        self.log = opened()
        self.twin = Twin(retention)
        self.tick = self.token = 0

    def put(self, rows: Sequence[Row], gap: int = 1) -> None:
        ticks = list(range(self.tick + gap, self.tick + gap + len(rows)))
        self.tick = ticks[-1]
        self.token += 1
        self.log.append(self.token, BatchRecord(batch=batch_of(self.retention, ticks, rows)), b"note")
        flushed = self.log.flush()
        assert flushed.error is None
        self.twin.rows += zip(ticks, rows, strict=True)

    def restart(self) -> None:
        self.log.close()
        self.token = 0
        self.log = self.open()

    def check(self) -> None:
        assert all_ticks(self.log, self.retention) == self.twin.alive()


def all_ticks(log: KeyedLog, retention: Retention, step: int = 3) -> list[Tick]:
    found: list[Tick] = []
    ticks = TickRange(0, 2**62)
    while ticks:
        covered, got = log.read(ticks, step)
        assert covered.start == ticks.start
        assert got is not None or covered == ticks
        if got is not None:
            assert len(got) <= step
            assert got.last < covered.stop
            assert got.columns.column("value").to_pylist() == got.ticks.tolist()
            found += got.ticks.tolist()
        ticks = TickRange(covered.stop, ticks.stop)
    return found


def on_disk(retention: Retention, files: FaultyFiles, segment_bytes_max: int = 1_500) -> KeyedLog:
    options = LogOptions(segment_bytes_max=segment_bytes_max, free_bytes_min=0, retention=retention)
    files.restart_process()
    return KeyedLog(Log.open(FOLDER, PUBEND, SCHEMAS[retention], options=options, files=files))


def disk_store(retention: Retention, files: FaultyFiles | None = None) -> Store:
    disk = files or FaultyFiles()
    return Store(retention, lambda: on_disk(retention, disk))


def memory_store(retention: Retention) -> Store:
    log = MemoryLog(retention=retention)
    return Store(retention, lambda: KeyedLog(log.reopened()))


rows = st.lists(st.tuples(st.sampled_from([0, 1, 1, 1, 2]), st.integers(0, 6)), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), rows, st.integers(1, 30)),
        st.tuples(st.sampled_from(["tidy", "restart", "check"])),
    ),
    max_size=25,
)


@pytest.mark.parametrize("make", [disk_store, memory_store], ids=["disk", "memory"])
@pytest.mark.parametrize("retention", [NEWEST, RELATION], ids=str)
@given(story=steps)
@examples(60)
def test_a_log_of_the_newest_is_a_dictionary(
    make: Callable[[Retention], Store], retention: Retention, story: list[tuple[object, ...]]
) -> None:
    store = make(retention)
    for step in story:
        match step:
            case ("put", list(new), int(gap)):
                store.put(new, gap)
            case ("tidy",):
                store.log.tidy(TICK_MAX)
            case ("restart",):
                store.restart()
        store.check()
    assert store.log.kept_from(now=10**9) <= 0, "nothing that is alive may be released"


def busy(store: Store, rounds: int = 60) -> None:
    """Many rows of few keys, each round with its marker."""
    for turn in range(rounds):
        store.put([(1, turn % 5), (1, (turn + 1) % 5), (0, 5), (2, 6)])


@pytest.mark.parametrize("retention", [NEWEST, RELATION], ids=str)
def test_superseded_rows_are_deleted(retention: Retention) -> None:
    store = disk_store(retention)
    busy(store)
    before = store.log.log_bytes
    log = store.log.log
    assert isinstance(log, Log)
    assert log.segments > 5
    assert store.log.is_untidy()
    store.log.tidy(TICK_MAX)
    assert not store.log.is_untidy()
    assert log.segments <= 3
    assert store.log.log_bytes < before / 3
    store.check()
    store.restart()
    store.check()
    busy(store)
    store.log.tidy(TICK_MAX)
    store.check()


def test_notes_not_stored_elsewhere_are_kept() -> None:
    store = disk_store(RELATION)
    busy(store)
    notes = list(store.log.notes(0))
    assert len(notes) == 60
    remembered = notes[30][0]
    before = store.log.log_bytes
    store.log.tidy(remembered)
    assert store.log.log_bytes < 0.8 * before
    assert list(store.log.notes(remembered + 1)) == notes[31:]
    store.restart()
    assert list(store.log.notes(remembered + 1)) == notes[31:]
    store.check()


def test_promises_survive_a_rewrite() -> None:
    store = disk_store(RELATION)
    promise: StartRecord = start("edge", 3, 17)
    store.token += 1
    store.log.append(store.token, promise)
    busy(store)
    before = store.log.recover()
    store.log.tidy(TICK_MAX)
    store.restart()
    assert store.log.recover() == before
    assert before.starts == (promise,)


@pytest.mark.parametrize("part", parts(8))
@pytest.mark.parametrize("retention", [NEWEST, RELATION], ids=str)
def test_a_death_at_any_call_while_tidying_loses_nothing(retention: Retention, part: int) -> None:
    files = FaultyFiles()
    store = disk_store(retention, files)
    busy(store, 40)
    begun = files.calls
    store.log.tidy(TICK_MAX)
    calls = files.calls - begun
    assert calls > 8
    for at in range(1 + part, calls + 1, 8):
        for power_cut in (False, True):
            files = FaultyFiles()
            store = disk_store(retention, files)
            busy(store, 40)
            files.hook = killing(files.calls + at)
            with pytest.raises(Killed):
                store.log.tidy(TICK_MAX)
            if power_cut:
                files.cut_power(Random(at))
            store.log = on_disk(retention, files)
            store.token = 0
            store.check()
            busy(store, 5)
            store.log.tidy(TICK_MAX)
            store.check()


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_folder", "remove"])
def test_a_log_survives_a_failed_call_while_tidying(call: str) -> None:
    for times in (1, 2, 3):
        files = FaultyFiles()
        store = disk_store(RELATION, files)
        busy(store, 40)
        files.hook = failing(call, times=times)
        try:
            store.log.tidy(TICK_MAX)
        except StoreError as error:
            assert error.code == "E303"  # noqa: PT017  # some calls are made again, or for a cache alone
        store.check()
        files.hook = None
        busy(store, 5)
        store.check()
        store.log.tidy(TICK_MAX)
        store.check()
        files.cut_power(Random(times))
        store.log = on_disk(RELATION, files)
        store.check()


def test_a_rewritten_segment_that_is_shorter_or_without_successor_is_damage() -> None:
    files = FaultyFiles()
    store = disk_store(RELATION, files)
    busy(store)
    store.log.tidy(TICK_MAX)
    rewritten = [path for path in files.names if "-" in path.name and path.suffix == ".segment"]
    data = files.names[rewritten[0]].data
    kept = bytes(data)
    del data[-8:]
    with pytest.raises(StoreError, match="E301"):
        on_disk(RELATION, files)
    data[:] = kept
    newest = max(path for path in files.names if path.suffix == ".segment")
    for path in [path for path in files.names if path.suffix == ".segment" and path > rewritten[0]]:
        del files.names[path]
    assert newest not in files.names
    with pytest.raises(StoreError, match="E301"):
        on_disk(RELATION, files)


def test_a_reader_that_began_before_a_segment_was_rewritten_misses_nothing() -> None:
    store = disk_store(RELATION)
    busy(store)
    log = store.log.log
    assert isinstance(log, Log)
    wanted = store.twin.alive()
    frames = log._frames(TickRange(0, 2**62))
    seen = [next(frames)[1]]
    store.log.tidy(TICK_MAX)
    seen += [frame for _, frame in frames]
    assert seen[-1].last == wanted[-1]
    assert all(before.last < after.last for before, after in pairwise(seen))
    assert sum(frame.rows for frame in seen) >= len(wanted)


def test_rows_that_cannot_be_tracked_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.store.keys.KEYS_MAX", 2)
    monkeypatch.setattr("gapless.store.keys.WAITING_ROWS_MAX", 3)
    for retention in (NEWEST, RELATION):
        store = disk_store(retention)
        busy(store, 10)
        store.log.tidy(TICK_MAX)
        assert set(store.twin.alive()) <= set(all_ticks(store.log, retention))
