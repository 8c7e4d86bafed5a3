"""How do stages build on each other? Aggregations and joins over other stages, kept up to date.

A `Reduced` or `Paired` stage gets the weighted changes of its inputs: removed rows and added rows. Only the
groups and pairs that they touch are recomputed, from the rows of the input, with the columnar operators of
Arrow. Because they are recomputed rather than adjusted, sums of floats do not drift, and after the maximum is
taken back the next one is found.

State rows have a key text as in every stage: the keys of the group, or those of both partners.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gapless.model.schema import COLUMN_TYPES
from gapless.spark.state import Delta, KeyedRows, codes, combined, normal
from gapless.spark.top import touched
from gapless.views.planning.stages import Paired, Reduced, Shown
from gapless.views.registry import KEY
from gapless.views.relation import Aggregate

_LEFT_KEY, _RIGHT_KEY = "gapless_left_key", "gapless_right_key"
_INT_MAX = 2**63 - 1
#: Sums of integers are computed in a type that cannot overflow.
_WIDE = pa.decimal128(38, 0)


class Derived(Protocol):
    """A stage over other stages."""

    rows: KeyedRows

    def take(self, side: int, delta: Delta, inputs: tuple[KeyedRows, ...]) -> tuple[pa.Table, pa.Array]:
        """The changed state rows, and the keys of removed ones, after a change of an input."""


def fields_of(shown: Shown) -> list[pa.Field]:
    """The columns of a stage's rows."""
    return [pa.field(name, COLUMN_TYPES[each.kind]) for name, each in shown.outputs]


class Reduction:
    """The groups of a `Reduced` stage."""

    def __init__(self, stage: Reduced) -> None:
        self.stage = stage
        fields = [pa.field(name, COLUMN_TYPES[each.kind]) for name, each in stage.keys]
        fields += [pa.field(each.name, COLUMN_TYPES[each.kind]) for each in stage.aggregates]
        self.rows = KeyedRows(
            pa.schema([pa.field(KEY, pa.string()), *fields, pa.field(stage.events, pa.int64())])
        )

    def take(self, side: int, delta: Delta, inputs: tuple[KeyedRows, ...]) -> tuple[pa.Table, pa.Array]:
        """The groups that a change touches, recomputed."""
        names = tuple(name for name, _ in self.stage.keys)
        every = inputs[side].table()
        members = every.filter(pa.array(touched(every, delta, names)))
        groups = self._aggregated(members, names)
        before = self.rows.table()
        gone = before.filter(pa.array(touched(before, delta, names))).column(KEY)
        gone = gone.filter(pc.invert(pc.is_in(gone, value_set=combined(groups.column(KEY)))))
        return groups, combined(gone)

    def _aggregated(self, members: pa.Table, names: tuple[str, ...]) -> pa.Table:
        if not members.num_rows:
            return self.rows.schema.empty_table()
        # Each aggregate has its own column, in the type in which it is computed.
        operands = {f"{at}": _operand(members, each) for at, each in enumerate(self.stage.aggregates)}
        keys = {name: normal(combined(members.column(name))) for name in names}
        table = pa.table({**keys, **operands})
        asked = [(f"{at}", *_function(each)) for at, each in enumerate(self.stage.aggregates)]
        grouped = table.group_by(list(names)).aggregate([*asked, ([], "count_all")])
        columns = {name: grouped.column(name) for name in names}
        for at, each in enumerate(self.stage.aggregates):
            columns[each.name] = _finished(grouped.column(f"{at}_{_function(each)[0]}"), each)
        columns[self.stage.events] = grouped.column("count_all")
        columns[KEY] = key_texts([columns[name] for name in names], grouped.num_rows)
        return pa.table(columns).select(self.rows.schema.names).cast(self.rows.schema)


def _operand(members: pa.Table, aggregate: Aggregate) -> pa.ChunkedArray | pa.Array:
    if aggregate.operand is None:
        return pa.repeat(pa.scalar(1, pa.int64()), members.num_rows)
    values = members.column(getattr(aggregate.operand, "name"))  # noqa: B009  # the plan makes it a column
    return values.cast(_WIDE) if aggregate.function == "sum" and aggregate.kind == "int" else values


def _function(aggregate: Aggregate) -> tuple[str, pc.FunctionOptions | None]:
    match aggregate.function:
        case "count":
            return "count", pc.CountOptions(mode="only_valid")
        case "avg":
            return "mean", None
        case "sum" | "min" | "max" as name:
            return name, None
        case "first" | "last" as name:
            raise AssertionError(f"{name} of rows without an order: the plan refuses it")


