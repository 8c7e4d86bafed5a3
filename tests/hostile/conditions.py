"""The worst conditions that a subscriber may write: each shape at the largest size that is accepted.

`SHAPES` makes a text of about so many parts; the second number makes it differ from others of its shape.
`largest` finds how many parts are accepted. `REFUSED` are the texts that once froze a node for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from gapless.content.language import parse_condition
from gapless.errors import ContentError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

COLUMNS = {
    **{f"i{at}": "int" for at in range(8)},
    "price": "float",
    "cost": "decimal",
    "note": "string",
    "doc": "xml?",
}
SCHEMA = Schema.parse(TopicId("hostile"), COLUMNS)

Shape = Callable[[int, int], str]


def _joined(word: str, part: Callable[[int, int], str]) -> Shape:
    return lambda count, other: f" {word} ".join(part(at, other) for at in range(count))


SHAPES: dict[str, Shape] = {
    "a list of integers": lambda n, other: f"i0 IN ({', '.join(str(3 * at + other) for at in range(n))})",
    "a list of texts": lambda n, other: (
        "note IN (" + ", ".join(f"'v{3 * at + other:09}'" for at in range(n)) + ")"
    ),
    "a chain of equalities": _joined("OR", lambda at, other: f"i0 = {3 * at + other}"),
    "a chain of inequalities": _joined("AND", lambda at, other: f"note <> 'v{at}x{other}'"),
    "pairs of columns": _joined("OR", lambda at, other: f"(i0 = {at} AND i1 > {at * 7 % 1009 + other})"),
    "ranges that overlap": _joined(
        "OR", lambda at, other: f"(i0 > {at} AND i1 < {900 - at + other} AND i2 > {at * 7 % 101})"
    ),
    "LIKE, any of them": _joined("OR", lambda at, other: f"note LIKE '%a{at}_z{other}%'"),
    "LIKE, none of them": _joined("AND", lambda at, other: f"note NOT LIKE '%a{at}z{other}%'"),
    "calculations": _joined("OR", lambda at, other: f"i0 * {at + 2} > {other}"),
    "calculations, all of them": _joined("AND", lambda at, other: f"i1 - i0 * {at + 2} > {other}"),
    "decimals": _joined("AND", lambda at, other: f"cost * {at + 2} > cost * cost - {other}"),
    "two terms": _joined("OR", lambda at, other: f"i0 * {at + 2} > i1 + {other}"),
    "ANDs of ORs": _joined(
        "AND", lambda at, other: f"(i{at % 8} = {at} OR i{(at + 1) % 8} = {at + other} OR price > {at})"
    ),
    "ORs of ANDs of ORs": _joined(
        "OR",
        lambda at, other: " AND ".join(
            f"(i{each} > {at + other} OR i{each + 1} < {at * each})" for each in range(6)
        ),
    ),
    "XPath, any of them": _joined("OR", lambda at, other: f"XPATH(doc, '/a/b{at}[@p > {other}]')"),
    "XPath, none of them": _joined("AND", lambda at, other: f"NOT XPATH(doc, '/a/b{at}[@p > {other}]')"),
    "XPath with many parts": lambda n, other: (
        "/a[" + " and ".join(f".//b{at}[c{at % 7} or @p > {other}]" for at in range(n)) + "]"
    ),
    "XPath with many alternatives": lambda n, other: (
        "/a[" + " or ".join(f"b[. = 'v{at}x{other}']" for at in range(n)) + "]"
    ),
}
#: The shapes of long lists; they become sets, and are cheap up to 10,000 values.
LISTS = ("a list of integers", "a list of texts", "a chain of equalities", "a chain of inequalities")

#: Texts that are refused, and were not.
REFUSED: dict[str, str] = {
    "1,000 pairs of columns": SHAPES["pairs of columns"](1_000, 0),
    "1,000 patterns": SHAPES["XPath, any of them"](1_000, 0),
    "1,000 denied patterns": SHAPES["XPath, none of them"](1_000, 0),
    "1,000 LIKE": SHAPES["LIKE, any of them"](1_000, 0),
    "1,000 calculations": SHAPES["calculations"](1_000, 0),
    "490 kB of LIKE": SHAPES["LIKE, none of them"](16_000, 0),
    "490 kB of calculations": SHAPES["calculations"](28_000, 0),
    "40 products of 64 conjunctions": SHAPES["ORs of ANDs of ORs"](40, 0),
}


def is_accepted(text: str) -> bool:
    """Whether a node would take it."""
    try:
        parse_condition(text, SCHEMA)
    except ContentError:
        return False
    return True


@lru_cache
def largest(shape: str) -> int:
    """The most parts of a shape that are accepted, or nearly so many."""
    low, high = 1, 10_000 if shape in LISTS else 1_024
    while high - low > low // 16:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_accepted(SHAPES[shape](middle, 0)) else (low, middle - 1)
    return low


def worst(shape: str) -> Iterator[str]:
    """Texts of a shape, all of them as large as may be, and no two alike."""
    count = largest(shape)
    other = 0
    while True:
        yield SHAPES[shape](count, other)
        other += 1
