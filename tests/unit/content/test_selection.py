"""A union of conditions accepts what any of them accepts, few or many."""

import numpy as np
import pytest

from gapless.content.condition import EVERYTHING
from gapless.content.language import parse_condition
from gapless.content.selection import EVALUATED_MAX, NO_SELECTION, Selection
from gapless.model.batch import EventBatch
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(TopicId("t"), {"i": "int"})
BATCH = EventBatch.of(range(20), {"i": list(range(20))})


@pytest.mark.parametrize("count", [1, EVALUATED_MAX, EVALUATED_MAX + 1, 15])
def test_a_row_is_accepted_when_any_condition_accepts_it(count: int) -> None:
    selection = Selection(parse_condition(f"i = {at}", SCHEMA) for at in range(count))
    assert np.flatnonzero(selection.mask(BATCH)).tolist() == list(range(count))


def test_everything_and_nothing() -> None:
    assert Selection([EVERYTHING, parse_condition("i = 3", SCHEMA)]).mask(BATCH).all()
    assert not NO_SELECTION.mask(BATCH).any()
    assert not NO_SELECTION
    assert str(NO_SELECTION) == "nothing"


def test_equal_sets_are_equal() -> None:
    first = Selection([parse_condition("i > 3 AND i < 5", SCHEMA)])
    second = Selection([parse_condition("i = 4", SCHEMA)])
    assert first == second
    assert hash(first) == hash(second)
    assert str(first) == "i = 4"


def test_a_condition_made_for_a_column_without_nulls_does_not_fit_one_with_nulls() -> None:
    strict, loose = SCHEMA, Schema.parse(TopicId("t"), {"i": "int?"})
    assert parse_condition("i > 3", loose).misfit(strict) is None
    reason = parse_condition("i > 3", strict).misfit(loose)
    assert reason is not None
    assert "may be null" in reason
