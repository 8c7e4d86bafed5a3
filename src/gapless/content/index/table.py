"""Which candidates really match? The bounds of all conjunctions as arrays, checked for many pairs at once.

A conjunction here is a small number, its place in the arrays. The first bound of all candidates is
checked in a few array operations, those that are left go on to the second bound, and so on. Residuals
come last: each distinct one is evaluated once, on the rows that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gapless.content.index.plan import BOUNDS_MAX, Residual
from gapless.content.rows import NULL_CODE, CodeArray, Positions, RowMask

_WORD = 1 << 64


class ConjunctionTable:
    """What is checked of each conjunction, and to whom it belongs."""

    __slots__ = (
        "_counts",
        "_dead",
        "_features",
        "_free",
        "_lows",
        "_next",
        "_residual_ids",
        "_residuals",
        "_widths",
        "alive",
        "owners",
    )

    def __init__(self) -> None:
        size = 64
        #: How many bounds a conjunction has.
        self._counts = np.zeros(size, np.int8)
        #: For the first, second, ... bound of each conjunction: the feature, the least code, and how
        #: many codes follow it. Arithmetic is modulo 2**64, so that "outside" is an interval as well.
        self._features: list[Positions] = []
        self._lows: list[CodeArray] = []
        self._widths: list[npt.NDArray[np.uint64]] = []
        self.alive: RowMask = np.zeros(size, np.bool_)
        #: The slot that matches when the conjunction does.
        self.owners: Positions = np.zeros(size, np.int64)
        #: For the first, second, ... residual of each conjunction: its number, 0 for none.
        self._residual_ids: list[Positions] = []
        self._residuals = _Numbered()
        self._free: list[int] = []
        self._next = 0
        #: How many have been killed and not freed yet.
        self._dead = 0

    def add(
        self,
        owner: int,
        bounds: list[tuple[int, int, int, bool]],
        residuals: tuple[Residual, ...],
    ) -> int:
        """A new conjunction: bounds are (feature, low, high, outside)."""
        conjunction = self._allocate()
        assert len(bounds) <= BOUNDS_MAX
        self._counts[conjunction] = len(bounds)
        while len(self._lows) < len(bounds):
            size = len(self.alive)
            self._features.append(np.zeros(size, np.int64))
            self._lows.append(np.zeros(size, np.int64))
            self._widths.append(np.zeros(size, np.uint64))
        for at, (feature, low, high, outside) in enumerate(bounds):
            first, last = (high + 1, low - 1) if outside else (low, high)
            self._features[at][conjunction] = feature
            self._lows[at][conjunction] = first
            self._widths[at][conjunction] = (last - first) % _WORD
        self.alive[conjunction] = True
        self.owners[conjunction] = owner
        while len(self._residual_ids) < len(residuals):
            self._residual_ids.append(np.zeros(len(self.alive), np.int64))
        for at, numbers in enumerate(self._residual_ids):
            numbers[conjunction] = self._residuals.acquire(residuals[at]) if at < len(residuals) else 0
        return conjunction

    def kill(self, conjunction: int) -> None:
        """It matches nothing from now on; its place is taken again after `free`."""
        self.alive[conjunction] = False
        self._dead += 1
        for numbers in self._residual_ids:
            self._residuals.release(int(numbers[conjunction]))
            numbers[conjunction] = 0

    def free(self, conjunctions: Positions) -> None:
        """Nothing refers to these any more."""
        self._free.extend(conjunctions.tolist())
        self._dead -= len(conjunctions)

    def checked(
        self, rows: Positions, conjunctions: Positions, features: CodeArray
    ) -> tuple[Positions, Positions]:
        """The pairs that satisfy all bounds. `features` has one line per feature, one column per row."""
        if self._dead:
            kept = self.alive[conjunctions]
            rows, conjunctions = rows[kept], conjunctions[kept]
        flat, count = features.ravel(), features.shape[1]
        for at in range(len(self._lows)):
            bounded = self._counts[conjunctions] > at
            if bounded.all():
                passed = self._passed(at, rows, conjunctions, flat, count)
            else:
                some = np.flatnonzero(bounded)
                passed = ~bounded
                passed[some] = self._passed(at, rows[some], conjunctions[some], flat, count)
            rows, conjunctions = rows[passed], conjunctions[passed]
        return rows, conjunctions

    def _passed(
        self, at: int, rows: Positions, conjunctions: Positions, flat: CodeArray, count: int
    ) -> RowMask:
        """Which pairs satisfy bound number `at` of their conjunction."""
        where = self._features[at].take(conjunctions)
        where *= count
        where += rows
        codes = flat.take(where)
        distance = codes - self._lows[at].take(conjunctions)
        inside = distance.view(np.uint64) <= self._widths[at].take(conjunctions)
        inside &= codes != NULL_CODE
        return inside

    def verified(
        self,
        rows: Positions,
        conjunctions: Positions,
        accepted: Callable[[Residual, Positions], RowMask],
    ) -> tuple[Positions, Positions]:
        """The pairs that satisfy all residuals. `accepted` tells which of some rows a residual accepts."""
        for numbers in self._residual_ids:
            residual = numbers[conjunctions]
            pairs = np.flatnonzero(residual)
            if not len(pairs):
                continue
            kept = np.ones(len(rows), np.bool_)
            order = pairs[np.argsort(residual[pairs], kind="stable")]
            each, starts = np.unique(residual[order], return_index=True)
            stops = [*starts[1:].tolist(), len(order)]
            for number, start, stop in zip(each.tolist(), starts.tolist(), stops, strict=True):
                these = order[start:stop]
                kept[these] = accepted(self._residuals.of(number), rows[these])
            rows, conjunctions = rows[kept], conjunctions[kept]
        return rows, conjunctions

    @property
    def nbytes(self) -> int:
        """What the arrays weigh."""
        arrays: list[npt.NDArray[Any]] = [self._counts, *self._features, *self._lows, *self._widths]
        arrays += [self.alive, self.owners, *self._residual_ids]
        return sum(array.nbytes for array in arrays)

    def _allocate(self) -> int:
        if self._free:
            return self._free.pop()
        if self._next == len(self.alive):
            self._grow()
        self._next += 1
        return self._next - 1

    def _grow(self) -> None:
        self._counts = _doubled(self._counts)
        self._features = [_doubled(array) for array in self._features]
        self._lows = [_doubled(array) for array in self._lows]
        self._widths = [_doubled(array) for array in self._widths]
        self.alive = _doubled(self.alive)
        self.owners = _doubled(self.owners)
        self._residual_ids = [_doubled(array) for array in self._residual_ids]


class _Numbered:
    """The distinct residuals, each with a number from 1 on."""

    __slots__ = ("_asked", "_free", "_numbers", "_residuals")

    def __init__(self) -> None:
        self._numbers: dict[Residual, int] = {}
        self._residuals: list[Residual | None] = [None]
        self._asked: list[int] = [0]
        self._free: list[int] = []

    def of(self, number: int) -> Residual:
        residual = self._residuals[number]
        assert residual is not None, f"no residual has the number {number}"
        return residual

    def acquire(self, residual: Residual) -> int:
        number = self._numbers.get(residual)
        if number is None:
            if not self._free:
                self._free.append(len(self._residuals))
                self._residuals.append(None)
                self._asked.append(0)
            number = self._free.pop()
            self._numbers[residual] = number
            self._residuals[number] = residual
        self._asked[number] += 1
        return number

    def release(self, number: int) -> None:
        """One conjunction less needs it; 0 is no residual."""
        if number:
            self._asked[number] -= 1
            if not self._asked[number]:
                del self._numbers[self.of(number)]
                self._residuals[number] = None
                self._free.append(number)


def _doubled(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate([array, np.zeros_like(array)])
