"""When does a text pass a comparison, and which comparisons imply another?

XPath 1.0 has one rule for numbers: a text that is not a number becomes NaN, which equals nothing, differs
from everything and is neither below nor above anything. So `. != 5` holds for "abc", and `. < 5` does not.
A number compares numbers, a string compares strings, and `<` always compares numbers:

    . = 5        the text read as a number is 5: also "5.0" and " 5 "
    . = '5'      the text is exactly "5"
    . < '5'      as `. < 5`

Numbers are those of libxml2, which lxml and many others use: XPath's own notation and, beyond the standard,
an exponent. Digits are rounded to the nearest float; libxml2 adds the fraction to the whole and may be off by
the last bit, so that there 4.81 and 4.810 can differ. Here they never do.

A text of more than `NUMBER_CHARS_MAX` characters, white space included, is not a number: the value of an
element is all text below it, so the same digits may be read at each of 256 levels.

Implication is decided for one text and a conjunction of comparisons on it. It is sound, and complete as
long as all of them compare numbers, or one of them says which text it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "NUMBER_CHARS_MAX",
    "Literal",
    "Operator",
    "implied_by",
    "number_of",
    "numbers_of",
    "numbers_pass",
    "numbers_within",
    "passes",
    "passing",
]

#: `=`, `!=`, `<`, `<=`, `>`, `>=`, `contains` or `starts-with`.
Operator = str
#: A string is compared as text, a float as a number; `<`, `<=`, `>` and `>=` have only floats.
Literal = str | float

#: A longer text is not a number.
NUMBER_CHARS_MAX = 256

# No backtracking: no text takes more than one pass.
_NUMBER = re.compile(r"[ \t\r\n]*+(-?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++))(?:[eE]([+-]?[0-9]*+))?[ \t\r\n]*+")


def number_of(text: str) -> float:
    """The number that a text denotes, or NaN.

    >>> number_of(" -2.50 "), number_of("1e3"), number_of("+1"), number_of("")
    (-2.5, 1000.0, nan, nan)
    """
    found = _NUMBER.fullmatch(text) if len(text) <= NUMBER_CHARS_MAX else None
    if found is None:
        return math.nan
    digits, exponent = found.groups()
    return float(f"{digits}e{exponent}" if exponent and exponent not in "+-" else digits)


def numbers_of(texts: Iterable[str]) -> list[float]:
    """`number_of` each text: the same, and faster for many."""
    fullmatch, most, nan = _NUMBER.fullmatch, NUMBER_CHARS_MAX, math.nan
    numbers: list[float] = []
    for text in texts:
        found = fullmatch(text) if len(text) <= most else None
        if found is None:
            numbers.append(nan)
        elif found[2]:
            numbers.append(number_of(text))
        else:
            numbers.append(float(found[1]))
    return numbers


def numbers_within(whole: str, spans: Iterable[tuple[int, int]]) -> list[float]:
    """The numbers that some parts of a text denote. Parts too long for a number are not copied."""
    return numbers_of([whole[start : min(stop, start + NUMBER_CHARS_MAX + 1)] for start, stop in spans])


def passes(text: str, operator: Operator, literal: Literal) -> bool:
    """Whether `text operator literal` holds.

    >>> passes("5.0", "=", 5.0), passes("5.0", "=", "5"), passes("abc", "!=", 5.0)
    (True, False, True)
    """
    if isinstance(literal, str):
        if operator == "=":
            return text == literal
        if operator == "!=":
            return text != literal
        return literal in text if operator == "contains" else text.startswith(literal)
    return number_passes(number_of(text), operator, literal)


def passing(whole: str, spans: Sequence[tuple[int, int]], operator: Operator, literal: str) -> list[bool]:
    """Whether `whole[start:stop] operator literal` holds for each span; the starts ascend.

    Nested parts, such as the values of an element and its ancestors, cost only as much as the whole.

    >>> passing("abab", [(0, 4), (0, 2), (2, 2), (2, 4)], "contains", "ba")
    [True, False, False, False]
    """
    match operator:
        case "=":
            length = len(literal)
            return [stop - start == length and whole.startswith(literal, start) for start, stop in spans]
        case "!=":
            return [not each for each in passing(whole, spans, "=", literal)]
        case "starts-with":
            return [whole.startswith(literal, start, stop) for start, stop in spans]
        case _:
            assert operator == "contains", operator
            return _containing(whole, spans, literal)


def _containing(whole: str, spans: Sequence[tuple[int, int]], literal: str) -> list[bool]:
    found: list[bool] = []
    # Where the literal occurs first, not before the start of the span; beyond the end when it does not.
    at, length, nowhere = -1, len(literal), len(whole) + 1
    for start, stop in spans:
        if at < start:
            at = whole.find(literal, start)
            if at < 0:
                at = nowhere
        found.append(at + length <= stop)
    return found


def number_passes(number: float, operator: Operator, literal: float) -> bool:
    """Whether `number operator literal` holds; NaN only ever differs."""
    match operator:
        case "=":
            return number == literal
        case "!=":
            return number != literal
        case "<":
            return number < literal
        case "<=":
            return number <= literal
        case ">":
            return number > literal
        case _:
            assert operator == ">=", operator
            return number >= literal


def numbers_pass(
    numbers: npt.NDArray[np.float64], operator: Operator, literal: float
) -> npt.NDArray[np.bool_]:
    """The same for many numbers."""
    compare = _COMPARISONS[operator]
    passed: npt.NDArray[np.bool_] = compare(numbers, literal)
    return passed


_COMPARISONS: dict[Operator, Callable[..., Any]] = {
    "=": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


@dataclass(slots=True)
class _Numbers:
    """The numbers that a conjunction of comparisons leaves: an interval without some points, and NaN."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    nan: bool = True
    without: set[float] = field(default_factory=set)

    def narrow(self, operator: Operator, literal: float) -> None:
        if operator == "!=":
            self.without.add(literal)
            return
        self.nan = False
        if operator in {"=", ">", ">="}:
            self._raise(literal, operator == ">")
        if operator in {"=", "<", "<="}:
            self._lower(literal, operator == "<")

    def _raise(self, low: float, low_open: bool) -> None:
        self.low, self.low_open = max((self.low, self.low_open), (low, low_open))

    def _lower(self, high: float, high_open: bool) -> None:
        # An open end is the narrower one, so it has to sort before the closed end at the same number.
        self.high, closed = min((self.high, not self.high_open), (high, not high_open))
        self.high_open = not closed

    def settle(self) -> None:
        """An end that is excluded is open."""
        self.low_open |= self.low in self.without
        self.high_open |= self.high in self.without

    def holds(self, number: float) -> bool:
        if math.isnan(number):
            return self.nan
        above = number > self.low or (number == self.low and not self.low_open)
        below = number < self.high or (number == self.high and not self.high_open)
        return above and below and number not in self.without

    def empty(self) -> bool:
        if self.nan:
            return False
        return self.low > self.high or (self.low == self.high and not self.holds(self.low))

    def imply(self, operator: Operator, literal: float) -> bool:
        """Whether every number that is left passes. A gap between neighbouring floats counts as filled."""
        match operator:
            case "!=":
                return not self.holds(literal)
            case "=":
                return not self.nan and self.low == self.high == literal
            case "<":
                return not self.nan and (self.high < literal or (self.high == literal and self.high_open))
            case "<=":
                return not self.nan and self.high <= literal
            case ">":
                return not self.nan and (self.low > literal or (self.low == literal and self.low_open))
            case _:
                return not self.nan and self.low >= literal


