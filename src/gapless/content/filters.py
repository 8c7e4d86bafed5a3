"""What is a filter, and how are many matched at once? The contract, and a small stand-in.

The protocol needs very little of content: a filter has an identity, marks the rows of a batch that
it accepts, and a matcher finds all (row, subscription) pairs of a batch. This file states that
contract and meets it with simple conditions over numeric and text columns; richer languages and
the index for very many subscriptions implement the same two protocols.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from gapless.model.batch import EventBatch

RowMask: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.int64]


class Filter(Protocol):
    """A condition on events. Equal filters are equal and hash alike; `str` prints one."""

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows the filter accepts."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Everything:
    """Accepts every event."""

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows the filter accepts."""
        return np.ones(len(batch), dtype=np.bool_)

    def __str__(self) -> str:
        return "everything"


@dataclass(frozen=True, slots=True)
class Equals:
    """Accepts events whose column has one value; a null accepts nothing."""

    column: str
    value: int | float | str

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows the filter accepts."""
        if isinstance(self.value, str):
            equal = pc.fill_null(pc.equal(batch.columns.column(self.column), self.value), False)
            return np.asarray(equal.to_numpy(zero_copy_only=False), dtype=np.bool_)
        return np.asarray(batch.array(self.column) == self.value, dtype=np.bool_)

    def __str__(self) -> str:
        return f"{self.column} = {self.value!r}"


@dataclass(frozen=True, slots=True)
class Between:
    """Accepts events whose column lies in `low <= value < high`; a null accepts nothing."""

    column: str
    low: float
    high: float

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows the filter accepts."""
        values = batch.array(self.column)
        return np.asarray((values >= self.low) & (values < self.high), dtype=np.bool_)

    def __str__(self) -> str:
        return f"{self.low} <= {self.column} < {self.high}"


class FilterSet:
    """An immutable union of filters: accepts what any of them accepts.

    Equality conditions on one column, by far the most common kind, are tested together with one
    search per row; the others one after the other, each over the whole batch.
    """

    __slots__ = ("_equal", "_everything", "_others", "filters")

    def __init__(self, filters: Iterable[Filter]) -> None:
        self.filters = frozenset(filters)
        self._everything = Everything() in self.filters
        by_column: dict[str, list[float]] = {}
        self._others: list[Filter] = []
        for each in sorted(self.filters, key=str):
            if isinstance(each, Equals) and not isinstance(each.value, str):
                by_column.setdefault(each.column, []).append(each.value)
            elif not isinstance(each, Everything):
                self._others.append(each)
        self._equal = {column: np.unique(np.asarray(values)) for column, values in by_column.items()}

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows at least one filter accepts."""
        if self._everything:
            return np.ones(len(batch), dtype=np.bool_)
        accepted = np.zeros(len(batch), dtype=np.bool_)
        for column, values in self._equal.items():
            array = batch.array(column)
            at = np.searchsorted(values, array)
            at[at == len(values)] = 0
            accepted |= values[at] == array
        for each in self._others:
            accepted |= each.mask(batch)
        return accepted

    def __bool__(self) -> bool:
        return bool(self.filters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FilterSet) and self.filters == other.filters

    def __hash__(self) -> int:
        return hash(self.filters)

    def __str__(self) -> str:
        return " or ".join(sorted(str(each) for each in self.filters)) or "nothing"


#: Accepts no event.
NOTHING = FilterSet(())


class Matcher:
    """Finds, for a whole batch, which rows go to which slots. One slot is one subscription.

    Slots are small numbers chosen by the caller. Changing one slot does not rebuild the others:
    the sorted keys are made again on the next match, once for any number of changes.
    """

    __slots__ = ("_by_slot", "_keys", "_slots", "_stale")

    def __init__(self) -> None:
        self._by_slot: dict[int, Filter] = {}
        self._keys: dict[str, tuple[npt.NDArray[np.float64 | np.int64], Positions]] = {}
        self._slots: list[int] = []
        self._stale = False

    def __len__(self) -> int:
        return len(self._by_slot)

    def add(self, slot: int, condition: Filter) -> None:
        """Send the rows that `condition` accepts to `slot` from now on."""
        self._by_slot[slot] = condition
        self._stale = True

    def remove(self, slot: int) -> None:
        """Send nothing to `slot` any more."""
        self._by_slot.pop(slot, None)
        self._stale = True

    def match(self, batch: EventBatch) -> tuple[Positions, Positions]:
        """All (row, slot) pairs, ordered by row and then by slot."""
        if self._stale:
            self._rebuild()
        rows: list[Positions] = []
        slots: list[Positions] = []
        for column, (keys, key_slots) in self._keys.items():
            values = batch.array(column)
            low = np.searchsorted(keys, values, side="left")
            count = np.searchsorted(keys, values, side="right") - low
            row = np.repeat(np.arange(len(batch)), count)
            if len(row):
                offset = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
                rows.append(row)
                slots.append(key_slots[np.repeat(low, count) + offset])
        for slot in self._slots:
            row = np.flatnonzero(self._by_slot[slot].mask(batch))
            rows.append(row)
            slots.append(np.full(len(row), slot, dtype=np.int64))
        if not rows:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        row, slot_of = np.concatenate(rows), np.concatenate(slots)
        order = np.lexsort((slot_of, row))
        return row[order], slot_of[order]

    def _rebuild(self) -> None:
        by_column: dict[str, list[tuple[float, int]]] = {}
        self._slots = []
        for slot, condition in sorted(self._by_slot.items()):
            if isinstance(condition, Equals) and not isinstance(condition.value, str):
                by_column.setdefault(condition.column, []).append((condition.value, slot))
            else:
                self._slots.append(slot)
        self._keys = {}
        for column, pairs in by_column.items():
            pairs.sort()
            keys = np.asarray([value for value, _ in pairs])
            self._keys[column] = (keys, np.asarray([slot for _, slot in pairs], dtype=np.int64))
        self._stale = False
