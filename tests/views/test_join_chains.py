"""Joins of several inputs by one key are one stage, whatever their kinds, and mean what they say."""

import pytest
from hypothesis import given

from gapless.views import parse_view
from gapless.views.planning.plan import plan
from gapless.views.planning.stages import Keyed
from tests.budget import examples
from tests.views.drawn import SCHEMAS, histories
from tests.views.evaluate import Event, evaluate
from tests.views.interpret import Interpreter
from tests.views.rows import bag

A = "(SELECT item, sum(qty) AS a FROM orders GROUP BY item) AS x"
B = "(SELECT item, count(*) AS b FROM returns WHERE qty > 0 GROUP BY item) AS y"
C = "(SELECT item, max(weight) AS c FROM notes GROUP BY item) AS z"
D = "(SELECT item, last(region) AS d FROM returns GROUP BY item) AS w"
AB = (
    f"(SELECT item, a, coalesce(a, 0) + b AS s FROM {A} FULL JOIN {B} USING (item) WHERE a > 0 OR b > 1) AS u"
)
CHAINS = [
    f"SELECT item, a, b, c FROM {A} FULL JOIN {B} USING (item) FULL JOIN {C} USING (item)",
    f"SELECT item, a, b, c FROM {C} FULL JOIN {B} USING (item) LEFT JOIN {A} USING (item)",
    f"SELECT item, a, d FROM {A} FULL JOIN {B} USING (item) FULL JOIN {C} USING (item) JOIN {D} USING (item)",
    f"SELECT * FROM {A} FULL JOIN {B} USING (item) FULL JOIN {C} USING (item) FULL JOIN {D} USING (item)",
    f"SELECT item, a, c, d FROM {A} LEFT JOIN {C} USING (item) FULL JOIN {D} USING (item)",
    f"SELECT item, a, b, c FROM {A} FULL JOIN {B} USING (item) JOIN {C} USING (item) WHERE b IS NULL",
    f"SELECT item, s, c FROM {AB} FULL JOIN {C} USING (item)",
    f"SELECT item, a, d FROM {D} RIGHT JOIN {AB} USING (item)",
]


@pytest.mark.parametrize("text", CHAINS)
def test_a_chain_is_one_stage(text: str) -> None:
    stage = plan(parse_view(text, SCHEMAS, {})).shown.stage
    assert isinstance(stage, Keyed)
    assert len(stage.branches) == text.count("JOIN") + 1


@given(histories())
@examples(25)
def test_a_chain_means_what_it_says(events: dict[str, list[Event]]) -> None:
    for text in CHAINS:
        relation = parse_view(text, SCHEMAS, {})
        assert bag(Interpreter(SCHEMAS, events).rows(plan(relation))) == bag(evaluate(relation, events)), text
