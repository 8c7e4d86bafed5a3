"""What is a log without a disk? The same contract in memory, for tests and for events not worth keeping.

Durable means "flushed" here: records that were not flushed are gone after `reopened`, as after a crash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock

from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.budget import cut_to
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickRange
from gapless.protocol.effects import BatchRecord, Record
from gapless.protocol.pubend import Recovered
from gapless.store.contract import READ_BYTES_MAX, Extent, Flushed
from gapless.store.control import Control
from gapless.store.retention import Keep, Retention

#: Rows of a batch of a log that was rewritten.
REWRITE_ROWS = 2**16


class MemoryLog:
    """The records of one pubend, for as long as the process lives."""

    def __init__(self, *, bytes_max: int | None = None, retention: Retention | None = None) -> None:
        #: Maximum size of the events; a flush beyond it fails, as on a full disk.
        self.bytes_max = bytes_max
        #: See `RecordLog.retention`.
        self.retention = retention or Retention()
        self._waiting: deque[tuple[int, Record, bytes]] = deque()
        self._token = -1
        self._lock = Lock()
        self._batches: list[EventBatch] = []
        self._firsts: list[Tick] = []
        self._notes: deque[tuple[Tick, bytes]] = deque()
        self._bytes = 0
        self._oldest: Tick = 0
        self._floor: Tick = TICK_MIN
        self._control = Control()

    def append(self, token: int, record: Record, note: bytes = b"") -> None:
        """See `RecordLog.append`."""
        assert token > self._token, f"token {token} after {self._token}: tokens ascend"
        assert not note or isinstance(record, BatchRecord), "a note goes with a batch"
        self._token = token
        self._waiting.append((token, record, note))

    def flush(self) -> Flushed:
        """See `RecordLog.flush`."""
        entries = [self._waiting.popleft() for _ in range(len(self._waiting))]
        size = sum(record.batch.nbytes for _, record, _ in entries if isinstance(record, BatchRecord))
        full = size > 0 and self.bytes_max is not None and self._bytes + size > self.bytes_max
        token: int | None = None
        failed: list[int] = []
        with self._lock:
            for each, record, note in entries:
                if full and isinstance(record, BatchRecord):
                    failed.append(each)
                else:
                    self._keep(record, note)
                    token = each
        error = (
            StoreError("E302", "the log in memory is full: release events", retry=True) if failed else None
        )
        return Flushed(token=token, failed=tuple(failed), error=error)

    def take_back(self) -> tuple[int, ...]:
        """See `RecordLog.take_back`."""
        given_up = tuple(token for token, record, _ in self._waiting if isinstance(record, BatchRecord))
        self._waiting = deque(entry for entry in self._waiting if not isinstance(entry[1], BatchRecord))
        return given_up

    def read(
        self,
        ticks: TickRange,
        rows_max: int,
        *,
        bytes_max: int = READ_BYTES_MAX,
        history: bool = False,
    ) -> tuple[TickRange, EventBatch | None]:
        """See `RecordLog.read`."""
        assert rows_max > 0, f"a read of {rows_max} rows"
        with self._lock:
            start = ticks.start if history else max(ticks.start, self._floor)
            low = max(0, bisect_right(self._firsts, start) - 1)
            found = self._batches[low:]
        parts: list[EventBatch] = []
        rows = size = 0
        whole = True
        for batch in found:
            if batch.first >= ticks.stop:
                break
            part = batch.between(start, max(start, ticks.stop))
            if rows >= rows_max or size >= bytes_max:
                whole = whole and not len(part)
                break
            if len(part):
                parts.append(part)
                rows += len(part)
                size += part.nbytes
        if not parts:
            return ticks, None
        joined = EventBatch.joined(parts)
        if whole and rows <= rows_max and size <= 2 * bytes_max:
            return ticks, joined
        joined = next(cut_to(joined.slice(0, rows_max), 2 * bytes_max))
        return TickRange(ticks.start, joined.last + 1), joined

    def extents(self, ticks: TickRange) -> Iterator[Extent]:
        """See `RecordLog.extents`."""
        with self._lock:
            low = max(0, bisect_right(self._firsts, ticks.start) - 1)
            found = self._batches[low:]
        for batch in found:
            if batch.first >= ticks.stop:
                return
            if batch.last >= ticks.start:
                yield Extent(batch.first, batch.last, len(batch))

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        """See `RecordLog.notes`."""
        with self._lock:
            found = [(tick, note) for tick, note in self._notes if tick >= start]
        yield from found

    def trim(self, before: Tick, now: Tick) -> None:
        """See `RecordLog.trim`."""
        with self._lock:
            assert before <= self._control.released, f"trim to {before} above {self._control.released}"
            self._floor = max(self._floor, before)
            below = self.retention.below(before=self._floor, now=now)
            gone = 0
            while gone < len(self._batches) and self._batches[gone].last < below:
                if self.retention.fits(self._bytes):
                    break
                self._bytes -= self._batches[gone].nbytes
                self._oldest = self._batches[gone].last + 1
                gone += 1
            del self._batches[:gone], self._firsts[:gone]
            kept_from = self._firsts[0] if self._firsts else TICK_MAX
            while gone and self._notes and self._notes[0][0] < kept_from:
                self._notes.popleft()

    def rewrite(self, kept: Callable[[EventBatch], EventBatch], remembered: Tick) -> None:
        """Keep only the kept rows of each batch, and the notes above the tick `remembered`."""
        with self._lock:
            before = list(self._batches)
        left = [part for part in map(kept, before) if len(part)]
        batches = EventBatch.joined(left).pieces(REWRITE_ROWS) if left else []
        with self._lock:
            self._batches[: len(before)] = batches
            self._firsts = [batch.first for batch in self._batches]
            self._bytes = sum(batch.nbytes for batch in self._batches)
            self._notes = deque((tick, note) for tick, note in self._notes if tick > remembered)

    @property
    def rows(self) -> int:
        """Number of events."""
        with self._lock:
            return sum(map(len, self._batches))

    def kept_from(self, now: Tick) -> Tick:
        """See `RecordLog.kept_from`."""
        kept = self.retention.kept_from(now)
        if self.retention.keep is not Keep.SIZE:
            return kept
        with self._lock:
            log_bytes = self._bytes
            for batch in self._batches:
                if self.retention.fits(log_bytes):
                    break
                log_bytes -= batch.nbytes
                kept = batch.last + 1
        return kept

    @property
    def log_bytes(self) -> int:
        """See `RecordLog.log_bytes`."""
        with self._lock:
            return self._bytes

    @property
    def oldest(self) -> Tick:
        """See `RecordLog.oldest`."""
        with self._lock:
            return self._oldest

    def recover(self) -> Recovered:
        """See `RecordLog.recover`."""
        with self._lock:
            return self._control.recovered()

    def close(self) -> None:
        """See `RecordLog.close`. What was flushed stays, for `reopened`."""
        self._waiting.clear()

    def reopened(self) -> MemoryLog:
        """The log as a restarted process would find it."""
        self._waiting.clear()
        self._token = -1
        self._floor = max(self._floor, self._control.released)
        return self

    def _keep(self, record: Record, note: bytes) -> None:
        if isinstance(record, BatchRecord):
            batch = record.batch
            assert batch.first >= self._control.next_tick, (
                f"{batch} is logged after {self._control.next_tick - 1}"
            )
            self._batches.append(batch)
            self._firsts.append(batch.first)
            self._bytes += batch.nbytes
            if note:
                self._notes.append((batch.last, note))
        self._control.apply(record)
