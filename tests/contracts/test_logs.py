"""Every log keeps the same promises, whatever it stands on: a disk, or memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gapless.errors import ParameterError
from gapless.model.ticks import TICK_MAX, TICK_MIN, TickRange
from gapless.protocol.effects import Record, ReleaseRecord, ReserveRecord
from gapless.protocol.events import Now
from gapless.protocol.parameters import Parameters
from gapless.protocol.pubend import GRANTS_MAX, Pubend, Recovered
from gapless.store.contract import Flushed, RecordLog
from gapless.store.control import FOLDED
from gapless.store.keyed import KeyedLog
from gapless.store.log import Log, LogOptions
from gapless.store.memory import MemoryLog
from gapless.store.retention import Keep, Retention
from tests.contracts.events import ALL_TICKS, PUBEND, SCHEMA, batch, start, ticks_in
from tests.contracts.faulty import FaultyFiles

#: Small, so that every test has several segments.
SEGMENT_BYTES = 700


@dataclass
class Store:
    """A log that can be opened again."""

    open: Callable[[], RecordLog]
    #: Whether the store deletes by files, and so keeps more than it must.
    by_segment: bool

    def __post_init__(self) -> None:
        self.log = self.open()
        self._token = 0

    def append(self, *records: Record, note: bytes = b"") -> list[int]:
        tokens = []
        for record in records:
            self._token += 1
            self.log.append(self._token, record, note)
            tokens.append(self._token)
        return tokens

    def keep(self, *records: Record, note: bytes = b"") -> None:
        """Append and flush, which must succeed."""
        tokens = self.append(*records, note=note)
        assert self.log.flush() == Flushed(token=tokens[-1])

    def restart(self) -> RecordLog:
        self.log.close()
        self.log = self.open()
        return self.log


def disk_opener(folder: Path, files: FaultyFiles | None, retention: Retention) -> Callable[[], RecordLog]:
    options = LogOptions(segment_bytes_max=SEGMENT_BYTES, free_bytes_min=0, retention=retention)
    return lambda: Log.open(folder, PUBEND, SCHEMA, options=options, files=files)


def memory_opener(retention: Retention) -> Callable[[], RecordLog]:
    log = MemoryLog(retention=retention)
    return log.reopened


def keyed_opener(opener: Callable[[], RecordLog]) -> Callable[[], RecordLog]:
    """Every event is of a key of its own, so nothing is superseded, and all is as in any other log."""

    def open_keyed() -> RecordLog:
        log = opener()
        assert isinstance(log, Log | MemoryLog)
        return KeyedLog(log, Retention(keep=Keep.NEWEST, columns=("id",)))

    return open_keyed


Maker = Callable[..., Store]


@pytest.fixture(params=["disk", "disk in memory", "memory", "keyed on disk", "keyed in memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    made: list[Store] = []

    def maker(retention: Retention | None = None) -> Store:
        retention = retention or Retention()
        if request.param == "memory":
            store = Store(memory_opener(retention), by_segment=False)
        elif request.param == "keyed in memory":
            store = Store(keyed_opener(memory_opener(retention)), by_segment=False)
        elif request.param == "keyed on disk":
            store = Store(
                keyed_opener(disk_opener(tmp_path / "log", FaultyFiles(), retention)), by_segment=True
            )
        else:
            files = FaultyFiles() if request.param == "disk in memory" else None
            store = Store(disk_opener(tmp_path / "log", files, retention), by_segment=True)
        made.append(store)
        return store

    yield maker
    for store in made:
        store.log.close()


def test_a_new_log_recovers_nothing(make: Maker) -> None:
    log = make().log
    assert log.recover() == Recovered()
    assert log.read(ALL_TICKS, 10) == (ALL_TICKS, None)
    assert log.flush() == Flushed()


def test_flushed_records_survive_a_restart(make: Maker) -> None:
    store = make()
    store.keep(batch(10, 11, 12), batch(20))
    store.keep(batch(30, 35))
    assert ticks_in(store.log) == [10, 11, 12, 20, 30, 35]
    assert ticks_in(store.restart()) == [10, 11, 12, 20, 30, 35]
    assert store.log.recover().next_tick == 36


def test_unflushed_records_cannot_be_read_and_are_lost(make: Maker) -> None:
    store = make()
    store.keep(batch(10))
    store.append(batch(20), ReserveRecord(before=50))
    assert ticks_in(store.log) == [10]
    assert store.log.recover() == Recovered(next_tick=11)
    assert ticks_in(store.restart()) == [10]
    assert store.log.recover() == Recovered(next_tick=11)


def test_batches_taken_back_are_never_stored_and_promises_are(make: Maker) -> None:
    store = make()
    store.keep(batch(1, 2))
    first, promise, second = store.append(batch(5), ReserveRecord(before=50), batch(7))
    assert store.log.take_back() == (first, second)
    assert store.log.take_back() == ()
    assert store.log.flush() == Flushed(token=promise)
    store.keep(batch(9))
    assert ticks_in(store.restart()) == [1, 2, 9]


def test_a_log_continues_after_a_restart(make: Maker) -> None:
    store = make()
    for tick in range(0, 200, 10):
        store.keep(batch(tick, tick + 3))
        if tick % 40 == 0:
            store.restart()
    assert ticks_in(store.log) == [tick + more for tick in range(0, 200, 10) for more in (0, 3)]


def test_promises_are_recovered(make: Maker) -> None:
    store = make()
    starts = (start("e1", 5, 11), start("e2", 7, 3, wanted=3))
    store.keep(batch(10), ReserveRecord(before=90), starts[0], ReserveRecord(before=80))
    store.keep(ReleaseRecord(before=5), starts[1], starts[0])
    wanted = Recovered(next_tick=11, reserved=90, released=5, starts=starts)
    assert store.log.recover() == wanted
    assert store.restart().recover() == wanted


def test_promises_outlive_the_events_around_them(make: Maker) -> None:
    store = make()
    store.keep(start("e1", 5, 11), ReserveRecord(before=7), batch(10))
    for tick in range(20, 400, 10):
        store.keep(batch(tick, tick + 1))
        store.keep(ReleaseRecord(before=tick))
        store.log.trim(tick, now=tick)
        store.restart()
    wanted = Recovered(next_tick=392, reserved=7, released=390, starts=(start("e1", 5, 11),))
    assert store.log.recover() == wanted


def test_a_read_gives_the_lowest_rows_and_says_how_far_they_go(make: Maker) -> None:
    store = make()
    store.keep(batch(*range(100, 110)), batch(*range(200, 230, 3)))
    store.keep(batch(*range(300, 310)))
    log = store.log
    covered, rows = log.read(TickRange(105, 305), 8)
    assert (covered, rows and rows.ticks.tolist()) == (
        TickRange(105, 207),
        [105, 106, 107, 108, 109, 200, 203, 206],
    )
    covered, rows = log.read(TickRange(207, 305), 100)
    assert (covered, rows and rows.ticks.tolist()) == (
        TickRange(207, 305),
        [*range(209, 230, 3), *range(300, 305)],
    )
    assert log.read(TickRange(110, 200), 8) == (TickRange(110, 200), None)
    assert log.read(TickRange(400, 500), 8) == (TickRange(400, 500), None)


def test_a_read_is_bounded_in_bytes(make: Maker) -> None:
    store = make()
    for tick in range(0, 100, 10):
        store.keep(batch(tick, tick + 1))
    covered, rows = store.log.read(ALL_TICKS, 1_000, bytes_max=1)
    assert (covered, rows and rows.ticks.tolist()) == (TickRange(0, 1), [0])
    both = batch(0, 1).batch.nbytes
    covered, rows = store.log.read(ALL_TICKS, 1_000, bytes_max=both)
    assert (covered, rows and rows.ticks.tolist()) == (TickRange(0, 2), [0, 1])


def test_released_events_are_visible_only_to_history(make: Maker) -> None:
    store = make(Retention(keep=Keep.FOREVER))
    for tick in range(0, 200, 10):
        store.keep(batch(tick, tick + 5))
    store.keep(ReleaseRecord(before=105))
    every = list(range(0, 200, 5))
    assert ticks_in(store.log) == every
    store.log.trim(105, now=1_000)
    assert ticks_in(store.log) == [tick for tick in every if tick >= 105]
    assert ticks_in(store.log, history=True) == every
    assert ticks_in(store.restart()) == [tick for tick in every if tick >= 105]
    assert ticks_in(store.log, history=True) == every


def test_a_release_binds_the_next_start_even_without_a_trim(make: Maker) -> None:
    store = make()
    store.keep(batch(10), batch(20), ReleaseRecord(before=15))
    assert ticks_in(store.restart()) == [20]


def test_acknowledged_events_are_deleted(make: Maker) -> None:
    store = make()
    for tick in range(0, 1_000, 10):
        store.keep(batch(tick, tick + 5))
        if tick >= 50:
            store.keep(ReleaseRecord(before=tick - 50))
            store.log.trim(tick - 50, now=tick)
    assert ticks_in(store.log) == list(range(940, 1_000, 5))
    left = ticks_in(store.log, history=True)
    assert left[-12:] == list(range(940, 1_000, 5))
    assert len(left) < 60, "only whole files are deleted, but those are"


def test_retention_by_time_keeps_young_events(make: Maker) -> None:
    store = make(Retention(keep=Keep.TIME, keep_ms=100))
    for tick in range(0, 400_000, 10_000):
        store.keep(batch(tick))
    store.keep(ReleaseRecord(before=390_000))
    store.log.trim(390_000, now=300_000)
    left = ticks_in(store.log, history=True)
    assert set(range(200_000, 400_000, 10_000)) <= set(left)
    assert left[0] > 100_000
    store.log.trim(390_000, now=900_000)
    assert ticks_in(store.log) == [390_000]
    assert len(ticks_in(store.log, history=True)) < 12


def test_retention_by_size_keeps_what_fits(make: Maker) -> None:
    store = make(Retention(keep=Keep.SIZE, keep_bytes=4_000))
    for tick in range(0, 400, 10):
        store.keep(batch(tick, tick + 1, tick + 2))
    store.log.trim(0, now=400)
    assert len(ticks_in(store.log, history=True)) == 120, "what is not released stays, however large it is"
    store.keep(ReleaseRecord(before=400))
    store.log.trim(400, now=400)
    left = ticks_in(store.log, history=True)
    assert 0 < len(left) < 120
    assert left[-1] == 392
    assert ticks_in(store.log) == []


@pytest.mark.parametrize(
    ("retention", "kept_from"),
    [
        (Retention(), TICK_MAX),
        (Retention(keep=Keep.FOREVER), TICK_MIN),
        (Retention(keep=Keep.TIME, keep_ms=100), 800_000),
    ],
    ids=str,
)
def test_a_log_reports_the_tick_from_which_it_keeps_acknowledged_events(
    retention: Retention, kept_from: int, make: Maker
) -> None:
    log = make(retention).log
    assert log.kept_from(now=900_000) == kept_from
    assert log.retention == retention


def test_by_size_a_log_keeps_the_newest_that_fit(make: Maker) -> None:
    store = make(Retention(keep=Keep.SIZE, keep_bytes=4_000))
    store.keep(batch(0))
    assert store.log.kept_from(now=400) == TICK_MIN
    for tick in range(10, 400, 10):
        store.keep(batch(tick, tick + 1, tick + 2))
    kept_from = store.log.kept_from(now=400)
    assert 0 < kept_from < 390
    # What is released up to there may go, and then the rest fits, but for the record of the release.
    store.keep(ReleaseRecord(before=kept_from))
    store.log.trim(kept_from, now=400)
    assert ticks_in(store.log)[0] == min(
        tick for tick in ticks_in(store.log, history=True) if tick >= kept_from
    )
    assert store.log.log_bytes <= 4_000 + SEGMENT_BYTES
    assert store.log.oldest <= kept_from


@pytest.mark.parametrize("keep", [Keep.TIME, Keep.SIZE])
def test_retention_without_its_number_is_refused(keep: Keep) -> None:
    with pytest.raises(ParameterError, match=r"^E121 retention by .* above 0$"):
        Retention(keep=keep)


def test_a_note_stays_with_its_batch(make: Maker) -> None:
    store = make()
    store.append(batch(10, 11), note=b"one\0")
    store.append(batch(20))
    store.append(batch(30), note=b"three")
    assert list(store.log.notes(0)) == []
    store.log.flush()
    for tick in range(100, 200, 10):
        store.keep(batch(tick), note=b"%d" % tick)
    wanted = [(11, b"one\0"), (30, b"three"), *((tick, b"%d" % tick) for tick in range(100, 200, 10))]
    assert list(store.log.notes(0)) == wanted
    assert list(store.log.notes(11)) == wanted
    assert list(store.log.notes(12)) == wanted[1:]
    assert list(store.restart().notes(150)) == [note for note in wanted if note[0] >= 150]


def test_the_promises_of_a_busy_edge_stay_bounded_and_careful(make: Maker) -> None:
    store = make()
    count = 3 * GRANTS_MAX
    for epoch in range(count):
        wanted = None if epoch < GRANTS_MAX else epoch
        store.append(start("busy", epoch, 1_000 + epoch, wanted=wanted))
        if epoch % 50 == 0:
            store.log.flush()
    store.keep(start("calm", 1, 5, wanted=5))
    found = store.restart().recover()
    assert len(found.starts) == GRANTS_MAX + 2
    folded = found.starts[0]
    assert (folded.edge, folded.wanted, folded.start) == ("busy", FOLDED, 1_000)
    assert folded.epoch == count - GRANTS_MAX - 1
    assert found.reserved == 1_000 + GRANTS_MAX - 1, "no new event before a start that was given"
    now = Now(ms=0, clock=0)
    source = Pubend.recover(PUBEND, Parameters(), found, now)
    assert source.starts[folded.edge].limit(folded.epoch - 1) == 1_000
    store.keep(batch(5_000), ReleaseRecord(before=4_000))
    found = store.restart().recover()
    assert len(found.starts) == GRANTS_MAX + 1, "all that it protects is released"


def test_tokens_and_ticks_that_do_not_ascend_are_a_bug(make: Maker) -> None:
    store = make()
    store.keep(batch(10))
    with pytest.raises(AssertionError, match="tokens ascend"):
        store.log.append(1, batch(20))
    store.append(batch(10))
    with pytest.raises(AssertionError, match="logged after"):
        store.log.flush()


def test_a_note_without_a_batch_is_a_bug(make: Maker) -> None:
    with pytest.raises(AssertionError, match="a note goes with a batch"):
        make().log.append(1, ReserveRecord(before=4), b"note")


def test_trimming_unreleased_events_is_a_bug(make: Maker) -> None:
    store = make()
    store.keep(batch(10))
    with pytest.raises(AssertionError, match="trim to 11"):
        store.log.trim(11, now=0)


def test_concurrent_readers_see_every_unreleased_event(make: Maker) -> None:
    store = make()
    failures: list[BaseException] = []
    horizon = [0, 0]  # the events between these are durable and not released
    done = threading.Event()

    def reader() -> None:
        try:
            while not done.is_set():
                low, high = horizon
                found = ticks_in(store.log, TickRange(low, high))
                missing = [tick for tick in range(low, high, 10) if tick not in found and tick >= horizon[0]]
                assert not missing, missing
        except BaseException as failure:  # noqa: BLE001  # it is shown by the main thread
            failures.append(failure)

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for tick in range(0, 1_500, 10):
        store.keep(batch(tick))
        horizon[1] = tick + 1
        if tick % 100 == 0 and tick > 200:
            horizon[0] = tick - 200
            store.keep(ReleaseRecord(before=tick - 200))
            store.log.trim(tick - 200, now=tick)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
