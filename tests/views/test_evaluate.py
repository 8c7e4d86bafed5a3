"""The oracle of views, against DuckDB."""

from collections.abc import Mapping, Sequence

from hypothesis import given

from gapless.views.relation import Relation
from tests.budget import examples
from tests.views.drawn import SCHEMAS, histories, views
from tests.views.duck import answer
from tests.views.evaluate import Event, evaluate
from tests.views.rows import bag


@examples(120)
@given(views(), histories())
def test_a_view_shows_what_duckdb_answers(relation: Relation, events: Mapping[str, Sequence[Event]]) -> None:
    assert bag(evaluate(relation, events)) == bag(answer(relation, SCHEMAS, events))
