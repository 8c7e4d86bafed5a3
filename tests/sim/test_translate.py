"""What brokers are told of a condition is what the checkers judge by."""

from itertools import product
from random import Random

import pytest

from gapless.content.evaluate import mask
from gapless.content.rows import Rows
from gapless.sim.conditions import Between, Both, Either, Equal, Everything
from gapless.sim.translate import columns_of, condition_of
from gapless.sim.workload import GROUPS, NAMES, random_taste


@pytest.mark.parametrize("seed", range(20))
def test_conditions_are_told_to_brokers_as_they_are_judged(seed: int) -> None:
    random = Random(seed)
    names, prices = (*NAMES, "Al", "Gracie", ""), (None, 0.0, 9.99, 10.0, 10.01)
    rows: list[dict[str, int | float | str | None]] = [
        {"id": at, "group": group, "price": price, "name": name}
        for at, (group, price, name) in enumerate(product(range(GROUPS), prices, names))
    ]
    plain = [Everything(), Equal("group", 1), Equal("name", "Ada"), Between("price", 9.99, 10.01)]
    tastes = [random_taste(random) for _ in range(12)]
    pairs = [kind(random.choice(plain), taste) for taste in tastes for kind in (Either, Both)]
    batch = Rows(columns_of(rows))
    for condition in (*plain, *tastes, *pairs):
        found = mask(condition_of(condition), batch).tolist()
        assert found == [condition.accepts(row) for row in rows], condition
