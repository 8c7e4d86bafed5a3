"""Which slots want which rows? All conditions together, a whole batch at once.

Adding a condition plans each of its conjunctions (`plan`), enters it where it will be found (`postings`,
or the index of patterns for XML) and writes down what is to be checked (`table`). Matching a batch
computes the features that anybody looks at, finds candidates, checks them, and returns (row, slot)
pairs. Both follow the data: the cost of a batch is that of its candidates, not of all conditions.

Implements docs/content.md, section 6. Measured by benchmarks/content.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.evaluate import mask, mask_atom, mask_within
from gapless.content.index.features import (
    Feature,
    TermView,
    ValueNumbers,
    identity_codes,
    null_codes,
    order_codes,
    position,
    positions,
)
from gapless.content.index.plan import AllOf, FeatureBound, MatchPlan, Residual, Within, plans
from gapless.content.index.postings import NO_PAIRS, Breadth, Pairs, Places, Postings, PostingShape
from gapless.content.index.table import ConjunctionTable
from gapless.content.rows import NULL_CODE, CodeArray, Positions, RowMask, Rows
from gapless.content.terms import ColumnTerm
from gapless.content.values import Key
from gapless.content.xml.index.index import PatternIndex

#: Approximate number of candidates processed together; it bounds memory.
CANDIDATES_MAX = 2_000_000
ROWS_MIN = 16
_UNBOUNDED = 2**62
#: With a bound for the pairs, no more candidates than this times as many are processed together.
CANDIDATES_PER_PAIR = 4
#: Slots are below this: a row of such a part and a slot are sorted as one int64.
SLOTS_MAX = 2**40
#: In a smaller batch, evaluating a residual on all rows is cheaper than picking some.
ROWS_TAKEN_MIN = 256


class _Way(NamedTuple):
    """A way in which conjunctions are found: all that share it share one `Postings`."""

    equal: Feature | None
    range: Feature | None
    breadth: Breadth


@dataclass(slots=True)
class _Entry:
    """One conjunction of the table, and what has to be undone when it goes."""

    conjunction: int
    plan: MatchPlan
    way: _Way | None
    features: list[Feature] = field(default_factory=list)


class _TooManyError(Exception):
    """A part of a batch has more candidates than may be processed together."""

    def __init__(self, share: float) -> None:
        """`share` is how much of the part is about right."""
        super().__init__()
        self.share = share


class _Room:
    """How many candidates a part of a batch may have: they are counted before there are arrays of them."""

    __slots__ = ("_most", "_taken")

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def take(self, candidates: int) -> None:
        """There are so many more. Raises _TooManyError."""
        self._taken += candidates
        if self._taken > self._most:
            raise _TooManyError(self._most / self._taken)


class Index:
    """Conditions by slot. A slot is a small number of the caller's choice, such as a subscription's.

    >>> from gapless.content.language import parse_condition
    >>> from gapless.model.schema import Schema
    >>> import pyarrow as pa
    >>> schema = Schema.parse("trades", {"sym": "string", "price": "float"})
    >>> index = Index()
    >>> index.add(7, parse_condition("sym = 'IBM' AND price > 100", schema))
    >>> index.add(8, parse_condition("sym LIKE 'I%'", schema))
    >>> rows, slots = index.match(pa.record_batch({"sym": ["IBM", "SAP"], "price": [120.0, 90.0]}))
    >>> list(zip(rows.tolist(), slots.tolist()))
    [(0, 7), (0, 8)]
    """

    __slots__ = (
        "_all_rows",
        "_always",
        "_by_residual",
        "_by_slot",
        "_dirty",
        "_features",
        "_features_asked",
        "_few",
        "_few_max",
        "_identities",
        "_numbers",
        "_patterns",
        "_per_row",
        "_table",
        "_unbound",
        "_ways",
    )

    def __init__(self, few_max: int = 0) -> None:
        """Until it has had more than `few_max` conditions, it tries them one by one: that is quicker then."""
        self._few_max = few_max
        self._by_slot: dict[int, list[_Entry]] = {}
        self._table = ConjunctionTable()
        self._ways: dict[_Way, Postings] = {}
        #: Ways with changes that are not sorted in yet.
        self._dirty: set[_Way] = set()
        #: The features that bounds look at: their lines in the matrix that the table reads.
        self._features: dict[Feature, int] = {}
        self._features_asked: dict[Feature, int] = {}
        self._numbers: list[Feature | None] = []
        self._identities: dict[Feature, ValueNumbers] = {}
        #: Conjunctions that only a pattern, only a residual, or nothing at all can find.
        self._patterns: dict[ColumnTerm, PatternIndex] = {}
        self._by_residual: dict[Residual, dict[int, None]] = {}
        self._unbound: dict[int, None] = {}
        #: While there are few conditions: all of them, by slot. None when there were more.
        self._few: dict[int, Condition] | None = {} if few_max else None
        #: While there are few: the slots, if each of them gets every row.
        self._all_rows: Positions | None = None
        #: Conjunctions that every row matches.
        self._always: dict[int, None] = {}
        #: Candidates per row of the last batch.
        self._per_row = CANDIDATES_MAX / 256

    def __len__(self) -> int:
        return len(self._by_slot)

    def __contains__(self, slot: int) -> bool:
        return slot in self._by_slot

    def add(self, slot: int, condition: Condition) -> None:
        """Send the rows that `condition` accepts to `slot` from now on, in the place of what it had."""
        assert 0 <= slot < SLOTS_MAX, f"slot {slot} is not in 0..{SLOTS_MAX}"
        if slot in self._by_slot:
            self.remove(slot)
        if self._few is not None:
            self._few[slot] = condition
            if len(self._few) > self._few_max:
                self._few = None
            self._look_for_all_rows()
        self._by_slot[slot] = [
            self._enter(slot, plan)
            for conjunction in condition.terms
            for plan in plans(conjunction, self._asked)
        ]

    def remove(self, slot: int) -> None:
        """Send nothing to `slot` any more."""
        if self._few is not None:
            self._few.pop(slot, None)
            self._look_for_all_rows()
        for entry in self._by_slot.pop(slot, ()):
            self._withdraw(entry)

    def match(self, columns: pa.RecordBatch | Rows) -> Pairs:
        """All (row, slot) pairs of a batch of the schema's types, by row and then by slot, each once."""
        rows = columns if isinstance(columns, Rows) else Rows(columns)
        pairs = _tried(self._few, rows) if self._few is not None else self._match_parts(rows)
        rows.release()
        return pairs

    def match_first(self, columns: Rows, pairs_max: int) -> tuple[Pairs, int]:
        """The pairs of the first rows, and how many rows these are: one, or as many as have that many pairs.

        It takes about as long as it takes to match those rows, however many come behind them.
        """
        rows = len(columns)
        if not rows or not self._by_slot:
            return NO_PAIRS, rows
        if self._few is not None:
            pairs = _tried(self._few, columns)
        else:
            pairs, rows = self._match_until(columns, pairs_max)
        columns.release()
        if len(pairs[0]) <= pairs_max:
            return pairs, rows
        stop = max(int(pairs[0][pairs_max]), int(pairs[0][0]) + 1)
        end = int(np.searchsorted(pairs[0], stop))
        return (pairs[0][:end], pairs[1][:end]), stop

    def _match_parts(self, rows: Rows) -> Pairs:
        """A batch in as many parts as its candidates ask for."""
        return self._match_until(rows, None)[0]

    def _match_until(self, rows: Rows, pairs_max: int | None) -> tuple[Pairs, int]:
        """The pairs of parts of a batch, until there are so many; and how many rows were looked at."""
        self._refresh()
        most = CANDIDATES_MAX if pairs_max is None else min(CANDIDATES_MAX, CANDIDATES_PER_PAIR * pairs_max)
        found: list[Pairs] = []
        start = pairs_found = 0
        while start < len(rows) and (pairs_max is None or pairs_found < pairs_max):
            count = max(ROWS_MIN, int(most / max(self._per_row, 1.0)))
            while True:
                whole = start == 0 and count >= len(rows)
                part = rows if whole else Rows(rows.columns.slice(start, count))
                try:
                    # The rows before may have had hardly any, so what was expected may be far too little.
                    pairs = self._match(part, _Room(most if len(part) > 1 else _UNBOUNDED))
                    break
                except _TooManyError as error:
                    count = max(1, min(int(len(part) * error.share), len(part) // 2))
            found.append(pairs if start == 0 else (pairs[0] + start, pairs[1]))
            pairs_found += len(pairs[0])
            start += len(part)
        return (_concatenated(found) if len(found) > 1 else (found[0] if found else NO_PAIRS)), start

    @property
    def takes_all(self) -> bool:
        """Whether all conditions accept every row."""
        return self._all_rows is not None

    def match_all(self, rows: int, pairs_max: int) -> tuple[Pairs, int] | None:
        """What `match_first` returns for so many rows if they need not be examined; None if they must be."""
        slots = self._all_rows
        if slots is None:
            return None
        rows = min(rows, max(1, pairs_max // len(slots)))
        if len(slots) == 1:
            return (np.arange(rows), np.full(rows, slots[0])), rows
        return (np.repeat(np.arange(rows), len(slots)), np.tile(slots, rows)), rows

    def _look_for_all_rows(self) -> None:
        few = self._few
        wide = few and all(condition == EVERYTHING for condition in few.values())
        self._all_rows = np.asarray(sorted(few), dtype=np.int64) if few and wide else None

    @property
    def nbytes(self) -> int:
        """What the arrays weigh; the conditions and the objects around them come on top."""
        return self._table.nbytes + sum(postings.nbytes for postings in self._ways.values())

    # Adding and removing.

    def _asked(self, feature: Feature, key: Key) -> int:
        identities = self._identities.get(feature)
        return 0 if identities is None else identities.asked(key)

    def _enter(self, slot: int, plan: MatchPlan) -> _Entry:
        entry = _Entry(-1, plan, None)
        # The bound by which it is found is checked where it is found.
        bounds = [
            (*self._coded(bound, entry), bound.outside) for bound in plan.bounds if bound is not plan.range
        ]
        entry.conjunction = self._table.add(slot, bounds, tuple(plan.residuals))
        if plan.pattern is not None:
            patterns = self._patterns.setdefault(plan.pattern.column, PatternIndex())
            patterns.add(entry.conjunction, plan.pattern.pattern)
        elif plan.equal is not None or plan.range is not None:
            self._post(entry)
        elif plan.residuals:
            self._by_residual.setdefault(plan.residuals[0], {})[entry.conjunction] = None
        elif plan.bounds:
            self._unbound[entry.conjunction] = None
        else:
            self._always[entry.conjunction] = None
        return entry

    def _coded(self, bound: FeatureBound, entry: _Entry) -> tuple[int, int, int]:
        """A bound's line in the matrix, and its codes."""
        feature = bound.feature
        entry.features.append(feature)
        line = self._features.get(feature)
        if line is None:
            line = self._line(feature)
        self._features_asked[feature] = self._features_asked.get(feature, 0) + 1
        if bound.key is None:
            return line, bound.low, bound.high
        code = self._identities.setdefault(feature, ValueNumbers()).acquire(bound.key)
        return line, code, code

    def _line(self, feature: Feature) -> int:
        line = self._numbers.index(None) if None in self._numbers else len(self._numbers)
        if line == len(self._numbers):
            self._numbers.append(feature)
        else:
            self._numbers[line] = feature
        self._features[feature] = line
        return line

    def _post(self, entry: _Entry) -> None:
        plan = entry.plan
        breadth, place, low, width, feature = Breadth(PostingShape.NONE), 0.0, 0, 0, None
        if plan.range is not None:
            feature, low, width = plan.range.feature, plan.range.low, plan.range.high - plan.range.low
            begin, end = position(feature, low), position(feature, plan.range.high)
            breadth = Breadth.of(begin, end, low, plan.range.high)
            place = end if breadth.shape is PostingShape.BELOW else begin
        way = _Way(plan.equal.feature if plan.equal else None, feature, breadth)
        postings = self._ways.get(way)
        if postings is None:
            postings = self._ways[way] = Postings(breadth)
        entry.way = way
        self._dirty.add(way)
        if plan.equal is None:
            postings.add(0, place, low, width, entry.conjunction)
            return
        identities = self._identities.setdefault(plan.equal.feature, ValueNumbers())
        for key in plan.equal.keys:
            postings.add(identities.acquire(key), place, low, width, entry.conjunction)

    def _withdraw(self, entry: _Entry) -> None:
        plan = entry.plan
        self._table.kill(entry.conjunction)
        for bound in plan.bounds:
            if bound.key is not None:
                self._release(bound.feature, bound.key)
        for feature in entry.features:
            self._forget(feature)
        if entry.way is not None:
            entries = 1
            if plan.equal is not None:
                entries = len(plan.equal.keys)
                for key in plan.equal.keys:
                    self._release(plan.equal.feature, key)
            self._ways[entry.way].remove(entries)
            self._dirty.add(entry.way)
            return
        if plan.pattern is not None:
            self._patterns[plan.pattern.column].remove(entry.conjunction)
        elif plan.residuals:
            found = self._by_residual[plan.residuals[0]]
            del found[entry.conjunction]
            if not found:
                del self._by_residual[plan.residuals[0]]
        elif plan.bounds:
            del self._unbound[entry.conjunction]
        else:
            del self._always[entry.conjunction]
        self._table.free(np.asarray([entry.conjunction]))

    def _release(self, feature: Feature, key: Key) -> None:
        identities = self._identities[feature]
        identities.release(key)
        if not len(identities):
            # Numbers begin at 0 again if the feature comes back; entries with old ones are dead.
            del self._identities[feature]

    def _forget(self, feature: Feature) -> None:
        left = self._features_asked[feature] - 1
        self._features_asked[feature] = left
        if not left:
            del self._features_asked[feature]
            self._numbers[self._features.pop(feature)] = None

    def _refresh(self) -> None:
        for way in self._dirty:
            postings = self._ways[way]
            gone = postings.refresh(self._table.alive)
            if len(gone):
                self._table.free(gone)
            if not len(postings):
                del self._ways[way]
        self._dirty.clear()

    # Matching.

    def _match(self, rows: Rows, room: _Room) -> Pairs:
        room.take(len(rows) * (len(self._always) + len(self._unbound)))
        if not (self._ways or self._patterns or self._by_residual or self._unbound):
            self._per_row = float(len(self._always))
            owners = self._table.owners[np.fromiter(self._always, np.int64, len(self._always))]
            return _product(np.arange(len(rows)), np.unique(owners).tolist())
        batch = _Batch(rows, self._identities)
        found = [
            *self._found_by_way(batch, room),
            *self._found_by_pattern(rows, room),
            *self._found_by_residual(rows, room),
        ]
        if self._unbound:
            found.append(_product(np.arange(len(rows)), self._unbound))
        candidates = sum(len(row) for row, _ in found)
        self._per_row = candidates / len(rows) + len(self._always)
        matched: list[Pairs] = []
        if candidates:
            # Each way alone: its arrays are small enough to stay near the processor.
            features = batch.matrix(self._numbers)
            checked = [self._table.checked(row, conjunction, features) for row, conjunction in found]
            matched.append(self._table.verified(*_concatenated(checked), batch.accepted))
        if self._always:
            matched.append(_product(np.arange(len(rows)), self._always))
        row, conjunction = _concatenated(matched)
        return _ordered(row, self._table.owners[conjunction])

    def _found_by_way(self, batch: _Batch, room: _Room) -> list[Pairs]:
        found: list[Pairs] = []
        for way, postings in self._ways.items():
            at, keys, places, codes = batch.rows_of(way)
            if not len(keys):
                continue
            for row, conjunction in postings.find(keys, places, codes, room.take):
                found.append((row if at is None else at[row], conjunction))
        return found

    def _found_by_pattern(self, rows: Rows, room: _Room) -> list[Pairs]:
        return [
            patterns.match(rows.column(column), room.take)
            for column, patterns in self._patterns.items()
            if len(patterns)
        ]

    def _found_by_residual(self, rows: Rows, room: _Room) -> list[Pairs]:
        found: list[Pairs] = []
        for residual, conjunctions in self._by_residual.items():
            accepted = np.flatnonzero(_mask(residual, rows))
            room.take(len(accepted) * len(conjunctions))
            found.append(_product(accepted, conjunctions))
        return found


class _Batch:
    """The features of one batch, each computed when it is first asked for."""

    __slots__ = ("_codes", "_identities", "_places", "rows")

    def __init__(self, rows: Rows, identities: dict[Feature, ValueNumbers]) -> None:
        self.rows = rows
        self._identities = identities
        self._codes: dict[Feature, CodeArray] = {}
        self._places: dict[Feature, Places] = {}

    def codes(self, feature: Feature) -> CodeArray:
        """One code per row."""
        found = self._codes.get(feature)
        if found is None:
            found = self._codes[feature] = self._computed(feature)
        return found

    def matrix(self, features: list[Feature | None]) -> CodeArray:
        """The codes of all features that bounds look at, one line each."""
        matrix = np.zeros((len(features), len(self.rows)), np.int64)
        for line, feature in enumerate(features):
            if feature is not None:
                matrix[line] = self.codes(feature)
        return matrix

    def rows_of(self, way: _Way) -> tuple[Positions | None, CodeArray, Places | None, CodeArray | None]:
        """The rows that may be found in a way, None for all; their keys, places and codes."""
        known: RowMask | None = None
        if way.equal is not None:
            keys = self.codes(way.equal)
            known = keys >= 0
        else:
            keys = np.zeros(len(self.rows), np.int64)
        places = codes = None
        if way.range is not None:
            codes = self.codes(way.range)
            places = self._places.get(way.range)
            if places is None:
                places = self._places[way.range] = positions(way.range, codes)
            valued = codes != NULL_CODE
            known = valued if known is None else known & valued
        if known is None or known.all():
            return None, keys, places, codes
        at = np.flatnonzero(known)
        if places is None or codes is None:
            return at, keys[at], None, None
        return at, keys[at], places[at], codes[at]

    def accepted(self, residual: Residual, rows: Positions) -> RowMask:
        """Which of some rows a residual accepts; a row may stand there more than once."""
        if len(rows) * 2 > len(self.rows) or len(self.rows) <= ROWS_TAKEN_MIN:
            return _mask(residual, self.rows)[rows]
        needed, back = np.unique(rows, return_inverse=True)
        names = sorted(column.name for column in residual.columns)
        return _mask(residual, self.rows.take(needed, names))[back]

    def _computed(self, feature: Feature) -> CodeArray:
        match feature.view:
            case TermView.ORDER:
                return order_codes(self.rows, feature.term)
            case TermView.NULL:
                return null_codes(self.rows, feature.term)
            case TermView.IDENTITY | TermView.BEGINNING:
                identities = self._identities[feature]
                return identity_codes(self.rows, feature.term, identities, feature.length)


def _ordered(rows: Positions, slots: Positions) -> Pairs:
    """Pairs by row and then by slot, each once."""
    bits = int(slots.max()).bit_length() if len(slots) else 0
    pairs = (rows << bits) | slots
    if (pairs[1:] > pairs[:-1]).all():
        return rows, slots
    pairs.sort()
    distinct = pairs[1:] != pairs[:-1]
    if not distinct.all():
        pairs = pairs[np.append(True, distinct)]
    return pairs >> bits, pairs & ((1 << bits) - 1)


def _mask(residual: Residual, rows: Rows) -> RowMask:
    match residual:
        case Within():
            return mask_within(residual.term, residual.domain, rows)
        case AllOf():
            accepted = np.ones(len(rows), np.bool_)
            for each in residual.residuals:
                accepted &= _mask(each, rows)
            return accepted
        case _:
            return mask_atom(residual, rows)


def _tried(conditions: dict[int, Condition], rows: Rows) -> Pairs:
    """The pairs of a few conditions, one after the other."""
    slots = sorted(conditions)
    if len(slots) == 1:
        found = np.flatnonzero(mask(conditions[slots[0]], rows))
        return found, np.full(len(found), slots[0], dtype=np.int64)
    if not slots:
        return NO_PAIRS
    row, at = np.nonzero(np.stack([mask(conditions[slot], rows) for slot in slots], axis=1))
    return row, np.asarray(slots, dtype=np.int64)[at]


def _product(rows: Positions, others: Iterable[int]) -> Pairs:
    """Every row with every other, a conjunction or a slot."""
    each = np.fromiter(others, np.int64)
    return np.repeat(rows, len(each)), each[None].repeat(len(rows), axis=0).ravel()


def _concatenated(pairs: list[Pairs]) -> Pairs:
    if not pairs:
        return NO_PAIRS
    if len(pairs) == 1:
        return pairs[0]
    return np.concatenate([row for row, _ in pairs]), np.concatenate([other for _, other in pairs])
