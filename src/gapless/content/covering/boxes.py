"""Which conjunctions can cover which? A quick check of their bounding boxes, for thousands at once.

The *bounding box* of a conjunction says, for each term that it restricts, between which codes the value must
lie. If one conjunction implies another, its box lies inside the other's, and it restricts at least the same
terms. So a comparison of boxes, two array operations per term for any number of conjunctions, leaves the few
pairs for which the exact question is worth asking.

Implements docs/content.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gapless.content.condition import Conjunction
from gapless.content.covering.cover import implied_domains
from gapless.content.domain import Domain
from gapless.content.index.features import is_text, text_code
from gapless.content.rows import CODE_MAX, CODE_MIN, NULL_CODE, CodeArray, Positions
from gapless.content.terms import Term
from gapless.content.values import Key

#: Above this number of boxes, arrays are worth it.
FEW_MAX = 16
#: Maximum number of terms with arrays in a table; others are ignored.
TERMS_MAX = 64
_NO_ENTRIES: Positions = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Box:
    """For each restricted term the least and the greatest code; null is the least of all."""

    spans: Mapping[Term, tuple[int, int]]
    #: The terms that have just one value, and which.
    points: tuple[tuple[Term, Key], ...]

    def holds(self, other: Box) -> bool:
        """Whether the other may lie inside this one: each term restricted here is restricted more there."""
        for term, (low, high) in self.spans.items():
            span = other.spans.get(term)
            if span is None or span[0] < low or span[1] > high:
                return False
        return True


def box_of(conjunction: Conjunction) -> Box:
    """The bounding box of a conjunction."""
    domains = dict(conjunction.within)
    for column, implied in implied_domains(conjunction.ordered_atoms).items():
        domain = domains.get(column)
        domains[column] = implied if domain is None else domain & implied
    spans = {term: _span(term, domain) for term, domain in domains.items()}
    points = tuple(
        (term, domain.intervals[0][0])
        for term, domain in conjunction.within.items()
        if len(domain.intervals) == 1 and not domain.null and domain.keys()
    )
    return Box(spans, points)


def _span(term: Term, domain: Domain) -> tuple[int, int]:
    low, high = CODE_MAX, CODE_MIN
    if domain.intervals:
        start, stop = domain.intervals[0][0], domain.intervals[-1][1]
        low = _code(term, start)
        high = CODE_MAX if stop is None else _code(term, stop)
    if domain.null:
        low, high = NULL_CODE, max(high, NULL_CODE)
    return low, high


def _code(term: Term, key: Key) -> int:
    if is_text(term):
        return text_code(key)
    assert isinstance(key, int)
    return min(max(key, CODE_MIN), CODE_MAX)


class BoxTable:
    """The boxes of many entries. An entry is a number of the caller's choice."""

    __slots__ = ("_asked", "_count", "_entries", "_highs", "_lows", "_places", "_restricted")

    def __init__(self) -> None:
        self._count = 0
        #: The entry in each place, and the place of each entry.
        self._entries: Positions = np.zeros(4, np.int64)
        self._places: dict[int, int] = {}
        #: Number of terms with arrays that each restricts.
        self._restricted: Positions = np.zeros(4, np.int64)
        #: By term. An entry that does not restrict it has the empty span CODE_MAX .. NULL_CODE. There are at
        #: most TERMS_MAX: every subscriber may bring its own calculations, and each would take an array.
        self._lows: dict[Term, CodeArray] = {}
        self._highs: dict[Term, CodeArray] = {}
        #: How many entries restrict each term, with or without arrays; the last one removes it.
        self._asked: dict[Term, int] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, entry: int, box: Box) -> None:
        """One more."""
        if self._count == len(self._entries):
            self._grow()
        place = self._count
        self._count += 1
        self._entries[place] = entry
        self._places[entry] = place
        restricted = 0
        for term, (low, high) in box.spans.items():
            asked = self._asked.get(term, 0)
            self._asked[term] = asked + 1
            if not asked and len(self._lows) < TERMS_MAX:
                self._lows[term] = np.full(len(self._entries), CODE_MAX, np.int64)
                self._highs[term] = np.full(len(self._entries), NULL_CODE, np.int64)
            # A term without arrays gets none later: existing entries would be missing in them.
            if term in self._lows:
                restricted += 1
                self._lows[term][place] = low
                self._highs[term][place] = high
        self._restricted[place] = restricted

    def remove(self, entry: int, box: Box) -> None:
        """Remove an entry that was added with this box; the last one takes its place."""
        place = self._places.pop(entry)
        self._count -= 1
        last = self._count
        moved = int(self._entries[last])
        if moved != entry:
            self._entries[place] = moved
            self._places[moved] = place
            self._restricted[place] = self._restricted[last]
        for term, lows in self._lows.items():
            highs = self._highs[term]
            lows[place], highs[place] = lows[last], highs[last]
            lows[last], highs[last] = CODE_MAX, NULL_CODE
        for term in box.spans:
            self._asked[term] -= 1
            if not self._asked[term]:
                del self._asked[term]
                if term in self._lows:
                    del self._lows[term], self._highs[term]

    def around(self, box: Box) -> Positions:
        """The entries whose box may hold this one."""
        count = self._count
        held = np.zeros(count, np.int64)
        for term, (low, high) in box.spans.items():
            if term in self._lows:
                held += (self._lows[term][:count] <= low) & (self._highs[term][:count] >= high)
        # Entries that restrict a term must contain the span there; the others do not matter.
        found: Positions = self._entries[:count][held == self._restricted[:count]]
        return found

    def inside(self, box: Box) -> Positions:
        """The entries whose box may lie in this one."""
        count = self._count
        kept = np.ones(count, np.bool_)
        for term, (low, high) in box.spans.items():
            if term not in self._asked:
                return _NO_ENTRIES
            if term not in self._lows:
                continue
            lows, highs = self._lows[term][:count], self._highs[term][:count]
            kept &= (lows >= low) & (highs <= high) & (lows <= highs)
        return self._entries[:count][kept]

    def _grow(self) -> None:
        size = len(self._entries)
        self._entries = np.concatenate([self._entries, np.zeros(size, np.int64)])
        self._restricted = np.concatenate([self._restricted, np.zeros(size, np.int64)])
        for term in self._lows:
            self._lows[term] = np.concatenate([self._lows[term], np.full(size, CODE_MAX, np.int64)])
            self._highs[term] = np.concatenate([self._highs[term], np.full(size, NULL_CODE, np.int64)])


