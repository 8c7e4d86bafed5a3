"""Which rows does anybody want? A union of conditions, as a link's filter is.

The set is immutable: a change of subscriptions makes a new one. A union is simpler than its parts: all
conjunctions that restrict the same number and nothing else, such as thousands of `group = 7`, are one set
of values, tested with one search per row. Of the others a few are simply evaluated; many are put into an
index.

Implements docs/content.md, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gapless.content.condition import EVERYTHING, Condition, Conjunction
from gapless.content.domain import Domain
from gapless.content.evaluate import code_bounds, mask_codes, mask_conjunction, mask_within
from gapless.content.index.index import Index
from gapless.content.rows import CodeArray, RowMask, Rows
from gapless.content.terms import Term
from gapless.model.batch import EventBatch

#: More conjunctions than this are worth an index.
EVALUATED_MAX = 4
#: The types whose values have codes of their own, but for one integer.
_CODED = frozenset({"int", "float", "bool", "timestamp"})


class Selection:
    """An immutable union of conditions: accepts what any of them accepts."""

    __slots__ = ("_has_everything", "_plan", "conditions")

    def __init__(self, conditions: Iterable[Condition]) -> None:
        self.conditions = frozenset(conditions)
        self._has_everything = EVERYTHING in self.conditions
        self._plan: _Plan | None = None

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows at least one condition accepts."""
        if self._has_everything:
            return np.ones(len(batch), np.bool_)
        if self._plan is None:
            self._plan = _plan(self.conditions)
        return self._plan.mask(batch.derived(Rows))

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and self.conditions == other.conditions

    def __hash__(self) -> int:
        return hash(self.conditions)

    def __str__(self) -> str:
        return " OR ".join(sorted(str(each) for each in self.conditions)) or "nothing"


#: Accepts no event.
NO_SELECTION = Selection(())


@dataclass(frozen=True, slots=True)
class _Values:
    """All values that are wanted of one term, whatever the rest of the row."""

    term: Term
    domain: Domain
    bounds: CodeArray

    def mask(self, rows: Rows) -> RowMask:
        codes = rows.codes(self.term)
        if not codes.exact:
            return mask_within(self.term, self.domain, rows)
        return mask_codes(codes.values, self.bounds, null=self.domain.null)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the rows of a selection are found."""

    values: list[_Values]
    evaluated: list[Conjunction]
    index: Index

    def mask(self, rows: Rows) -> RowMask:
        accepted = np.zeros(len(rows), np.bool_)
        for each in self.values:
            accepted |= each.mask(rows)
        for conjunction in self.evaluated:
            accepted |= mask_conjunction(conjunction, rows)
        if len(self.index):
            accepted[self.index.match(rows)[0]] = True
        return accepted


def _plan(conditions: Iterable[Condition]) -> _Plan:
    wanted: dict[Term, list[Domain]] = {}
    others: dict[Conjunction, None] = {}
    for condition in conditions:
        for conjunction in condition.terms:
            single = _single(conjunction)
            if single is None:
                others[conjunction] = None
            else:
                wanted.setdefault(single[0], []).append(single[1])
    values = [_united(term, domains) for term, domains in wanted.items()]
    index = Index()
    if len(others) <= EVALUATED_MAX:
        return _Plan(values, list(others), index)
    for slot, conjunction in enumerate(others):
        index.add(slot, Condition([conjunction]))
    return _Plan(values, [], index)


def _single(conjunction: Conjunction) -> tuple[Term, Domain] | None:
    """The only number that a conjunction restricts, and to what; None when there is more to it."""
    if len(conjunction.within) != 1 or conjunction.atoms:
        return None
    ((term, domain),) = conjunction.within.items()
    return (term, domain) if term.kind in _CODED and code_bounds(domain) is not None else None


def _united(term: Term, domains: list[Domain]) -> _Values:
    intervals = [interval for domain in domains for interval in domain.intervals]
    united = Domain.of(term.kind, intervals, null=any(domain.null for domain in domains))
    bounds = code_bounds(united)
    assert bounds is not None, f"a union of bounds with codes has others: {united}"
    return _Values(term, united, bounds)
