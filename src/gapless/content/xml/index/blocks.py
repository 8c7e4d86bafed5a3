"""How can lists of numbers change one by one and still be read by the thousand?

Three small structures with two interfaces each: a Python one that changes one entry in about a microsecond,
and a NumPy one that reads arrays of entries at once.

`NumberColumn`  an array that grows by doubling.
`Blocks`  many lists of numbers in one array. A list that outgrows its block moves to one twice as large, and
          the old block waits for another list of its size: so nothing is ever rebuilt.
`Pairs`   a hash table from a pair of numbers to a number. Removed pairs leave when it is next resized.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["GOLDEN", "Blocks", "Integers", "NumberColumn", "Pairs", "spread"]

Integers: TypeAlias = npt.NDArray[np.int64]
#: Integers of any width.
Numbers: TypeAlias = npt.NDArray[Any]

_FIRST_SIZE = 64
#: The multiplier of Fibonacci hashing: 2**64 divided by the golden ratio.
GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
#: The bits of the second number of a pair.
_SECOND_BITS = 24
_NOTHING = -1


class NumberColumn:
    """Numbers by position, all `fill` to begin with."""

    __slots__ = ("_fill", "array", "view")

    def __init__(self, fill: int = 0, size: int = _FIRST_SIZE, dtype: npt.DTypeLike = np.int32) -> None:
        self._fill = fill
        #: For reading many. Replaced when the column grows: do not keep it.
        self.array: Numbers = np.full(size, fill, dtype=dtype)
        #: For reading and writing one; the same memory.
        self.view = self.array.data

    def reach(self, position: int) -> None:
        """Make `position` valid."""
        size = len(self.array)
        if position >= size:
            grown = np.full(max(2 * size, position + 1), self._fill, dtype=self.array.dtype)
            grown[:size] = self.array
            self.array = grown
            self.view = grown.data

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return self.array.nbytes


class Blocks:
    """Lists of numbers, each with an id that is given out again after `release`."""

    __slots__ = ("_caps", "_free_blocks", "_free_ids", "_ids", "_pool", "_used", "lengths", "starts")

    def __init__(self) -> None:
        self.starts = NumberColumn()
        self.lengths = NumberColumn()
        self._caps = NumberColumn()
        self._pool = NumberColumn()
        self._used = 0
        self._ids = 0
        self._free_ids: list[int] = []
        self._free_blocks: dict[int, list[int]] = {}

    def create(self) -> int:
        """The id of a new, empty list."""
        if self._free_ids:
            return self._free_ids.pop()
        made = self._ids
        self._ids += 1
        for column in (self.starts, self.lengths, self._caps):
            column.reach(made)
        return made

    def release(self, which: int) -> None:
        """Forget a list."""
        cap = self._caps.view[which]
        if cap:
            self._free_blocks.setdefault(cap, []).append(self.starts.view[which])
        self._caps.view[which] = 0
        self.lengths.view[which] = 0
        self._free_ids.append(which)

    def append(self, which: int, value: int) -> int:
        """Add a number at the end; returns its position in the list."""
        length = self.lengths.view[which]
        if length == self._caps.view[which]:
            self._move(which, length)
        self._pool.view[self.starts.view[which] + length] = value
        self.lengths.view[which] = length + 1
        return length

    def remove(self, which: int, place: int) -> int:
        """Remove the number at `place`; returns the number that takes its position: the last, or itself."""
        last = self.lengths.view[which] - 1
        start = self.starts.view[which]
        moved = self._pool.view[start + last]
        self._pool.view[start + place] = moved
        self.lengths.view[which] = last
        return moved

    def values(self, which: int) -> list[int]:
        """The numbers of one list."""
        start = self.starts.view[which]
        return self._pool.view[start : start + self.lengths.view[which]].tolist()

    def read(self, which: Numbers) -> tuple[Integers, Numbers]:
        """The numbers of many lists: for each number, the position in `which` of its list, and itself."""
        at, source = spread(self.starts.array[which], self.lengths.array[which])
        return at, self._pool.array[source]

    def _move(self, which: int, length: int) -> None:
        cap = max(1, 2 * length)
        waiting = self._free_blocks.get(cap)
        if waiting:
            start = waiting.pop()
        else:
            start = self._used
            self._used += cap
            self._pool.reach(self._used)
        if length:
            old = self.starts.view[which]
            self._pool.view[start : start + length] = self._pool.view[old : old + length]
            self._free_blocks.setdefault(length, []).append(old)
        self.starts.view[which] = start
        self._caps.view[which] = cap

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return self.starts.nbytes + self.lengths.nbytes + self._caps.nbytes + self._pool.nbytes


def spread(starts: Numbers, lengths: Numbers) -> tuple[Integers, Integers]:
    """For ranges `start, start + 1, ...` of the given lengths: the number of the range, and each element.

    >>> spread(np.array([10, 20]), np.array([2, 1]))
    (array([0, 0, 1]), array([10, 11, 20]))
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    at = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    shift = starts.astype(np.int64) - ends + lengths
    return at, shift[at] + np.arange(total, dtype=np.int64)


