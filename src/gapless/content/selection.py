"""Which rows does anybody want? A union of conditions, as a link's filter is.

Conditions come and go one at a time, and each change costs what it changes. A union is simpler than its
parts: all conjunctions that restrict the same number and nothing else, such as thousands of `group = 7`, are
one set of values, tested with one search per row. A few others are simply evaluated; many are kept in an
index, which takes changes as well.

Implements docs/content.md, section 6. Measured by benchmarks/subscribing.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import numpy as np

from gapless.content.condition import EVERYTHING, Condition, Conjunction
from gapless.content.domain import Domain
from gapless.content.evaluate import code_bounds, mask_conjunction, mask_within
from gapless.content.index.index import Index
from gapless.content.rows import NULL_CODE, CodeArray, Positions, RowMask, Rows
from gapless.content.terms import Term
from gapless.model.batch import EventBatch

#: Above this number of conjunctions, an index is worth it.
EVALUATED_MAX = 4
#: The types whose values have unique codes, except for one integer.
_CODED = frozenset({"int", "float", "bool", "timestamp"})
#: Minimum number of changes, and at least an eighth of the sorted values, before they are merged.
RECENT_MIN, RECENT_SHARE = 256, 8


class Selection:
    """A union of conditions: accepts what any of them accepts. Equal conditions are counted.

    >>> from gapless.content.language import parse_condition
    >>> from gapless.model.schema import Schema
    >>> schema = Schema.parse("trades", {"group": "int"})
    >>> three, seven = (parse_condition(f'"group" = {group}', schema) for group in (3, 7))
    >>> batch = EventBatch.of([1, 2, 3], {"group": [3, 5, 7]})
    >>> selection = Selection([three, seven])
    >>> selection.mask(batch).tolist()
    [True, False, True]
    >>> selection.remove(three)
    >>> selection.mask(batch).tolist()
    [False, False, True]
    """

    __slots__ = ("_asked", "_index", "_others", "_slots", "_values")

    def __init__(self, conditions: Iterable[Condition] = ()) -> None:
        #: How often each condition was added.
        self._asked: dict[Condition, int] = {}
        #: The conjunctions that restrict only one number, by that number.
        self._values: dict[Term, _Values] = {}
        #: All other conjunctions: how many conditions have them, and their slots in the index.
        self._others: dict[Conjunction, _Other] = {}
        self._slots = count()
        self._index = Index()
        for condition in conditions:
            self.add(condition)

    def add(self, condition: Condition) -> None:
        """One more."""
        asked = self._asked.get(condition, 0)
        self._asked[condition] = asked + 1
        if asked:
            return
        for conjunction in condition.terms:
            single = _single(conjunction)
            if single is not None:
                term, domain = single
                values = self._values.get(term)
                if values is None:
                    values = self._values[term] = _Values(term)
                values.add(domain)
                continue
            other = self._others.get(conjunction)
            if other is None:
                other = self._others[conjunction] = _Other(next(self._slots))
                self._index.add(other.slot, Condition([conjunction]))
            other.asked += 1

    def remove(self, condition: Condition) -> None:
        """One less. It must be there."""
        self._asked[condition] -= 1
        if self._asked[condition]:
            return
        del self._asked[condition]
        for conjunction in condition.terms:
            single = _single(conjunction)
            if single is not None:
                term, domain = single
                self._values[term].remove(domain)
                if not self._values[term]:
                    del self._values[term]
                continue
            other = self._others[conjunction]
            other.asked -= 1
            if not other.asked:
                del self._others[conjunction]
                self._index.remove(other.slot)

    @property
    def conditions(self) -> Set[Condition]:
        """A live view of the current conditions."""
        return self._asked.keys()

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows at least one condition accepts."""
        if EVERYTHING in self._asked:
            return np.ones(len(batch), np.bool_)
        accepted = np.zeros(len(batch), np.bool_)
        rows = batch.derived(Rows)
        for values in self._values.values():
            accepted |= values.mask(rows)
        if len(self._others) <= EVALUATED_MAX:
            for conjunction in self._others:
                accepted |= mask_conjunction(conjunction, rows)
            rows.release()
        else:
            accepted[self._index.match(rows)[0]] = True
        return accepted

    def __bool__(self) -> bool:
        return bool(self._asked)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and self._asked.keys() == other._asked.keys()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __str__(self) -> str:
        return " OR ".join(sorted(str(each) for each in self._asked)) or "nothing"


