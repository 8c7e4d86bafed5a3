"""Are two adjacent projections needed? The upper one can compute from the input of the lower one."""

from __future__ import annotations

from gapless.views.logic import substitute
from gapless.views.relation import Project, Relation


def merge_adjacent_projects(relation: Relation) -> Relation:
    """A projection of a projection is one."""
    if isinstance(relation, Project) and isinstance(relation.input, Project):
        inner = dict(relation.input.outputs)
        outputs = tuple((name, substitute(each, inner)) for name, each in relation.outputs)
        return Project(relation.input.input, outputs, relation.at)
    return relation