class BoxSet:
    """The boxes of a few entries, one after the other; of more, in a table."""

    __slots__ = ("_few", "_table")

    def __init__(self) -> None:
        self._few: dict[int, Box] = {}
        self._table: BoxTable | None = None

    def __len__(self) -> int:
        return len(self._few) if self._table is None else len(self._table)

    def add(self, entry: int, box: Box) -> None:
        """One more."""
        if self._table is None and len(self._few) == FEW_MAX:
            self._table = BoxTable()
            for each, known in self._few.items():
                self._table.add(each, known)
            self._few = {}
        if self._table is None:
            self._few[entry] = box
        else:
            self._table.add(entry, box)

    def remove(self, entry: int, box: Box) -> None:
        """One less, which was added with that box."""
        if self._table is None:
            del self._few[entry]
        else:
            self._table.remove(entry, box)

    def around(self, box: Box) -> Positions:
        """The entries whose box may hold this one."""
        if self._table is not None:
            return self._table.around(box)
        found = [entry for entry, known in self._few.items() if known.holds(box)]
        return np.asarray(found, np.int64) if found else _NO_ENTRIES

    def inside(self, box: Box) -> Positions:
        """The entries whose box may lie in this one."""
        if self._table is not None:
            return self._table.inside(box)
        found = [entry for entry, known in self._few.items() if box.holds(known)]
        return np.asarray(found, np.int64) if found else _NO_ENTRIES
