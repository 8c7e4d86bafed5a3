"""Which ticks? Half-open ranges of ticks, sets of them, and their algebra.

A tick is a signed 64-bit count of microseconds. There are far more ticks than events, so nothing in
Gapless ever lists ticks one by one: a million ticks of silence are one `TickRange`. A `TickSet` is a
sorted tuple of ranges that neither touch nor overlap, so two equal sets are equal objects.

Implements docs/protocol.md, section 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Tick: TypeAlias = int
TickArray: TypeAlias = npt.NDArray[np.int64]

#: No event ever has a tick below this one: "since the beginning of time".
TICK_MIN: Tick = -(2**62)
#: No event ever has this tick or a later one: "for all time to come".
TICK_MAX: Tick = 2**62
TICKS_PER_MS = 1_000


@dataclass(frozen=True, slots=True, order=True)
class TickRange:
    """The ticks from `start` up to, but not including, `stop`.

    >>> print(TickRange(10, 14))
    10..14
    """

    start: Tick
    stop: Tick

    def __bool__(self) -> bool:
        return self.start < self.stop

    def __contains__(self, tick: Tick) -> bool:
        return self.start <= tick < self.stop

    @property
    def ticks(self) -> int:
        """How many ticks the range holds."""
        return max(0, self.stop - self.start)

    def __and__(self, other: TickRange) -> TickRange:
        return TickRange(max(self.start, other.start), min(self.stop, other.stop))

    def __str__(self) -> str:
        start = "" if self.start <= TICK_MIN else str(self.start)
        stop = "" if self.stop >= TICK_MAX else str(self.stop)
        return f"{start}..{stop}"


class TickSet:
    """An immutable set of ticks, stored as sorted ranges that neither touch nor overlap.

    >>> print(TickSet.of(TickRange(1, 4), TickRange(3, 6)) - TickSet.of(TickRange(2, 3)))
    1..2 3..6
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self, starts: tuple[Tick, ...] = (), stops: tuple[Tick, ...] = ()) -> None:
        """Adopt ranges that are already sorted and apart; use `of` for any others."""
        self._starts = starts
        self._stops = stops

    @staticmethod
    def of(*ranges: TickRange) -> TickSet:
        """The set of all ticks of `ranges`, which may overlap and come in any order."""
        return _normalised((r.start, r.stop) for r in ranges)

    @staticmethod
    def between(start: Tick, stop: Tick) -> TickSet:
        """The set of the ticks of one range."""
        return TickSet((start,), (stop,)) if start < stop else EMPTY

    @staticmethod
    def from_pairs(pairs: Iterable[tuple[Tick, Tick]]) -> TickSet:
        """The set of all ticks of the (start, stop) pairs, in any order."""
        return _normalised(pairs)

    @staticmethod
    def from_sorted(pairs: Iterable[tuple[Tick, Tick]]) -> TickSet:
        """The set of (start, stop) pairs that ascend and do not overlap, but may touch."""
        starts: list[Tick] = []
        stops: list[Tick] = []
        for start, stop in pairs:
            if stops and stops[-1] == start:
                stops[-1] = stop
            else:
                starts.append(start)
                stops.append(stop)
        return TickSet(tuple(starts), tuple(stops))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TickSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    def __hash__(self) -> int:
        return hash((self._starts, self._stops))

    def __iter__(self) -> Iterator[TickRange]:
        return (TickRange(a, b) for a, b in zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        """How many separate ranges the set has."""
        return len(self._starts)

    def pairs(self) -> Iterator[tuple[Tick, Tick]]:
        """The ranges as plain (start, stop) pairs, which are cheaper than objects."""
        return zip(self._starts, self._stops, strict=True)

    @property
    def ticks(self) -> int:
        """How many ticks the set holds."""
        return sum(self._stops) - sum(self._starts)

    @property
    def start(self) -> Tick:
        """The first tick; the set must not be empty."""
        return self._starts[0]

    @property
    def stop(self) -> Tick:
        """One past the last tick; the set must not be empty."""
        return self._stops[-1]

    def __contains__(self, tick: Tick) -> bool:
        at = bisect_right(self._starts, tick) - 1
        return at >= 0 and tick < self._stops[at]

    def covers(self, start: Tick, stop: Tick) -> bool:
        """Whether every tick of `start..stop` is in the set."""
        if start >= stop:
            return True
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and stop <= self._stops[at]

    def clip(self, start: Tick, stop: Tick) -> TickSet:
        """The part of the set inside `start..stop`."""
        if start >= stop or not self._starts:
            return EMPTY
        low = bisect_right(self._stops, start)
        high = bisect_left(self._starts, stop)
        if low >= high:
            return EMPTY
        starts = list(self._starts[low:high])
        stops = list(self._stops[low:high])
        starts[0] = max(starts[0], start)
        stops[-1] = min(stops[-1], stop)
        return TickSet(tuple(starts), tuple(stops))

    def __or__(self, other: TickSet) -> TickSet:
        if not other._starts:
            return self
        if not self._starts:
            return other
        few, many = (self, other) if len(self._starts) < len(other._starts) else (other, self)
        if len(few._starts) * 8 < len(many._starts):
            return many._with(few)
        return _normalised([*self.pairs(), *other.pairs()])

    def _with(self, few: TickSet) -> TickSet:
        """The union with a few ranges, each inserted in place: the others are not visited."""
        starts, stops = list(self._starts), list(self._stops)
        for start, stop in few.pairs():
            low, high = bisect_left(stops, start), bisect_right(starts, stop)
            # The ranges that it touches are merged into it.
            starts[low:high] = [min([start, *starts[low:high]])]
            stops[low:high] = [max([stop, *stops[low:high]])]
        return TickSet(tuple(starts), tuple(stops))

    def __and__(self, other: TickSet) -> TickSet:
        if not self._starts or not other._starts:
            return EMPTY
        out: list[tuple[Tick, Tick]] = []
        i = j = 0
        while i < len(self._starts) and j < len(other._starts):
            start = max(self._starts[i], other._starts[j])
            stop = min(self._stops[i], other._stops[j])
            if start < stop:
                out.append((start, stop))
            if self._stops[i] < other._stops[j]:
                i += 1
            else:
                j += 1
        return _adopted(out)

    def __sub__(self, other: TickSet) -> TickSet:
        if not self._starts or not other._starts:
            return self
        out: list[tuple[Tick, Tick]] = []
        holes = len(other._starts)
        hole = bisect_right(other._stops, self._starts[0])
        for start, stop in zip(self._starts, self._stops, strict=True):
            at = start
            while hole < holes and other._stops[hole] <= at:
                hole += 1
            while hole < holes and other._starts[hole] < stop:
                if at < other._starts[hole]:
                    out.append((at, other._starts[hole]))
                at = other._stops[hole]
                if at >= stop:
                    break
                hole += 1
            if at < stop:
                out.append((at, stop))
        return _adopted(out)

    def chopped(self, ticks_max: int, parts_max: int) -> list[TickRange]:
        """Split into ranges of about `ticks_max` ticks; longer ones rather than more than `parts_max`."""
        size = max(1, ticks_max, -(-self.ticks // max(1, parts_max)))
        parts: list[TickRange] = []
        for start, stop in self.pairs():
            for at in range(start, stop, size):
                parts.append(TickRange(at, min(stop, at + size)))
        return parts

    def __str__(self) -> str:
        return " ".join(str(r) for r in self) or "nothing"

    def __repr__(self) -> str:
        return f"TickSet({self})"


def _adopted(pairs: list[tuple[Tick, Tick]]) -> TickSet:
    if not pairs:
        return EMPTY
    starts, stops = zip(*pairs, strict=True)
    return TickSet(starts, stops)


def _normalised(pairs: Iterable[tuple[Tick, Tick]]) -> TickSet:
    out: list[tuple[Tick, Tick]] = []
    for start, stop in sorted(pairs):
        if start >= stop:
            continue
        if out and start <= out[-1][1]:
            if stop > out[-1][1]:
                out[-1] = (out[-1][0], stop)
        else:
            out.append((start, stop))
    return _adopted(out)


EMPTY = TickSet()
