"""What is still on the disk after a crash? The log of one pubend, with all the ways a disk has to lie.

Records are appended, then flushed in groups. A crash keeps what was flushed, perhaps some of what was
not, and may leave one record half written: it must be found and cut before the log is used again.
What is durable here is the ground truth that every checker compares with.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from gapless.model.batch import EventBatch
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickRange
from gapless.protocol.effects import BatchRecord, Record, ReleaseRecord, ReserveRecord, StartRecord
from gapless.protocol.pubend import Recovered


@dataclass(slots=True)
class _Entry:
    token: int
    record: Record
    #: Half of it reached the disk; its checksum cannot be right.
    torn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFlushed:
    """What a flush came to."""

    #: All records up to this one are durable now; None when none is.
    token: int | None
    #: The records that were not written and never will be.
    failed: tuple[int, ...]
    #: The events that became durable, in order.
    batches: tuple[EventBatch, ...]
    #: The kinds of the records that were written.
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """What a crash left behind."""

    #: The events that survived although nobody had flushed them.
    batches: tuple[EventBatch, ...]
    records_lost: int
    torn: bool


@dataclass(slots=True)
class SimulatedLog:
    """The records of one pubend."""

    #: What tells it from any other log, and the clock when it began.
    log_id: str = ""
    began: Tick = TICK_MIN
    #: If it was found to be an older copy: what is lost of the log before lies below.
    lost_before: Tick = TICK_MIN
    #: Events that are durable and not released, as batches in tick order.
    _batches: list[EventBatch] = field(default_factory=list)
    _firsts: list[Tick] = field(default_factory=list)
    _unflushed: list[_Entry] = field(default_factory=list)
    #: How many of `_unflushed` the flush under way will write; None when none is under way.
    _flushing: int | None = None
    _next_tick: Tick = 0
    _reserved: Tick = 0
    _starts: dict[StartRecord, None] = field(default_factory=dict)
    #: The largest durable release.
    _released: Tick = 0
    #: The notes of the durable batches that were not trimmed, each with the last tick of its batch.
    _notes: list[tuple[Tick, bytes]] = field(default_factory=list)
    #: What the host remembers of the life that has just ended, for the next one alone; see `Recovered`.
    untold_from: Tick = TICK_MAX

    def append(self, token: int, record: Record) -> None:
        """Write a record, without any promise that it stays."""
        assert not self._unflushed or self._unflushed[-1].token < token, f"token {token} does not ascend"
        self._unflushed.append(_Entry(token, record))

    @property
    def unflushed(self) -> int:
        """How many records a crash may lose."""
        return len(self._unflushed)

    @property
    def released(self) -> Tick:
        """The events below are not needed by anybody: that is durable."""
        return self._released

    def begin_flush(self) -> bool:
        """Start to flush all that was appended so far; False when there is nothing, or one is under way."""
        if self._flushing is not None or not self._unflushed:
            return False
        self._flushing = len(self._unflushed)
        return True

    def end_flush(self, random: Random, disk_full: bool, refuses: str = "") -> DiskFlushed:
        """The flush is done; when the disk is full, only some of its records were written.

        A disk that `refuses` a kind of record is full when the first of that kind is written.
        """
        assert self._flushing is not None, "no flush is under way"
        group, self._unflushed = self._unflushed[: self._flushing], self._unflushed[self._flushing :]
        self._flushing = None
        kinds = tuple(type(entry.record).__name__ for entry in group)
        written = kinds.index(refuses) if refuses in kinds else len(group)
        if disk_full:
            written = min(written, random.randrange(len(group)))
        batches = tuple(batch for entry in group[:written] for batch in self._keep(entry.record))
        failed = group[written:]
        if failed:
            # What was published later must not be stored before what failed is: it is taken back.
            failed += [entry for entry in self._unflushed if isinstance(entry.record, BatchRecord)]
            self._unflushed = [e for e in self._unflushed if not isinstance(e.record, BatchRecord)]
        return DiskFlushed(
            token=group[written - 1].token if written else None,
            failed=tuple(entry.token for entry in failed),
            batches=batches,
            written=kinds[:written],
        )

    def crash(self, random: Random, torn_odds: float) -> Crashed:
        """Lose what was not flushed, except for a random prefix of it; the next record may be torn."""
        survivors = random.randint(0, len(self._unflushed)) if self._unflushed else 0
        lost = len(self._unflushed) - survivors
        tail = self._unflushed[: survivors + 1]
        if lost and random.random() < torn_odds:
            tail[survivors].torn = True
        else:
            tail = tail[:survivors]
        self._unflushed, self._flushing = [], None
        batches = self._repair(tail)
        return Crashed(batches=batches, records_lost=lost, torn=len(tail) > survivors)

    def _repair(self, tail: list[_Entry]) -> tuple[EventBatch, ...]:
        batches: list[EventBatch] = []
        for entry in tail:
            if entry.torn:
                break
            batches += self._keep(entry.record)
        return tuple(batches)

    def recovered(self) -> Recovered:
        """What the log says to a broker that starts."""
        untold_from, self.untold_from = self.untold_from, TICK_MAX
        return Recovered(
            next_tick=self._next_tick,
            reserved=self._reserved,
            released=self._released,
            starts=tuple(self._starts),
            log_id=self.log_id,
            began=self.began,
            lost_before=self.lost_before,
            untold_from=untold_from,
        )

    def copied(self) -> SimulatedLog:
        """A copy of what is durable."""
        return replace(
            self,
            _batches=list(self._batches),
            _firsts=list(self._firsts),
            _starts=dict(self._starts),
            _notes=list(self._notes),
            _unflushed=[],
            _flushing=None,
        )

    @property
    def ticks(self) -> list[Tick]:
        """The ticks of the events that it has."""
        return [tick for batch in self._batches for tick in batch.ticks.tolist()]

    def trim(self, before: Tick) -> None:
        """The events below `before` may go: the log says durably that nobody needs them."""
        assert before <= self._released, f"trim to {before} beyond the logged release {self._released}"
        kept = [batch.between(before, TICK_MAX) for batch in self._batches]
        self._batches = [batch for batch in kept if len(batch)]
        self._firsts = [batch.first for batch in self._batches]
        self._notes = [(tick, note) for tick, note in self._notes if tick >= before]

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        """The notes of all batches that end at `start` or later and were not trimmed."""
        return iter([each for each in self._notes if each[0] >= start])

    def read(self, ticks: TickRange, rows_max: int) -> tuple[TickRange, EventBatch | None]:
        """The lowest rows of `ticks`, and the range for which they are all there are."""
        low = max(0, bisect_right(self._firsts, ticks.start) - 1)
        parts: list[EventBatch] = []
        rows = 0
        for batch in self._batches[low:]:
            if batch.first >= ticks.stop or rows > rows_max:
                break
            part = batch.between(ticks.start, ticks.stop)
            if len(part):
                parts.append(part)
                rows += len(part)
        if not parts:
            return ticks, None
        joined = EventBatch.joined(parts)
        if len(joined) > rows_max:
            joined = joined.slice(0, rows_max)
            ticks = TickRange(ticks.start, joined.last + 1)
        return ticks, joined

    def _keep(self, record: Record) -> list[EventBatch]:
        match record:
            case BatchRecord():
                batch = record.batch
                assert batch.first >= self._next_tick, f"{batch} is logged after tick {self._next_tick - 1}"
                self._batches.append(batch)
                self._firsts.append(batch.first)
                self._next_tick = batch.last + 1
                self._notes.append((batch.last, record.note))
                return [batch]
            case ReserveRecord():
                self._reserved = max(self._reserved, record.before)
            case StartRecord():
                self._starts[record] = None
            case ReleaseRecord():
                self._released = max(self._released, record.before)
        return []