def implied_by(
    known: Iterable[tuple[Operator, Literal]], operator: Operator, literal: Literal
) -> bool | None:
    """Whether a text that passes all `known` must pass `operator literal`; None: no text passes all `known`.

    >>> implied_by([(">", 5.0)], ">", 3.0), implied_by([("<=", 3.0)], "!=", "7")
    (True, True)
    >>> implied_by([("=", "x"), ("=", "y")], "=", "z") is None
    True
    """
    known = list(known)
    equal = [value for each, value in known if each == "=" and isinstance(value, str)]
    if equal:
        if not all(passes(equal[0], *each) for each in known):
            return None
        return passes(equal[0], operator, literal)
    numbers = _Numbers()
    for each, value in known:
        if isinstance(value, float):
            numbers.narrow(each, value)
    numbers.settle()
    if numbers.empty():
        return None
    if isinstance(literal, float):
        return numbers.imply(operator, literal)
    return _text_implied(known, numbers, operator, literal)


def _text_implied(
    known: list[tuple[Operator, Literal]], numbers: _Numbers, operator: Operator, literal: str
) -> bool:
    if operator == "!=":
        # No text that passes all of `known` is this one.
        return not numbers.holds(number_of(literal)) or not all(
            passes(literal, each, value) for each, value in known
        )
    if operator == "=":
        return False
    texts = [(each, value) for each, value in known if isinstance(value, str) and each != "!="]
    if operator == "contains":
        return any(literal in value for _, value in texts)
    return any(each == "starts-with" and value.startswith(literal) for each, value in texts)
