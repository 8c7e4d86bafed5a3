"""A log on a failing disk against its dumb twin: a list of the records that were said to be durable."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import hypothesis.strategies as st
from hypothesis import given

from gapless.errors import StoreError
from gapless.model.ticks import TickRange
from gapless.protocol.effects import BatchRecord, Record, ReleaseRecord, ReserveRecord
from gapless.protocol.pubend import Recovered
from gapless.store.contract import RecordLog
from gapless.store.control import Control
from gapless.store.log import Log, LogOptions
from gapless.store.memory import MemoryLog
from tests.budget import examples
from tests.contracts.events import PUBEND, SCHEMA, batch, start, ticks_in
from tests.contracts.faulty import FaultyFiles, Killed

FOLDER = Path("/log")
CALLS = ("create", "write", "sync", "truncate", "rename", "sync_folder", "remove")
#: Too small for all that a test may append, now and then.
CAPACITY = 6_000


class Twin:
    """What a log must say, from the records that were durable, in the most obvious way."""

    def __init__(self) -> None:
        self.durable: list[Record] = []
        self.trimmed = 0

    def recovered(self, more: tuple[Record, ...] = ()) -> Recovered:
        control = Control()
        for record in (*self.durable, *more):
            control.apply(record)
        return control.recovered()

    def ticks(self, more: tuple[Record, ...] = ()) -> list[int]:
        records = (*self.durable, *more)
        ticks = [t for each in records if isinstance(each, BatchRecord) for t in each.batch.ticks.tolist()]
        return [tick for tick in ticks if tick >= self.trimmed]


class Machine:
    """A log, its twin, and everything that can happen to both."""

    def __init__(self, log: RecordLog, files: FaultyFiles | None) -> None:
        self.files = files
        self.log = log
        self.twin = Twin()
        self.waiting: list[tuple[int, Record]] = []
        self.token = 0
        self.next_tick = 0

    # ---- what can happen -----------------------------------------------------------------------------

    def append(self, gaps: list[int]) -> None:
        ticks = []
        for gap in gaps:
            self.next_tick += gap
            ticks.append(self.next_tick)
        self._append(batch(*ticks))
        self.next_tick += 1

    def promise(self, kind: int) -> None:
        released = self.twin.recovered().released
        records: list[Record] = [
            ReserveRecord(before=self.next_tick + 50),
            start("e1", self.token, self.next_tick),
            start("e2", self.token, released, wanted=0),
            ReleaseRecord(before=max(released, self.next_tick - 30)),
        ]
        self._append(records[kind])

    def flush(self) -> None:
        records = [record for _, record in self.waiting]
        try:
            done = self.log.flush()
        except (StoreError, Killed):
            # Dead, or nobody can know what is on the disk, which is to be treated alike.
            self._die(tuple(records))
            return
        durable = [each for each in self.waiting if each[0] not in done.failed]
        assert [token for token, _ in durable if done.token is None or token > done.token] == []
        assert (done.error is None) == (not done.failed)
        self.twin.durable += [record for _, record in durable]
        self.waiting = []

    def read(self, low: int, size: int) -> None:
        ticks = TickRange(low, low + size)
        assert ticks_in(self.log, ticks) == [tick for tick in self.twin.ticks() if tick in ticks]

    def trim(self) -> None:
        before = self.twin.recovered().released
        self.twin.trimmed = max(self.twin.trimmed, before)
        try:
            self.log.trim(before, now=0)
        except StoreError:
            pass  # a file could not be deleted: it stays
        except Killed:
            self._die(())

    def fail(self, call: str, number: int, skip: int, times: int) -> None:
        """From the call with that name after `skip` others of it on, fail `times` times."""
        left = [skip, times]

        def hook(_: int, name: str, __: Path) -> None:
            if name != call:
                return
            if left[0] > 0:
                left[0] -= 1
            elif left[1] > 0:
                left[1] -= 1
                raise OSError(number, "injected")

        if self.files is not None:
            self.files.hook = hook

    def kill(self, calls: int) -> None:
        """The process dies at some later call."""
        if self.files is not None:
            at = self.files.calls + calls

            def hook(call: int, _: str, __: Path) -> None:
                if call == at:
                    raise Killed

            self.files.hook = hook

    def cut_power(self, seed: int) -> None:
        records = tuple(record for _, record in self.waiting)
        if self.files is not None:
            self.files.cut_power(Random(seed))
        self._die(records[:0])

    def fill(self, full: bool) -> None:
        if self.files is not None:
            self.files.capacity = CAPACITY if full else None

    def heal(self) -> None:
        if self.files is not None:
            self.files.hook = self.files.capacity = self.files.write_bytes_max = None

    # ---- what follows --------------------------------------------------------------------------------

    def _append(self, record: Record) -> None:
        self.token += 1
        self.log.append(self.token, record)
        self.waiting.append((self.token, record))

    def _die(self, under_way: tuple[Record, ...]) -> None:
        """Start again. Of what was under way, any first part may have come through, and then it stays."""
        self.waiting = []
        self.log = self._reopened()
        found = self.log.recover()
        self.twin.trimmed = found.released
        ticks = ticks_in(self.log)
        for count in range(len(under_way) + 1):
            if (found, ticks) == (self.twin.recovered(under_way[:count]), self.twin.ticks(under_way[:count])):
                self.twin.durable += under_way[:count]
                return
        raise AssertionError(f"found {found} and {ticks}; said durable {self.twin.recovered()}, {under_way}")

    def _reopened(self) -> RecordLog:
        if self.files is None:
            assert isinstance(self.log, MemoryLog)
            return self.log.reopened()
        self.files.restart_process()
        self.files.capacity = None
        return opened(self.files)

    def check(self) -> None:
        assert self.log.recover() == self.twin.recovered()
        assert ticks_in(self.log) == self.twin.ticks()


def opened(files: FaultyFiles) -> Log:
    return Log.open(
        FOLDER, PUBEND, SCHEMA, options=LogOptions(segment_bytes_max=1_200, free_bytes_min=0), files=files
    )


GAPS = st.lists(st.sampled_from([1, 1, 1, 2, 40]), min_size=1, max_size=6)
CALM = [
    st.tuples(st.just("append"), GAPS),
    st.tuples(st.just("append"), GAPS),
    st.tuples(st.just("promise"), st.integers(0, 3)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("read"), st.integers(0, 200), st.integers(1, 100)),
    st.tuples(st.just("trim")),
    st.tuples(st.just("cut_power"), st.integers(0, 2**16)),
]
STORMY = [
    *CALM,
    st.tuples(
        st.just("fail"),
        st.sampled_from(CALLS),
        st.sampled_from([errno.EIO, errno.ENOSPC]),
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    st.tuples(st.just("kill"), st.integers(1, 12)),
    st.tuples(st.just("fill"), st.booleans()),
    st.tuples(st.just("heal")),
]


def run(machine: Machine, steps: list[tuple[object, ...]]) -> None:
    for name, *arguments in steps:
        getattr(machine, str(name))(*arguments)
    machine.heal()
    machine.flush()
    machine.check()
    machine.cut_power(7)
    machine.check()


@given(st.lists(st.one_of(CALM), max_size=40))
@examples(100)
def test_a_log_in_memory_is_a_list_of_records(steps: list[tuple[object, ...]]) -> None:
    run(Machine(MemoryLog(), None), steps)


@given(st.lists(st.one_of(STORMY), max_size=60))
@examples(800)
def test_a_log_on_a_failing_disk_keeps_its_durable_records(steps: list[tuple[object, ...]]) -> None:
    files = FaultyFiles()
    run(Machine(opened(files), files), steps)
