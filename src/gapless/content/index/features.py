"""What does the index read of each row? Features: one int64 per row.

A feature is a term seen in one of four ways:

- *order*: its code (see `rows`); for text, its first bytes, so that ranges and beginnings are ranges
- *identity*: a number that the index gave to this very value, for equality and sets
- *beginning*: the same for the first characters of a text, for long LIKE 'prefix%'
- *null*: 1 for null, 0 for a value

Each is computed once per batch, whatever the number of subscriptions that look at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import repeat, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gapless.content.rows import (
    CODE_MAX,
    CODE_MIN,
    NULL_CODE,
    CodeArray,
    Positions,
    RowMask,
    Rows,
    valid_rows,
)
from gapless.content.terms import ColumnTerm, Term
from gapless.content.values import Key, float_of

#: The identity of a value that no subscription asks for.
UNKNOWN_VALUE = -1
#: Up to this many rows, values are looked up without first finding equal ones.
FEW_ROWS = 64
#: Number of first bytes of a text in its order code, the last of them without its last bit.
ORDER_BYTES = 8


class TermView(Enum):
    """The ways to see a term."""

    ORDER = "order"
    IDENTITY = "identity"
    BEGINNING = "beginning"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class Feature:
    """A term and how it is seen."""

    term: Term
    view: TermView
    #: How many characters of a text a BEGINNING has.
    length: int = 0
    #: Features are keys of dictionaries for every batch, so the hash is computed once.
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.term, self.view.value, self.length)))

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=10_000)
def feature_of(term: Term, view: TermView, length: int = 0) -> Feature:
    """A feature, mostly the very one that was made before: dictionaries find it without comparing."""
    return Feature(term, view, length)


class ValueNumbers:
    """The values that subscriptions ask for by equality, each with a number of its own."""

    __slots__ = ("_asked", "_gone", "_ids", "_next", "_sorted", "_sorted_before", "_sorted_ids")

    def __init__(self) -> None:
        #: Ascending: a value that comes back is at the end again, with a new number.
        self._ids: dict[Key, int] = {}
        self._asked: dict[Key, int] = {}
        self._next = 0
        #: Values that are codes, ascending, and their numbers. A forgotten value may still be here: nothing
        #: is found by its number. Of one that came back the last number counts.
        self._sorted: CodeArray = np.zeros(0, np.int64)
        self._sorted_ids: Positions = np.zeros(0, np.int64)
        #: Numbers from here on are not sorted in yet.
        self._sorted_before = 0
        #: How many values have been forgotten since all were sorted.
        self._gone = 0

    def __len__(self) -> int:
        return len(self._ids)

    def acquire(self, key: Key) -> int:
        """The number of a value that one more subscription asks for."""
        found = self._ids.get(key)
        if found is None:
            # Numbers are never used again, so that a forgotten value cannot be taken for another.
            found = self._ids[key] = self._next
            self._next += 1
        self._asked[key] = self._asked.get(key, 0) + 1
        return found

    def release(self, key: Key) -> None:
        """One subscription less asks for a value; the last one makes it forgotten."""
        left = self._asked[key] - 1
        if left:
            self._asked[key] = left
        else:
            del self._asked[key], self._ids[key]
            self._gone += 1

    def asked(self, key: Key) -> int:
        """How many ask for a value."""
        return self._asked.get(key, 0)

    def find(self, values: list[Any]) -> CodeArray:
        """The number of each value, `UNKNOWN_VALUE` where nobody asks for it."""
        return np.asarray(list(map(self._ids.get, values, repeat(UNKNOWN_VALUE))), np.int64)

    def find_codes(self, codes: CodeArray) -> CodeArray:
        """The same for values that are codes, all at once."""
        self._sort()
        if not len(self._sorted):
            return np.full(len(codes), UNKNOWN_VALUE)
        at = np.searchsorted(self._sorted, codes, side="right")
        at -= 1  # where a code is below all values, this is the last one, which it is not either
        return np.where(self._sorted[at] == codes, self._sorted_ids[at], UNKNOWN_VALUE)

    def _sort(self) -> None:
        """Merge new values; rebuild when many have been forgotten."""
        if self._gone > 64 + len(self._ids) // 4:
            self._sorted, self._sorted_ids = self._sorted[:0], self._sorted_ids[:0]
            self._sorted_before, self._gone = 0, 0
        if self._sorted_before == self._next:
            return
        new = takewhile(lambda key: self._ids[key] >= self._sorted_before, reversed(self._ids))
        # A decimal may be too large to have a code.
        fitting = [key for key in new if isinstance(key, int) and CODE_MIN <= key <= CODE_MAX]
        codes = np.sort(np.asarray(fitting, np.int64))
        at = np.searchsorted(self._sorted, codes, side="right")
        self._sorted = np.insert(self._sorted, at, codes)
        self._sorted_ids = np.insert(self._sorted_ids, at, self.find(codes.tolist()))
        self._sorted_before = self._next


def order_codes(rows: Rows, term: Term) -> CodeArray:
    """The order codes of a term."""
    if is_text(term):
        assert isinstance(term, ColumnTerm)
        return text_codes(rows.column(term))
    return rows.codes(term).values


def null_codes(rows: Rows, term: Term) -> CodeArray:
    """1 for null, 0 for a value."""
    if is_text(term):
        assert isinstance(term, ColumnTerm)
        valid = valid_rows(rows.column(term))
        nulls: RowMask = np.zeros(len(rows), np.bool_) if valid is None else ~valid
    else:
        nulls = rows.codes(term).values == NULL_CODE
    return nulls.astype(np.int64)


def identity_codes(rows: Rows, term: Term, identities: ValueNumbers, length: int = 0) -> CodeArray:
    """The number of each row's value, or of its beginning; `NULL_CODE` for null."""
    if len(rows) <= FEW_ROWS:
        return _looked_up(rows, term, identities, length)
    if not is_text(term):
        # No subscription asks for the code of null, so a null is an unknown value.
        return identities.find_codes(rows.codes(term).values)
    assert isinstance(term, ColumnTerm)
    encoded = rows.column(term).dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False).tolist()
    if length:
        values = [value[:length] for value in values]
    found = identities.find(values)
    indices = encoded.indices
    if not indices.null_count:
        at: Positions = indices.to_numpy()
        return found[at]
    at = indices.fill_null(len(found)).to_numpy()
    return np.append(found, NULL_CODE)[at]


