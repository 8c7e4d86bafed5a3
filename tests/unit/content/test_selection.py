"""A union of conditions accepts what any of them accepts, few or many."""

import numpy as np
import pytest

from gapless.content.condition import EVERYTHING
from gapless.content.language import parse_condition
from gapless.content.selection import EVALUATED_MAX, Selection
from gapless.model.batch import EventBatch
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(TopicId("t"), {"i": "int"})
BOTH = Schema.parse(TopicId("t"), {"i": "int", "j": "int"})
BATCH = EventBatch.of(range(20), {"i": list(range(20))})


@pytest.mark.parametrize("count", [1, EVALUATED_MAX, EVALUATED_MAX + 1, 15])
def test_a_row_is_accepted_when_any_condition_accepts_it(count: int) -> None:
    selection = Selection(parse_condition(f"i = {at}", SCHEMA) for at in range(count))
    assert np.flatnonzero(selection.mask(BATCH)).tolist() == list(range(count))


def test_everything_and_nothing() -> None:
    assert Selection([EVERYTHING, parse_condition("i = 3", SCHEMA)]).mask(BATCH).all()
    assert not Selection().mask(BATCH).any()
    assert not Selection()
    assert str(Selection()) == "nothing"


def test_equal_sets_are_equal() -> None:
    first = Selection([parse_condition("i > 3 AND i < 5", SCHEMA)])
    second = Selection([parse_condition("i = 4", SCHEMA)])
    assert first == second
    assert str(first) == "i = 4"
    with pytest.raises(TypeError, match="unhashable"):
        hash(first)


def test_a_condition_that_was_added_twice_goes_when_it_was_removed_twice() -> None:
    condition = parse_condition("i = 3 OR i = 5", SCHEMA)
    selection = Selection([condition, condition])
    selection.remove(condition)
    assert np.flatnonzero(selection.mask(BATCH)).tolist() == [3, 5]
    selection.remove(condition)
    assert not selection
    assert not selection.mask(BATCH).any()


def test_shared_parts_stay_while_one_condition_uses_them() -> None:
    one, other = parse_condition("i = 3 OR i = 5 AND j > 1", BOTH), parse_condition("i = 3 OR j = 7", BOTH)
    batch = EventBatch.of(range(4), {"i": [3, 5, 5, 0], "j": [0, 0, 2, 7]})
    selection = Selection([one, other])
    assert selection.mask(batch).tolist() == [True, False, True, True]
    selection.remove(one)
    assert selection.mask(batch).tolist() == [True, False, False, True]


def test_many_changes_between_two_batches_are_all_seen() -> None:
    selection = Selection()
    wanted: set[int] = set()
    batch = EventBatch.of(range(5_000), {"i": list(range(5_000))})
    for first, last in ((0, 3_000), (3_000, 3_010), (3_010, 5_000)):
        for value in range(first, last):
            selection.add(parse_condition(f"i = {value}", SCHEMA))
        wanted |= set(range(first, last))
        assert set(np.flatnonzero(selection.mask(batch)).tolist()) == wanted
    # The short run and the long one hold what goes, in turn.
    for gone in (range(10), range(4_000, 4_600), range(10, 20), range(2_990, 3_020)):
        for value in gone:
            selection.remove(parse_condition(f"i = {value}", SCHEMA))
        wanted -= set(gone)
        assert set(np.flatnonzero(selection.mask(batch)).tolist()) == wanted


def test_a_condition_made_for_a_column_without_nulls_does_not_fit_one_with_nulls() -> None:
    strict, loose = SCHEMA, Schema.parse(TopicId("t"), {"i": "int?"})
    assert parse_condition("i > 3", loose).misfit(strict) is None
    reason = parse_condition("i > 3", strict).misfit(loose)
    assert reason is not None
    assert "may be null" in reason
