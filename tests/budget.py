"""How much of a campaign does `make test` run? A part of it, and `make test-long` all the rest.

A test whose parameter is called `seed` runs with its first seeds in `make test`; its other seeds are marked
`long`. A property gets a share of its examples in `make test`, and all of them in `make test-long`. A test
that tries everything is cut into `parts`. Any other campaign is marked `long` by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings

#: Seeds of each test in `make test`.
SEEDS_SHORT = 4
#: Examples of a property that states no number of its own, in `make test-long` and in `make test`.
EXAMPLES_FULL = 100
EXAMPLES_SHORT = 20
#: No property gets fewer, unless it states fewer itself.
EXAMPLES_MIN = 4


def examples(count: int) -> settings:
    """Settings of a property with its own number of examples, which `make test` reduces like all others."""
    scaled = count * settings().max_examples // EXAMPLES_FULL
    return settings(max_examples=max(scaled, min(count, EXAMPLES_MIN)))


def parts(count: int) -> list[Any]:
    """The pieces of a test that tries everything, as values of a parameter; `make test` runs the first."""
    return [pytest.param(part, marks=pytest.mark.long if part else ()) for part in range(count)]


def beyond_first_seeds(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that run with a seed after the first few.

    A seed that once failed comes with its `cause`: it is a regression test, and never left out.
    """
    seen: dict[str, list[object]] = {}
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "seed" not in parameters or "cause" in parameters:
            continue
        seeds = seen.setdefault(item.nodeid.partition("[")[0], [])
        if parameters["seed"] not in seeds:
            seeds.append(parameters["seed"])
        if seeds.index(parameters["seed"]) >= SEEDS_SHORT:
            yield item
