"""The simulated log keeps what was flushed, loses what it may lose, and never shows a torn record."""

from random import Random

from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId
from gapless.model.ticks import TickRange
from gapless.protocol.effects import BatchRecord, ReleaseRecord, ReserveRecord, StartRecord
from gapless.sim.disk import SimulatedLog


def batch(*ticks: int) -> EventBatch:
    return EventBatch.of(ticks, {"id": list(ticks)})


def flushed_log(*batches: EventBatch) -> SimulatedLog:
    log = SimulatedLog()
    for token, each in enumerate(batches):
        log.append(token, BatchRecord(batch=each))
    assert log.begin_flush()
    log.end_flush(Random(0), disk_full=False)
    return log


def test_a_flush_covers_what_was_appended_before_it_began() -> None:
    log = SimulatedLog()
    log.append(1, BatchRecord(batch=batch(10)))
    assert log.begin_flush()
    log.append(2, BatchRecord(batch=batch(20)))
    assert not log.begin_flush()
    done = log.end_flush(Random(0), disk_full=False)
    assert (done.token, done.failed, done.batches) == (1, (), (batch(10),))
    assert log.unflushed == 1


def test_a_full_disk_fails_the_end_of_a_group() -> None:
    written = set()
    for seed in range(20):
        log = SimulatedLog()
        for token in (1, 2, 3):
            log.append(token, BatchRecord(batch=batch(10 * token)))
        log.begin_flush()
        done = log.end_flush(Random(seed), disk_full=True)
        count = len(done.batches)
        assert done.token == (count or None)
        assert done.failed == (1, 2, 3)[count:]
        assert log.recovered().next_tick == (10 * count + 1 if count else 0)
        written.add(count)
    assert written == {0, 1, 2}


def test_a_disk_that_refuses_a_kind_of_record_writes_what_comes_before_it() -> None:
    log = SimulatedLog()
    records = [BatchRecord(batch=batch(10)), ReserveRecord(before=90), BatchRecord(batch=batch(20))]
    for token, record in enumerate(records, 1):
        log.append(token, record)
    log.begin_flush()
    done = log.end_flush(Random(0), disk_full=False, refuses="ReserveRecord")
    assert (done.token, done.failed, done.written) == (1, (2, 3), ("BatchRecord",))
    assert log.recovered().reserved == 0


def test_a_crash_keeps_the_flushed_and_a_prefix_of_the_rest() -> None:
    seen = set()
    for seed in range(50):
        log = flushed_log(batch(10))
        for token in (1, 2):
            log.append(token, BatchRecord(batch=batch(10 + token)))
        left = log.crash(Random(seed), torn_odds=0.5)
        survivors = [each.first for each in left.batches]
        assert survivors == [11, 12][: len(survivors)]
        assert left.records_lost == 2 - len(survivors)
        assert log.recovered().next_tick == 11 + len(survivors)
        assert log.read(TickRange(0, 100), 10)[1] == EventBatch.joined([batch(10), *left.batches])
        seen.add((len(survivors), left.torn))
    assert seen == {(0, False), (0, True), (1, False), (1, True), (2, False)}


def test_recovery_tells_promises_and_releases() -> None:
    log = flushed_log(batch(10, 11, 12))
    start = StartRecord(edge=BrokerId("s1"), epoch=1, wanted=None, start=11)
    log.append(7, ReserveRecord(before=50))
    log.append(8, start)
    log.append(9, ReleaseRecord(before=12))
    assert log.recovered().released == 0
    log.begin_flush()
    log.end_flush(Random(0), disk_full=False)
    log.trim(12)
    recovered = log.recovered()
    assert (recovered.next_tick, recovered.reserved, recovered.released) == (13, 50, 12)
    assert recovered.starts == (start,)
    assert log.read(TickRange(0, 100), 10) == (TickRange(0, 100), batch(12))


def test_a_read_that_is_cut_says_how_far_it_is_complete() -> None:
    log = flushed_log(batch(10, 11), batch(20, 21))
    assert log.read(TickRange(11, 100), 2) == (TickRange(11, 21), batch(11, 20))
    assert log.read(TickRange(11, 100), 3) == (TickRange(11, 100), batch(11, 20, 21))
    assert log.read(TickRange(12, 20), 3) == (TickRange(12, 20), None)
    assert log.read(TickRange(0, 11), 3) == (TickRange(0, 11), batch(10))


def test_a_copy_knows_nothing_of_what_comes_later() -> None:
    log = flushed_log(batch(10))
    copy = log.copied()
    log.append(9, BatchRecord(batch=batch(20), note=b"later"))
    log.begin_flush()
    log.end_flush(Random(0), disk_full=False)
    assert copy.ticks == [10]
    assert [tick for tick, _ in copy.notes(0)] == [10]
