"""How does a stage become a Spark query? Leaves are read, tagged, united and aggregated once by the key.

The columns of the branches are side by side, null in the rows of other branches, and aggregates ignore nulls:
so one `groupBy` computes all branches, and no condition is needed to tell them apart, except for counts and
for the newest or the oldest event.

Every state row has a *key text*: the key as JSON, which names the row in relations. The rows of views are
computed from the state rows in the same pass: `shown`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from gapless.model.ids import TopicId
from gapless.spark.expressions import SPARK_TYPES, column, named
from gapless.views.expressions import columns_of
from gapless.views.planning.stages import Branch, Events, Keyed, Leaf, Shown
from gapless.views.registry import KEY
from gapless.views.relation import Aggregate

#: Reads the columns of a leaf, for the events that its condition accepts, with `PUBEND` and `TICK`.
Read: TypeAlias = Callable[[Leaf], DataFrame]
#: For each topic, what is read of it, and the reader's table.
_Frames: TypeAlias = Mapping[TopicId, tuple[Leaf, DataFrame]]
#: Maximum length of the conditions that are united for one reader; beyond it, it reads all events.
WHERE_LETTERS_MAX = 4_000

#: The position of an event, beside the columns of its topic.
PUBEND, TICK = "gapless_pubend", "gapless_tick"
#: Types whose values are written unchanged in JSON.
_PLAIN = ("int", "bool")
_TAG, _AT, _PREFIX = "gapless_tag", "gapless_at", "gapless_value_"


def leaves(stage: Keyed | Events) -> tuple[Leaf, ...]:
    """What a stage reads, in the order of the sources of its query."""
    if isinstance(stage, Events):
        return stage.leaves
    return tuple(leaf for branch in stage.branches for leaf in branch.leaves)


def readers(stage: Keyed | Events) -> dict[TopicId, Leaf]:
    """What one reader per topic reads for all leaves that need it.

    Each Spark reader proceeds at its own pace: leaves with separate readers would show events that others
    have not seen yet.
    """
    by_topic: dict[TopicId, list[Leaf]] = {}
    for leaf in leaves(stage):
        by_topic.setdefault(leaf.topic, []).append(leaf)
    return {topic: _reader(wanted) for topic, wanted in by_topic.items()}


def _reader(wanted: list[Leaf]) -> Leaf:
    wheres = list(dict.fromkeys(leaf.where for leaf in wanted))
    where = wheres[0] if len(wheres) == 1 else " OR ".join(f"({each})" for each in wheres)
    if "" in wheres or len(where) > WHERE_LETTERS_MAX:
        where = ""
    needed = [name for leaf in wanted for name in leaf.columns]
    # A leaf that gets more than it asked for filters again.
    needed += [
        name
        for leaf in wanted
        if leaf.where != where and leaf.condition is not None
        for name in sorted(columns_of(leaf.condition))
    ]
    return Leaf(wanted[0].topic, where, tuple(dict.fromkeys(needed)), None, ())


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
    frames = {topic: (each, read(each)) for topic, each in readers(stage).items()}
    return _keyed(stage, frames) if isinstance(stage, Keyed) else _events(stage, frames)


def shown(frame: DataFrame, views: Iterable[tuple[str, Shown]], keep: Iterable[str]) -> DataFrame:
    """For each state row, the columns to `keep`, and what each of these views shows of it.

    A view's columns are called `<its prefix>.<column>`, and `<its prefix>.` is whether the row is visible.
    """
    columns = [named(name) for name in keep]
    for prefix, view in views:
        visible = F.lit(True) if view.visible is None else F.coalesce(column(view.visible), F.lit(False))
        columns.append(visible.alias(f"{prefix}."))
        columns += [column(each).alias(f"{prefix}.{name}") for name, each in view.outputs]
    return frame.select(*columns)


def key_text(columns: Sequence[tuple[str, str, Column]]) -> Column:
    """A key as JSON text, of the name, type and value of each of its columns: equal keys have equal texts."""
    if not all(kind in _PLAIN for _, kind, _ in columns):
        named_values = (each.alias(name) for name, _, each in columns)
        return F.to_json(F.struct(*named_values), {"ignoreNullFields": "false"})
    # The same text without Spark's JSON writer, which shows up in the profile of a busy stage.
    parts: list[Column] = []
    for at, (name, _, each) in enumerate(columns):
        before = f"{',' if at else '{'}{json.dumps(name, ensure_ascii=False)}:"
        parts += [F.lit(before), F.coalesce(each.cast("string"), F.lit("null"))]
    return F.concat(*parts, F.lit("}"))


def _read(leaf: Leaf, frames: _Frames) -> DataFrame:
    reader, frame = frames[leaf.topic]
    if reader.where != leaf.where and leaf.condition is not None:
        frame = frame.filter(column(leaf.condition))
    return frame if leaf.residual is None else frame.filter(column(leaf.residual))


def _events(stage: Events, frames: _Frames) -> DataFrame:
    found = []
    for at, leaf in enumerate(stage.leaves):
        # Several leaves may read the same event; each makes its own row.
        number = [("leaf", "int", F.lit(at))] if len(stage.leaves) > 1 else []
        key = key_text([("pubend", "string", named(PUBEND)), ("tick", "int", named(TICK)), *number])
        outputs = [column(each).cast(SPARK_TYPES[each.kind]).alias(name) for name, each in leaf.outputs]
        found.append(_read(leaf, frames).select(key.alias(KEY), *outputs))
    return reduce(DataFrame.unionByName, found)


def _keyed(stage: Keyed, frames: _Frames) -> DataFrame:
    united = reduce(
        lambda left, right: left.unionByName(right, allowMissingColumns=True),
        (
            _tagged(stage, branch, number, leaf, frames)
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
    keys = [(name, kind, named(name)) for name, kind in stage.keys]
    key = key_text(keys) if keys else F.lit("{}")
    typed = [named(name).cast(SPARK_TYPES[kind]).alias(name) for name, kind in state_columns(stage)]
    return state.select(key.alias(KEY), *typed)


def _tagged(stage: Keyed, branch: Branch, number: int, leaf: Leaf, frames: _Frames) -> DataFrame:
    """The rows of one leaf: keys, tag, what the branch's aggregates need, and the position of the event."""
    outputs = [column(each).cast(SPARK_TYPES[each.kind]).alias(name) for name, each in leaf.outputs]
    ordered = any(each.function in ("first", "last") for each in branch.aggregates)
    place = [_place().alias(_AT)] if ordered else []
    frame = _read(leaf, frames).select(*outputs, *place)
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


def _place() -> Column:
    """The position of an event: by its tick, and at the same tick by a number of its pubend.

    A number, because Spark keeps groups in a hash table only if their state has a fixed size; with the name
    of the pubend it would sort all events of a batch, twice.
    """
    tick, pubend = named(TICK).cast("decimal(19,0)"), F.crc32(named(PUBEND).cast("binary"))
    return (tick * F.lit(2**32).cast("decimal(10,0)") + pubend).cast("decimal(30,0)")


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
