"""Which selections select everything? Those by TRUE."""

from __future__ import annotations

from gapless.views.logic import TRUE
from gapless.views.relation import Relation, Where


def drop_trivial_where(relation: Relation) -> Relation:
    """A selection by TRUE is its input."""
    if isinstance(relation, Where) and relation.condition == TRUE:
        return relation.input
    return relation
