"""How does a log keep the newest row of each key? Superseded rows are skipped, and deleted in bulk.

It wraps another log, on disk or in memory, and adds an index of keys. `read` skips superseded rows, so that
curiosity about everything is answered with the newest rows and with silence: the cost of a snapshot depends
on the number of keys, and that of catching up on the number of changes. The index is rebuilt from the log at
every start.

Once half of the rows of a sealed segment are superseded, the live rows are written to a new file that
replaces it, and its neighbours if they have become small. Ticks do not change. The progress of publishers
must be stored elsewhere first: their notes disappear with the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gapless.model.batch import EventBatch
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickArray, TickRange
from gapless.protocol.effects import BatchRecord, Record
from gapless.protocol.pubend import Recovered
from gapless.store.contract import READ_BYTES_MAX, Extent, Flushed
from gapless.store.keys import KeyIndex
from gapless.store.log import Log
from gapless.store.memory import MemoryLog
from gapless.store.retention import Retention
from gapless.store.segment import Segment

#: Segments on disk are rewritten only as a whole: smaller ones drop superseded rows sooner.
SEGMENT_BYTES = 16 * 2**20
#: Number of rows examined at once, however few are wanted: most of them may be superseded.
LOOK_ROWS = 2**16
#: Approximate size of the batches of live rows.
REWRITE_BYTES = 2**20
#: Minimum number of superseded rows for which a log in memory is tidied.
TIDY_ROWS_MIN = 1_000


class _Ahead(NamedTuple):
    """Rows read from the log and not returned yet: complete for their ticks, dead or alive."""

    ticks: TickRange
    rows: EventBatch


class KeyedLog:
    """A log that returns only the newest rows. See `store.contract.RecordLog`."""

    def __init__(self, log: Log | MemoryLog, retention: Retention | None = None) -> None:
        """The keys are those of `retention`, or of the log's own retention. Reads the whole log."""
        self.log = log
        self._index = KeyIndex(retention or log.retention)
        #: Appended and not flushed.
        self._waiting: deque[tuple[int, EventBatch]] = deque()
        self._ahead: _Ahead | None = None
        #: Number of rows by the file name of a sealed segment.
        self._rows: dict[str, int] = {}
        for batch in self._all_rows():
            self._index.add(batch)

    def append(self, token: int, record: Record, note: bytes = b"") -> None:
        """See `RecordLog.append`."""
        self.log.append(token, record, note)
        if isinstance(record, BatchRecord):
            self._waiting.append((token, record.batch))

    def flush(self) -> Flushed:
        """See `RecordLog.flush`."""
        done = self.log.flush()
        failed = set(done.failed)
        last = max(failed | ({done.token} if done.token is not None else set()), default=-1)
        while self._waiting and self._waiting[0][0] <= last:
            token, batch = self._waiting.popleft()
            if token not in failed:
                self._index.add(batch)
        self._ahead = None
        return done

    def take_back(self) -> tuple[int, ...]:
        """See `RecordLog.take_back`."""
        self._waiting.clear()
        return self.log.take_back()

    def read(
        self,
        ticks: TickRange,
        rows_max: int,
        *,
        bytes_max: int = READ_BYTES_MAX,
        history: bool = False,
    ) -> tuple[TickRange, EventBatch | None]:
        """See `RecordLog.read`. Skips superseded rows, unless `history` asks for everything."""
        if history:
            return self.log.read(ticks, rows_max, bytes_max=bytes_max, history=True)
        assert rows_max > 0, f"a read of {rows_max} rows"
        parts: list[EventBatch] = []
        rows = size = 0
        at = ticks.start
        while at < ticks.stop and rows < rows_max and size < bytes_max:
            covered, found = self._look(TickRange(at, ticks.stop), bytes_max - size)
            if found is not None:
                alive = found.where(self._index.alive(found.ticks))
                if len(alive) > rows_max - rows:
                    alive = alive.slice(0, rows_max - rows)
                    covered = TickRange(at, alive.last + 1)
                    rest = found.between(covered.stop, TICK_MAX)
                    self._ahead = _Ahead(TickRange(covered.stop, found.last + 1), rest)
                if len(alive):
                    parts.append(alive)
                    rows += len(alive)
                    size += alive.nbytes
            at = covered.stop
        return TickRange(ticks.start, max(at, ticks.start)), EventBatch.joined(parts) if parts else None

    def extents(self, ticks: TickRange) -> Iterator[Extent]:
        """See `RecordLog.extents`."""
        return self.log.extents(ticks)

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        """See `RecordLog.notes`."""
        return self.log.notes(start)

    def trim(self, before: Tick, now: Tick) -> None:
        """See `RecordLog.trim`."""
        self.log.trim(before, now)

    def kept_from(self, now: Tick) -> Tick:
        """See `RecordLog.kept_from`."""
        return self.log.kept_from(now)

    @property
    def retention(self) -> Retention:
        """See `RecordLog.retention`."""
        return self.log.retention

    @property
    def log_bytes(self) -> int:
        """See `RecordLog.log_bytes`."""
        return self.log.log_bytes

    @property
    def oldest(self) -> Tick:
        """See `RecordLog.oldest`."""
        return self.log.oldest

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self._index)

    def recover(self) -> Recovered:
        """See `RecordLog.recover`."""
        return self.log.recover()

    def close(self) -> None:
        """See `RecordLog.close`."""
        self.log.close()

    # ---- tidying -------------------------------------------------------------------------------------

    def is_untidy(self, numbers_up_to: int = TICK_MAX) -> bool:
        """Whether `tidy` has something to do. May wait for the disk."""
        if isinstance(self.log, MemoryLog):
            return self._index.dead >= TIDY_ROWS_MIN and 2 * self._index.dead > self.log.rows
        return next(self._runs(self.log, TICK_MAX, numbers_up_to), None) is not None

    def tidy(self, remembered: Tick, numbers_up_to: int = TICK_MAX) -> None:
        """Delete superseded rows where there are many. One caller at a time.

        Up to the tick `remembered`, the progress of publishers is stored elsewhere. Segments above
        `numbers_up_to` are left alone. Raises StoreError; the log is then unchanged, and the next call
        continues.
        """
        log = self.log
        if isinstance(log, MemoryLog):
            # Rows superseded from here on are left for the next time.
            dead = self._index.dead_between(TICK_MIN, TICK_MAX)
            log.rewrite(lambda batch: _without(batch, dead), remembered)
            self._index.forget(dead)
            return
        for run in list(self._runs(log, remembered, numbers_up_to)):
            dead = self._index.dead_between(run[0][0].header.floor, run[-1][1])
            batches = (_without(batch, dead) for segment, _ in run for batch in log.batches(segment))
            log.replace([segment for segment, _ in run], _joined(batches))
            self._index.forget(dead)
            for segment, _ in run:
                self._rows.pop(segment.path.name, None)

    def _runs(self, log: Log, remembered: Tick, numbers_up_to: int) -> Iterator[list[tuple[Segment, Tick]]]:
        """Neighbouring segments worth rewriting as one, each with the tick where it ends."""
        bytes_max = log.options.segment_bytes_max
        run: list[tuple[Segment, Tick]] = []
        run_bytes = 0.0
        is_stale = False
        for segment, stop in log.sealed():
            if stop > remembered + 1 or segment.header.number > numbers_up_to:
                break
            rows = self._rows_of(log, segment, stop)
            dead = len(self._index.dead_between(segment.header.floor, stop))
            alive_bytes = segment.size * (rows - dead) / max(rows, 1)
            if (2 * dead <= rows and 4 * segment.size >= bytes_max) or run_bytes + alive_bytes > bytes_max:
                if is_stale or len(run) > 1:
                    yield run
                run, run_bytes, is_stale = [], 0.0, False
            if 2 * dead > rows or 4 * segment.size < bytes_max:
                run.append((segment, stop))
                run_bytes += alive_bytes
                is_stale = is_stale or 2 * dead > rows
        if is_stale or len(run) > 1:
            yield run

    def _rows_of(self, log: Log, segment: Segment, stop: Tick) -> int:
        """How many rows a sealed segment has, dead or alive."""
        name = segment.path.name
        if name not in self._rows:
            self._rows[name] = sum(
                extent.rows for extent in log.extents(TickRange(segment.header.floor, stop))
            )
        return self._rows[name]

    # ---- reading -------------------------------------------------------------------------------------

    def _look(self, ticks: TickRange, bytes_max: int) -> tuple[TickRange, EventBatch | None]:
        """The lowest rows of `ticks`, dead or alive, and the range for which they are complete."""
        ahead = self._ahead
        if ahead is not None and ahead.ticks.start <= ticks.start < ahead.ticks.stop:
            stop = min(ahead.ticks.stop, ticks.stop)
            found = ahead.rows.between(ticks.start, stop)
            return TickRange(ticks.start, stop), found if len(found) else None
        return self.log.read(ticks, LOOK_ROWS, bytes_max=bytes_max)

    def _all_rows(self) -> Iterator[EventBatch]:
        at: Tick = TICK_MIN
        while at < TICK_MAX:
            covered, found = self.log.read(TickRange(at, TICK_MAX), LOOK_ROWS, history=True)
            if found is not None:
                yield found
            at = covered.stop


def _without(batch: EventBatch, dead: TickArray) -> EventBatch:
    return batch.where(~np.isin(batch.ticks, dead, assume_unique=True))


def _joined(batches: Iterable[EventBatch]) -> Iterator[EventBatch]:
    """The same rows in batches of a reasonable size."""
    small: list[EventBatch] = []
    for batch in batches:
        if len(batch):
            small.append(batch)
        if sum(each.nbytes for each in small) >= REWRITE_BYTES:
            yield EventBatch.joined(small)
            small = []
    if small:
        yield EventBatch.joined(small)
