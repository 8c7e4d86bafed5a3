"""Does one need imply another? The core of covering and of the normal form.

For conjunctions this is the search for a homomorphism: a way to lay the tree of the weaker need over the
tree of the stronger one such that names agree (`*` lies on anything), a `/` lies on a `/`, and a `//` lies
on any way down. Where there is one, the implication holds. Without `*`, and without `//`, the reverse is
true as well (Amer-Yahia and others 2001, Miklau and Suciu 2004). Values are compared by `values.py`.

`or` and `not` are handled soundly and not completely: an `or` on the left must imply in each of its cases,
one on the right in one of its terms, and `not x` implies `not y` when y implies x.

The work is bounded: after `STEPS_MAX` questions the answer to all others is "not proven".
"""

from __future__ import annotations

from collections.abc import Iterable

from gapless.content.xml.pattern import FALSE, TEXT, TRUE, And, Axis, Has, Need, Not, Or, Some, TextCompare
from gapless.content.xml.values import implied_by

__all__ = ["STEPS_MAX", "Implication", "terms_of"]

#: Maximum number of pairs of needs examined before giving up.
STEPS_MAX = 20_000


def terms_of(need: Need) -> tuple[Need, ...]:
    """The terms of a conjunction; anything else is a conjunction of one."""
    return need.terms if isinstance(need, And) else (need,)


class Implication:
    """Answers `holds(x, y)`: does x imply y? Caches its answers, and counts its steps."""

    __slots__ = ("_known", "steps_left")

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self.steps_left = steps_max
        self._known: dict[tuple[Need, Need], bool] = {}

    def holds(self, x: Need, y: Need) -> bool:
        """Whether it is proven that whatever has `x` has `y`."""
        if y in {x, TRUE} or x == FALSE:
            return True
        if _are_apart(x, y):
            return False
        answer = self._known.get((x, y))
        if answer is None:
            if self.steps_left <= 0:
                return False
            self.steps_left -= 1
            answer = self._decide(x, y)
            self._known[x, y] = answer
        return answer

    def _decide(self, x: Need, y: Need) -> bool:
        if isinstance(y, And):
            return all(self.holds(x, each) for each in y.terms)
        known = terms_of(x)
        if y in known or contradicts(known):
            return True
        if isinstance(x, Or):
            return all(self.holds(each, y) for each in x.terms)
        return self._directly(known, x, y) or self._by_cases(known, y)

    def _directly(self, known: tuple[Need, ...], x: Need, y: Need) -> bool:
        match y:
            case Or(terms=terms):
                return any(self.holds(x, each) for each in terms)
            case Not(term=term):
                if any(isinstance(each, Not) and self.holds(term, each.term) for each in known):
                    return True
                return isinstance(term, TextCompare | Some) and contradicts((*known, term))
            case TextCompare(operator=operator, literal=literal):
                return bool(implied_by(_compared(known), operator, literal))
            case Some():
                return self._some(known, y)
            case Has():
                return any(isinstance(each, Has) and self._has(each, y) for each in known)
            case _:
                return False

    def _some(self, known: tuple[Need, ...], y: Some) -> bool:
        there = [each for each in known if isinstance(each, Some)]
        if y.is_single:
            same = [each for each in there if each.subject == y.subject]
            if not same or not isinstance(y.test, TextCompare):
                return bool(same)
            tests = _compared(each.test for each in same)
            return bool(implied_by(tests, y.test.operator, y.test.literal))
        if y.subject == TEXT:
            return any(each.subject == TEXT and self.holds(each.test, y.test) for each in there)
        return any(each.subject != TEXT and self.holds(each.test, y.test) for each in there)

    def _has(self, x: Has, y: Has) -> bool:
        anywhere = y.axis is Axis.DESCENDANT or _floats(y)
        if x.axis is Axis.DESCENDANT and not anywhere:
            return False
        if y.label in {None, x.label} and self.holds(x.test, y.test):
            return True
        return anywhere and self.holds(x.test, y)

    def _by_cases(self, known: tuple[Need, ...], y: Need) -> bool:
        for case in known:
            if isinstance(case, Or):
                others = tuple(each for each in known if each is not case)
                if all(self.holds(And((*others, *terms_of(each))), y) for each in case.terms):
                    return True
        return False


def _are_apart(x: Need, y: Need) -> bool:
    """Whether x clearly does not imply y: different names, or different texts. This costs no step."""
    if isinstance(y, Has):
        named = y.axis is Axis.CHILD and y.label is not None
        return named and isinstance(x, Has) and x.label != y.label
    if isinstance(y, Some):
        if not (isinstance(x, Some) and x.is_single and y.is_single):
            return False
        return x.subject != y.subject or _are_apart(x.test, y.test)
    if isinstance(y, TextCompare) and isinstance(x, TextCompare):
        texts = isinstance(x.literal, str) and isinstance(y.literal, str)
        return texts and x.operator == y.operator == "=" and x.literal != y.literal
    return False


def _floats(need: Has) -> bool:
    """Whether a child may as well be any descendant: `*//b` is `.//*/b`, and a lone `*` is `.//*`.

    The normal form has the `//` after the `*`s, where a homomorphism would need it before them.
    """
    if need.label is not None:
        return False
    if isinstance(need.test, Has):
        return need.test.axis is Axis.DESCENDANT or _floats(need.test)
    return need.test == TRUE


def contradicts(known: tuple[Need, ...]) -> bool:
    """Whether no element can have all of these, because they contradict each other about one value."""
    if len(known) < 2:
        return False
    values: dict[str, list[Need]] = {}
    for each in known:
        if isinstance(each, TextCompare):
            values.setdefault(".", []).append(each)
        elif isinstance(each, Some) and each.is_single:
            values.setdefault(each.subject, []).append(each.test)
    return any(len(tests) > 1 and implied_by(_compared(tests), "=", "") is None for tests in values.values())


def _compared(needs: Iterable[Need]) -> list[tuple[str, str | float]]:
    return [(each.operator, each.literal) for each in needs if isinstance(each, TextCompare)]
