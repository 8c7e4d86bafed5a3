"""The transform graph: equal stages once, and what a change of the views changes."""

from gapless.errors import ViewError
from gapless.views.planning.graph import Planner, TransformGraph, stages_of
from gapless.views.planning.stages import Keyed, Reduced
from gapless.views.relation import Relation
from tests.views.test_plan import AVAILABLE, PRICES, parsed


def test_views_of_one_stage_cost_one_stage() -> None:
    graph = TransformGraph()
    for at in range(100):
        graph = graph.with_view(f"v{at}", parsed(f"{PRICES} HAVING LAST(price) > {at}"))
    assert len(graph.stages) == 1
    assert len(graph.users(graph.stages[0])) == 100


def test_a_new_view_starts_only_what_is_new() -> None:
    first = TransformGraph().with_view("available", parsed(AVAILABLE))
    assert [type(stage) for stage in first.stages] == [Keyed]
    second = first.with_view("count", parsed(f"SELECT COUNT(*) AS n FROM ({AVAILABLE}) AS a"))
    assert second.stages[:1] == first.stages
    assert [type(stage) for stage in second.stages[1:]] == [Reduced]
    assert second.users(first.stages[0]) == ("available", "count")


def test_a_view_can_be_replaced() -> None:
    before = TransformGraph().with_view("v", parsed(PRICES))
    after = before.with_view("v", parsed(f"{PRICES} HAVING item = 3"))
    assert len(after.stages) == 1
    assert not set(before.stages) & set(after.stages)


def test_a_selection_by_key_is_pushed_unless_the_whole_is_there() -> None:
    narrow = parsed(f"{PRICES} HAVING item = 3")
    alone = TransformGraph().with_view("three", narrow)
    (stage,) = stages_of(alone.plans["three"])
    assert isinstance(stage, Keyed)
    assert stage.branches[0].leaves[0].where == "item = 3"
    whole = TransformGraph().with_view("all", parsed(PRICES))
    assert whole.with_view("three", narrow).stages == whole.stages


WHOLE = {"all": PRICES, "three": f"{PRICES} HAVING item = 3"}


def planned(planner: Planner, texts: dict[str, str]) -> TransformGraph:
    graph, refused = planner.planned(texts, {name: parsed(text) for name, text in texts.items()})
    assert not refused
    return graph


def test_views_are_planned_in_their_order_whether_at_once_or_one_by_one() -> None:
    planner = Planner()
    texts = {**WHOLE, "four": f"{PRICES} HAVING item = 4", "available": AVAILABLE}
    for count in range(1, len(texts) + 1):
        some = dict(list(texts.items())[:count])
        graph = planned(planner, some)
        assert graph == planned(Planner(), some)
        by_hand = TransformGraph()
        for name, text in some.items():
            by_hand = by_hand.with_view(name, parsed(text))
        assert graph == by_hand
    assert graph.users(stages_of(graph.plans["all"])[0]) == ("all", "three", "four")
    # Whoever came before the whole was there has a stage of its own, and keeps it.
    backwards = planned(Planner(), dict(reversed(WHOLE.items())))
    assert len(backwards.stages) == 2


def test_after_a_view_was_dropped_the_others_are_planned_without_it() -> None:
    planner = Planner()
    planned(planner, WHOLE)
    alone = planned(planner, {"three": WHOLE["three"]})
    assert alone == planned(Planner(), {"three": WHOLE["three"]})
    assert isinstance(stage := alone.stages[0], Keyed)
    assert stage.branches[0].leaves[0].where == "item = 3"


def test_a_view_that_cannot_be_planned_yet_is_planned_in_its_place_later() -> None:
    planner = Planner()
    three = {"three": parsed(WHOLE["three"])}
    graph, refused = planner.planned(WHOLE, Unreadable(three))
    assert set(refused) == {"all"}
    assert set(graph.plans) == {"three"}
    assert planned(planner, WHOLE) == planned(Planner(), WHOLE)


class Unreadable(dict[str, Relation]):
    """Relations, some of which cannot be read."""

    def __missing__(self, name: str) -> Relation:
        raise ViewError("E166", f"no topic for '{name}'")
