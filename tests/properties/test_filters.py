"""FilterSet and Matcher against each condition on each row in plain Python."""

import math
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gapless.content.filters import NOTHING, Between, Equals, Everything, Filter, FilterSet, Matcher
from gapless.model.batch import EventBatch

Value = int | float | str | Decimal | None

COLUMNS = pa.schema(
    [
        ("int", pa.int64()),
        ("float", pa.float64()),
        ("text", pa.string()),
        ("bool", pa.bool_()),
        ("decimal", pa.decimal128(38, 9)),
        ("time", pa.timestamp("us", tz="UTC")),
    ]
)
#: Neighbours that floats cannot tell apart, the ends of int64, and small numbers that often meet.
INTEGERS = [0, 1, 2, -1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, 0.5, 2.0**53, 2.0**53 + 2, -(2.0**63), 1e300, math.inf, -math.inf, math.nan]
TEXTS = ["", "a", "b", "1", "nan"]
DECIMALS = [Decimal(0), Decimal(1), Decimal("0.5"), Decimal(2**53 + 1)]
#: Beyond every column, and beyond every float.
HUGE = [2**63, -(2**63) - 1, 2**70, 10**400, -(10**400)]

#: What each column may hold.
VALUES: dict[str, list[Value]] = {
    "int": [None, *INTEGERS],
    "float": [None, *FLOATS],
    "text": [None, *TEXTS],
    "bool": [None, True, False],
    "decimal": [None, *DECIMALS],
    "time": [None, 0],
}

rows = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})
batches = st.lists(rows, max_size=6)
columns = st.sampled_from(COLUMNS.names)
numbers = st.sampled_from([*INTEGERS, *FLOATS, *HUGE, True, False])
equals = st.builds(Equals, columns, numbers | st.sampled_from(TEXTS))
simple_conditions = st.one_of(
    equals, equals, st.builds(Between, columns, numbers, numbers), st.just(Everything())
)
conditions = st.one_of(simple_conditions, st.lists(simple_conditions, max_size=3).map(FilterSet))


def batch_of(twin: list[dict[str, Value]]) -> EventBatch:
    made = pa.RecordBatch.from_pylist(twin, schema=COLUMNS)
    return EventBatch(np.arange(len(twin), dtype=np.int64), made)


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def accepts(condition: Filter, row: dict[str, Value]) -> bool:
    match condition:
        case Everything():
            return True
        case FilterSet():
            return any(accepts(each, row) for each in condition.filters)
        case Equals(column=column, value=wanted):
            value = row[column]
            if value is None or column == "time" or isinstance(value, str) != isinstance(wanted, str):
                return False
            return value == wanted
        case Between(column=column, low=low, high=high):
            value = row[column]
            if value is None or column == "time" or isinstance(value, str) or is_nan(low) or is_nan(high):
                return False
            return low <= value < high
    raise AssertionError(condition)


@given(batches, conditions)
def test_a_mask_marks_the_rows_that_the_condition_accepts(twin, condition: Filter) -> None:
    mask = condition.mask(batch_of(twin))
    assert mask.dtype == np.bool_
    assert mask.tolist() == [accepts(condition, row) for row in twin]


#: Every value of every column at least once, and a null in each.
FULL: list[dict[str, Value]] = [
    {name: values[at % len(values)] for name, values in VALUES.items()}
    for at in range(max(len(values) for values in VALUES.values()))
]
BOUNDS = [*INTEGERS, *FLOATS, *HUGE]


@pytest.mark.parametrize("column", COLUMNS.names)
def test_every_value_is_compared_exactly_with_every_wanted_one(column: str) -> None:
    batch = batch_of(FULL)
    without_nulls = [row for row in FULL if row[column] is not None]
    for wanted in [*BOUNDS, *TEXTS, True, False]:
        condition = Equals(column, wanted)
        expected = [accepts(condition, row) for row in FULL]
        assert condition.mask(batch).tolist() == expected, condition
        assert FilterSet([condition, Equals(column, 0.25)]).mask(batch).tolist() == expected, condition
        assert condition.mask(batch_of(without_nulls)).tolist() == [
            accepts(condition, row) for row in without_nulls
        ], condition


@pytest.mark.parametrize("column", COLUMNS.names)
def test_every_value_is_compared_exactly_with_every_two_bounds(column: str) -> None:
    batch = batch_of(FULL)
    for low, high in product(BOUNDS, repeat=2):
        condition = Between(column, low, high)
        assert condition.mask(batch).tolist() == [accepts(condition, row) for row in FULL], condition


@given(batches, st.lists(simple_conditions, max_size=8))
def test_a_set_accepts_what_any_of_its_filters_accepts(twin, several: list[Filter]) -> None:
    mask = FilterSet(several).mask(batch_of(twin))
    assert mask.dtype == np.bool_
    assert mask.tolist() == [any(accepts(each, row) for each in several) for row in twin]


@given(batches, conditions)
def test_whether_a_row_is_accepted_does_not_depend_on_its_neighbours(twin, condition: Filter) -> None:
    batch = batch_of(twin)
    alone = [bool(condition.mask(piece)[0]) for piece in batch.pieces(1)]
    assert condition.mask(batch).tolist() == alone