class Pairs:
    """A hash table from (first, second) to a non-negative number."""

    __slots__ = ("_bits", "_filled", "_forget", "_keys", "_values")

    def __init__(self, forget: Callable[[int], bool]) -> None:
        """At a resize, `forget` is asked whether the pair of a value may be dropped, and drops the value."""
        self._forget = forget
        self._bits = 6
        self._filled = 0
        self._keys = NumberColumn(_NOTHING, 1 << self._bits, np.int64)
        self._values = NumberColumn(_NOTHING, 1 << self._bits)

    def get(self, first: int, second: int) -> int:
        """The value of a pair, or -1."""
        place = self._place(first << _SECOND_BITS | second)
        return int(self._values.view[place])

    def put(self, first: int, second: int, value: int) -> None:
        """Give a new pair its value."""
        if 2 * self._filled >= len(self._keys.array):
            self._resize()
        key = first << _SECOND_BITS | second
        place = self._place(key)
        assert self._keys.view[place] == _NOTHING, f"the pair {first}, {second} has a value"
        self._keys.view[place] = key
        self._values.view[place] = value
        self._filled += 1

    def find(self, first: Integers, second: Integers) -> Integers:
        """The values of many pairs; -1 where there is none."""
        wanted = first << _SECOND_BITS | second
        keys, values = self._keys.array, self._values.array
        mask = len(keys) - 1
        places = ((wanted.astype(np.uint64) * np.uint64(GOLDEN)) >> np.uint64(64 - self._bits)).astype(
            np.int64
        )
        there = keys[places]
        found = np.where(there == wanted, values[places], _NOTHING).astype(np.int64)
        open_at = np.flatnonzero((there != wanted) & (there != _NOTHING))
        places = places[open_at]
        while len(open_at):
            places = (places + 1) & mask
            there = keys[places]
            hit = there == wanted[open_at]
            found[open_at[hit]] = values[places[hit]]
            more = ~hit & (there != _NOTHING)
            open_at, places = open_at[more], places[more]
        return found

    def _place(self, key: int) -> int:
        """Where a key is, or would be."""
        keys = self._keys.view
        mask = len(keys) - 1
        place = (key * GOLDEN & _WORD) >> (64 - self._bits)
        while keys[place] not in {key, _NOTHING}:
            place = (place + 1) & mask
        return place

    def _resize(self) -> None:
        keys, values = self._keys.array, self._values.array
        kept = [
            (key, value)
            for key, value in zip(keys.tolist(), values.tolist(), strict=True)
            if key != _NOTHING and not self._forget(value)
        ]
        self._bits = max(6, (4 * len(kept)).bit_length())
        self._filled = len(kept)
        self._keys = NumberColumn(_NOTHING, 1 << self._bits, np.int64)
        self._values = NumberColumn(_NOTHING, 1 << self._bits)
        for key, value in kept:
            place = self._place(key)
            self._keys.view[place] = key
            self._values.view[place] = value

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return self._keys.nbytes + self._values.nbytes
