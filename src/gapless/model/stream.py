"""What does a stream know? Knowledge of all ticks as runs, with the data rows beside them.

A knowledge stream is two things: the ticks that are *known* (data or final), as runs that carry the epochs
their silence was made under, and the data rows, by tick. A known tick without a row is F. So a filter that
rejects a row only has to remove the row, a batch of 500 events is one run, and an acknowledged history of any
length is one run too.

Accumulating joins knowledge: it is commutative and idempotent, so duplicates and reordering are
harmless. `forget` lowers ticks to Q, and `finalise` turns data that nobody needs any more into F.

Implements docs/protocol.md, section 2.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np

from gapless.model.batch import EventBatch, gathered
from gapless.model.epochs import Epochs
from gapless.model.tickmap import TickMap
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, Tick, TickSet

#: Known ticks of a message or an answer: (start, stop, the epochs its silence was made under).
Run: TypeAlias = tuple[Tick, Tick, Epochs]


#: Number of newest chunks of a stream that are left as they are. Of older ones, this many consecutive chunks
#: are joined, up to this many rows and bytes: a chunk of one row takes kilobytes that no bound counts.
CHUNKS_APART_MAX: Final = 1_024
CHUNKS_JOINED: Final = 64
JOINED_ROWS_MAX: Final = 4_096
JOINED_BYTES_MAX: Final = 2**17


class StreamRows:
    """The data rows of a stream in tick order, as chunks whose tick spans never overlap."""

    __slots__ = ("_before", "_chunks", "_firsts", "_joined", "nbytes", "rows")

    def __init__(self) -> None:
        self._firsts: list[Tick] = []
        self._chunks: list[EventBatch] = []
        #: Number of first chunks that cannot be joined further and are skipped.
        self._joined = 0
        #: The number of rows before each chunk; computed by the first count after a change.
        self._before: list[int] | None = None
        self.rows = 0
        self.nbytes = 0

    def add(self, batch: EventBatch) -> None:
        """Insert rows whose ticks are not here yet."""
        if not len(batch):
            return
        if not self._chunks or self._chunks[-1].last < batch.first:
            # The common path: a stream grows at its end.
            self._before = None
            self.rows += len(batch)
            self.nbytes += batch.weighed().nbytes
            self._firsts.append(batch.first)
            self._chunks.append(batch)
            if len(self._chunks) - self._joined >= CHUNKS_APART_MAX + CHUNKS_JOINED:
                self._join()
            return
        low, high = self._touching(batch.first, batch.last + 1)
        if low < high:
            batch = EventBatch.joined([*self._chunks[low:high], batch])
        self._replace(low, high, [batch])

    def between(self, start: Tick, stop: Tick) -> list[EventBatch]:
        """The rows with ticks in `start..stop`, as batches in order, none of them empty."""
        return [*self.each_between(start, stop)]

    def each_between(self, start: Tick, stop: Tick) -> Iterator[EventBatch]:
        """The same one by one, for callers that may need only the first. Later ones are not visited."""
        low, high = self._touching(start, stop)
        for chunk in self._chunks[low:high]:
            part = chunk.between(start, stop)
            if len(part):
                yield part

    def count(self, start: Tick, stop: Tick) -> int:
        """The number of rows with ticks in `start..stop`.

        Counts for many positions in one stream visit its chunks once in total.
        """
        low, high = self._touching(start, stop)
        if low >= high or start >= stop:
            return 0
        if self._before is None:
            self._before = [0, *accumulate(map(len, self._chunks))]
        first, last = self._chunks[low].ticks, self._chunks[high - 1].ticks
        skipped = int(first.searchsorted(start)) + len(last) - int(last.searchsorted(stop))
        return self._before[high] - self._before[low] - skipped

    def has(self, batch: EventBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which rows of `batch` have a tick that is here already."""
        mask = np.zeros(len(batch), dtype=np.bool_)
        if not len(batch):
            return mask
        low, high = self._touching(batch.first, batch.last + 1)
        for chunk in self._chunks[low:high]:
            mask |= np.isin(batch.ticks, chunk.ticks, assume_unique=True)
        return mask

    def drop(self, start: Tick, stop: Tick) -> int:
        """Remove the rows with ticks in `start..stop`; returns their number."""
        if start >= stop:
            return 0
        low, high = self._touching(start, stop)
        if low >= high:
            return 0
        before = self.rows
        kept: list[EventBatch] = []
        for chunk in self._chunks[low:high]:
            if chunk.first < start:
                kept.append(chunk.between(TICK_MIN, start))
            if chunk.last >= stop:
                kept.append(chunk.between(stop, TICK_MAX))
        self._replace(low, high, kept)
        return before - self.rows

    def span(self, start: Tick, stop: Tick) -> tuple[Tick, Tick]:
        """The least part of `start..stop` that holds all its rows; `(stop, stop)` when it has none."""
        parts = self.between(start, stop)
        return (parts[0].first, parts[-1].last + 1) if parts else (stop, stop)

    @property
    def first(self) -> Tick | None:
        """The lowest tick with a row."""
        return self._firsts[0] if self._firsts else None

    def lowest(self) -> tuple[Tick, Tick]:
        """The tick span of the first chunk; there must be one."""
        return self._chunks[0].first, self._chunks[0].last + 1

    def highest(self) -> tuple[Tick, Tick]:
        """The tick span of the last chunk; there must be one."""
        return self._chunks[-1].first, self._chunks[-1].last + 1

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return len(self._chunks)

    def _join(self) -> None:
        """Join some small chunks into fewer, larger ones."""
        low = self._joined
        high = low + CHUNKS_JOINED
        made = [*gathered(self._chunks[low:high], JOINED_ROWS_MAX, JOINED_BYTES_MAX)]
        self._replace(low, high, made)
        self._joined = low + len(made)

    def _touching(self, start: Tick, stop: Tick) -> tuple[int, int]:
        low = bisect_right(self._firsts, start) - 1
        if low < 0 or self._chunks[low].last < start:
            low += 1
        return low, bisect_left(self._firsts, stop, lo=low)

    def _replace(self, low: int, high: int, chunks: list[EventBatch]) -> None:
        self._before = None
        for chunk in self._chunks[low:high]:
            self.rows -= len(chunk)
            self.nbytes -= chunk.nbytes
        for chunk in chunks:
            self.rows += len(chunk)
            # The rest of a batch may be its one large row.
            self.nbytes += chunk.weighed().nbytes
        self._firsts[low:high] = [chunk.first for chunk in chunks]
        self._chunks[low:high] = chunks
        # Joined chunks come first; when one of them changes, those after it may be joined again.
        self._joined = (
            self._joined - (high - low) + len(chunks) if high <= self._joined else min(low, self._joined)
        )


