"""The index finds, under any changes, just the pairs that evaluating each condition alone finds."""

import tracemalloc
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.evaluate import mask
from gapless.content.index.index import SLOTS_MAX, Index
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from tests.properties.drawn import random_condition, random_rows


def expected(conditions: dict[int, Condition], rows: Rows) -> list[tuple[int, int]]:
    return sorted(
        (row, slot)
        for slot, condition in conditions.items()
        for row in np.flatnonzero(mask(condition, rows)).tolist()
    )


def in_parts(index: Index, batch: pa.RecordBatch, pairs_max: int) -> list[tuple[int, int]]:
    """All pairs, found with a bound for each call."""
    pairs: list[tuple[int, int]] = []
    start = 0
    while start < len(batch):
        (rows, slots), done = index.match_first(Rows(batch.slice(start)), pairs_max)
        assert done >= 1
        assert len(rows) <= pairs_max or len(np.unique(rows)) == 1, "no more than that, or one row"
        pairs += zip((rows + start).tolist(), slots.tolist(), strict=True)
        start += done
    return pairs


@pytest.mark.parametrize("seed", range(60))
def test_an_index_agrees_with_evaluating_each_condition(seed: int) -> None:
    random = Random(seed)
    batch = random_rows(random, random.choice([1, 7, 60]))
    if random.random() < 0.3:
        batch = batch.slice(1)  # Arrow arrays that do not begin where their memory does
    rows = Rows(batch)
    index = Index(few_max=random.choice([0, 0, 6]))
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
            assert in_parts(index, batch, random.choice([1, 5, 100])) == pairs, f"seed {seed}"


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


def test_churn_leaks_no_calculations() -> None:
    batch = pa.record_batch({"i": [7, 14], "s": ["a", "b"]})
    schema = Schema.parse(TopicId("t"), {"i": "int", "s": "string"})
    index = Index()
    for factor in range(2, 40):
        index.add(1, parse_condition(f"i * {factor} = 14 AND i * {factor} + 1 <> 3", schema))
        index.match(batch)
        index.add(1, parse_condition(f"i + {factor} <> 3 AND s NOT IN ('b') AND s LIKE 'a%'", schema))
        assert index.match(batch)[0].tolist() == [0]
    index.remove(1)
    assert not len(index.match(batch)[0])
    assert not index._ways
    assert not index._identities


def test_an_index_agrees_in_batches_of_every_size() -> None:
    """More than 64 rows are looked up all at once, more than 256 are verified on a part of them."""
    random = Random(11)
    living = {slot: random_condition(random, random.choice([0, 1, 2])) for slot in range(120)}
    index = Index()
    for slot, condition in living.items():
        index.add(slot, condition)
    for count in (64, 65, 257, 1_000):
        batch = random_rows(random, count + 1).slice(1)
        found = list(zip(*(pair.tolist() for pair in index.match(batch)), strict=True))
        assert found == expected(living, Rows(batch)), f"{count} rows"


@pytest.mark.parametrize("slot", [-1, SLOTS_MAX])
def test_a_slot_that_cannot_be_sorted_beside_a_row_is_refused(slot: int) -> None:
    with pytest.raises(AssertionError, match=r"is not in 0\.\."):
        Index().add(slot, EVERYTHING)


def test_the_greatest_slot_is_found_like_any_other() -> None:
    batch = random_rows(Random(1), 300)
    index = Index()
    index.add(SLOTS_MAX - 1, EVERYTHING)
    index.add(0, EVERYTHING)
    rows, slots = index.match(batch)
    assert rows.tolist() == [row for row in range(300) for _ in range(2)]
    assert slots.tolist() == [0, SLOTS_MAX - 1] * 300


@pytest.mark.parametrize(
    "condition", ["", "number >= 0", "number = 1", "number <> -1", "number + 0 >= 0", "XPATH(doc, '/a')"]
)
def test_a_bounded_match_makes_no_larger_arrays_than_it_needs(condition: str) -> None:
    """Thousands of rows that nobody wants come before those that everybody wants."""
    schema = Schema.parse(TopicId("evil"), {"number": "int", "doc": "xml?"})
    index = Index(few_max=4)
    for slot in range(2_000):
        index.add(slot, parse_condition(condition, schema))
    wanted, unwanted = (1, b"<a/>"), (-1, b"<b/>")
    count = 200 if "XPATH" in condition else 4_000
    rows = [unwanted] * count + [wanted] * count
    batch = pa.record_batch({"number": [row[0] for row in rows], "doc": [row[1] for row in rows]})
    start = pairs = 0
    while start < len(batch):
        tracemalloc.start()
        (row, _), done = index.match_first(Rows(batch.slice(start)), 20_000)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(row) <= 20_000
        assert peak < 32 * 2**20, f"{peak} bytes at row {start}"
        pairs, start = pairs + len(row), start + done
        if pairs > 100_000:
            break
