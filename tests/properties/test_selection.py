"""Comparisons are exact, alone and together: a condition, a selection and an index against plain Python."""

import math
from collections.abc import Callable
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.content.condition import EVERYTHING, NOTHING, Condition
from gapless.content.evaluate import mask
from gapless.content.index.index import Index
from gapless.content.rows import Rows
from gapless.content.selection import EVALUATED_MAX, Selection
from gapless.model.batch import EventBatch
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from tests.conditions import where

Value = int | float | str | Decimal | bool | None

COLUMNS = {"int": "int?", "float": "float?", "decimal": "decimal?", "text": "string?", "bool": "bool?"}
ARROW = Schema.parse(TopicId("trades"), COLUMNS).arrow()

#: Neighbours that floats cannot tell apart, the ends of int64, and small numbers that often meet.
INTEGERS = [0, 1, 2, -1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1, 2**63 - 1, -(2**63), -(2**63) + 1]
FLOATS = [0.0, -0.0, 1.0, 0.5, 2.0**53, 2.0**53 + 2, -(2.0**63), 1e300, math.inf, -math.inf, math.nan]
DECIMALS = ["0", "1", "0.5", "9007199254740993", "9223372036854775807", "-9223372036.854775808", "1e28"]
TEXTS = ["", "a", "b", "ab", "1", "nan"]
VALUES: dict[str, list[Value]] = {
    "int": [None, *INTEGERS],
    "float": [None, *FLOATS],
    "decimal": [None, *map(Decimal, DECIMALS)],
    "text": [None, *TEXTS],
    "bool": [None, True, False],
}
#: Numbers as they are written: also fractions, and such as no column holds.
NUMBERS = [*map(str, INTEGERS), "0.5", "5e-1", "0.25", "-0.0", "1e300", "-1e300", "9007199254740993.0"]
NUMBERS += [str(2**63), str(-(2**63) - 1), str(2**70), str(10**60), "9223372036.854775807", "1e28"]
WANTED = {
    **dict.fromkeys(("int", "float", "decimal"), NUMBERS),
    "text": [f"'{text}'" for text in TEXTS],
    "bool": ["TRUE", "FALSE"],
}

COMPARED: dict[str, Callable[[bool, bool], bool]] = {
    # Of a value: whether it is below the wanted one, and whether it is equal to it.
    "=": lambda below, equal: equal,
    "<>": lambda below, equal: not equal,
    "<": lambda below, equal: below,
    "<=": lambda below, equal: below or equal,
    ">": lambda below, equal: not below and not equal,
    ">=": lambda below, equal: not below,
}

Asked = tuple[str, str, str]
rows = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})
batches = st.lists(rows, max_size=6)
asked = st.sampled_from(sorted(COLUMNS)).flatmap(
    lambda column: st.tuples(
        st.just(column),
        st.sampled_from(["=", "<>"] if column == "bool" else sorted(COMPARED)),
        st.sampled_from(WANTED[column]),
    )
)
#: Every value of every column at least once, and a null in each.
FULL: list[dict[str, Value]] = [
    {name: values[at % len(values)] for name, values in VALUES.items()}
    for at in range(max(len(values) for values in VALUES.values()))
]


def accepts(question: Asked, row: dict[str, Value]) -> bool:
    """The opinion of plain Python: exact numbers, NaN equal to itself and above all others."""
    column, operator, wanted = question
    value = row[column]
    if value is None:
        return False
    if isinstance(value, str):
        other: object = wanted[1:-1]
    elif isinstance(value, bool):
        other = wanted == "TRUE"
    elif isinstance(value, float):
        other = float(wanted)  # a float column takes the nearest float
    else:
        other = Decimal(wanted)
    if isinstance(value, float) and math.isnan(value):
        return COMPARED[operator](False, False)
    return COMPARED[operator](value < other, value == other)  # type: ignore[operator]


def condition_of(question: Asked) -> Condition:
    return where(" ".join(question), **COLUMNS)


def batch_of(twin: list[dict[str, Value]]) -> EventBatch:
    return EventBatch(np.arange(len(twin), dtype=np.int64), pa.RecordBatch.from_pylist(twin, schema=ARROW))


def found_by_index(conditions: list[Condition], batch: EventBatch) -> list[tuple[int, int]]:
    index = Index()
    for slot, condition in enumerate(conditions):
        index.add(slot, condition)
    found, slots = index.match(batch.derived(Rows))
    assert found.dtype == slots.dtype == np.int64
    return list(zip(found.tolist(), slots.tolist(), strict=True))


@pytest.mark.parametrize("column", COLUMNS)
def test_every_value_is_compared_exactly_with_every_wanted_one(column: str) -> None:
    operators = ["=", "<>"] if column == "bool" else list(COMPARED)
    questions = [(column, operator, wanted) for operator, wanted in product(operators, WANTED[column])]
    conditions = [condition_of(question) for question in questions]
    # Few rows are looked up one by one, many at once.
    for twin in (FULL, [row for row in FULL if row[column] is not None], FULL * 8):
        batch = batch_of(twin)
        for question, condition in zip(questions, conditions, strict=True):
            expected = [accepts(question, row) for row in twin]
            assert mask(condition, batch.derived(Rows)).tolist() == expected, question
        assert found_by_index(conditions, batch) == [
            (at, slot)
            for at, row in enumerate(twin)
            for slot, question in enumerate(questions)
            if accepts(question, row)
        ]