@dataclass(slots=True)
class KnowledgeStream:
    """Knowledge of every tick of one pubend. Only `forget` ever lowers it."""

    #: The ticks that are D or F, with the epochs under which the silence among them was made.
    known: TickMap[Epochs] = field(default_factory=TickMap)
    #: The D ticks. Invariant: every row's tick is known.
    rows: StreamRows = field(default_factory=StreamRows)

    def accumulate(self, runs: list[Run], batch: EventBatch | None) -> tuple[list[Run], EventBatch | None]:
        """Join new knowledge; returns the runs that say more than before, and all data rows inside them.

        Rows that were already here count too: a broker that passes on a better stamp of a run must filter
        every row of it again, or it would call data silent. Where `runs` overlap each other, so do the runs
        that are returned.
        """
        if len(runs) == 1 and batch is not None and self._is_next(runs[0], batch):
            self.rows.add(batch)
            self.known.set_range(*runs[0])
            return runs, batch
        fresh: list[Run] = []
        for start, stop, stamp in runs:
            fresh += self._news(start, stop, stamp)
        if not fresh:
            return [], None
        rows = rows_inside(batch, fresh) if batch is not None and len(batch) else None
        before = [part for start, stop, _ in fresh for part in self.rows.between(start, stop)]
        if before and rows is not None:
            self.rows.add(rows.where(~self.rows.has(rows)))
            rows = rows_inside(EventBatch.joined([*before, rows]), fresh)
        elif rows is not None:
            self.rows.add(rows)
        elif before:
            rows = EventBatch.joined(before)
        for start, stop, stamp in fresh:
            self.known.update(start, stop, joining(stamp))
        return fresh, rows

    def resolved(self, start: Tick, stop: Tick, need: Epochs) -> TickSet:
        """The ticks of `start..stop` whose silence speaks for all of `need`."""
        return self.known.where(start, stop, lambda stamp: stamp.covers(need))

    def finalise(self, start: Tick, stop: Tick, stamp: Epochs) -> None:
        """`start..stop` is no longer needed, as of `stamp`: turn data into F and free it."""
        low, high = self.rows.span(start, stop)
        self.known.update(start, low, joining(stamp))
        if low < high:
            # The rows were D whatever the stamp of the silence around them; now they are F, and
            # only as of `stamp`. Keeping an older, larger stamp would claim too much for them. The
            # silence between the first and the last of them is lowered too: one run, not one per row.
            self.rows.drop(low, high)
            self.known.set_range(low, high, stamp)
        self.known.update(high, stop, joining(stamp))

    def forget(self, start: Tick, stop: Tick) -> None:
        """Lower `start..stop` to Q. Curiosity restores it if anybody needs it."""
        self.rows.drop(start, stop)
        self.known.clear(start, stop)

    def check(self) -> None:
        """Raise if a row has an unknown tick, or ticks do not ascend."""
        self.known.check()
        for batch in self.rows.between(TICK_MIN, TICK_MAX):
            batch.check()
            missing = self.known.missing(batch.first, batch.last + 1)
            for hole in missing:
                assert not len(batch.between(hole.start, hole.stop)), f"rows in unknown ticks {hole}"

    def _is_next(self, run: Run, batch: EventBatch) -> bool:
        """Whether a run begins above everything that is known, and holds all rows of the batch."""
        start, stop, _ = run
        if not len(batch) or not start <= batch.first or not batch.last < stop:
            return False
        return not self.known or self.known.stop <= start

    def _news(self, start: Tick, stop: Tick, stamp: Epochs) -> list[Run]:
        if start >= stop:
            return []
        stale = EMPTY
        if self.known and start < self.known.stop:
            stale = self.known.where(start, stop, lambda old: old.covers(stamp))
        if not stale:
            return [(start, stop, stamp)]
        return [(a, b, stamp) for a, b in (TickSet.between(start, stop) - stale).pairs()]


def joining(stamp: Epochs) -> Callable[[Epochs | None], Epochs]:
    """The change of a tick's stamp that also knows `stamp` to be true."""
    return lambda old: stamp if old is None else old.join(stamp)


def rows_inside(batch: EventBatch, runs: list[Run]) -> EventBatch | None:
    """The rows of `batch` with ticks in any of `runs`, None when there is none."""
    parts = [batch.between(start, stop) for start, stop, _ in runs]
    parts = [part for part in parts if len(part)]
    return EventBatch.joined(parts) if parts else None
