"""Which conditions are legal, and cost the most? Shapes, each as large as its limits allow.

A shape is a function from a seed to a text, so that an attacker can send as many different ones as it likes:
equal ones share their work. To try other shapes, replace `SHAPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from types import MappingProxyType


def many_alternatives(seed: int) -> str:
    """About 126 KB of alternatives, each of two ranges: covering compares them with those of all others."""
    draw = Random(seed)
    parts = []
    for _ in range(2_600):
        low = draw.randrange(10**9)
        parts.append(f"(key > {low} AND sent < {low + draw.randrange(10**6)})")
    return " OR ".join(parts)


def many_exclusions(seed: int) -> str:
    """Thousands of values that a column may not have, around each of which there is an interval."""
    draw = Random(seed)
    values = ", ".join(str(draw.randrange(10**15)) for _ in range(9_000))
    return f"key NOT IN ({values})"


def many_texts(seed: int) -> str:
    """About 490 KB of texts to compare with."""
    draw = Random(seed)
    values = ", ".join(f"'{draw.randrange(16**40):040x}'" for _ in range(9_900))
    return f"body IN ({values}) OR name NOT IN ({values[: 44 * 900 - 2]})"


def many_patterns(seed: int) -> str:
    """Patterns with as many wildcards as fit, on the longest column: each tries many places of a text."""
    draw = Random(seed)
    parts = []
    for _ in range(100):
        letters = "%".join(draw.choice("xxxxxy") for _ in range(450))
        parts.append(f"body LIKE '%{letters}%z'")
    return " OR ".join(parts)


def deep_nesting(seed: int) -> str:
    """Sums of products of sums, as deep as may be: the normal form multiplies them out."""
    draw = Random(seed)

    def term(depth: int) -> str:
        if not depth:
            column = draw.choice(("key", "sent"))
            return f"{column} {draw.choice('<>')} {draw.randrange(10**9)}"
        word = " AND " if depth % 2 else " OR "
        return "(" + word.join(term(depth - 1) for _ in range(3)) + ")"

    return term(7)


def much_arithmetic(seed: int) -> str:
    """Long sums, which no index helps with: they are computed for every event."""
    draw = Random(seed)
    parts = []
    for _ in range(150):
        terms = " + ".join(f"key * {draw.randrange(2, 99)}" for _ in range(40))
        parts.append(f"{terms} = {draw.randrange(10**9)}")
    return " OR ".join(parts)


def allowed_texts(seed: int) -> str:
    """As many texts as are accepted, on two columns: one that may have them, and one that may not."""
    draw = Random(seed)
    values = ", ".join(f"'{draw.randrange(16**40):040x}'" for _ in range(2_500))
    return f"name IN ({values}) OR body NOT IN ({values})"


def chained_texts(seed: int) -> str:
    """Thousands of comparisons of one column, which are read as one list."""
    draw = Random(seed)
    return " AND ".join(f"name <> '{draw.randrange(16**8):08x}'" for _ in range(9_000))


def allowed_pairs(seed: int) -> str:
    """Alternatives of two columns each, as many as there may be words."""
    draw = Random(seed)
    return " OR ".join(
        f"(key = {draw.randrange(10**9)} AND sent > {draw.randrange(10**9)})" for _ in range(85)
    )


def products(seed: int) -> str:
    """ORs of ANDs of ORs, each AND just so large that it is written out: the most work for a short text."""
    draw = Random(seed)
    columns = ("key", "sent", "key + sent", "key - sent", "key * 2", "sent * 2", "key")

    def one() -> str:
        low = draw.randrange(10**6)
        pairs = pairwise(columns)
        return " AND ".join(
            f"({left} > {low + at} OR {right} < {at})" for at, (left, right) in enumerate(pairs)
        )

    return " OR ".join(one() for _ in range(6))


def whole_products(seed: int) -> str:
    """ANDs of ORs, too many to be written out: they stay whole, and are evaluated for every event."""
    draw = Random(seed)
    return " AND ".join(
        f"(key = {draw.randrange(10**9)} OR sent = {draw.randrange(10**9)} OR name > '{at}')"
        for at in range(60)
    )


def allowed_patterns(seed: int) -> str:
    """As many long patterns as one condition may have, on the longest column: each is a large automaton."""
    draw = Random(seed)
    letters = "".join(draw.choice("x_%") for _ in range(240))
    return " OR ".join(f"body LIKE '%{at}{letters}%z'" for at in range(4))


def allowed_arithmetic(seed: int) -> str:
    """Calculations, as many as one principal may have: no two alike, and no index helps with them."""
    draw = Random(seed)
    return " OR ".join(f"key * {draw.randrange(2, 10**6)} > sent + {at}" for at in range(60))


SHAPES: Mapping[str, Callable[[int], str]] = MappingProxyType(
    {
        "alternatives": many_alternatives,
        "exclusions": many_exclusions,
        "texts": many_texts,
        "patterns": many_patterns,
        "nesting": deep_nesting,
        "arithmetic": much_arithmetic,
        "allowed texts": allowed_texts,
        "chains": chained_texts,
        "pairs": allowed_pairs,
        "products": products,
        "whole products": whole_products,
        "allowed patterns": allowed_patterns,
        "allowed arithmetic": allowed_arithmetic,
    }
)
