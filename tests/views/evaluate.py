"""Which rows does a view show? Computed from all events at once, in plain Python: slow and obvious.

This is the oracle of every test of a view: it shares no code with the plan, the stages or Spark. It walks the
tree from the topics up, and each operator is a few lines that define it.

>>> from gapless.model.ids import TopicId
>>> from gapless.model.schema import Column
>>> from gapless.views.expressions import ColumnRef
>>> item, qty = (ColumnRef(name, "int", nullable=False) for name in ("item", "qty"))
>>> buys = Scan(TopicId("buys"), (Column("item", "int"), Column("qty", "int")))
>>> totals = GroupBy(buys, (("item", item),), (Aggregate("total", "sum", qty, "int"),))
>>> evaluate(totals, {"buys": [Event("p", 1, {"item": 7, "qty": 2}), Event("p", 2, {"item": 7, "qty": 3})]})
[{'item': 7, 'total': 5}]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, TypeAlias
from zlib import crc32

from gapless.views.expressions import Value
from gapless.views.relation import (
    Aggregate,
    GroupBy,
    Join,
    Merge,
    Project,
    Relation,
    Scan,
    TopK,
    Where,
    columns,
)
from gapless.views.scalars import fitted, is_same, order_key, value_of

Row: TypeAlias = dict[str, Value]
#: The position of an event among those of a group.
Place: TypeAlias = tuple[int, int]


def place_of(tick: int, pubend: str) -> Place:
    """The position of an event: by its tick, and at the same tick by a number of its pubend."""
    return tick, crc32(pubend.encode())


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a topic: its position in the history, and its columns."""

    pubend: str
    tick: int
    row: Row


@dataclass(frozen=True, slots=True)
class _Placed:
    """A row, and its position in the history; rows of aggregations and joins have none."""

    row: Row
    place: Place | None = None


def evaluate(relation: Relation, events: Mapping[str, Iterable[Event]]) -> list[Row]:
    """The rows that the view shows once it has seen all these events, in any order.

    An event that is given twice (the same pubend and tick of the same topic) counts once.
    """
    return [placed.row for placed in _rows(relation, events)]


def _rows(relation: Relation, events: Mapping[str, Iterable[Event]]) -> list[_Placed]:
    match relation:
        case Scan():
            once = {(event.pubend, event.tick): event for event in events.get(relation.topic, ())}
            names = [column.name for column in relation.columns]
            return [
                _Placed({name: event.row[name] for name in names}, place_of(event.tick, event.pubend))
                for event in once.values()
            ]
        case Where():
            rows = _rows(relation.input, events)
            return [each for each in rows if value_of(relation.condition, each.row) is True]
        case Project():
            rows = _rows(relation.input, events)
            return [
                _Placed({name: value_of(one, each.row) for name, one in relation.outputs}, each.place)
                for each in rows
            ]
        case Merge():
            return [each for one in relation.inputs for each in _rows(one, events)]
        case GroupBy():
            return _grouped(relation, _rows(relation.input, events))
        case Join():
            return _joined(relation, _rows(relation.left, events), _rows(relation.right, events))
        case TopK():
            return _topmost(relation, _rows(relation.input, events))


def _same(values: Iterable[Value]) -> Hashable:
    """What equal values share, nulls with nulls."""
    return tuple((value is None, None if value is None else order_key(value)) for value in values)


def _grouped(relation: GroupBy, rows: Sequence[_Placed]) -> list[_Placed]:
    groups: dict[Hashable, list[_Placed]] = {}
    for each in rows:
        groups.setdefault(_same(value_of(key, each.row) for _, key in relation.keys), []).append(each)
    return [
        _Placed(
            {name: value_of(key, group[0].row) for name, key in relation.keys}
            | {each.name: _aggregated(each, group) for each in relation.aggregates}
        )
        for group in groups.values()
    ]


def _aggregated(aggregate: Aggregate, group: Sequence[_Placed]) -> Value:
    operand = aggregate.operand
    if operand is None:
        return len(group)
    if aggregate.function in ("first", "last"):
        choose = max if aggregate.function == "last" else min
        return value_of(operand, choose(group, key=lambda each: each.place or (0, 0)).row)
    values: list[Any] = [value_of(operand, each.row) for each in group]
    values = [value for value in values if value is not None]
    match aggregate.function:
        case "count":
            return len(values)
        case "min":
            return min(values, key=order_key, default=None)
        case "max":
            return max(values, key=order_key, default=None)
        case _:
            with localcontext(prec=200):
                total = fitted(sum(values), operand.kind) if values else None
            if aggregate.function == "sum" or total is None:
                return total
            assert isinstance(total, int | float | Decimal)
            return float(total) / len(values)


def _joined(relation: Join, left: Sequence[_Placed], right: Sequence[_Placed]) -> list[_Placed]:
    pairs: list[_Placed] = []
    lonely_left = {id(each): each for each in left}
    lonely_right = {id(each): each for each in right}
    for one in left:
        for other in right:
            if _meets(
                [one.row[name] for name, _ in relation.on], [other.row[name] for _, name in relation.on]
            ):
                pairs.append(_Placed(one.row | other.row))
                lonely_left.pop(id(one), None)
                lonely_right.pop(id(other), None)
    nothing_left: Row = {column.name: None for column in columns(relation.left)}
    nothing_right: Row = {column.name: None for column in columns(relation.right)}
    if relation.kind in ("left", "full"):
        pairs += [_Placed(each.row | nothing_right) for each in lonely_left.values()]
    if relation.kind == "full":
        pairs += [_Placed(nothing_left | each.row) for each in lonely_right.values()]
    return pairs


def _meets(left: Sequence[Value], right: Sequence[Value]) -> bool:
    """Nulls are equal to nothing, not even to each other."""
    pairs = zip(left, right, strict=True)
    return all(one is not None and other is not None and is_same(one, other) for one, other in pairs)


def _topmost(relation: TopK, rows: Sequence[_Placed]) -> list[_Placed]:
    ordered = {name for name, _ in relation.order}
    rest = [column.name for column in columns(relation) if column.name not in ordered]
    found = list(rows)
    # The least important first: each sort keeps the order of those before it.
    for name, descending in reversed([*relation.order, *((name, False) for name in rest)]):
        there = [each for each in found if each.row[name] is not None]
        there.sort(key=lambda each, name=name: order_key(each.row[name]), reverse=descending)  # type: ignore[misc]
        found = there + [each for each in found if each.row[name] is None]
    counts: dict[Hashable, int] = {}
    shown: list[_Placed] = []
    for each in found:
        group = _same(each.row[name] for name in relation.per)
        counts[group] = counts.get(group, 0) + 1
        if counts[group] <= relation.k:
            shown.append(each)
    return shown
