"""Are two adjacent selections needed? One by both conditions is the same."""

from __future__ import annotations

from gapless.views.logic import all_of
from gapless.views.relation import Relation, Where


def merge_adjacent_wheres(relation: Relation) -> Relation:
    """A selection of a selection is one by both conditions."""
    if isinstance(relation, Where) and isinstance(relation.input, Where):
        condition = all_of((relation.input.condition, relation.condition))
        if condition is None:
            return relation.input.input
        return Where(relation.input.input, condition, relation.at)
    return relation