@given(batches, st.lists(asked, max_size=2 * EVALUATED_MAX))
def test_a_selection_accepts_what_any_of_its_conditions_accepts(twin, questions: list[Asked]) -> None:
    found = Selection(map(condition_of, questions)).mask(batch_of(twin))
    assert found.dtype == np.bool_
    assert found.tolist() == [any(accepts(each, row) for each in questions) for row in twin]


#: What comes and goes: a question of a short list, so that it often comes twice, and whether it goes.
changes = st.lists(asked, min_size=1, max_size=8).flatmap(
    lambda questions: st.lists(st.tuples(st.sampled_from(questions), st.booleans()), max_size=40)
)


@given(batches, changes)
def test_a_changed_selection_equals_a_new_one(twin, changed) -> None:
    selection, there = Selection(), list[Asked]()
    batch = batch_of(twin)
    for question, goes in changed:
        if goes and question in there:
            there.remove(question)
            selection.remove(condition_of(question))
        else:
            there.append(question)
            selection.add(condition_of(question))
        assert selection.mask(batch).tolist() == [any(accepts(each, row) for each in there) for row in twin]
    assert selection == Selection(map(condition_of, there))


@given(batches, st.lists(asked, min_size=1, max_size=2 * EVALUATED_MAX))
def test_whether_a_row_is_accepted_does_not_depend_on_its_neighbours(twin, questions: list[Asked]) -> None:
    selection = Selection(map(condition_of, questions))
    batch = batch_of(twin)
    alone = [bool(selection.mask(piece)[0]) for piece in batch.pieces(1)]
    assert selection.mask(batch).tolist() == alone


@given(batches, st.lists(asked, max_size=8), st.integers(0, 8))
def test_matching_does_not_change_the_batch(twin, questions: list[Asked], start: int) -> None:
    batch = batch_of(twin).slice(start, len(twin))
    before = str(batch.columns.to_pylist())
    conditions = [condition_of(question) for question in questions]
    Selection(conditions).mask(batch)
    found_by_index(conditions, batch)
    assert str(batch.columns.to_pylist()) == before


def ints(*values: int | None) -> EventBatch:
    return EventBatch(
        np.arange(len(values), dtype=np.int64),
        pa.RecordBatch.from_pydict({"n": values}, schema=pa.schema([("n", pa.int64())])),
    )


def test_a_null_does_not_round_large_integers() -> None:
    batch = ints(2**53, 2**53 + 1, None)
    for text in (f"n = {2**53 + 1}", f"n > {2**53} AND n < {2**53 + 2}"):
        assert Selection([where(text, n="int?")]).mask(batch).tolist() == [False, True, False]


def test_the_fraction_that_one_subscriber_asks_for_does_not_blur_the_integers_of_another() -> None:
    conditions = [where(f"n = {2**53 + 1}", n="int?"), where("n > 0.5 AND n < 1.5", n="int?")]
    assert found_by_index(conditions, ints(2**53, 2**53 + 1, 1)) == [(1, 0), (2, 1)]


def test_the_least_integer_is_not_taken_for_null() -> None:
    least = -(2**63)
    for text, expected in ((f"n = {least}", [False, True]), ("n IS NULL", [True, False])):
        condition = where(text, n="int?")
        assert Selection([condition]).mask(ints(None, least)).tolist() == expected
        assert found_by_index([condition], ints(None, least)) == [(expected.index(True), 0)]


def test_zero_in_the_place_of_a_null_is_not_found() -> None:
    batch = ints(None, 0)
    for text in ("n = 0 OR n = 5", "n BETWEEN -1 AND 1"):
        assert Selection([where(text, n="int?")]).mask(batch).tolist() == [False, True]
        assert found_by_index([where(text, n="int?")], batch) == [(1, 0)]


def test_nan_is_above_all_numbers() -> None:
    batch = EventBatch.of([0, 1, 2], {"x": [math.nan, math.inf, 1.0]})
    for text, expected in (("x > 1e308", [0, 1]), ("x <= 1e308", [2]), ("x <> 1", [0, 1])):
        found = Selection([where(text, x="float")]).mask(batch)
        assert np.flatnonzero(found).tolist() == expected, text


def test_an_index_without_slots_and_a_selection_without_conditions_find_nothing() -> None:
    assert found_by_index([], ints(1, 2)) == []
    assert not Selection()
    assert Selection().mask(ints(1, 2)).tolist() == [False, False]
    assert str(Selection()) == "nothing"
    assert Selection([NOTHING]).mask(ints(1, 2)).tolist() == [False, False]


def test_a_selection_with_everything_accepts_everything() -> None:
    selection = Selection([where("n = 1", n="int"), EVERYTHING])
    assert selection.mask(ints(1, 2, None)).tolist() == [True, True, True]


@pytest.mark.parametrize("text", ["price = 1", "price > 1", "price < 1 OR price > 5"])
def test_a_column_that_is_not_there_is_an_error_alone_and_together(text: str) -> None:
    condition = where(text)
    with pytest.raises(KeyError, match="price"):
        Selection([condition]).mask(ints(1))
    with pytest.raises(KeyError, match="price"):
        found_by_index([condition], ints(1))


def test_selections_of_the_same_conditions_are_equal() -> None:
    first, second = where("n = 1", n="int"), where("s = 'a'", s="string")
    one, other = Selection([first, second, where("n >= 1 AND n < 2", n="int")]), Selection([second, first])
    assert one == other
    assert one != Selection([first])
    assert one != first
    assert one
    assert str(one) == "n = 1 OR s = 'a'"
