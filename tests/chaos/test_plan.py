"""A seed decides which faults strike whom and when, and a run of some length has all kinds."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa

from gapless.content.evaluate import mask
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from tests.chaos.plan import KINDS, MEASURED, plan
from tests.chaos.wishes import decode, encode, some_condition, some_row, text_of

TARGETS = {kind: (f"{kind} 1", f"{kind} 2") for kind in KINDS}


def test_a_seed_decides_everything() -> None:
    assert plan(5, 60, TARGETS) == plan(5, 60, TARGETS)
    assert plan(5, 60, TARGETS) != plan(6, 60, TARGETS)


def test_there_are_as_many_faults_as_asked_for_and_of_every_kind() -> None:
    blows = [blow for blows in plan(5, 200, TARGETS) for blow in blows]
    assert [blow.number for blow in blows] == list(range(200))
    assert {blow.kind for blow in blows} == {*KINDS, MEASURED}


def test_a_round_begins_with_a_death_that_nothing_disturbs() -> None:
    for blows in plan(5, 200, TARGETS):
        assert blows[0].kind == MEASURED
        assert all(blow.at_s > blows[0].for_s for blow in blows[1:])


def test_one_target_is_struck_by_one_fault_at_a_time() -> None:
    for blows in plan(5, 200, TARGETS):
        for target in {blow.target for blow in blows}:
            ordered = sorted((b.at_s, b.at_s + b.for_s) for b in blows if b.target == target)
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(ordered))


def test_a_kind_without_targets_never_strikes() -> None:
    blows = [blow for blows in plan(5, 200, {**TARGETS, "disk full": ()}) for blow in blows]
    assert "disk full" not in {blow.kind for blow in blows}


def test_the_nodes_read_what_the_judge_decides_by() -> None:
    """Both languages, both ways: the text that a node gets is a condition, and means the same."""
    schemas = {
        "trades": {"id": "int", "sym": "string", "price": "float", "size": "int?"},
        "news": {"id": "int", "doc": "xml"},
    }
    chance = random.Random(3)
    for topic, columns in schemas.items():
        schema = Schema.parse(TopicId(topic), columns)
        rows = [some_row(topic, number, chance) for number in range(200)]
        told = Rows(schema.checked(pa.RecordBatch.from_pylist(rows)))
        for _ in range(60):
            wants = some_condition(topic, chance)
            assert decode(encode(wants)) == wants
            expected = [wants.accepts(row) for row in rows]
            assert mask(parse_condition(text_of(wants), schema), told).tolist() == expected, text_of(wants)
