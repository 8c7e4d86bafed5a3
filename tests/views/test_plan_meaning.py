"""A plan shows what its view means: random views over random events."""

from collections.abc import Mapping, Sequence

from hypothesis import assume, given, settings

from gapless.errors import ViewError
from gapless.views.evaluate import Event, evaluate
from gapless.views.plan import plan
from gapless.views.relation import Relation
from gapless.views.stages import Plan
from tests.views.drawn import SCHEMAS, histories, views
from tests.views.interpret import Interpreter
from tests.views.rows import bag


def planned(relation: Relation) -> Plan:
    """The plan of a view; those that cannot be maintained are left out."""
    try:
        return plan(relation)
    except ViewError:
        assume(False)
        raise


@settings(max_examples=200)
@given(views(), histories())
def test_a_plan_shows_what_its_view_means(relation: Relation, events: Mapping[str, Sequence[Event]]) -> None:
    found = Interpreter(SCHEMAS, events).rows(planned(relation))
    assert bag(found) == bag(evaluate(relation, events))
