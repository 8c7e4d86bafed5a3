"""Which columns need not be computed? Those that nothing above reads.

An aggregation keeps all of its columns, read or not: a stage with more columns than one view needs may serve
another view as well, and one shared stage is cheaper than two narrow ones. A top-k keeps all columns of its
input, because all of them break ties.
"""

from __future__ import annotations

from dataclasses import replace

from gapless.views.expressions import ColumnRef, columns_of
from gapless.views.relation import GroupBy, Join, Merge, Project, Relation, Scan, TopK, Where, columns


def prune_columns(relation: Relation) -> Relation:
    """Below a projection or an aggregation only the columns that it reads are computed."""
    match relation:
        case Project():
            needed = frozenset[str]().union(*(columns_of(each) for _, each in relation.outputs))
        case GroupBy():
            read = [each for _, each in relation.keys]
            read += [each.operand for each in relation.aggregates if each.operand is not None]
            needed = frozenset[str]().union(*map(columns_of, read))
        case _:
            return relation
    return replace(relation, input=_pruned(relation.input, needed))


def _pruned(relation: Relation, needed: frozenset[str]) -> Relation:
    match relation:
        case Scan() | GroupBy() | TopK():
            return relation
        case Where():
            below = needed | columns_of(relation.condition)
            return replace(relation, input=_pruned(relation.input, below))
        case Project():
            # Rows are counted even if none of their columns is read.
            kept = tuple(each for each in relation.outputs if each[0] in needed) or relation.outputs[:1]
            return replace(relation, outputs=kept)
        case Merge():
            return replace(relation, inputs=_alike(relation, needed))
        case Join():
            left = needed | {name for name, _ in relation.on}
            right = needed | {name for _, name in relation.on}
            return replace(relation, left=_pruned(relation.left, left), right=_pruned(relation.right, right))


def _alike(relation: Merge, needed: frozenset[str]) -> tuple[Relation, ...]:
    """The inputs of a merge must keep the same columns: only the needed ones, or all of them."""
    if not any(isinstance(each, Project) for each in relation.inputs):
        return relation.inputs
    names = [column.name for column in columns(relation) if column.name in needed]
    names = names or [columns(relation)[0].name]
    inputs: list[Relation] = []
    for each in relation.inputs:
        kinds = {column.name: column for column in columns(each)}
        if isinstance(each, Project):
            outputs = dict(each.outputs)
            inputs.append(replace(each, outputs=tuple((name, outputs[name]) for name in names)))
        elif list(kinds) == names:
            inputs.append(each)
        else:
            found = ((name, kinds[name]) for name in names)
            inputs.append(Project(each, tuple((n, ColumnRef(n, c.type, c.nullable)) for n, c in found)))
    return tuple(inputs)
