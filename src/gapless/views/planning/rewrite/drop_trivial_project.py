"""Which projections change nothing? Those that return every column of the input unchanged, in order."""

from __future__ import annotations

from gapless.views.expressions import ColumnRef
from gapless.views.relation import Project, Relation, columns


def drop_trivial_project(relation: Relation) -> Relation:
    """A projection that changes nothing is its input."""
    if not isinstance(relation, Project):
        return relation
    names = [(name, each.name if isinstance(each, ColumnRef) else None) for name, each in relation.outputs]
    same = [(column.name, column.name) for column in columns(relation.input)]
    return relation.input if names == same else relation
