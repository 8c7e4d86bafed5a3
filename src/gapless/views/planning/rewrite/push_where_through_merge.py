"""Which rows need not be merged? Those that a selection above drops."""

from __future__ import annotations

from dataclasses import replace

from gapless.views.relation import Merge, Relation, Where


def push_where_through_merge(relation: Relation) -> Relation:
    """A selection above a merge moves into each of its inputs."""
    if isinstance(relation, Where) and isinstance(relation.input, Merge):
        merge = relation.input
        return replace(merge, inputs=tuple(replace(relation, input=each) for each in merge.inputs))
    return relation
