"""Covering: never a wrong YES, and among conjunctions of comparisons never a missed one."""

from itertools import product
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.condition import NOTHING, Condition
from gapless.content.covering import forest as forest_module
from gapless.content.covering.cover import covers, surely_covers
from gapless.content.covering.forest import Forest
from gapless.content.covering.verdict import Cover
from gapless.content.covering.work import UNBOUNDED, Work
from gapless.content.domain import Domain
from gapless.content.evaluate import mask
from gapless.content.language import parse_condition
from gapless.content.normal import both, within
from gapless.content.rows import Rows
from gapless.content.terms import ColumnTerm
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from tests.properties.drawn import random_condition, random_rows


@pytest.mark.parametrize("seed", range(40))
def test_covered_events_are_accepted(seed: int) -> None:
    """Every event that the covered one accepts is accepted by the one that covers it."""
    random = Random(seed)
    columns = "".join(random.sample("ijfsubdtx", 3))
    conditions = [random_condition(random, random.choice([0, 1, 2]), columns) for _ in range(30)]
    rows = Rows(random_rows(random, 300))
    masks = [mask(condition, rows) for condition in conditions]
    for (wide, accepted), (narrow, wanted) in product(zip(conditions, masks, strict=True), repeat=2):
        if covers(wide, narrow) is Cover.YES:
            assert not np.any(wanted & ~accepted), f"seed {seed}: {wide} covers {narrow}"


@pytest.mark.parametrize("seed", range(10))
def test_less_work_only_turns_answers_into_unknown(seed: int) -> None:
    """What is answered with little work is what is answered with much, or UNKNOWN."""
    random = Random(seed)
    columns = "".join(random.sample("ijfsubdtx", 3))
    conditions = [random_condition(random, random.choice([1, 2, 3]), columns) for _ in range(15)]
    for wide, narrow in product(conditions, repeat=2):
        sure = covers(wide, narrow, Work(UNBOUNDED))
        for units in (0, 1, 2, 3, 5, 8, 20, 100):
            answer = covers(wide, narrow, Work(units))
            assert answer in (sure, Cover.UNKNOWN), f"seed {seed}: {wide} / {narrow} with {units}"
            assert surely_covers(wide, narrow, Work(units)) == (answer is Cover.YES)


#: Every value that a small integer column, a boolean and a text can have in the brute-force check.
SMALL = {"n": [None, -1, 0, 1, 2, 3], "b": [None, False, True], "s": [None, "", "a", "a\0", "ab", "b"]}
TYPES = {"n": pa.int64(), "b": pa.bool_(), "s": pa.string()}
SMALL_COLUMNS = [ColumnTerm("n", "int"), ColumnTerm("b", "bool"), ColumnTerm("s", "string")]
EVENTS = list(product(*SMALL.values()))


def small_domain(random: Random, column: ColumnTerm) -> Domain:
    """A set whose ends are such that the small values tell any two of them apart."""
    match column.name:
        case "n":
            ends = [None, 0, 1, 2, 3]
        case "b":
            ends = [None, 1]
        case _:
            ends = [None, "a", "a\0", "ab", "b"]
    spans = [(random.choice(ends), random.choice(ends)) for _ in range(random.randint(1, 2))]
    return Domain.of(column.kind, spans, null=random.random() < 0.3)


@pytest.mark.parametrize("seed", range(10))
def test_no_covering_pair_of_conjunctions_is_missed(seed: int) -> None:
    """All events of a small world are tried: who accepts all that the other accepts, covers it."""
    random = Random(seed)
    columns = dict(zip(SMALL, zip(*EVENTS, strict=True), strict=True))
    rows = Rows(pa.record_batch({name: pa.array(column, TYPES[name]) for name, column in columns.items()}))
    conditions: list[Condition] = []
    for _ in range(60):
        restricted = random.sample(SMALL_COLUMNS, random.randint(0, 3))
        conditions.append(both([within(column, small_domain(random, column)) for column in restricted]))
    masks = [mask(condition, rows) for condition in conditions]
    for (wide, accepted), (narrow, wanted) in product(zip(conditions, masks, strict=True), repeat=2):
        missing = bool(np.any(wanted & ~accepted))
        assert covers(wide, narrow) is (Cover.NO if missing else Cover.YES), f"seed {seed}: {wide} / {narrow}"
        if not missing and not np.any(accepted & ~wanted):
            assert wide == narrow, "equal subscriptions have one identity"


