"""A plan, computed as it is computed in production: batch by batch, from changes with weights.

It keeps states as `views.stages` describes them and passes on changes only. Slow, in memory: the dumb twin
of the pipeline. Batches may come in any order and more than once.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any

from gapless.model.schema import Schema
from gapless.views.expressions import Value
from gapless.views.planning.stages import Branch, Events, Keyed, Paired, Reduced, Shown, Stage, ViewPlan
from gapless.views.relation import Aggregate, TopK
from gapless.views.scalars import fitted, is_same, order_key, value_of
from tests.views.evaluate import Event, Place, Row, evaluate, place_of
from tests.views.interpret import Interpreter, numbered, table

Batch = Mapping[str, Sequence[Event]]


@dataclass(frozen=True)
class Change:
    """A weighted delta of a relation: rows that came (+1) and rows that went (-1). It is no relation."""

    rows: tuple[tuple[Row, int], ...] = ()

    @staticmethod
    def of(gone: Iterable[Row], come: Iterable[Row]) -> "Change":
        return Change((*((row, -1) for row in gone), *((row, 1) for row in come)))


class Twin:
    """One view, kept up to date."""

    def __init__(self, plan: ViewPlan, schemas: Mapping[str, Schema]) -> None:
        self._plan = plan
        self._source = _Seen(plan.shown, schemas)
        self._known: set[tuple[str, str, int]] = set()
        self._rows: Counter[tuple[tuple[str, Hashable], ...]] = Counter()
        self._values: dict[tuple[tuple[str, Hashable], ...], Row] = {}

    def apply(self, batch: Batch) -> None:
        """Take a batch of events; those that were seen before change nothing."""
        fresh: dict[str, list[Event]] = {}
        for topic, events in batch.items():
            for event in events:
                place = (topic, event.pubend, event.tick)
                if place not in self._known:
                    self._known.add(place)
                    fresh.setdefault(topic, []).append(event)
        for row, weight in self._source.apply(fresh).rows:
            key = tuple((name, _same(value)) for name, value in row.items())
            self._values[key] = row
            self._rows[key] += weight
        assert min(self._rows.values(), default=0) >= 0, "a row was taken back that never came"

    def rows(self) -> list[Row]:
        """What the view shows now."""
        shown = [self._values[key] for key, weight in self._rows.items() for _ in range(weight)]
        top = self._plan.top
        if top is None:
            return shown
        kinds = {name: each.kind for name, each in self._plan.shown.outputs}
        return evaluate(TopK(table("shown", kinds), top.k, top.order, top.per), {"shown": numbered(shown)})


class _Seen:
    """What is seen of a stage: changes of its state rows become changes of what is shown."""

    def __init__(self, shown: Shown, schemas: Mapping[str, Schema]) -> None:
        self._shown = shown
        self._stage = _kept(shown.stage, schemas)

    def apply(self, batch: Batch) -> Change:
        found = []
        for state, weight in self._stage.apply(batch).rows:
            if self._shown.visible is None or value_of(self._shown.visible, state) is True:
                found.append(({name: value_of(each, state) for name, each in self._shown.outputs}, weight))
        return Change(tuple(found))


def _kept(stage: Stage, schemas: Mapping[str, Schema]) -> "_Events | _Keyed | _Reduced | _Paired":
    match stage:
        case Events():
            return _Events(stage, schemas)
        case Keyed():
            return _Keyed(stage, schemas)
        case Reduced():
            return _Reduced(stage, schemas)
        case Paired():
            return _Paired(stage, schemas)


@dataclass
class _Events:
    stage: Events
    schemas: Mapping[str, Schema]

    def apply(self, batch: Batch) -> Change:
        reader = Interpreter(self.schemas, batch)
        return Change.of([], [event.row for leaf in self.stage.leaves for event in reader.leaf(leaf)])


@dataclass
class _Group:
    """What is kept for a group: how often each value came, and the outermost events."""

    events: int = 0
    values: dict[str, Counter[tuple[Hashable, Value]]] = field(default_factory=dict)
    places: dict[str, tuple[Place, Value]] = field(default_factory=dict)

    def add(self, aggregates: Iterable[Aggregate], row: Row, weight: int, place: Place) -> None:
        self.events += weight
        for each in aggregates:
            assert each.operand is not None, "events are counted anyway"
            value = value_of(each.operand, row)
            if each.function in ("first", "last"):
                self._place(each, place, value)
            elif value is not None:
                self.values.setdefault(each.name, Counter())[_same(value), value] += weight

    def _place(self, each: Aggregate, place: Place, value: Value) -> None:
        known = self.places.get(each.name)
        if known is None or (place > known[0]) == (each.function == "last"):
            self.places[each.name] = (place, value)

    def row(self, aggregates: Iterable[Aggregate]) -> Row:
        return {each.name: self._value(each) for each in aggregates}

    def _value(self, each: Aggregate) -> Value:
        if each.function in ("first", "last"):
            return self.places[each.name][1] if each.name in self.places else None
        counted = self.values.get(each.name, Counter())
        values: list[Any] = [value for (_, value), times in counted.items() for _ in range(times)]
        match each.function:
            case "count":
                return len(values)
            case "min":
                return min(values, key=order_key, default=None)
            case "max":
                return max(values, key=order_key, default=None)
            case _:
                with localcontext(prec=200):
                    return fitted(sum(values, start=_zero(values)), each.kind) if values else None


class _Keyed:
    def __init__(self, stage: Keyed, schemas: Mapping[str, Schema]) -> None:
        self._stage = stage
        self._schemas = schemas
        self._groups: dict[Hashable, dict[str, _Group]] = {}
        self._keys: dict[Hashable, Row] = {}

    def apply(self, batch: Batch) -> Change:
        reader = Interpreter(self._schemas, batch)
        before: dict[Hashable, Row | None] = {}
        for branch in self._stage.branches:
            for leaf in branch.leaves:
                for event in reader.leaf(leaf):
                    key = self._key(branch, event.row)
                    before.setdefault(key, self._state(key))
                    group = self._groups.setdefault(key, {}).setdefault(branch.name, _Group())
                    group.add(branch.aggregates, event.row, 1, place_of(event.tick, event.pubend))
        after = {key: self._state(key) for key in before}
        return Change.of(_there(before.values()), _there(after.values()))

    def _key(self, branch: Branch, row: Row) -> Hashable:
        values = [value_of(each, row) for each in branch.keys]
        key = tuple(_same(value) for value in values)
        names = [name for name, _ in self._stage.keys]
        self._keys.setdefault(key, dict(zip(names, values, strict=True)))
        return key

    def _state(self, key: Hashable) -> Row | None:
        if key not in self._groups:
            return None
        row = dict(self._keys[key])
        for branch in self._stage.branches:
            group = self._groups[key].get(branch.name, _Group())
            row |= group.row(branch.aggregates)
            row[branch.events] = group.events or None
        return row


class _Reduced:
    def __init__(self, stage: Reduced, schemas: Mapping[str, Schema]) -> None:
        self._stage = stage
        self._input = _Seen(stage.input, schemas)
        self._groups: dict[Hashable, _Group] = {}
        self._keys: dict[Hashable, Row] = {}

    def apply(self, batch: Batch) -> Change:
        before: dict[Hashable, Row | None] = {}
        for row, weight in self._input.apply(batch).rows:
            values = {name: value_of(each, row) for name, each in self._stage.keys}
            key = tuple(_same(value) for value in values.values())
            self._keys.setdefault(key, values)
            before.setdefault(key, self._state(key))
            self._groups.setdefault(key, _Group()).add(self._stage.aggregates, row, weight, (0, ""))
        after = {key: self._state(key) for key in before}
        return Change.of(_there(before.values()), _there(after.values()))

    def _state(self, key: Hashable) -> Row | None:
        group = self._groups.get(key)
        if group is None or group.events == 0:
            return None
        return {**self._keys[key], **group.row(self._stage.aggregates), self._stage.events: group.events}


class _Paired:
    """The change of a product: the change of one side with the other, then the other way round."""

    def __init__(self, stage: Paired, schemas: Mapping[str, Schema]) -> None:
        self._stage = stage
        self._left = _Seen(stage.left, schemas)
        self._right = _Seen(stage.right, schemas)
        self._rows: tuple[list[tuple[Row, int]], list[tuple[Row, int]]] = ([], [])

    def apply(self, batch: Batch) -> Change:
        lefts, rights = self._rows
        found = []
        for row, weight in self._left.apply(batch).rows:
            found += [(row | other, weight * times) for other, times in rights if self._meet(row, other)]
            lefts.append((row, weight))
        for row, weight in self._right.apply(batch).rows:
            found += [(other | row, weight * times) for other, times in lefts if self._meet(other, row)]
            rights.append((row, weight))
        return Change(tuple(found))

    def _meet(self, left: Row, right: Row) -> bool:
        pairs = [(left[one], right[other]) for one, other in self._stage.on]
        return all(a is not None and b is not None and is_same(a, b) for a, b in pairs)


def _same(value: Value) -> Hashable:
    return (value is None, None if value is None else order_key(value))


def _there(rows: Iterable[Row | None]) -> list[Row]:
    return [row for row in rows if row is not None]


def _zero(values: Sequence[Any]) -> Any:
    return Decimal(0) if isinstance(values[0], Decimal) else 0
