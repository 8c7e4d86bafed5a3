"""The index finds, under any changes, just the pairs that evaluating each condition alone finds."""

from random import Random

import numpy as np
import pytest

from gapless.content.condition import Condition
from gapless.content.evaluate import mask
from gapless.content.index.index import Index
from gapless.content.rows import Rows
from tests.properties.drawn import random_condition, random_rows


def expected(conditions: dict[int, Condition], rows: Rows) -> list[tuple[int, int]]:
    return sorted(
        (row, slot)
        for slot, condition in conditions.items()
        for row in np.flatnonzero(mask(condition, rows)).tolist()
    )


@pytest.mark.parametrize("seed", range(60))
def test_an_index_agrees_with_evaluating_each_condition(seed: int) -> None:
    random = Random(seed)
    batch = random_rows(random, random.choice([1, 7, 60]))
    if random.random() < 0.3:
        batch = batch.slice(1)  # Arrow arrays that do not begin where their memory does
    rows = Rows(batch)
    index = Index()
    living: dict[int, Condition] = {}
    for step in range(random.choice([20, 150])):
        if living and random.random() < 0.3:
            slot = random.choice(list(living))
            index.remove(slot)
            del living[slot]
        else:
            slot = random.randint(0, 500)
            living[slot] = random_condition(random, random.choice([0, 1, 1, 2, 3]))
            index.add(slot, living[slot])
        if step % 40 == 19:
            found = [pair.tolist() for pair in index.match(batch)]
            pairs = list(zip(*found, strict=True))
            assert pairs == expected(living, rows), f"seed {seed}"
            assert len(index) == len(living)


def test_an_index_that_lost_everything_holds_nothing() -> None:
    random = Random(5)
    batch = random_rows(random, 20)
    index = Index()
    for _ in range(3):
        for slot in range(400):
            index.add(slot, random_condition(random, 2))
        index.match(batch)
        for slot in range(400):
            index.remove(slot)
        rows, slots = index.match(batch)
        assert not len(rows)
        assert not len(slots)
    grown = index.nbytes
    for slot in range(400):
        index.add(slot, random_condition(random, 2))
        index.match(batch)
        index.remove(slot)
    assert index.nbytes <= grown, "churn must not grow the index"
