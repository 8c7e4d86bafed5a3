"""How is a rule applied to a whole view? From the topics up, to every operator once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gapless.views.relation import Join, Merge, Relation, Scan


def everywhere(rule: Callable[[Relation], Relation], relation: Relation) -> Relation:
    """The relation with the rule applied to each operator, after those below it."""
    match relation:
        case Scan():
            return rule(relation)
        case Merge():
            return rule(replace(relation, inputs=tuple(everywhere(rule, each) for each in relation.inputs)))
        case Join():
            left, right = everywhere(rule, relation.left), everywhere(rule, relation.right)
            return rule(replace(relation, left=left, right=right))
        case _:
            return rule(replace(relation, input=everywhere(rule, relation.input)))
