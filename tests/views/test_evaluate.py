"""The oracle of views, against DuckDB."""

from collections.abc import Mapping, Sequence

from hypothesis import given, settings

from gapless.views.evaluate import Event, evaluate
from gapless.views.relation import Relation
from tests.views.drawn import SCHEMAS, histories, views
from tests.views.duck import answer
from tests.views.rows import bag


@settings(max_examples=120)
@given(views(), histories())
def test_a_view_shows_what_duckdb_answers(relation: Relation, events: Mapping[str, Sequence[Event]]) -> None:
    assert bag(evaluate(relation, events)) == bag(answer(relation, SCHEMAS, events))
