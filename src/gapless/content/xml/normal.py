"""Which of the many ways to write a pattern do we keep?

`Normal` builds needs so that equal patterns come out equal:

- `and` and `or` are flat, sorted, without duplicates and without redundant terms;
- `not` appears only before a path or a comparison: it is pushed through `and` and `or`;
- a named attribute, of which there is at most one, is asked one thing at a time;
- a `//` before a lone `*` moves behind it (`//*/a` is `/*//a`), and vanishes when nothing is behind it;
- impossible needs are `false()`, as far as values and plain contradictions show it.

For patterns of names, `/`, `//` and nested predicates, equal meanings give equal texts. With `*`, `or` and
`not` two patterns may mean the same and still differ; that costs a duplicate, but is never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from gapless.content.xml.imply import Implication, contradicts, terms_of
from gapless.content.xml.pattern import FALSE, TRUE, And, Axis, Has, Need, Not, Or, Some, TextCompare
from gapless.content.xml.values import Literal, Operator, number_of

__all__ = ["Normal", "alternatives"]

#: Maximum number of pairs of needs examined per pattern to find redundant ones.
NORMAL_STEPS_MAX = 2_000
#: Above this number of terms, redundant ones are not searched for.
TERMS_COMPARED_MAX = 48

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


class Normal:
    """Builds the needs of one pattern; shares what it learns about their implications."""

    __slots__ = ("_implication",)

    def __init__(self) -> None:
        self._implication = Implication(NORMAL_STEPS_MAX)

    def all_of(self, terms: Iterable[Need]) -> Need:
        """All of these."""
        flat = {inner for each in terms for inner in terms_of(each)}
        if FALSE in flat:
            return FALSE
        if len(flat) < 2:
            return next(iter(flat), TRUE)
        ordered = sorted(flat, key=_text)
        positive = [each for each in ordered if not isinstance(each, Not)]
        holds = self._implication.holds
        for denied in ordered if len(ordered) <= TERMS_COMPARED_MAX else ():
            if isinstance(denied, Not) and any(holds(each, denied.term) for each in positive):
                return FALSE
        if contradicts(tuple(ordered)):
            return FALSE
        kept = _without(ordered, lambda each, other: holds(other, each))
        return kept[0] if len(kept) == 1 else And(tuple(kept))

    def any_of(self, terms: Iterable[Need]) -> Need:
        """At least one of these."""
        flat = {inner for each in terms for inner in (each.terms if isinstance(each, Or) else (each,))}
        if TRUE in flat:
            return TRUE
        if len(flat) < 2:
            return next(iter(flat), FALSE)
        if any(isinstance(each, Not) and each.term in flat for each in flat):
            return TRUE
        holds = self._implication.holds
        kept = _without(sorted(flat, key=_text), holds)
        return kept[0] if len(kept) == 1 else Or(tuple(kept))

    def negate(self, need: Need) -> Need:
        """Not this."""
        match need:
            case And(terms=terms):
                return self.any_of(self.negate(each) for each in terms)
            case Or(terms=terms):
                return self.all_of(self.negate(each) for each in terms)
            case Not(term=term):
                return term
            case TextCompare(operator="=", literal=literal):
                return TextCompare("!=", literal)
            case TextCompare(operator="!=", literal=literal):
                return TextCompare("=", literal)
            case _:
                return Not(need)

    def compare(self, operator: Operator, literal: Literal, *, mirrored: bool = False) -> Need:
        """The text of the node against a literal; `mirrored` when the literal stood on the left."""
        if operator in {"contains", "starts-with"}:
            # Every text contains the empty one.
            return TextCompare(operator, literal) if literal else TRUE
        if mirrored:
            operator = _MIRRORED[operator]
        if isinstance(literal, str) and operator not in {"=", "!="}:
            literal = number_of(literal)
        if isinstance(literal, float) and math.isnan(literal):
            return FALSE
        # There is one zero: 0 and -0 are equal.
        return TextCompare(operator, literal + 0.0 if isinstance(literal, float) else literal)

    def some(self, subject: str, test: Need) -> Need:
        """There is an attribute or text node that passes."""
        if isinstance(test, Or):
            return self.any_of(self.some(subject, each) for each in test.terms)
        here = Some(subject, TRUE)
        if here.is_single and isinstance(test, And) and test.terms:
            return self.all_of(self.some(subject, each) for each in test.terms)
        if here.is_single and isinstance(test, Not):
            return self.all_of((here, Not(Some(subject, test.term))))
        return Some(subject, test)

    def has(self, axis: Axis, label: str | None, test: Need) -> Need:
        """There is an element below that has `test`."""
        if test == FALSE:
            return FALSE
        if axis is Axis.DESCENDANT and label is None:
            if test == TRUE:
                axis = Axis.CHILD
            elif isinstance(test, Has):
                axis, test = Axis.CHILD, self.has(Axis.DESCENDANT, test.label, test.test)
        return Has(axis, label, test)


def alternatives(need: Need) -> int:
    """The number of conjunctions into which the `or`s of a need split, excluding those inside its paths."""
    match need:
        case And(terms=terms):
            product = 1
            for each in terms:
                product *= alternatives(each)
            return product
        case Or(terms=terms):
            return sum(alternatives(each) for each in terms)
        case _:
            return 1


def _text(need: Need) -> str:
    return need.text


def _without(ordered: list[Need], needless: Callable[[Need, Need], bool]) -> list[Need]:
    """The terms that no other remaining term makes redundant."""
    if len(ordered) > TERMS_COMPARED_MAX:
        return ordered
    kept = list(ordered)
    for each in ordered:
        if any(other is not each and needless(each, other) for other in kept):
            kept.remove(each)
    return kept
