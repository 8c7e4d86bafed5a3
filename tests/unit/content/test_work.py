"""What a subscriber asks for may be expensive: how much that is, is bounded and counted."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice

import pytest

from gapless.content.condition import Condition
from gapless.content.cost import MATCHING_COST_MAX, matching_cost
from gapless.content.covering import forest as forest_module
from gapless.content.covering.cover import COVER_WORK_MAX, covers
from gapless.content.covering.forest import PLACE_WORK_MAX, Forest
from gapless.content.covering.verdict import Cover
from gapless.content.covering.work import UNBOUNDED, OutOfWorkError, Work
from gapless.content.domain import Domain
from gapless.content.language import WRITTEN_CHARACTERS_MAX, parse_condition
from gapless.content.size import written_size
from gapless.content.sql import tokens as sql_tokens
from gapless.content.sql.parse import SMALL_CHARACTERS
from gapless.content.sql.tokens import WRITTEN_TOKENS_MAX
from gapless.content.terms import ColumnTerm
from gapless.errors import ContentError
from tests.hostile.conditions import LISTS, REFUSED, SCHEMA, SHAPES, largest, worst


def read(text: str) -> Condition:
    return parse_condition(text, SCHEMA)


@pytest.mark.parametrize("what", REFUSED)
def test_conditions_that_froze_a_node_are_refused(what: str) -> None:
    with pytest.raises(ContentError) as caught:
        read(REFUSED[what])
    assert caught.value.code in ("E124", "E164", "E172")
    assert ": " in caught.value.message, "it says what to do"


@pytest.mark.parametrize("shape", LISTS)
def test_a_list_of_ten_thousand_values_is_one_set(shape: str) -> None:
    assert largest(shape) >= 9_000
    condition = read(SHAPES[shape](10_000, 0))
    (conjunction,) = condition.terms
    ((_, domain),) = conjunction.within.items()
    assert len(domain.intervals) in (10_000, 10_001)
    assert not conjunction.atoms
    assert matching_cost(condition) == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_accepted_can_be_written_and_read_by_another_broker(shape: str) -> None:
    condition = read(next(worst(shape)))
    assert parse_condition(str(condition), SCHEMA, is_written=True) == condition
    assert matching_cost(condition) <= MATCHING_COST_MAX


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("i0 = 1 OR i0 = 2 OR i0 = -3", "i0 IN (1, 2, -3)"),
        ("i0 = 1 or i0 = 2 OR i0 = 3 OR i1 = 4", "i0 IN (1, 2, 3) OR i1 = 4"),
        ("i1 = 4 AND i0 = 1 OR i0 = 2 OR i0 = 3", "(i1 = 4 AND i0 = 1) OR i0 IN (2, 3)"),
        ("i0 = 1 OR i0 = 2 OR i0 = 3 AND i1 = 4", "i0 IN (1, 2) OR (i0 = 3 AND i1 = 4)"),
        ("i0 = 1 OR i0 = 2 OR i0 = 3 OR i0 = 4 + 1", "i0 IN (1, 2, 3, 5)"),
        ("NOT (i0 = 1 OR i0 = 2 OR i0 = 3)", "i0 NOT IN (1, 2, 3)"),
        ("NOT i0 = 1 OR i0 = 2 OR i0 = 3", "i0 <> 1 OR i0 = 2 OR i0 = 3"),
        ("i1 - i0 = 1 OR i0 = 2 OR i0 = 3 OR i0 = 4", "i1 - i0 = 1 OR i0 IN (2, 3, 4)"),
        ("i0 <> 1 AND i0 <> 2 AND i0 != 3", "i0 NOT IN (1, 2, 3)"),
        ("i0 <> 1 AND i0 <> 2 AND i0 <> 3 OR i1 = 4", "i0 NOT IN (1, 2, 3) OR i1 = 4"),
        ("i1 = 4 AND i0 <> 1 AND i0 <> 2 AND i0 <> 3", "i1 = 4 AND i0 NOT IN (1, 2, 3)"),
        ("i1 BETWEEN 1 AND 5 AND i0 <> 2 AND i0 <> 3", "i1 >= 1 AND i1 <= 5 AND i0 NOT IN (2, 3)"),
        ("note = 'a' OR note = 'it''s' OR note = 'note = 3'", "note IN ('a', 'it''s', 'note = 3')"),
        ("(note = 'a' OR note = 'b' OR note = 'c') AND i0 = 1", "i0 = 1 AND note IN ('a', 'b', 'c')"),
        ("i0 = 1 OR i0 = 2.5 OR i0 = 3", "i0 IN (1, 3)"),
        ("price = 1 OR price = 2 OR price = 3", "price IN (1, 2, 3)"),
        ("price IN (1, 2, 3)", "price = 1e0 OR price = 2e0 OR price = 3e0"),
        ("cost * 2 IN (2, 4)", "cost * 2 = 2 OR cost * 2 = 4"),
        ("i0 IN (7, 7, 8)", "i0 BETWEEN 7 AND 8"),
        ("note IN ('a', 'a\0')", "note >= 'a' AND note < 'a\0\0'"),
    ],
)
def test_a_list_that_is_read_at_once_means_what_its_parts_mean(
    text: str, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_tokens, "CHAIN_CHARACTERS_MIN", 0)
    found = read(text)
    assert found == read(plain)
    monkeypatch.setattr(sql_tokens._Scanner, "_list", lambda _, at: at)
    monkeypatch.setattr(sql_tokens._Scanner, "_chain", lambda _, __, at: at)
    assert found == read(text) == read(plain), "read one by one"


def test_points_that_touch_are_one_interval() -> None:
    keys = [9, 3, 5, 4, 9]
    assert Domain.points_of("int", keys) == Domain.points("int", keys)
    assert Domain.points_of("string", ["a", "a\0", "b"]) == Domain.points("string", ["a\0", "b", "a"])
    assert Domain.points_of("int", []) == Domain.none("int")


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_takes_no_more_work_than_it_may(shape: str) -> None:
    first, second = map(read, islice(worst(shape), 2))
    for wide, narrow in ((first, second), (second, first), (first, first)):
        work = Work(COVER_WORK_MAX)
        assert covers(wide, narrow, work) in Cover
        # The last thing that is counted may take more than was left; it is a single pair of patterns.
        assert COVER_WORK_MAX - work.left <= 2 * COVER_WORK_MAX


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_of_a_forest_grows_with_the_number_of_its_conditions(shape: str) -> None:
    """Ten times as many cost ten times as much, not a hundred times; and one has a bound."""
    spent = []
    forest = Forest()
    for text in islice(worst(shape), 40):
        work = Work(UNBOUNDED)
        condition = read(text)
        forest.add(condition, work)
        spent.append(UNBOUNDED - work.left - forest_module._ENTRY_WORK * (1 + len(condition.terms)))
        assert spent[-1] <= 2 * PLACE_WORK_MAX
    assert sum(spent[20:]) <= 3 * sum(spent[:20]) + 40 * PLACE_WORK_MAX // 4


def conditions_below(count: int) -> Iterator[Condition]:
    yield from (read(f"i0 = {at} AND i1 > {at}") for at in range(count))


def test_a_wide_condition_takes_over_thousands_in_slices() -> None:
    forest = Forest()
    narrow = list(conditions_below(1_500))
    shown = {each for condition in narrow for each in forest.add(condition).maximal}
    wide = read("i0 >= 0")
    change, slices = forest.add(wide, Work(PLACE_WORK_MAX)), 0
    while True:
        assert not set(change.maximal) & shown
        assert set(change.covered) <= shown
        shown = (shown - set(change.covered)) | set(change.maximal)
        assert shown == set(forest.maximal)
        assert wide in shown
        if forest.is_settled:
            break
        slices += 1
        work = Work(PLACE_WORK_MAX)
        change = forest.settle(work)
        assert work.left > -3 * PLACE_WORK_MAX
    assert shown == {wide}
    assert slices > 3
    forest.check()


def test_a_condition_that_covered_thousands_is_shown_until_all_are() -> None:
    forest = Forest()
    wide = read("i0 >= 0")
    forest.add(wide)
    narrow = list(conditions_below(1_000))
    for condition in narrow:
        assert not forest.add(condition)
    shown, slices = {wide}, 0
    change = forest.remove(wide, Work(PLACE_WORK_MAX))
    while True:
        shown = (shown - set(change.covered)) | set(change.maximal)
        assert shown == set(forest.maximal)
        if forest.is_settled:
            break
        assert wide in shown, "it speaks for those that have no place yet"
        slices += 1
        change = forest.settle(Work(PLACE_WORK_MAX))
    assert shown == set(narrow)
    assert slices > 3
    assert len(forest) == len(narrow)


def test_a_condition_that_comes_back_while_it_leaves_stays() -> None:
    forest = Forest()
    wide, narrow = read("i0 >= 0"), list(conditions_below(10))
    for condition in (wide, *narrow):
        forest.add(condition)
    assert not forest.remove(wide, Work(0))
    assert not forest.is_settled
    assert not forest.add(wide, Work(0))
    assert forest.is_settled
    assert forest.maximal == [wide]
    forest.check()


def test_a_wider_condition_takes_over_from_one_that_leaves() -> None:
    forest = Forest()
    wide, wider, narrow = read("i0 >= 0"), read("i0 >= -1"), list(conditions_below(10))
    for condition in (wide, *narrow):
        forest.add(condition)
    forest.remove(wide, Work(0))
    change = forest.add(wider)
    assert (change.maximal, change.covered) == ((wider,), (wide,))
    assert forest.is_settled
    assert wide not in forest
    forest.check()


def test_without_work_every_condition_is_maximal_until_settled() -> None:
    forest = Forest()
    conditions = [read(f"i0 > {at}") for at in range(5)]
    for condition in conditions:
        forest.add(condition, Work(0))
    assert forest.maximal == conditions
    change = forest.settle(Work(UNBOUNDED))
    assert forest.maximal == [read("i0 > 0")]
    assert set(change.covered) == set(conditions[1:])
    forest.check()


def test_a_table_of_outlines_has_a_bounded_number_of_arrays() -> None:
    """Every subscriber may bring a calculation of its own."""
    forest = Forest()
    conditions = [read(f"i0 * {at + 2} > 3") for at in range(80)]
    for condition in conditions:
        forest.add(condition)
    assert len(forest._roots._all._lows) == 64
    # What has no arrays is found all the same, among few.
    assert not forest.add(read("i0 * 75 > 4 AND i1 = 3"))
    for condition in conditions:
        forest.remove(condition)
    assert list(forest._roots._all._lows) == [ColumnTerm("i1", "int", nullable=False)]
    forest.check()


def test_there_is_no_work_beyond_the_bound() -> None:
    work = Work(2)
    work.spend(2)
    assert work.is_done
    with pytest.raises(OutOfWorkError):
        work.spend(1)
    assert covers(read("i0 > 1"), read("i0 > 2"), Work(0)) is Cover.UNKNOWN


def test_the_cost_of_matching_counts_what_no_index_finds() -> None:
    assert matching_cost(read("i0 = 1 AND note LIKE 'a%' AND price > 3")) == 0
    assert matching_cost(read("note LIKE '%a%'")) == matching_cost(
        read("(i0 = 1 OR i1 = 2) AND note LIKE '%a%'")
    ), "what occurs twice is evaluated once"
    assert matching_cost(read("/a/b[c]")) < matching_cost(read("NOT XPATH(doc, '/a/b[c]')"))
    assert matching_cost(read("i0 + i1 + i2 > 3")) == 2 * matching_cost(read("i0 + i1 > 3"))


#: Every shape, little work, and a line for each change with what is left of it.
_HISTORY = """
from gapless.content.covering.forest import Forest
from gapless.content.language import parse_condition
from gapless.content.covering.work import Work
from tests.hostile.conditions import SCHEMA, SHAPES
forest = Forest()
for shape in SHAPES.values():
    for other in range(6):
        work = Work(400)
        change = forest.add(parse_condition(shape(5, other % 4), SCHEMA), work)
        print(work.left, *change.maximal, *change.covered)
