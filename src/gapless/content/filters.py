"""What is a filter, and how are many matched at once? The contract, and a small stand-in.

The protocol needs very little of content: a filter has an identity, marks the rows of a batch that
it accepts, and a matcher finds all (row, subscription) pairs of a batch. This file states that
contract and meets it with simple conditions over numeric and text columns; richer languages and
the index for very many subscriptions implement the same two protocols.

Numbers are compared exactly, as Python does it: 2**53 + 1 is not equal to 2.0**53. NumPy would turn
integers into floats as soon as one null or one fraction is near, and then whether a row is accepted
would depend on the rows and on the conditions beside it. A condition of the wrong kind for its
column, say a number for text, accepts nothing; a column that the batch does not have is a KeyError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gapless.model.batch import EventBatch
from gapless.model.schema import Schema

RowMask: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.int64]
Number: TypeAlias = int | float

#: The integers that a column can hold.
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
#: How keys are stored, by the kind of the array that `_numbers` gives; others are Python objects.
_KEY_TYPES: dict[str, type[Any]] = {"i": np.int64, "f": np.float64}


class Filter(Protocol):
    """A condition on events. Equal filters are equal and hash alike; `str` prints one."""

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows the filter accepts."""

    def misfit(self, schema: Schema) -> str | None:
        """Why the filter makes no sense for events of this schema; None when it does."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Everything:
    """Accepts every event."""

    def misfit(self, schema: Schema) -> str | None:  # noqa: ARG002  # it fits every schema
        """Why the filter makes no sense for events of this schema; None when it does."""
        return None

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows the filter accepts."""
        return np.ones(len(batch), dtype=np.bool_)

    def __str__(self) -> str:
        return "everything"


