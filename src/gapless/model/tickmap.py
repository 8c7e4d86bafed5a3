"""What holds for which ticks? A map from ticks to values, stored as runs of equal value.

A stream has one value per tick (an epoch stamp, the time a nack was sent) and almost all neighbouring
ticks share it, so the map keeps sorted runs and merges equal neighbours. Every operation costs
the number of runs it touches, not the number of ticks and not the number of runs in the map.

Implements docs/protocol.md, section 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from gapless.model.ticks import EMPTY, Tick, TickSet

V = TypeVar("V")


class TickMap(Generic[V]):
    """A mutable map from ticks to values; ticks that were never set have none."""

    __slots__ = ("_starts", "_stops", "_values", "version")

    def __init__(self) -> None:
        #: Grows with every change: while it is the same, everything read from the map is still true.
        self.version = 0
        self._starts: list[Tick] = []
        self._stops: list[Tick] = []
        self._values: list[V] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        """Number of runs in the map."""
        return len(self._starts)

    @property
    def start(self) -> Tick:
        """The first tick with a value; the map must not be empty."""
        return self._starts[0]

    @property
    def stop(self) -> Tick:
        """One past the last tick with a value; the map must not be empty."""
        return self._stops[-1]

    def get(self, tick: Tick) -> V | None:
        """The value at `tick`, or None."""
        at = bisect_right(self._starts, tick) - 1
        return self._values[at] if at >= 0 and tick < self._stops[at] else None

    def run_at(self, tick: Tick) -> tuple[Tick, V] | None:
        """The value at `tick` and where its run stops, or None."""
        at = bisect_right(self._starts, tick) - 1
        if at < 0 or tick >= self._stops[at]:
            return None
        return self._stops[at], self._values[at]

    def runs(self, start: Tick, stop: Tick) -> list[tuple[Tick, Tick, V]]:
        """The runs inside `start..stop`, clipped to it, in order."""
        if start >= stop:
            return []
        low, high = self._touching(start, stop)
        out = list(zip(self._starts[low:high], self._stops[low:high], self._values[low:high], strict=True))
        if out:
            first, last = out[0], out[-1]
            if first[0] < start:
                out[0] = (start, first[1], first[2])
                last = out[-1]
            if last[1] > stop:
                out[-1] = (last[0], stop, last[2])
        return out

    def __iter__(self) -> Iterator[tuple[Tick, Tick, V]]:
        return iter(list(zip(self._starts, self._stops, self._values, strict=True)))

    def set_range(self, start: Tick, stop: Tick, value: V) -> None:
        """Give every tick of `start..stop` this value."""
        if start >= stop:
            return
        if self._extend_last(start, stop, value):
            return
        self._replace(start, stop, [(start, stop, value)])

    def update(self, start: Tick, stop: Tick, change: Callable[[V | None], V]) -> None:
        """Give every tick of `start..stop` the value `change(old)`, old being None where there was none."""
        if start >= stop:
            return
        out: list[tuple[Tick, Tick, V]] = []
        at = start
        for run_start, run_stop, value in self.runs(start, stop):
            if at < run_start:
                out.append((at, run_start, change(None)))
            out.append((run_start, run_stop, change(value)))
            at = run_stop
        if at < stop:
            out.append((at, stop, change(None)))
        if len(out) == 1 and self._extend_last(*out[0]):
            return
        self._replace(start, stop, out)

    def clear(self, start: Tick, stop: Tick) -> None:
        """Remove the value of every tick of `start..stop`."""
        if start < stop:
            low, high = self._touching(start, stop)
            if low < high:
                self._replace(start, stop, [])

    def drop_highest(self, runs_max: int) -> bool:
        """When there are more than `runs_max` runs, drop the highest until half as many are left."""
        if len(self._starts) <= runs_max:
            return False
        keep = max(1, runs_max // 2)
        self.version += 1
        del self._starts[keep:], self._stops[keep:], self._values[keep:]
        return True

    def ticks(self, start: Tick, stop: Tick) -> TickSet:
        """The ticks of `start..stop` that have a value."""
        return TickSet.from_sorted((a, b) for a, b, _ in self.runs(start, stop))

    def where(self, start: Tick, stop: Tick, accepts: Callable[[V], bool]) -> TickSet:
        """The ticks of `start..stop` whose value is accepted."""
        return TickSet.from_sorted((a, b) for a, b, value in self.runs(start, stop) if accepts(value))

    def missing(self, start: Tick, stop: Tick) -> TickSet:
        """The ticks of `start..stop` that have no value."""
        if start >= stop:
            return EMPTY
        return TickSet.between(start, stop) - self.ticks(start, stop)

    def reach(self, start: Tick, accepts: Callable[[V], bool]) -> Tick:
        """One past the last tick of the unbroken accepted stretch that begins at `start`."""
        at = bisect_right(self._starts, start) - 1
        reached = start
        while 0 <= at < len(self._starts) and self._starts[at] <= reached < self._stops[at]:
            if not accepts(self._values[at]):
                break
            reached = self._stops[at]
            at += 1
        return reached

    def check(self) -> None:
        """Raise if runs are empty, out of order, overlapping, or equal to a touching neighbour."""
        previous_stop: Tick | None = None
        for at, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            assert start < stop, f"empty run {start}..{stop}"
            if previous_stop is not None:
                assert previous_stop <= start, f"run at {start} overlaps the previous one"
                if previous_stop == start:
                    assert self._values[at - 1] != self._values[at], f"runs not merged at {start}"
            previous_stop = stop

    def _touching(self, start: Tick, stop: Tick) -> tuple[int, int]:
        return bisect_right(self._stops, start), bisect_left(self._starts, stop)

    def _extend_last(self, start: Tick, stop: Tick, value: V) -> bool:
        # The common path: a stream grows at its end with the value it already has there.
        if self._stops and self._stops[-1] == start and self._values[-1] == value:
            self._stops[-1] = stop
            self.version += 1
            return True
        return False

    def _replace(self, start: Tick, stop: Tick, runs: list[tuple[Tick, Tick, V]]) -> None:
        self.version += 1
        low, high = self._touching(start, stop)
        new = list(runs)
        if low < high:
            if self._starts[low] < start:
                new.insert(0, (self._starts[low], start, self._values[low]))
            if self._stops[high - 1] > stop:
                new.append((stop, self._stops[high - 1], self._values[high - 1]))
        if low > 0 and new and self._stops[low - 1] == new[0][0]:
            low -= 1
            new.insert(0, (self._starts[low], self._stops[low], self._values[low]))
        if high < len(self._starts) and new and self._starts[high] == new[-1][1]:
            new.append((self._starts[high], self._stops[high], self._values[high]))
            high += 1
        merged: list[tuple[Tick, Tick, V]] = []
        for run in new:
            if merged and merged[-1][1] == run[0] and merged[-1][2] == run[2]:
                merged[-1] = (merged[-1][0], run[1], run[2])
            else:
                merged.append(run)
        self._starts[low:high] = [r[0] for r in merged]
        self._stops[low:high] = [r[1] for r in merged]
        self._values[low:high] = [r[2] for r in merged]
