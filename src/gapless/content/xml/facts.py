"""Which of the comparisons that somebody asks for does a value pass?

All comparisons on one subject, say `@price`, are kept together in a `Facet`, so that a value is looked up and
not compared with each: equality in a dictionary, bounds in sorted lists. What is left (`!=`, `contains`,
`starts-with`, and combinations on `text()` and `@*`) is tried one by one, once for each distinct value.

A *fact* is a number that stands for one comparison; the caller chooses it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort

from gapless.content.xml.evaluate import value_passes
from gapless.content.xml.pattern import TRUE, Compare, Need
from gapless.content.xml.values import number_of

__all__ = ["Facet"]

#: How many values are remembered with their facts; then all are forgotten.
_REMEMBERED_MAX = 10_000
#: Longer values are not remembered.
_REMEMBERED_CHARS_MAX = 200
_BELOW_ALL = -1


class Facet:
    """The comparisons that are asked of one subject."""

    __slots__ = ("_bounds", "_exists", "_numbers", "_others", "_remembered", "_texts")

    def __init__(self) -> None:
        self._exists: int | None = None
        self._texts: dict[str, int] = {}
        self._numbers: dict[float, int] = {}
        #: For each of `<`, `<=`, `>`, `>=` the literals with their facts, sorted.
        self._bounds: dict[str, list[tuple[float, int]]] = {}
        self._others: dict[Need, int] = {}
        self._remembered: dict[str, tuple[int, ...]] = {}

    def __bool__(self) -> bool:
        return (
            self._exists is not None
            or bool(self._texts or self._numbers or self._others)
            or any(self._bounds.values())
        )

    def add(self, test: Need, fact: int) -> None:
        """From now on, `fact` says that a value passes `test`."""
        self._remembered.clear()
        match test:
            case Compare(operator="=", literal=str() as literal):
                self._texts[literal] = fact
            case Compare(operator="=", literal=float() as literal):
                self._numbers[literal] = fact
            case Compare(operator="<" | "<=" | ">" | ">=" as operator, literal=float() as literal):
                insort(self._bounds.setdefault(operator, []), (literal, fact))
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
            case Compare(operator="<" | "<=" | ">" | ">=" as operator, literal=float() as literal):
                bounds = self._bounds[operator]
                del bounds[bisect_left(bounds, (literal, fact))]
            case _ if test == TRUE:
                self._exists = None
            case _:
                del self._others[test]

    def facts(self, value: str) -> tuple[int, ...]:
        """The facts about a value of the subject."""
        known = self._remembered.get(value)
        if known is None:
            known = tuple(self._compute(value))
            if len(value) <= _REMEMBERED_CHARS_MAX:
                if len(self._remembered) >= _REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[value] = known
        return known

    def _compute(self, value: str) -> list[int]:
        facts = [] if self._exists is None else [self._exists]
        if value in self._texts:
            facts.append(self._texts[value])
        if self._numbers or self._bounds:
            number = number_of(value)
            if not math.isnan(number):
                if number in self._numbers:
                    facts.append(self._numbers[number])
                facts += self._bounded(number)
        facts += [fact for test, fact in self._others.items() if value_passes(test, value)]
        return facts

    def _bounded(self, number: float) -> list[int]:
        facts: list[int] = []
        for operator, bounds in self._bounds.items():
            # `number > literal` holds for the literals below the number, `>=` also for an equal one.
            inclusive = operator in {"<", ">="}
            at = (
                bisect_right(bounds, (number, math.inf))
                if inclusive
                else bisect_left(bounds, (number, _BELOW_ALL))
            )
            chosen = bounds[:at] if operator in {">", ">="} else bounds[at:]
            facts += [fact for _, fact in chosen]
        return facts
