"""Which events need not be aggregated? Those of groups that a selection by the keys drops."""

from __future__ import annotations

from dataclasses import replace

from gapless.views.expressions import columns_of
from gapless.views.logic import all_of, conjuncts, substitute
from gapless.views.relation import GroupBy, Relation, Where


def push_where_through_group_keys(relation: Relation) -> Relation:
    """Conditions on the keys move below the aggregation, and from there perhaps into brokers."""
    if not (isinstance(relation, Where) and isinstance(relation.input, GroupBy)):
        return relation
    group = relation.input
    keys = dict(group.keys)
    parts = conjuncts(relation.condition)
    of_keys = [part for part in parts if columns_of(part) <= keys.keys()]
    condition = all_of(substitute(part, keys) for part in of_keys)
    if condition is None:
        return relation
    below = replace(group, input=Where(group.input, condition, relation.at))
    rest = all_of(part for part in parts if part not in of_keys)
    return below if rest is None else Where(below, rest, relation.at)
