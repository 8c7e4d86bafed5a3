"""What does a plan mean? Its stages computed from all events at once, as `views.stages` describes them.

Conditions that are pushed into the brokers are evaluated by the brokers' own code.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gapless.content.evaluate import mask
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.model.ids import TopicId
from gapless.model.schema import Column, Schema
from gapless.views.expressions import Expression
from gapless.views.planning.stages import (
    Branch,
    Events,
    Keyed,
    Leaf,
    Paired,
    Reduced,
    Shown,
    Stage,
    ViewPlan,
)
from gapless.views.relation import Aggregate, GroupBy, Join, Relation, Scan, TopK
from gapless.views.scalars import order_key, value_of
from tests.views.evaluate import Event, Row, evaluate


@dataclass
class Interpreter:
    """Computes plans over one history."""

    schemas: Mapping[str, Schema]
    events: Mapping[str, Sequence[Event]]

    def rows(self, plan: ViewPlan) -> list[Row]:
        """What the view shows."""
        shown = self.shown(plan.shown)
        if plan.top is None:
            return shown
        kinds = {name: each.kind for name, each in plan.shown.outputs}
        top = TopK(table("shown", kinds), plan.top.k, plan.top.order, plan.top.per)
        return evaluate(top, {"shown": numbered(shown)})

    def shown(self, shown: Shown) -> list[Row]:
        """What is seen of a stage."""
        return [
            {name: value_of(each, state) for name, each in shown.outputs}
            for state in self.states(shown.stage)
            if shown.visible is None or value_of(shown.visible, state) is True
        ]

    def states(self, stage: Stage) -> list[Row]:
        """The state rows of a stage."""
        match stage:
            case Events():
                return [event.row for leaf in stage.leaves for event in self.leaf(leaf)]
            case Keyed():
                return self._keyed(stage)
            case Reduced():
                return self._reduced(stage)
            case Paired():
                return self._paired(stage)

    def leaf(self, leaf: Leaf) -> list[Event]:
        """The rows of a leaf: selected by the brokers, only the columns that are read, then the rest."""
        schema = self.schemas[leaf.topic]
        events = list({(e.pubend, e.tick): e for e in self.events.get(leaf.topic, ())}.values())
        batch = pa.RecordBatch.from_pylist([event.row for event in events], schema=schema.arrow())
        accepted = mask(parse_condition(leaf.where, schema), Rows(batch))
        found = []
        for event, is_in in zip(events, accepted, strict=True):
            read = {name: event.row[name] for name in leaf.columns}
            if is_in and (leaf.residual is None or value_of(leaf.residual, read) is True):
                outputs = {name: value_of(each, read) for name, each in leaf.outputs}
                found.append(Event(event.pubend, event.tick, outputs))
        return found

    def _keyed(self, stage: Keyed) -> list[Row]:
        """One row for each key of any branch; the columns of the others are null, or 0 if they count."""
        states: dict[Hashable, Row] = {}
        for branch in stage.branches:
            for row in self._branch(branch, [name for name, _ in stage.keys]):
                key = tuple((row[name] is None, order_key(row[name])) for name, _ in stage.keys)
                states.setdefault(key, self._nothing(stage)).update(row)
        return list(states.values())

    def _nothing(self, stage: Keyed) -> Row:
        row: Row = {}
        for branch in stage.branches:
            row |= {each.name: 0 if each.function == "count" else None for each in branch.aggregates}
            row[branch.events] = None
        return row

    def _branch(self, branch: Branch, keys: Sequence[str]) -> list[Row]:
        topics = [leaf.topic for leaf in branch.leaves]
        # A topic that is read again is numbered: none of its events is taken for another's. Others keep their
        # pubends, which decide what comes last at one tick.
        events = [
            Event(f"{again}.{event.pubend}" if again else event.pubend, event.tick, event.row)
            for at, leaf in enumerate(branch.leaves)
            for again in [topics[:at].count(leaf.topic)]
            for event in self.leaf(leaf)
        ]
        return _grouped(
            "branch", list(zip(keys, branch.keys, strict=True)), branch.aggregates, branch.events, events
        )

    def _reduced(self, stage: Reduced) -> list[Row]:
        rows = numbered(self.shown(stage.input))
        return _grouped("input", list(stage.keys), stage.aggregates, stage.events, rows)

    def _paired(self, stage: Paired) -> list[Row]:
        sides: dict[str, list[Event]] = {}
        tables: list[Relation] = []
        for name, side in (("left", stage.left), ("right", stage.right)):
            sides[name] = numbered(self.shown(side))
            kinds = {output: each.kind for output, each in side.outputs}
            tables.append(table(name, kinds))
        return evaluate(Join(tables[0], tables[1], "inner", stage.on), sides)


def _grouped(
    name: str,
    keys: list[tuple[str, Expression]],
    aggregates: Sequence[Aggregate],
    count: str,
    events: Sequence[Event],
) -> list[Row]:
    counted = (*aggregates, Aggregate(count, "count", None, "int", nullable=False))
    kinds = dict.fromkeys(events[0].row if events else (), "int")
    return evaluate(GroupBy(table(name, kinds), tuple(keys), counted), {name: events})


def table(name: str, kinds: Mapping[str, str]) -> Scan:
    """A table of rows, as a topic for the oracle."""
    return Scan(TopicId(name), tuple(Column(each, kind, nullable=True) for each, kind in kinds.items()))


def numbered(rows: Sequence[Row]) -> list[Event]:
    """Rows as events, each with a tick of its own."""
    return [Event("rows", at, row) for at, row in enumerate(rows)]
