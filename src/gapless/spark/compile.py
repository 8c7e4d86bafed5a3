"""How does a stage become a query of Spark? Leaves are read, tagged, united and aggregated once by the key.

The columns of the branches stand beside each other, null in the rows of other branches, and aggregates pass
over nulls: so one `groupBy` computes all branches, and no condition is needed to tell them apart, except
where rows are counted and where the newest or the oldest event is wanted.

Every state row has a *key text*: the key as JSON, which names the row in relations. What a view shows of the
state rows is computed in the same pass: `shown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls them

from gapless.spark.expressions import SPARK_TYPES, column, named
from gapless.views.registry import KEY
from gapless.views.relation import Aggregate
from gapless.views.stages import Branch, Events, Keyed, Leaf, Shown

#: Reads the columns of a leaf, those events that its condition accepts, with `PUBEND` and `TICK`.
Read: TypeAlias = Callable[[Leaf], DataFrame]

#: Where an event stands, beside the columns of its topic.
PUBEND, TICK = "gapless_pubend", "gapless_tick"
_TAG, _AT, _PREFIX = "gapless_tag", "gapless_at", "gapless_value_"


def leaves(stage: Keyed | Events) -> tuple[Leaf, ...]:
    """What a stage reads, in the order of the sources of its query."""
    if isinstance(stage, Events):
        return stage.leaves
    return tuple(leaf for branch in stage.branches for leaf in branch.leaves)


def state_columns(stage: Keyed | Events) -> tuple[tuple[str, str], ...]:
    """Name and type of the state columns, without the key text."""
    if isinstance(stage, Events):
        return tuple((name, each.kind) for name, each in stage.leaves[0].outputs)
    branches = [
        pair
        for branch in stage.branches
        for pair in (*((each.name, each.kind) for each in branch.aggregates), (branch.events, "int"))
    ]
    return (*stage.keys, *branches)


def compiled(stage: Keyed | Events, read: Read) -> DataFrame:
    """The changed state rows of a stage: the key text, then the state columns."""
    return _keyed(stage, read) if isinstance(stage, Keyed) else _events(stage, read)


def shown(frame: DataFrame, views: Iterable[tuple[str, Shown]], keep: Iterable[str]) -> DataFrame:
    """Of each state row the columns to `keep`, and what each of these views shows of it.

    A view's columns are called `<its prefix>.<column>`, and `<its prefix>.` is whether the row is visible.
    """
    columns = [named(name) for name in keep]
    for prefix, view in views:
        visible = F.lit(True) if view.visible is None else F.coalesce(column(view.visible), F.lit(False))
        columns.append(visible.alias(f"{prefix}."))
        columns += [column(each).alias(f"{prefix}.{name}") for name, each in view.outputs]
    return frame.select(*columns)


def key_text(columns: Iterable[tuple[str, Column]]) -> Column:
    """A key as JSON text: equal keys have equal texts."""
    return F.to_json(F.struct(*(each.alias(name) for name, each in columns)), {"ignoreNullFields": "false"})


def _read(leaf: Leaf, read: Read) -> DataFrame:
    frame = read(leaf)
    return frame if leaf.residual is None else frame.filter(column(leaf.residual))


def _events(stage: Events, read: Read) -> DataFrame:
    frames = []
    for at, leaf in enumerate(stage.leaves):
        # One event may be read by several leaves; each makes a row of its own.
        number = [("leaf", F.lit(at))] if len(stage.leaves) > 1 else []
        key = key_text([("pubend", named(PUBEND)), ("tick", named(TICK)), *number])
        outputs = [column(each).cast(SPARK_TYPES[each.kind]).alias(name) for name, each in leaf.outputs]
        frames.append(_read(leaf, read).select(key.alias(KEY), *outputs))
    return reduce(DataFrame.unionByName, frames)


def _keyed(stage: Keyed, read: Read) -> DataFrame:
    united = reduce(
        lambda left, right: left.unionByName(right, allowMissingColumns=True),
        (
            _tagged(stage, branch, number, leaf, read)
            for number, branch in enumerate(stage.branches)
            for leaf in branch.leaves
        ),
    )
    aggregates = [
        each
        for number, branch in enumerate(stage.branches)
        for each in (
            *(_aggregate(aggregate, number).alias(aggregate.name) for aggregate in branch.aggregates),
            F.count_if(named(_TAG) == number).alias(branch.events),
        )
    ]
    state = united.groupBy(*(named(name) for name, _ in stage.keys)).agg(*aggregates)
    key = key_text((name, named(name)) for name, _ in stage.keys) if stage.keys else F.lit("{}")
    typed = [named(name).cast(SPARK_TYPES[kind]).alias(name) for name, kind in state_columns(stage)]
    return state.select(key.alias(KEY), *typed)


def _tagged(stage: Keyed, branch: Branch, number: int, leaf: Leaf, read: Read) -> DataFrame:
    """The rows of one leaf: keys, tag, what the branch's aggregates need, and where the event stands."""
    outputs = [column(each).cast(SPARK_TYPES[each.kind]).alias(name) for name, each in leaf.outputs]
    ordered = any(each.function in ("first", "last") for each in branch.aggregates)
    place = [F.struct(named(TICK), named(PUBEND)).alias(_AT)] if ordered else []
    frame = _read(leaf, read).select(*outputs, *place)
    keys = [
        column(each).cast(SPARK_TYPES[kind]).alias(name)
        for (name, kind), each in zip(stage.keys, branch.keys, strict=True)
    ]
    values = [
        column(each.operand).alias(_PREFIX + each.name)
        for each in branch.aggregates
        if each.operand is not None
    ]
    return frame.select(*keys, F.lit(number).alias(_TAG), *values, *([named(_AT)] if ordered else []))


def _aggregate(aggregate: Aggregate, number: int) -> Column:
    value = named(_PREFIX + aggregate.name)
    match aggregate.function:
        case "count":
            return F.count_if(named(_TAG) == number) if aggregate.operand is None else F.count(value)
        case "sum":
            return F.try_sum(value)
        case "avg":
            return F.try_avg(value)
        case "min":
            return F.min(value)
        case "max":
            return F.max(value)
        case "first" | "last" as function:
            by = F.max_by if function == "last" else F.min_by
            return by(value, F.when(named(_TAG) == number, named(_AT)))