def _looked_up(rows: Rows, term: Term, identities: ValueNumbers, length: int) -> CodeArray:
    """The same for a few rows, one by one: cheaper than finding out which are equal."""
    if not is_text(term):
        return identities.find(rows.codes(term).values.tolist())
    assert isinstance(term, ColumnTerm)
    column = rows.column(term)
    values = column.to_numpy(zero_copy_only=False).tolist()
    if length:
        values = [value and value[:length] for value in values]
    found = identities.find(values)
    valid = valid_rows(column)
    return found if valid is None else np.where(valid, found, NULL_CODE)


def text_codes(texts: pa.Array) -> CodeArray:
    """The first bytes of each text as one number, in the order of the texts; `NULL_CODE` for null.

    >>> text_codes(pa.array(["a", "b", None])).argsort().tolist()
    [2, 0, 1]
    """
    count = len(texts)
    _, offset_buffer, data_buffer = texts.buffers()
    if data_buffer is None or not len(data_buffer) or not count:
        codes = np.zeros(count, np.int64)
    else:
        # Just the rows: a buffer may be longer than they need, by any number of bytes.
        offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * texts.offset)
        data = np.frombuffer(data_buffer, np.uint8)
        steps = np.arange(ORDER_BYTES)
        at = np.minimum(offsets[:-1, None] + steps, len(data) - 1)
        first = np.where(steps < np.diff(offsets)[:, None], data[at], 0).astype(np.uint8)
        codes = (first.view(">u8")[:, 0] >> np.uint64(1)).astype(np.int64)
    valid = valid_rows(texts)
    return codes if valid is None else np.where(valid, codes, NULL_CODE)


def text_code(text: Key) -> int:
    """The same for one text."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    assert isinstance(data, bytes)
    return int.from_bytes(data[:ORDER_BYTES].ljust(ORDER_BYTES, b"\0"), "big") >> 1


def positions(feature: Feature, codes: CodeArray) -> npt.NDArray[np.float64]:
    """Codes as places on a line, in order, where equal distances mean equal distances.

    Two codes may share a place. Null has none that means anything.
    """
    if feature.view is TermView.ORDER and feature.term.kind == "float":
        bits = np.where(codes < 0, -codes | np.int64(NULL_CODE), codes)
        places = bits.view(np.float64)
        return np.where(np.isnan(places), np.inf, places)
    return codes.astype(np.float64)


def position(feature: Feature, code: int) -> float:
    """The same for one code."""
    if feature.view is TermView.ORDER and feature.term.kind == "float":
        place = float_of(code) if CODE_MIN < code < CODE_MAX else math.copysign(math.inf, code)
        return math.inf if math.isnan(place) else place
    return float(code)


def is_text(term: Term) -> bool:
    """Whether the values are texts or bytes, not numbers."""
    return term.kind in ("string", "binary", "xml")