@dataclass(slots=True)
class _Other:
    """A conjunction about more than one number, or about something else."""

    slot: int
    asked: int = 0


#: How many intervals more begin than end at each code.
_Steps: TypeAlias = dict[int, int]


@dataclass(frozen=True, slots=True)
class _Stairs:
    """How many intervals hold a code: the codes where that changes, and the number from each one on."""

    codes: CodeArray
    #: One more than there are codes: nothing contains what is below the first.
    counts: Positions

    @staticmethod
    def of(steps: _Steps) -> _Stairs:
        codes = np.fromiter(steps.keys(), np.int64, len(steps))
        order = np.argsort(codes)
        counts = np.zeros(len(steps) + 1, np.int64)
        np.cumsum(np.fromiter(steps.values(), np.int64, len(steps))[order], out=counts[1:])
        return _Stairs(codes[order], counts)

    def at(self, codes: CodeArray) -> Positions:
        """How many intervals hold each code."""
        return self.counts[self.codes.searchsorted(codes, side="right")]


_NO_STAIRS = _Stairs.of({})


class _Values:
    """All values that are wanted of one number, whatever the rest of the row.

    Intervals may overlap, so they are counted: a code is wanted if more intervals begin than end at or below
    it. Counts add up, so recent changes are a second, short step function beside the first.
    """

    __slots__ = ("_domains", "_nulls", "_recent", "_settled", "_steps", "_term", "_united", "_unsettled")

    def __init__(self, term: Term) -> None:
        self._term = term
        self._domains: dict[Domain, int] = {}
        self._nulls = 0
        self._steps: _Steps = {}
        #: Changes of the steps that are not in `_settled` yet.
        self._recent: _Steps = {}
        self._settled = _NO_STAIRS
        #: The recent changes as a step function, and all domains in one, when last needed.
        self._unsettled: _Stairs | None = _NO_STAIRS
        self._united: Domain | None = None

    def __bool__(self) -> bool:
        return bool(self._domains)

    def add(self, domain: Domain) -> None:
        asked = self._domains.get(domain, 0)
        self._domains[domain] = asked + 1
        if not asked:
            self._change(domain, 1)

    def remove(self, domain: Domain) -> None:
        self._domains[domain] -= 1
        if not self._domains[domain]:
            del self._domains[domain]
            self._change(domain, -1)

    def mask(self, rows: Rows) -> RowMask:
        codes = rows.codes(self._term)
        if not codes.exact:
            return mask_within(self._term, self._union(), rows)
        if self._unsettled is None:
            self._settle()
        assert self._unsettled is not None
        counts = self._settled.at(codes.values)
        if len(self._unsettled.codes):
            counts = counts + self._unsettled.at(codes.values)
        wanted = counts > 0
        return wanted | (codes.values == NULL_CODE) if self._nulls else wanted

    def _change(self, domain: Domain, change: int) -> None:
        self._unsettled = self._united = None
        self._nulls += change if domain.null else 0
        bounds = code_bounds(domain)
        assert bounds is not None, f"a domain of {self._term} has no codes: {domain}"
        # Every other bound is where an interval begins; the last interval may have no end.
        for at, code in enumerate(bounds.tolist()):
            step = -change if at % 2 else change
            _add(self._steps, code, step)
            _add(self._recent, code, step)

    def _settle(self) -> None:
        """Merge the changes: into everything when there are many, beside the rest when there are few."""
        if len(self._recent) > max(RECENT_MIN, len(self._settled.codes) // RECENT_SHARE):
            self._settled = _Stairs.of(self._steps)
            self._recent = {}
        self._unsettled = _Stairs.of(self._recent)

    def _union(self) -> Domain:
        if self._united is None:
            intervals = [interval for domain in self._domains for interval in domain.intervals]
            self._united = Domain.of(self._term.kind, intervals, null=bool(self._nulls))
        return self._united


def _add(steps: _Steps, code: int, step: int) -> None:
    found = steps.get(code, 0) + step
    if found:
        steps[code] = found
    else:
        del steps[code]


def _single(conjunction: Conjunction) -> tuple[Term, Domain] | None:
    """The only number that a conjunction restricts, and its domain; None if there is more."""
    if len(conjunction.within) != 1 or conjunction.atoms:
        return None
    ((term, domain),) = conjunction.within.items()
    return (term, domain) if term.kind in _CODED and code_bounds(domain) is not None else None