@dataclass(frozen=True, slots=True)
class Equals:
    """Accepts events whose column has one value; a null accepts nothing."""

    column: str
    value: Number | str

    def misfit(self, schema: Schema) -> str | None:
        """Why the filter makes no sense for events of this schema; None when it does."""
        return _misfit(schema, self.column, (self.value,))

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows the filter accepts."""
        if isinstance(self.value, str):
            return _text_mask(batch.columns.column(self.column), self.value)
        numbers, known = _numbers(batch, self.column)
        key = _fitting(self.value, numbers.dtype.kind)
        if key is None:
            return np.zeros(len(batch), dtype=np.bool_)
        return _where_known(numbers == key, known)

    def __str__(self) -> str:
        return f"{self.column} = {self.value!r}"


@dataclass(frozen=True, slots=True)
class Between:
    """Accepts events whose column lies in `low <= value < high`; a null accepts nothing."""

    column: str
    low: Number
    high: Number

    def misfit(self, schema: Schema) -> str | None:
        """Why the filter makes no sense for events of this schema; None when it does."""
        return _misfit(schema, self.column, (self.low, self.high))

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows the filter accepts."""
        numbers, known = _numbers(batch, self.column)
        if _is_nan(self.low) or _is_nan(self.high) or not len(numbers):
            return np.zeros(len(batch), dtype=np.bool_)
        kind = numbers.dtype.kind
        inside = (numbers >= _at_least(self.low, kind)) & (numbers < _at_least(self.high, kind))
        return _where_known(inside, known)

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
        by_column: dict[str, list[tuple[Number, int]]] = {}
        self._others: list[Filter] = []
        for each in sorted(self.filters, key=str):
            if isinstance(each, Equals) and not isinstance(each.value, str):
                by_column.setdefault(each.column, []).append((each.value, 0))
            elif not isinstance(each, Everything):
                self._others.append(each)
        self._equal = {column: _Keys(pairs) for column, pairs in by_column.items()}

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows at least one filter accepts."""
        if self._everything:
            return np.ones(len(batch), dtype=np.bool_)
        accepted = np.zeros(len(batch), dtype=np.bool_)
        for column, wanted in self._equal.items():
            numbers, known = _numbers(batch, column)
            keys, _ = wanted.of_kind(numbers.dtype.kind)
            if len(keys):
                at = np.searchsorted(keys, numbers)
                at[at == len(keys)] = 0
                accepted |= _where_known(keys[at] == numbers, known)
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
        self._keys: dict[str, _Keys] = {}
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
        for column, wanted in self._keys.items():
            numbers, known = _numbers(batch, column)
            keys, key_slots = wanted.of_kind(numbers.dtype.kind)
            low = np.searchsorted(keys, numbers, side="left")
            count = np.searchsorted(keys, numbers, side="right") - low
            if known is not None:
                count[~known] = 0
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
        by_column: dict[str, list[tuple[Number, int]]] = {}
        self._slots = []
        for slot, condition in sorted(self._by_slot.items()):
            if isinstance(condition, Equals) and not isinstance(condition.value, str):
                by_column.setdefault(condition.column, []).append((condition.value, slot))
            else:
                self._slots.append(slot)
        self._keys = {column: _Keys(pairs) for column, pairs in by_column.items()}
        self._stale = False


class _Keys:
    """The numbers that equality conditions on one column ask for, sorted, each with its slot."""

    __slots__ = ("_by_kind", "_pairs")

    def __init__(self, pairs: Iterable[tuple[Number, int]]) -> None:
        # NaN equals nothing, and has no place in a sorted list.
        self._pairs = sorted(pair for pair in pairs if not _is_nan(pair[0]))
        self._by_kind: dict[str, tuple[npt.NDArray[Any], Positions]] = {}

    def of_kind(self, kind: str) -> tuple[npt.NDArray[Any], Positions]:
        """The keys that an array of this kind can hold, and their slots."""
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = self._fitted(kind)
        return found

    def _fitted(self, kind: str) -> tuple[npt.NDArray[Any], Positions]:
        keys = np.asarray([value for value, _ in self._pairs])
        slots = np.asarray([slot for _, slot in self._pairs], dtype=np.int64)
        if keys.dtype == np.int64 and kind == "i":
            return keys, slots
        fitted = [_fitting(value, kind) for value, _ in self._pairs]
        fits = [at for at, key in enumerate(fitted) if key is not None]
        return np.asarray([fitted[at] for at in fits], dtype=_KEY_TYPES.get(kind, object)), slots[fits]


def _numbers(batch: EventBatch, column: str) -> tuple[npt.NDArray[Any], RowMask | None]:
    """A column as exact numbers, and which rows have one; None when all have, or nulls are NaN.

    Integers and booleans come as int64, floats as float64, decimals as objects. Any other column has
    no numbers, and its rows are all unknown.
    """
    array = batch.array(column)
    if array.dtype == np.int64:
        return array, None
    values = batch.columns.column(column)
    if pa.types.is_floating(values.type):
        return array.astype(np.float64, copy=False), None
    if pa.types.is_signed_integer(values.type) or pa.types.is_boolean(values.type):
        kind: type[Any] = np.int64
    elif pa.types.is_decimal(values.type):
        kind = object
    else:
        return np.zeros(len(batch), dtype=np.int64), np.zeros(len(batch), dtype=np.bool_)
    if not values.null_count:
        return array.astype(kind, copy=False), None
    filled = values.fill_null(pa.scalar(0).cast(values.type))
    known = values.is_valid().to_numpy(zero_copy_only=False)
    return filled.to_numpy(zero_copy_only=False).astype(kind, copy=False), known


def _where_known(mask: npt.NDArray[Any], known: RowMask | None) -> RowMask:
    accepted = np.asarray(mask, dtype=np.bool_)
    return accepted if known is None else accepted & known


def _text_mask(values: pa.Array, wanted: str) -> RowMask:
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return np.zeros(len(values), dtype=np.bool_)
    equal = pc.fill_null(pc.equal(values, wanted), False)
    return np.asarray(equal.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _is_nan(value: Number) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _fitting(value: Number, kind: str) -> Number | None:
    """The number of an array's kind that equals `value`, None when there is none."""
    if _is_nan(value):
        return None
    if kind == "i":
        if isinstance(value, float) and not value.is_integer():
            return None
        return int(value) if _INT_MIN <= value <= _INT_MAX else None
    if kind == "f":
        near = _at_least(value, kind)
        return near if near == value else None
    return value


def _at_least(value: Number, kind: str) -> Number:
    """The least number of an array's kind that is not below `value`, which is not NaN."""
    if kind == "i":
        return value if isinstance(value, int) or math.isinf(value) else math.ceil(value)
    if kind == "f":
        try:
            near = float(value)
        except OverflowError:
            near = math.inf if value > 0 else -math.inf
        return math.nextafter(near, math.inf) if near < value else near
    return value


def _misfit(schema: Schema, column: str, values: tuple[object, ...]) -> str | None:
    kinds = {each.name: each.type for each in schema.columns}
    if column not in kinds:
        return f"topic '{schema.topic}' has no column '{column}': it has {', '.join(kinds)}"
    kind = kinds[column]
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (kind in ("int", "float") and is_number) or (kind == "string" and isinstance(value, str)):
            continue
        return f"column '{column}' of topic '{schema.topic}' is {kind}: it cannot be compared with {value!r}"
    return None
