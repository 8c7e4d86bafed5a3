"""A plan shows what its view means: random views over random events."""

from collections.abc import Mapping, Sequence
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st

from gapless.errors import ViewError
from gapless.views.analysis.check import check
from gapless.views.planning.plan import plan
from gapless.views.planning.stages import ViewPlan
from gapless.views.relation import Relation
from tests.budget import examples
from tests.views.drawn import SCHEMAS, histories, views
from tests.views.evaluate import Event, evaluate
from tests.views.incremental_twin import Twin
from tests.views.interpret import Interpreter
from tests.views.rows import bag


def planned(relation: Relation) -> ViewPlan:
    """The plan of a view; those that cannot be maintained are left out."""
    try:
        return plan(relation)
    except ViewError:
        assume(False)
        raise


@examples(120)
@given(views(), histories())
def test_a_plan_shows_what_its_view_means(relation: Relation, events: Mapping[str, Sequence[Event]]) -> None:
    found = Interpreter(SCHEMAS, events).rows(planned(relation))
    assert bag(found) == bag(evaluate(relation, events))


@examples(100)
@given(views(), histories(), st.randoms(use_true_random=False))
def test_batches_in_any_order_and_repeated_show_what_the_view_means(
    relation: Relation, events: Mapping[str, Sequence[Event]], chance: Random
) -> None:
    twin = Twin(planned(relation), SCHEMAS)
    waiting = [(topic, event) for topic in events for event in events[topic]]
    waiting += [each for each in waiting if chance.random() < 0.3]
    chance.shuffle(waiting)
    seen: dict[str, list[Event]] = {}
    while waiting:
        batch: dict[str, list[Event]] = {}
        for topic, event in (waiting.pop() for _ in range(min(len(waiting), chance.randint(1, 6)))):
            batch.setdefault(topic, []).append(event)
            seen.setdefault(topic, []).append(event)
        twin.apply(batch)
        # What is shown is exactly the view of what was seen, after every batch.
        assert bag(twin.rows()) == bag(evaluate(relation, seen))


@examples(120)
@given(views())
def test_what_is_accepted_can_be_planned(relation: Relation) -> None:
    try:
        check(relation)
    except ViewError:
        return
    plan(relation)
