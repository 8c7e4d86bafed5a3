"""Which of the comparisons that somebody asks for does a value pass?

All comparisons on one subject, say `@price`, are kept together in a `Facet`, so that a value is looked up and
not compared with each: equality in a dictionary, bounds in sorted lists. What is left (`!=`, `contains`,
`starts-with`, and combinations on `text()` and `@*`) is tried one by one, once for each distinct value. The
values of elements lie in each other, so the long ones are searched as parts of one text.

A *fact* is a number that stands for one comparison; the caller chooses it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from gapless.content.xml.evaluate import value_passes
from gapless.content.xml.pattern import TRUE, Compare, Need
from gapless.content.xml.values import NUMBER_CHARS_MAX, number_of, passes, passing

__all__ = ["Facet"]

#: How many values are remembered with their facts; then all are forgotten.
_REMEMBERED_MAX = 10_000
#: Longer values are not remembered.
_REMEMBERED_CHARS_MAX = 200


class Facet:
    """The comparisons that are asked of one subject."""

    __slots__ = ("_bounds", "_exists", "_numbers", "_others", "_remembered", "_searched", "_texts", "_unequal")

    def __init__(self) -> None:
        self._exists: int | None = None
        self._texts: dict[str, int] = {}
        self._numbers: dict[float, int] = {}
        self._unequal: dict[float, int] = {}
        #: For each of `<`, `<=`, `>`, `>=` the literals, sorted, and beside them their facts.
        self._bounds: dict[str, tuple[list[float], list[int]]] = {}
        #: `contains`, `starts-with` and `!=` with a text.
        self._searched: dict[Compare, int] = {}
        self._others: dict[Need, int] = {}
        self._remembered: dict[str, tuple[int, ...]] = {}

    def __bool__(self) -> bool:
        return (
            self._exists is not None
            or bool(self._texts or self._numbers or self._unequal or self._searched or self._others)
            or any(literals for literals, _ in self._bounds.values())
        )

    def add(self, test: Need, fact: int) -> None:
        """From now on, `fact` says that a value passes `test`."""
        self._remembered.clear()
        match test:
            case Compare(operator="=", literal=str() as literal):
                self._texts[literal] = fact
            case Compare(operator="=", literal=float() as literal):
                self._numbers[literal] = fact
            case Compare(operator="!=", literal=float() as literal):
                self._unequal[literal] = fact
            case Compare(operator="<" | "<=" | ">" | ">=" as operator, literal=float() as literal):
                literals, facts = self._bounds.setdefault(operator, ([], []))
                at = bisect_left(literals, literal)
                literals.insert(at, literal)
                facts.insert(at, fact)
            case Compare():
                self._searched[test] = fact
            case _ if test == TRUE:
                self._exists = fact
            case _:
                self._others[test] = fact

    def remove(self, test: Need, fact: int) -> None:
        """Undo `add`."""
        self._remembered.clear()
        match test:
            case Compare(operator="=", literal=str() as literal):
                del self._texts[literal]
            case Compare(operator="=", literal=float() as literal):
                del self._numbers[literal]
            case Compare(operator="!=", literal=float() as literal):
                del self._unequal[literal]
            case Compare(operator="<" | "<=" | ">" | ">=" as operator, literal=float() as literal):
                literals, facts = self._bounds[operator]
                at = bisect_left(literals, literal)
                assert facts[at] == fact, f"{test} is fact {facts[at]}, not {fact}"
                del literals[at], facts[at]
            case Compare():
                del self._searched[test]
            case _ if test == TRUE:
                self._exists = None
            case _:
                del self._others[test]

    def facts(self, value: str) -> tuple[int, ...]:
        """The facts about a value of the subject, sorted."""
        known = self._remembered.get(value)
        if known is None:
            known = tuple(self._compute(value))
            if len(value) <= _REMEMBERED_CHARS_MAX:
                if len(self._remembered) >= _REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[value] = known
        return known

    def facts_within(self, whole: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """The facts about each part of a text, sorted; the starts ascend.

        The parts may lie in each other: what is long is searched once, however many it is a part of.
        """
        long = [span for span in dict.fromkeys(spans) if span[1] - span[0] > _REMEMBERED_CHARS_MAX]
        known = dict(zip(long, self._compute_within(whole, long), strict=True)) if long else {}
        return [known[span] if span in known else self.facts(whole[span[0] : span[1]]) for span in spans]

    def _compute(self, value: str) -> list[int]:
        facts = [] if self._exists is None else [self._exists]
        fact = self._texts.get(value)
        if fact is not None:
            facts.append(fact)
        if self._numbers or self._unequal or self._bounds:
            facts += self._compared(number_of(value))
        for test, fact in self._searched.items():
            if passes(value, test.operator, test.literal):
                facts.append(fact)
        for need, fact in self._others.items():
            if value_passes(need, value):
                facts.append(fact)
        facts.sort()
        return facts

    def _compute_within(self, whole: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """As `_compute`, for parts that are too long to be looked at each by itself."""
        assert not self._others, "only the values of elements lie in each other, and these are just compared"
        lengths = set(map(len, self._texts))
        found: list[list[int]] = []
        for start, stop in spans:
            facts = [] if self._exists is None else [self._exists]
            length = stop - start
            if length in lengths:
                fact = self._texts.get(whole[start:stop])
                if fact is not None:
                    facts.append(fact)
            if self._numbers or self._unequal or self._bounds:
                short = length <= NUMBER_CHARS_MAX
                facts += self._compared(number_of(whole[start:stop]) if short else math.nan)
            found.append(facts)
        for test, fact in self._searched.items():
            assert isinstance(test.literal, str), test
            for at, passed in enumerate(passing(whole, spans, test.operator, test.literal)):
                if passed:
                    found[at].append(fact)
        return [tuple(sorted(facts)) for facts in found]

    def _compared(self, number: float) -> list[int]:
        facts = [fact for literal, fact in self._unequal.items() if literal != number]
        if number != number:  # noqa: PLR0124 - not a number, which equals nothing
            return facts
        fact = self._numbers.get(number)
        if fact is not None:
            facts.append(fact)
        for operator, (literals, about) in self._bounds.items():
            # `number > literal` holds for the literals below the number, `>=` also for an equal one.
            match operator:
                case ">":
                    facts += about[: bisect_left(literals, number)]
                case ">=":
                    facts += about[: bisect_right(literals, number)]
                case "<":
                    facts += about[bisect_right(literals, number) :]
                case _:
                    facts += about[bisect_left(literals, number) :]
        return facts
