"""The transform graph: equal stages once, and what a change of the views changes."""

from gapless.views.graph import GraphChange, TransformGraph, stages_of
from gapless.views.stages import Keyed, Reduced
from tests.views.test_plan import AVAILABLE, PRICES, parsed


def test_views_of_one_stage_cost_one_stage() -> None:
    graph = TransformGraph()
    for at in range(100):
        graph, _ = graph.with_view(f"v{at}", parsed(f"{PRICES} HAVING LAST(price) > {at}"))
    assert len(graph.stages) == 1
    assert len(graph.users(graph.stages[0])) == 100


def test_a_new_view_starts_only_what_is_new() -> None:
    graph, first = TransformGraph().with_view("available", parsed(AVAILABLE))
    assert [type(stage) for stage in first.added] == [Keyed]
    count = f"SELECT COUNT(*) AS n FROM ({AVAILABLE}) AS a"
    graph, second = graph.with_view("count", parsed(count))
    assert [type(stage) for stage in second.added] == [Reduced]
    assert not second.removed
    assert graph.users(first.added[0]) == ("available", "count")


def test_what_others_use_survives_a_dropped_view() -> None:
    graph, first = TransformGraph().with_view("available", parsed(AVAILABLE))
    graph, second = graph.with_view("count", parsed(f"SELECT COUNT(*) AS n FROM ({AVAILABLE}) AS a"))
    graph, change = graph.without_view("available")
    assert change == GraphChange()
    graph, change = graph.without_view("count")
    assert set(change.removed) == {*first.added, *second.added}
    assert graph == TransformGraph({})


def test_a_view_can_be_replaced() -> None:
    graph, first = TransformGraph().with_view("v", parsed(PRICES))
    graph, change = graph.with_view("v", parsed(f"{PRICES} HAVING item = 3"))
    assert change.removed == first.added
    assert len(change.added) == 1


def test_a_selection_by_key_is_pushed_unless_the_whole_is_there() -> None:
    narrow = parsed(f"{PRICES} HAVING item = 3")
    alone, _ = TransformGraph().with_view("three", narrow)
    (stage,) = stages_of(alone.plans["three"])
    assert isinstance(stage, Keyed)
    assert stage.branches[0].leaves[0].where == "item = 3"
    beside, _ = TransformGraph().with_view("all", parsed(PRICES))
    beside, change = beside.with_view("three", narrow)
    assert change == GraphChange()
    assert len(beside.stages) == 1
