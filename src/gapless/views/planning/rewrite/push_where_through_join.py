"""Which rows need not be joined? Those that a selection above would drop in any pair.

A condition over columns of one side moves into that side, unless a missing partner makes them null: of a left
join only conditions over the left side move, of a full join none. A condition over the columns that are
joined holds for both sides of a pair, so it moves into both.
"""

from __future__ import annotations

from dataclasses import replace

from gapless.model.schema import Column
from gapless.views.expressions import ColumnRef, Expression, columns_of
from gapless.views.logic import all_of, conjuncts, substitute
from gapless.views.relation import Join, Relation, Where, columns


def push_where_through_join(relation: Relation) -> Relation:
    """Conditions move into the sides of a join that they are about."""
    if not (isinstance(relation, Where) and isinstance(relation.input, Join)):
        return relation
    join = relation.input
    if join.kind == "full":
        return relation
    left = {column.name: column for column in columns(join.left)}
    right = {column.name: column for column in columns(join.right)}
    # Numbers of different types are compared in a third: a condition on one may not hold for the other.
    to_right = {one: _column(right[other]) for one, other in join.on if left[one].type == right[other].type}
    to_left = {other: _column(left[one]) for one, other in join.on if left[one].type == right[other].type}
    for_left: list[Expression] = []
    for_right: list[Expression] = []
    rest: list[Expression] = []
    for part in conjuncts(relation.condition):
        read = columns_of(part)
        if read <= left.keys():
            for_left.append(part)
            if read and read <= to_right.keys():
                for_right.append(substitute(part, to_right))
        elif read <= right.keys() and join.kind == "inner":
            for_right.append(part)
            if read <= to_left.keys():
                for_left.append(substitute(part, to_left))
        else:
            rest.append(part)
    if not for_left and not for_right:
        return relation
    moved = replace(join, left=_where(join.left, for_left), right=_where(join.right, for_right))
    return _where(moved, rest)


def _column(column: Column) -> ColumnRef:

    return ColumnRef(column.name, column.type, column.nullable)


def _where(relation: Relation, conditions: list[Expression]) -> Relation:
    condition = all_of(conditions)
    return relation if condition is None else Where(relation, condition)