def _finished(column: pa.ChunkedArray, aggregate: Aggregate) -> pa.ChunkedArray:
    if aggregate.function == "sum" and aggregate.kind == "int":
        # Overflow is null, as everywhere.
        fits = pc.and_(
            pc.less_equal(column, pa.scalar(_INT_MAX).cast(_WIDE)),
            pc.greater_equal(column, pa.scalar(-_INT_MAX - 1).cast(_WIDE)),
        )
        return pc.if_else(fits, column, pa.scalar(None, _WIDE)).cast(pa.int64())
    return column


def key_texts(columns: list[pa.ChunkedArray], count: int) -> pa.Array:
    """The key of each row as a text: texts are equal exactly if the keys are."""
    if not columns:
        return pa.array(["[]"] * count)
    parts = []
    for column in columns:
        values = normal(combined(column))
        if pa.types.is_binary(values.type):
            texts = pa.array(
                [None if each is None else each.hex() for each in values.to_pylist()], pa.string()
            )
        else:
            texts = values.cast(pa.string())
        if not pa.types.is_integer(values.type) and not pa.types.is_boolean(values.type):
            escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
            texts = pc.binary_join_element_wise('"', escaped, '"', "")
        parts.append(pc.fill_null(texts, "null"))
    joined = pc.binary_join_element_wise(*parts, ",")
    return pc.binary_join_element_wise("[", joined, "]", "")


class Pairing:
    """The pairs of a `Paired` stage. Nulls are equal to nothing, as in every join."""

    def __init__(self, stage: Paired) -> None:
        self.stage = stage
        own = [pa.field(name, pa.string()) for name in (KEY, _LEFT_KEY, _RIGHT_KEY)]
        self.rows = KeyedRows(pa.schema([*own, *fields_of(stage.left), *fields_of(stage.right)]))

    def take(self, side: int, delta: Delta, inputs: tuple[KeyedRows, ...]) -> tuple[pa.Table, pa.Array]:
        """The pairs of changed rows: pairs of old rows are removed unless they are also new."""
        left, right = (delta.new, inputs[1].table()) if side == 0 else (inputs[0].table(), delta.new)
        pairs = self._joined(left, right)
        mine = _LEFT_KEY if side == 0 else _RIGHT_KEY
        before = self.rows.table()
        keys = pa.concat_arrays([combined(delta.old.column(KEY)), combined(delta.new.column(KEY))])
        gone = before.filter(pc.is_in(before.column(mine), value_set=keys)).column(KEY)
        gone = gone.filter(pc.invert(pc.is_in(gone, value_set=combined(pairs.column(KEY)))))
        return pairs, combined(gone)

    def _joined(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Computed as row numbers first, so that each column is copied once and keeps its name."""
        ons = [side.select([pair[at] for pair in self.stage.on]) for at, side in enumerate((left, right))]
        numbers = codes(*_alike(*ons))
        first, second = (
            pa.table({"on": own, f"row{at}": np.arange(len(own))}).filter(_whole(on))
            for at, (own, on) in enumerate(zip(numbers, ons, strict=True))
        )
        found = first.join(second, keys="on", join_type="inner")
        left, right = left.take(found.column("row0")), right.take(found.column("row1"))
        columns = {
            _LEFT_KEY: left.column(KEY),
            _RIGHT_KEY: right.column(KEY),
            **{each.name: left.column(each.name) for each in fields_of(self.stage.left)},
            **{each.name: right.column(each.name) for each in fields_of(self.stage.right)},
        }
        columns[KEY] = key_texts([columns[_LEFT_KEY], columns[_RIGHT_KEY]], left.num_rows)
        return pa.table(columns).select(self.rows.schema.names)


def _whole(table: pa.Table) -> pa.Array:
    """For each row, whether none of its values is null."""
    mask = np.ones(table.num_rows, np.bool_)
    for column in table.columns:
        mask &= combined(column).is_valid().to_numpy(zero_copy_only=False)
    return pa.array(mask)


def _alike(left: pa.Table, right: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Both with the same names, and numbers in a common type: float if one is, otherwise exact."""
    names = [f"{at}" for at in range(left.num_columns)]
    types = []
    for one, other in zip(left.schema.types, right.schema.types, strict=True):
        floats = pa.types.is_floating(one) or pa.types.is_floating(other)
        types.append(one if one == other else pa.float64() if floats else COLUMN_TYPES["decimal"])
    schema = pa.schema(list(zip(names, types, strict=True)))
    return left.rename_columns(names).cast(schema), right.rename_columns(names).cast(schema)


def derived_from(stage: Reduced | Paired) -> Derived:
    """The object that keeps a stage up to date."""
    return Reduction(stage) if isinstance(stage, Reduced) else Pairing(stage)
