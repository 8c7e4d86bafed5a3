"""Which groups of a top-k are never seen? Those that a selection by the columns of `per` drops."""

from __future__ import annotations

from dataclasses import replace

from gapless.views.expressions import columns_of
from gapless.views.logic import all_of, conjuncts
from gapless.views.relation import Relation, TopK, Where


def push_where_through_top_k(relation: Relation) -> Relation:
    """What a selection says of whole groups moves below the top-k; what it says of rows stays."""
    if not (isinstance(relation, Where) and isinstance(relation.input, TopK)):
        return relation
    top = relation.input
    parts = conjuncts(relation.condition)
    of_groups = [part for part in parts if columns_of(part) <= set(top.per) and top.per]
    condition = all_of(of_groups)
    if condition is None:
        return relation
    below = replace(top, input=Where(top.input, condition, relation.at))
    rest = all_of(part for part in parts if part not in of_groups)
    return below if rest is None else Where(below, rest, relation.at)