@given(batches, st.lists(conditions, max_size=8), st.integers(0, 8))
def test_a_filter_does_not_change_the_batch(twin, several: list[Filter], start: int) -> None:
    batch = batch_of(twin).slice(start, len(twin))
    before = pa.RecordBatch.from_pylist(batch.columns.to_pylist(), schema=COLUMNS)
    for each in several:
        each.mask(batch)
    assert str(batch.columns.to_pylist()) == str(before.to_pylist())


class MatcherTwins(RuleBasedStateMachine):
    """The same changes to a matcher and to a dictionary from slot to condition."""

    def __init__(self) -> None:
        super().__init__()
        self.matcher = Matcher()
        self.twin: dict[int, Filter] = {}

    @rule(slot=st.integers(0, 9), condition=conditions)
    def add(self, slot: int, condition: Filter) -> None:
        self.matcher.add(slot, condition)
        self.twin[slot] = condition

    @rule(slot=st.integers(0, 9))
    def remove(self, slot: int) -> None:
        self.matcher.remove(slot)
        self.twin.pop(slot, None)

    @rule(twin=batches)
    def match(self, twin: list[dict[str, Value]]) -> None:
        found_rows, found_slots = self.matcher.match(batch_of(twin))
        assert found_rows.dtype == found_slots.dtype == np.int64
        assert list(zip(found_rows.tolist(), found_slots.tolist(), strict=True)) == [
            (at, slot)
            for at, row in enumerate(twin)
            for slot, condition in sorted(self.twin.items())
            if accepts(condition, row)
        ]
        assert len(self.matcher) == len(self.twin)


TestMatcherTwins = MatcherTwins.TestCase
TestMatcherTwins.settings = settings(stateful_step_count=20)


def ints(*values: int | None) -> EventBatch:
    return EventBatch(
        np.arange(len(values), dtype=np.int64),
        pa.RecordBatch.from_pydict({"n": values}, schema=pa.schema([("n", pa.int64())])),
    )


def test_a_null_beside_them_does_not_blur_large_integers() -> None:
    batch = ints(2**53, 2**53 + 1, None)
    assert Equals("n", 2**53 + 1).mask(batch).tolist() == [False, True, False]
    assert FilterSet([Equals("n", 2**53 + 1)]).mask(batch).tolist() == [False, True, False]
    assert Between("n", 2**53 + 1, 2**53 + 2).mask(batch).tolist() == [False, True, False]


def test_the_fraction_that_one_subscriber_asks_for_does_not_blur_the_integers_of_another() -> None:
    matcher = Matcher()
    matcher.add(0, Equals("n", 2**53 + 1))
    matcher.add(1, Equals("n", 0.5))
    found_rows, found_slots = matcher.match(ints(2**53, 2**53 + 1))
    assert (found_rows.tolist(), found_slots.tolist()) == ([1], [0])


def test_a_subscriber_that_asks_for_nan_gets_nothing_and_disturbs_nobody() -> None:
    matcher = Matcher()
    for slot, value in enumerate([3, math.nan, 1, math.nan, 2]):
        matcher.add(slot, Equals("n", value))
    found_rows, found_slots = matcher.match(ints(1, 2, 3, None))
    assert (found_rows.tolist(), found_slots.tolist()) == ([0, 1, 2], [2, 4, 0])
    assert Equals("n", math.nan).mask(ints(0, None)).tolist() == [False, False]


def test_zero_in_the_place_of_a_null_is_not_found() -> None:
    batch = ints(None, 0)
    assert FilterSet([Equals("n", 0), Equals("n", 5)]).mask(batch).tolist() == [False, True]
    assert Between("n", -1, 1).mask(batch).tolist() == [False, True]


def test_a_matcher_without_slots_finds_nothing() -> None:
    found_rows, found_slots = Matcher().match(ints(1, 2))
    assert (len(found_rows), len(found_slots)) == (0, 0)


def test_the_empty_set_accepts_nothing() -> None:
    assert not NOTHING
    assert NOTHING.mask(ints(1, 2)).tolist() == [False, False]
    assert str(NOTHING) == "nothing"


@pytest.mark.parametrize("condition", [Equals("price", 1), Equals("price", "x"), Between("price", 1, 2)])
def test_a_column_that_is_not_there_is_an_error_alone_and_together(condition: Filter) -> None:
    matcher = Matcher()
    matcher.add(0, condition)
    for mask in (condition.mask, FilterSet([condition]).mask, matcher.match):
        with pytest.raises(KeyError, match="price"):
            mask(ints(1))


def test_sets_of_the_same_filters_are_equal_and_hash_alike() -> None:
    one = FilterSet([Equals("n", 1), Equals("s", "a"), Equals("n", 1)])
    other = FilterSet([Equals("s", "a"), Equals("n", 1)])
    assert one == other
    assert hash(one) == hash(other)
    assert one != FilterSet([Equals("n", 1)])
    assert one != Equals("n", 1)
    assert bool(one)


def test_filters_are_printed_for_people() -> None:
    assert str(Equals("s", "a")) == "s = 'a'"
    assert str(Between("n", 1, 2.5)) == "1 <= n < 2.5"
    assert str(Everything()) == "everything"
    assert str(FilterSet([Equals("n", 2), Equals("n", 1)])) == "n = 1 or n = 2"