@pytest.mark.parametrize("asked", ["all", "few"])
@pytest.mark.parametrize("seed", range(25))
def test_a_forest_knows_the_maximal_subscriptions(
    seed: int, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the plain definition, and its changes against the difference of two such sets.

    A forest that gives up early may show too many, and still shows one that covers each.
    """
    monkeypatch.setattr(forest_module, "MISSES_MAX", 10**9 if asked == "all" else 3)
    random = Random(seed)
    forest = Forest()
    present: list[Condition] = []
    shown: set[Condition] = set()
    columns = "".join(random.sample("ibsfx", 2))
    for _ in range(80):
        if present and random.random() < 0.4:
            gone = present.pop(random.randrange(len(present)))
            change = forest.remove(gone)
        else:
            present.append(random_condition(random, random.choice([0, 1, 1, 2]), columns))
            change = forest.add(present[-1])
        assert not set(change.maximal) & shown
        assert set(change.covered) <= shown
        shown = (shown - set(change.covered)) | set(change.maximal)
        assert shown == set(forest.maximal)
        for each in set(present):
            covering = [other for other in shown if covers(other, each) is Cover.YES]
            assert covering, f"seed {seed}: {each} is not covered by any maximal one"
            if each in shown and asked == "all":
                assert covering == [each], f"seed {seed}: {each} is not maximal"
    if asked == "all":
        forest.check()
    assert len(forest) == len(set(present))


@pytest.mark.parametrize("seed", range(25))
def test_a_forest_without_enough_work_is_never_too_small(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever work is left for each change, and whoever goes on when: all that is wanted is shown."""
    random = Random(seed)
    monkeypatch.setattr(forest_module, "MISSES_MAX", 10**9)
    monkeypatch.setattr(forest_module, "PLACE_WORK_MAX", random.choice([30, 100, 4_000]))
    forest = Forest()
    present: list[Condition] = []
    shown: set[Condition] = set()
    columns = "".join(random.sample("ibsfx", 2))
    for _ in range(100):
        work = Work(random.choice([0, 0, 5, 50, 500]))
        act = random.random()
        if present and act < 0.35:
            change = forest.remove(present.pop(random.randrange(len(present))), work)
        elif act < 0.5:
            change = forest.settle(work)
        else:
            present.append(random_condition(random, random.choice([0, 1, 1, 2]), columns))
            change = forest.add(present[-1], work)
        assert not set(change.maximal) & shown
        assert set(change.covered) <= shown
        shown = (shown - set(change.covered)) | set(change.maximal)
        assert shown == set(forest.maximal)
        for each in set(present):
            assert any(surely_covers(other, each, Work(UNBOUNDED)) for other in shown), f"seed {seed}: {each}"
    for _ in range(10_000):
        if forest.is_settled:
            break
        forest.settle(Work(50))
    assert forest.is_settled
    assert len(forest) == len(set(present))
    assert set(forest.maximal) <= set(present), f"seed {seed}: what nobody wants is not shown for ever"


@pytest.mark.parametrize(
    "text",
    [
        "s = 'abc' AND s LIKE 'x%b'",
        "s IS NULL AND s LIKE '_%'",
        "s LIKE 'ab_%' AND s LIKE 'x_%' AND n < 3",
        "n IS NULL AND n < m",
        "s >= 'b' AND s LIKE 'a%c'",
        "x IS NULL AND NOT XPATH(x, '/a')",
    ],
)
def test_a_conjunction_that_leaves_a_column_no_value_is_nothing(text: str) -> None:
    assert parse_condition(text, IMPOSSIBLE) == NOTHING


IMPOSSIBLE = Schema.parse(TopicId("t"), {"n": "int?", "m": "int?", "s": "string?", "x": "xml?"})


def test_a_forest_forgets_unused_calculations() -> None:
    forest = Forest()
    forest.add(parse_condition("n > 3", IMPOSSIBLE))
    for factor in range(2, 50):
        condition = parse_condition(f"n * {factor} = 8 AND m > 2", IMPOSSIBLE)
        forest.add(condition)
        forest.remove(condition)
    assert list(forest._roots._all._lows) == [ColumnTerm("n", "int")]
    forest.check()
