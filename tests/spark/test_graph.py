"""The graph of stages shows what the views mean, batch by batch: random views, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gapless.spark.compile import state_columns
from gapless.spark.graph import Root, RunningGraph, RunningView, view_columns
from gapless.spark.relations import Relation as Published
from gapless.views.planning.stages import Events, Keyed, Shown
from gapless.views.registry import KEY
from gapless.views.relation import Relation
from gapless.views.scalars import value_of
from tests.budget import examples
from tests.views.drawn import SCHEMAS, histories, views
from tests.views.evaluate import Event, evaluate
from tests.views.interpret import Interpreter
from tests.views.rows import bag
from tests.views.test_plan_meaning import planned


class Topic:
    """Takes what is published."""

    def publish_batch(self, data: object, /) -> object:
        return data


def evaluated(rows: pa.Table, feeds: Sequence[tuple[str, Shown]], keep: Sequence[str] = (KEY,)) -> pa.Table:
    """What feeds show of state rows, as `compile.shown` gives it."""
    states = rows.to_pylist()
    columns: dict[str, Any] = {name: rows.column(name) for name in keep}
    for prefix, shown in feeds:
        columns[f"{prefix}."] = [
            shown.visible is None or value_of(shown.visible, state) is True for state in states
        ]
        names = [name for name, _ in shown.outputs]
        types = dict(zip(names, pa.schema(_fields(shown)).types, strict=True))
        for name, each in shown.outputs:
            values = [value_of(each, state) for state in states]
            columns[f"{prefix}.{name}"] = pa.array(values, types[name])
    return pa.table(columns)


def _fields(shown: Shown) -> list[pa.Field]:
    from gapless.spark.derived import fields_of

    return fields_of(shown)


def batch_of(root: Root, events: Mapping[str, Sequence[Event]]) -> pa.Table:
    """The state rows of a root after these events, all of them, as Spark would give those that changed."""
    interpreter = Interpreter(SCHEMAS, events)
    stage = root.stage
    if isinstance(stage, Keyed):
        states = interpreter.states(stage)
        keys = [json.dumps([repr(state[name]) for name, _ in stage.keys]) for state in states]
    else:
        found = [(at, event) for at, leaf in enumerate(stage.leaves) for event in interpreter.leaf(leaf)]
        states = [event.row for _, event in found]
        keys = [json.dumps([at, event.pubend, event.tick]) for at, event in found]
    columns = {name: [state[name] for state in states] for name in root.schema.names if name != KEY}
    return pa.table({KEY: keys, **columns}, schema=root.schema)


def run(graph: RunningGraph, view: RunningView, events: Mapping[str, Sequence[Event]]) -> None:
    for root in graph.roots.values():
        feeds = graph.feeds(root)
        shown = [(prefix, feed.shown) for prefix, feed in feeds]
        graph.take(root, evaluated(batch_of(root, events), shown, root.schema.names), feeds, {})
    for each in graph.level([view]):
        each.relation.publish(Topic(), {})


def make_root(stage: Keyed | Events) -> Root:
    return Root(stage, state_columns(stage))


def shown_by(view: RunningView) -> list[dict[str, Any]]:
    names = [each.name for each in view.relation.columns]
    return view.relation.rows.table().select(names).to_pylist()


@examples(150)
@given(views(), histories(), st.data())
def test_every_batch_gives_what_the_view_means(
    relation: Relation, events: dict[str, list[Event]], data: st.DataObject
) -> None:
    made = planned(relation)
    graph = RunningGraph(evaluated)
    view = RunningView("v", made, Published("v", view_columns(made)), Topic())
    graph.add(view, make_root)
    run(graph, view, {})
    for share in sorted(data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))):
        known = {topic: each[:share] for topic, each in events.items()}
        run(graph, view, known)
        assert bag(shown_by(view)) == bag(evaluate(relation, known))
    # A view that comes late is computed from what is there.
    if not any(isinstance(stage, Events) for stage in graph.roots):
        late = RunningView("late", made, Published("late", view_columns(made)), Topic())
        graph.add(late, make_root)
        list(graph.level([late]))
        assert bag(shown_by(late)) == bag(shown_by(view))
