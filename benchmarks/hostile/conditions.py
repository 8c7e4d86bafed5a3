"""Which conditions are legal, and cost the most? Shapes, each as large as its limits allow.

A shape is a function from a seed to a text, so that an attacker can send as many different ones as it likes:
equal ones share their work. To try other shapes, replace `SHAPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


SHAPES: Mapping[str, Callable[[int], str]] = MappingProxyType(
    {
        "alternatives": many_alternatives,
        "exclusions": many_exclusions,
        "texts": many_texts,
        "patterns": many_patterns,
        "nesting": deep_nesting,
        "arithmetic": much_arithmetic,
    }
)
