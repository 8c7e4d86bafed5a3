"""Which values may a column have? A set of keys, kept as intervals, and whether null is allowed.

Every comparison of one column with constants says the same kind of thing: `=`, `<>`, `<`, BETWEEN, IN, LIKE
'abc%', IS NULL, and all their ANDs, ORs and NOTs, each allow a set of values. So there is one type for all of
them, with exact union, intersection and inclusion. Exactness makes covering complete for conjunctions: `x > 3
AND x < 5` on integers *is* `x = 4`.

Implements docs/content.md, section 2.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from gapless.content.values import KEYS, Key, next_key

#: Half-open: `start <= key < stop`; None as `stop` means without end.
Interval: TypeAlias = tuple[Key, Key | None]


@dataclass(frozen=True, slots=True)
class Domain:
    """A set of keys of one type, and perhaps null.

    >>> three_to_nine = Domain.interval("int", 3, 10)
    >>> three_to_nine.includes(Domain.points("int", [4, 5])), three_to_nine.admits(10)
    (True, False)
    """

    kind: str
    #: Ascending, disjoint and not touching: equal sets are equal domains.
    intervals: tuple[Interval, ...]
    null: bool = False
    #: Cached data of the evaluator, so that thousands of values are processed only once.
    _form: Any = field(default=None, init=False, compare=False, repr=False)
    _hash: int | None = field(default=None, init=False, compare=False, repr=False)

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.kind, self.intervals, self.null)))
        assert self._hash is not None
        return self._hash

    def form(self, make: Callable[[Domain], Any]) -> Any:
        """The cached result of `make(domain)`: the same function for all domains of a type."""
        if self._form is None:
            object.__setattr__(self, "_form", make(self))
        return self._form

    @staticmethod
    def of(kind: str, intervals: Iterable[tuple[Key | None, Key | None]], *, null: bool = False) -> Domain:
        """The union of intervals, in any order; None is the least key, or no end."""
        every = KEYS[kind]
        clipped: list[Interval] = []
        for start, stop in intervals:
            low = every.least if start is None else _later(start, every.least)
            high = _earlier(stop, every.stop)
            if high is None or _before(low, high):
                clipped.append((low, high))
        return Domain(kind, _joined(clipped), null)

    @staticmethod
    def interval(kind: str, start: Key | None, stop: Key | None) -> Domain:
        """The keys `start <= key < stop`."""
        return Domain.of(kind, [(start, stop)])

    @staticmethod
    def points(kind: str, keys: Iterable[Key]) -> Domain:
        """Exactly these keys."""
        return Domain.of(kind, [(key, next_key(key)) for key in keys])

    @staticmethod
    def points_of(kind: str, keys: Iterable[Key]) -> Domain:
        """Exactly these keys, possibly very many, all of them keys of the type.

        >>> Domain.points_of("int", [5, 3, 4, 9]) == Domain.points("int", [3, 4, 5, 9])
        True
        """
        ordered: list[Any] = sorted(set(keys))
        stops: list[Any] = list(map(next_key, ordered))
        if any(map(operator.eq, stops, ordered[1:])):
            starts = [key for key, before in zip(ordered, [None, *stops], strict=False) if key != before]
            ends = [stop for stop, after in zip(stops, [*ordered[1:], None], strict=True) if stop != after]
            ordered, stops = starts, ends
        return Domain(kind, tuple(zip(ordered, stops, strict=True)))

    @staticmethod
    def all(kind: str, *, null: bool = False) -> Domain:
        """Every key; and null, if requested."""
        return Domain.of(kind, [(None, None)], null=null)

    @staticmethod
    def none(kind: str, *, null: bool = False) -> Domain:
        """No key at all; perhaps null."""
        return Domain(kind, (), null)

    def __or__(self, other: Domain) -> Domain:
        return Domain.of(self.kind, (*self.intervals, *other.intervals), null=self.null or other.null)

    def __and__(self, other: Domain) -> Domain:
        for whole, some in ((self, other), (other, self)):
            if whole.is_whole:
                return some if whole.null or not some.null else Domain(some.kind, some.intervals)
        pieces: list[Interval] = []
        left, right = 0, 0
        while left < len(self.intervals) and right < len(other.intervals):
            start, stop = self.intervals[left]
            other_start, other_stop = other.intervals[right]
            low, high = _later(start, other_start), _earlier(stop, other_stop)
            if high is None or _before(low, high):
                pieces.append((low, high))
            # Continue after the interval that ends first; it cannot meet another one.
            if stop == high:
                left += 1
            if other_stop == high:
                right += 1
        return Domain(self.kind, tuple(pieces), self.null and other.null)

    def without_null_inverse(self) -> Domain:
        """The complement, without null: what NOT makes of a comparison."""
        every = KEYS[self.kind]
        gaps: list[tuple[Key | None, Key | None]] = []
        start: Key | None = every.least
        for low, high in self.intervals:
            gaps.append((start, low))
            start = high
            if high is None:
                return Domain.of(self.kind, gaps)
        gaps.append((start, None))
        return Domain.of(self.kind, gaps)

    def includes(self, other: Domain) -> bool:
        """Whether every value of the other is one of ours."""
        if other.null and not self.null:
            return False
        at = 0
        for start, stop in other.intervals:
            # Ours do not touch, so an interval of the other lies in one of them or in none.
            while at < len(self.intervals):
                end = self.intervals[at][1]
                if end is None or _before(start, end):
                    break
                at += 1
            if at == len(self.intervals):
                return False
            low, high = self.intervals[at]
            if _before(start, low) or (high is not None and (stop is None or _before(high, stop))):
                return False
        return True

    def admits(self, key: Key | None) -> bool:
        """Whether the domain contains a key, or null for None."""
        if key is None:
            return self.null
        return any(
            not _before(key, start) and (stop is None or _before(key, stop)) for start, stop in self.intervals
        )

    @property
    def is_empty(self) -> bool:
        """No value at all."""
        return not self.intervals and not self.null

    @property
    def is_whole(self) -> bool:
        """Every value that is not null."""
        return len(self.intervals) == 1 and self.intervals[0] == (KEYS[self.kind].least, KEYS[self.kind].stop)

    def keys(self) -> tuple[Key, ...] | None:
        """The keys, when they are single points; None when some interval is longer."""
        if all(stop is not None and stop == next_key(start) for start, stop in self.intervals):
            return tuple(start for start, _ in self.intervals)
        return None

    def hole(self) -> Interval | None:
        """The one interval that is missing, when all keys but one interval are here."""
        if len(self.intervals) != 2:
            return None
        (low, start), (stop, high) = self.intervals
        if start is not None and low == KEYS[self.kind].least and high == KEYS[self.kind].stop:
            return start, stop
        return None


def _joined(intervals: list[Interval]) -> tuple[Interval, ...]:
    if len(intervals) <= 1:
        return tuple(intervals)
    ordered = sorted(intervals, key=_start)
    if all(stop is not None and _before(stop, after[0]) for (_, stop), after in pairwise(ordered)):
        return tuple(ordered)
    result: list[Interval] = []
    for start, stop in ordered:
        if not result:
            result.append((start, stop))
            continue
        last_start, last_stop = result[-1]
        if last_stop is None:
            break
        if _before(last_stop, start):
            result.append((start, stop))
        else:
            result[-1] = (last_start, None if stop is None else _later(last_stop, stop))
    return tuple(result)


def _start(interval: Interval) -> Any:
    return interval[0]


def _before(left: Key, right: Key) -> bool:
    return left < right  # type: ignore[operator]  # the keys of one domain have one type


def _later(left: Key, right: Key) -> Key:
    return right if _before(left, right) else left


def _earlier(left: Key | None, right: Key | None) -> Key | None:
    if left is None or right is None:
        return right if left is None else left
    return left if _before(left, right) else right