while not forest.is_settled:
    work = Work(400)
    change = forest.settle(work)
    print(work.left, *change.maximal, *change.covered)
"""


def test_work_is_counted_identically_in_every_process() -> None:
    """Sets have another order in each: nothing that is counted may follow it."""
    histories = {
        subprocess.run(
            [sys.executable, "-c", _HISTORY],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(histories) == 1
    assert histories.pop().count("\n") > 50


@pytest.mark.parametrize(
    "part",
    ["i0 < i1", "i0 + i1 < i2", "-i0 - -i1 < 1", "note LIKE '%a'", "NOT XPATH(doc, '//*/a')", "i0 <> 1"],
)
def test_a_small_text_that_is_not_measured_is_within_all_limits(part: str) -> None:
    for word in (" AND ", " OR "):
        condition = read(word.join([part] * (SMALL_CHARACTERS // (len(part) + len(word)))))
        words, characters = written_size(condition)
        assert words <= WRITTEN_TOKENS_MAX
        assert characters <= WRITTEN_CHARACTERS_MAX
        assert matching_cost(condition) <= MATCHING_COST_MAX
    longest = "i0" + "+i1" * (SMALL_CHARACTERS // 3 - 20)
    assert matching_cost(read(longest[: 2 + 3 * 45] + "<0")) <= MATCHING_COST_MAX
