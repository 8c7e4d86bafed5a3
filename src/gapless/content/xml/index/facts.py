"""Which of all requested comparisons does a value pass?

All comparisons on one subject, say `@price`, are kept together in a `Facet`, so that a value is looked up and
not compared with each: equality in a dictionary, bounds in sorted lists. The rest (`!=`, `contains`,
`starts-with`, and combinations on `text()` and `@*`) is tried one by one, once for each distinct value. The
values of elements are nested, so long ones are searched as parts of one text.

A *fact* is a number that stands for one comparison; the caller chooses it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from gapless.content.xml.evaluate import value_passes
from gapless.content.xml.pattern import TRUE, Need, TextCompare
from gapless.content.xml.values import number_of, numbers_of, numbers_within, passes, passing

__all__ = ["Facet"]

#: How many values are remembered with their facts; then all are forgotten.
_REMEMBERED_MAX = 10_000
#: Longer values are not remembered.
_REMEMBERED_CHARS_MAX = 200
#: From this many values on, array operations distinguish them.
_MANY = 64
#: Signs are combined into one number below this.
_CODES_MAX = 1 << 62
_NONE = -1


class Facet:
    """The comparisons that are asked of one subject."""

    __slots__ = (
        "_bounds",
        "_exists",
        "_numbers",
        "_others",
        "_remembered",
        "_searched",
        "_texts",
        "_unequal",
    )

    def __init__(self) -> None:
        self._exists: int | None = None
        self._texts: dict[str, int] = {}
        self._numbers: dict[float, int] = {}
        self._unequal: dict[float, int] = {}
        #: For each of `<`, `<=`, `>`, `>=` the literals, sorted, and beside them their facts.
        self._bounds: dict[str, tuple[list[float], list[int]]] = {}
        #: `contains`, `starts-with` and `!=` with a text.
        self._searched: dict[TextCompare, int] = {}
        self._others: dict[Need, int] = {}
        self._remembered: dict[str, tuple[int, ...]] = {}

    def __bool__(self) -> bool:
        return (
            self._exists is not None
            or bool(self._texts or self._numbers or self._unequal or self._searched or self._others)
            or any(literals for literals, _ in self._bounds.values())
        )

    def add(self, test: Need, fact: int) -> None:
        """Register `fact` as "a value passes `test`"."""
        self._remembered.clear()
        match test:
            case TextCompare(operator="=", literal=str() as literal):
                self._texts[literal] = fact
            case TextCompare(operator="=", literal=float() as literal):
                self._numbers[literal] = fact
            case TextCompare(operator="!=", literal=float() as literal):
                self._unequal[literal] = fact
            case TextCompare(operator="<" | "<=" | ">" | ">=" as operator, literal=float() as literal):
                literals, facts = self._bounds.setdefault(operator, ([], []))
                at = bisect_left(literals, literal)
                literals.insert(at, literal)
                facts.insert(at, fact)
            case TextCompare():
                self._searched[test] = fact
            case _ if test == TRUE:
                self._exists = fact
            case _:
                self._others[test] = fact

    def remove(self, test: Need, fact: int) -> None:
        """Undo `add`."""
        self._remembered.clear()
        match test:
            case TextCompare(operator="=", literal=str() as literal):
                del self._texts[literal]
            case TextCompare(operator="=", literal=float() as literal):
                del self._numbers[literal]
            case TextCompare(operator="!=", literal=float() as literal):
                del self._unequal[literal]
            case TextCompare(operator="<" | "<=" | ">" | ">=" as operator, literal=float() as literal):
                literals, facts = self._bounds[operator]
                at = bisect_left(literals, literal)
                assert facts[at] == fact, f"{test} is fact {facts[at]}, not {fact}"
                del literals[at], facts[at]
            case TextCompare():
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

    def facts_of(self, values: Sequence[str]) -> list[tuple[int, ...]]:
        """The facts about each value, sorted."""
        if len(values) < _MANY:
            return [self.facts(value) for value in values]
        return self._alike(values, self._signs(values), lambda at: self.facts(values[at]))

    def facts_within(self, whole: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """The facts about each part of a text, sorted; the starts ascend.

        The parts may be nested: long text is searched once, however many parts contain it.
        """
        long = [span for span in dict.fromkeys(spans) if span[1] - span[0] > _REMEMBERED_CHARS_MAX]
        if not long:
            return self.facts_of([whole[start:stop] for start, stop in spans])
        known = dict(zip(long, self._long_facts(whole, long), strict=True))
        short = [span for span in spans if span not in known]
        rest = iter(self.facts_of([whole[start:stop] for start, stop in short]))
        return [known[span] if span in known else next(rest) for span in spans]

    def _long_facts(self, whole: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        assert not self._others, "only the values of elements are nested, and these are only compared"
        lengths = set(map(len, self._texts))
        equal = [
            self._texts.get(whole[start:stop], _NONE) if stop - start in lengths else _NONE
            for start, stop in spans
        ]
        signs = [np.array(equal)]
        if self._numeric:
            signs.append(self._places(numbers_within(whole, spans)))
        for test in self._searched:
            assert isinstance(test.literal, str), test
            signs.append(np.array(passing(whole, spans, test.operator, test.literal)))
        return self._alike(spans, signs, lambda at: tuple(self._compute(whole[slice(*spans[at])])))

    # Of many values, only those that some comparison distinguishes are examined one by one.

    @property
    def _numeric(self) -> bool:
        return bool(self._numbers or self._unequal or self._bounds)

    def _signs(self, values: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Arrays with a number for each value: values that are equal in all of them have the same facts."""
        signs: list[npt.NDArray[Any]] = []
        if self._texts:
            get = self._texts.get
            signs.append(np.array([get(value, _NONE) for value in values]))
        if self._numeric:
            signs.append(self._places(numbers_of(values)))
        for test in self._searched:
            operator, literal = test.operator, test.literal
            assert isinstance(literal, str), test
            signs.append(
                np.array([literal in value for value in values])
                if operator == "contains"
                else np.array([passes(value, operator, literal) for value in values])
            )
        for need in self._others:
            signs.append(np.array([value_passes(need, value) for value in values]))
        return signs

    def _places(self, numbers: list[float]) -> npt.NDArray[np.int64]:
        """Where each number lies among all literals: between two, or at one."""
        bounds = [literals for literals, _ in self._bounds.values()]
        literals = np.unique(np.array([*self._numbers, *self._unequal, *chain(*bounds)], dtype=np.float64))
        found = np.array(numbers, dtype=np.float64)
        places = literals.searchsorted(found, "left") + literals.searchsorted(found, "right")
        return np.where(np.isnan(found), _NONE, places)

    def _alike(
        self,
        values: Sequence[object],
        signs: Sequence[npt.NDArray[Any]],
        facts: Callable[[int], tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        """The facts of each value, computed once for all with the same signs."""
        codes = np.zeros(len(values), dtype=np.int64)
        span = 1
        for sign in signs:
            width = int(sign.max()) + 2
            if span * width >= _CODES_MAX:
                distinct, codes = np.unique(codes, return_inverse=True)
                span = len(distinct)
            codes = codes * width + sign + 1
            span *= width
        _, first, which = np.unique(codes, return_index=True, return_inverse=True)
        known = [facts(at) for at in first.tolist()]
        return [known[at] for at in which.tolist()]

    def _compute(self, value: str) -> list[int]:
        facts = [] if self._exists is None else [self._exists]
        fact = self._texts.get(value)
        if fact is not None:
            facts.append(fact)
        if self._numeric:
            facts += self._compared(number_of(value))
        for test, fact in self._searched.items():
            if passes(value, test.operator, test.literal):
                facts.append(fact)
        for need, fact in self._others.items():
            if value_passes(need, value):
                facts.append(fact)
        facts.sort()
        return facts

    def _compared(self, number: float) -> list[int]:
        facts = [fact for literal, fact in self._unequal.items() if literal != number]
        if number != number:  # noqa: PLR0124 - NaN, which equals nothing
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
