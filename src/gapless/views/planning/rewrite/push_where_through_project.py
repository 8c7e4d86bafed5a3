"""Which rows need not be projected? Those that a selection above drops."""

from __future__ import annotations

from dataclasses import replace

from gapless.views.logic import substitute
from gapless.views.relation import Project, Relation, Where


def push_where_through_project(relation: Relation) -> Relation:
    """A selection above a projection moves below it, with what computes its columns."""
    if isinstance(relation, Where) and isinstance(relation.input, Project):
        project = relation.input
        condition = substitute(relation.condition, dict(project.outputs))
        return replace(project, input=Where(project.input, condition, relation.at))
    return relation
