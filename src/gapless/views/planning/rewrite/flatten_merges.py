"""Is a merge of merges needed? One merge takes any number of inputs."""

from __future__ import annotations

from dataclasses import replace

from gapless.views.relation import Merge, Relation


def flatten_merges(relation: Relation) -> Relation:
    """The inputs of an inner merge become inputs of the outer one; a merge of one input is that input."""
    if not isinstance(relation, Merge):
        return relation
    if len(relation.inputs) == 1:
        return relation.inputs[0]
    inputs: list[Relation] = []
    for each in relation.inputs:
        inputs += each.inputs if isinstance(each, Merge) else [each]
    return replace(relation, inputs=tuple(inputs))
