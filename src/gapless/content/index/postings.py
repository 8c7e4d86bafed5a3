"""Where are the conjunctions that a row may match? In sorted arrays, found by key and by range.

All conjunctions that are found in the same way, say by an equality of `loc` and a range of `price` of
about the same width, share one `Postings`. Its entries are sorted by (key, low end); for a row, the
entries that may match are one slice, found by binary search for the whole batch at once.

Ranges are the interesting part. An interval contains v only if its low end lies in `v - width .. v`, so
intervals are kept by *breadth class*: all in one class are at most `width` wide and, mostly, at least a
quarter of that. Then the slice holds few that do not match. Intervals with one open side need no class:
the slice begins or ends with the key.

Changes are cheap because there are two sorted runs: a long one, and a short one that takes what is new
and is merged into the long one when it has grown. What is removed stays in its run until the next merge;
the table knows that it is dead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gapless.content.rows import CODE_MAX, CODE_MIN, CodeArray, Positions, RowMask

Places: TypeAlias = npt.NDArray[np.float64]
Pairs: TypeAlias = tuple[Positions, Positions]

#: The short run is merged at this many entries, or at an eighth of the long one's, if that is less.
SHORT_RUN_MIN, SHORT_RUN_MAX = 256, 4_096
#: Breadth classes are powers of four between these two; what is wider is taken for an open interval.
CLASS_MIN, CLASS_MAX = -16, 32

NO_PAIRS: Pairs = (np.zeros(0, np.int64), np.zeros(0, np.int64))
_NO_KEYS = np.zeros(0, np.int64)
_NO_PLACES = np.zeros(0, np.float64)
_NO_WIDTHS = np.zeros(0, np.uint64)


class PostingShape(Enum):
    """How the entries of a `Postings` are bounded behind their key."""

    #: Not at all: every entry with the row's key is a candidate.
    NONE = "none"
    #: From a low end upwards.
    ABOVE = "above"
    #: From a high end downwards.
    BELOW = "below"
    #: On both sides, with a breadth class.
    BETWEEN = "between"


class Breadth(NamedTuple):
    """A shape, and for BETWEEN the exponent of four that is not below the width."""

    shape: PostingShape
    exponent: int = 0

    @staticmethod
    def of(low: float, high: float, low_code: int, high_code: int) -> Breadth:
        """The class of an interval."""
        if high_code == CODE_MAX:
            return Breadth(PostingShape.ABOVE)
        if low_code == CODE_MIN:
            return Breadth(PostingShape.BELOW)
        width = high - low
        if not width < 4.0**CLASS_MAX:
            return Breadth(PostingShape.ABOVE)
        # frexp gives width < 2**exponent, so a class holds what is narrower than 4**exponent.
        exponent = (math.frexp(width)[1] + 1) // 2
        return Breadth(PostingShape.BETWEEN, max(CLASS_MIN, exponent))

    @property
    def width(self) -> float:
        """No interval of the class is wider."""
        return math.inf if self.shape is not PostingShape.BETWEEN else 4.0**self.exponent


@dataclass(frozen=True, slots=True)
class Entries:
    """What is posted: arrays of one length."""

    #: The number of the value that a row must have.
    keys: CodeArray
    #: Where the interval begins, or ends when it has no beginning.
    places: Places
    #: The interval itself: its least code and how many codes follow it.
    lows: CodeArray
    widths: npt.NDArray[np.uint64]
    conjunctions: Positions

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, at: npt.NDArray[Any]) -> Entries:
        """Some of them, by position or by mask."""
        return Entries(self.keys[at], self.places[at], self.lows[at], self.widths[at], self.conjunctions[at])

    @staticmethod
    def joined(parts: list[Entries]) -> Entries:
        """All of them."""
        return Entries(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.places for part in parts]),
            np.concatenate([part.lows for part in parts]),
            np.concatenate([part.widths for part in parts]),
            np.concatenate([part.conjunctions for part in parts]),
        )


class _Run:
    """Entries sorted by key and place."""

    __slots__ = ("_starts", "conjunctions", "lows", "order", "places", "widths")

    def __init__(self, entries: Entries, *, is_ranged: bool) -> None:
        keys = entries.keys
        if not is_ranged:
            #: The distinct places; a place is known by its rank among them.
            self.places = _NO_PLACES
            order = keys
        else:
            self.places, rank = np.unique(entries.places, return_inverse=True)
            order = keys * (len(self.places) + 1) + rank
        sorting = np.argsort(order, kind="stable")
        #: Key and rank of the place in one number, ascending.
        self.order = order[sorting]
        self.conjunctions = entries.conjunctions[sorting]
        #: Beside the entries, so that they are read one after the other.
        self.lows = entries.lows[sorting] if is_ranged else _NO_KEYS
        self.widths = entries.widths[sorting] if is_ranged else _NO_WIDTHS
        self._starts = None if is_ranged else _starts(self.order)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def nbytes(self) -> int:
        """What the arrays weigh."""
        arrays = [self.order, self.places, self.conjunctions, self.lows, self.widths]
        return sum(array.nbytes for array in arrays) + (0 if self._starts is None else self._starts.nbytes)

    def entries(self, *, is_ranged: bool) -> Entries:
        """The entries that the run was made of."""
        if not is_ranged:
            count = len(self.order)
            none = np.zeros(count, np.int64)
            return Entries(self.order, np.zeros(count), none, none.view(np.uint64), self.conjunctions)
        step = len(self.places) + 1
        places = self.places[self.order % step]
        return Entries(self.order // step, places, self.lows, self.widths, self.conjunctions)

    def find(
        self,
        breadth: Breadth,
        keys: CodeArray,
        places: Places | None,
        codes: CodeArray | None,
        count: Callable[[int], None],
    ) -> Pairs:
        """Positions in `keys`, and the conjunctions whose key and interval fit there. See `Postings.find`."""
        start, stop = self._slices(breadth, keys, places)
        counts = np.maximum(stop - start, 0)
        total = int(counts.sum())
        if not total:
            return NO_PAIRS
        count(total)
        rows = np.repeat(np.arange(len(keys)), counts)
        at = np.arange(total)
        at += (start - (np.cumsum(counts) - counts))[rows]
        if codes is None:
            return rows, self.conjunctions[at]
        distance = codes[rows]
        distance -= self.lows[at]
        inside = np.flatnonzero(distance.view(np.uint64) <= self.widths[at])
        return rows[inside], self.conjunctions[at[inside]]

    def _slices(self, breadth: Breadth, keys: CodeArray, places: Places | None) -> Pairs:
        """For each row the slice of entries that may fit: where it starts and stops."""
        if self._starts is not None:
            # Keys that are not among ours all lead to the same empty slice.
            at = np.minimum(keys, len(self._starts) - 2)
            return self._starts[at], self._starts[at + 1]
        if places is None:
            start = np.searchsorted(self.order, keys, side="left")
            return start, np.searchsorted(self.order, keys, side="right")
        base = keys * (len(self.places) + 1)
        match breadth.shape:
            case PostingShape.BELOW:
                low = np.searchsorted(self.places, places, side="left")
                high = np.full(len(keys), len(self.places))
            case PostingShape.BETWEEN:
                # Rounding may have moved both ends, by less than this. No interval with two
                # ends holds infinity, so what becomes of it here does not matter.
                with np.errstate(invalid="ignore"):
                    reach = places - breadth.width - 1e-15 * np.abs(places)
                low = np.searchsorted(self.places, reach, side="left")
                high = np.searchsorted(self.places, places, side="right")
            case _:
                low = np.zeros(len(keys), np.int64)
                high = np.searchsorted(self.places, places, side="right")
        start = np.searchsorted(self.order, base + low, side="left")
        return start, np.searchsorted(self.order, base + high, side="left")


def _starts(keys: CodeArray) -> Positions | None:
    """Where each key begins, when keys are dense enough for a table of all of them."""
    if not len(keys) or keys[-1] > 4 * len(keys) + 64:
        return None
    return np.searchsorted(keys, np.arange(int(keys[-1]) + 3))


_NO_ENTRIES = Entries(_NO_KEYS, _NO_PLACES, _NO_KEYS, _NO_WIDTHS, _NO_KEYS)
_EMPTY_RUN = _Run(_NO_ENTRIES, is_ranged=False)


class Postings:
    """All conjunctions that are found in one way."""

    __slots__ = ("_breadth", "_dead", "_long", "_new", "_short")

    def __init__(self, breadth: Breadth) -> None:
        self._breadth = breadth
        self._long = _EMPTY_RUN
        self._short = _EMPTY_RUN
        #: Not sorted in yet: key, place, low, width, conjunction.
        self._new: list[tuple[int, float, int, int, int]] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._long) + len(self._short) + len(self._new)

    @property
    def is_ranged(self) -> bool:
        """Whether entries have an interval behind their key."""
        return self._breadth.shape is not PostingShape.NONE

    @property
    def nbytes(self) -> int:
        """What the arrays weigh."""
        return self._long.nbytes + self._short.nbytes

    def add(self, key: int, place: float, low: int, width: int, conjunction: int) -> None:
        """One entry more. All entries of a conjunction are added before the next match."""
        self._new.append((key, place, low, width, conjunction))

    def remove(self, entries: int) -> None:
        """So many entries are dead now; the table knows which."""
        self._dead += entries

    def refresh(self, alive: RowMask) -> Positions:
        """Sort in what is new, drop the dead when they are many; returns who is gone for good."""
        # When all are dead they go at once: a way that nobody is found by any more costs every batch.
        merge = self._dead > 64 + len(self) // 4 or (self._dead > 0 and self._dead == len(self))
        if not self._new and not merge:
            return _NO_KEYS
        parts = [self._short.entries(is_ranged=self.is_ranged), self._fresh()]
        limit = min(max(SHORT_RUN_MIN, len(self._long) // 8), SHORT_RUN_MAX)
        merge = merge or sum(len(part) for part in parts) > limit
        if merge:
            parts.append(self._long.entries(is_ranged=self.is_ranged))
        entries = Entries.joined(parts)
        living = alive[entries.conjunctions]
        gone = _NO_KEYS
        if not living.all():
            gone = np.unique(entries.conjunctions[~living])
            self._dead -= int(len(living) - living.sum())
            entries = entries.take(living)
        run = _Run(entries, is_ranged=self.is_ranged)
        if merge:
            self._long, self._short = run, _EMPTY_RUN
        else:
            self._short = run
        return gone

    def find(
        self,
        keys: CodeArray,
        places: Places | None,
        codes: CodeArray | None,
        count: Callable[[int], None],
    ) -> list[Pairs]:
        """Who fits, as (position in `keys`, conjunction). The dead are among them.

        `count` is told how many are looked at, before there are arrays of that length; it may raise.
        """
        runs = [run for run in (self._long, self._short) if len(run)]
        return [run.find(self._breadth, keys, places, codes, count) for run in runs]

    def _fresh(self) -> Entries:
        if not self._new:
            return _NO_ENTRIES
        keys, places, lows, widths, conjunctions = zip(*self._new, strict=True)
        self._new = []
        return Entries(
            np.asarray(keys, np.int64),
            np.asarray(places, np.float64),
            np.asarray(lows, np.int64),
            np.asarray(widths, np.uint64),
            np.asarray(conjunctions, np.int64),
        )
