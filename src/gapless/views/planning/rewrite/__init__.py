"""Which equivalent views cost less? Rules, one per file, that turn a relation into another.

A rule looks at one operator and its direct inputs, and returns something better, or the operator unchanged.
`rewrite` applies all rules everywhere until nothing changes. Every rule preserves the meaning: the rows are
the same, as a bag, for all events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gapless.views.planning.rewrite.drop_trivial_project import drop_trivial_project
from gapless.views.planning.rewrite.drop_trivial_where import drop_trivial_where
from gapless.views.planning.rewrite.everywhere import everywhere
from gapless.views.planning.rewrite.flatten_merges import flatten_merges
from gapless.views.planning.rewrite.fold_constants import fold_constants
from gapless.views.planning.rewrite.merge_adjacent_projects import merge_adjacent_projects
from gapless.views.planning.rewrite.merge_adjacent_wheres import merge_adjacent_wheres
from gapless.views.planning.rewrite.prune_columns import prune_columns
from gapless.views.planning.rewrite.push_where_through_group_keys import push_where_through_group_keys
from gapless.views.planning.rewrite.push_where_through_join import push_where_through_join
from gapless.views.planning.rewrite.push_where_through_merge import push_where_through_merge
from gapless.views.planning.rewrite.push_where_through_project import push_where_through_project
from gapless.views.relation import Relation

__all__ = ["KEEPING_STAGES", "RULES", "Rule", "rewrite"]

Rule: TypeAlias = Callable[[Relation], Relation]

#: In the order in which they are tried.
RULES: tuple[Rule, ...] = (
    fold_constants,
    drop_trivial_where,
    drop_trivial_project,
    flatten_merges,
    merge_adjacent_wheres,
    merge_adjacent_projects,
    push_where_through_project,
    push_where_through_merge,
    push_where_through_group_keys,
    push_where_through_join,
    prune_columns,
)
#: Those that change no aggregation: a selection above one costs no state, and others may use the same stage.
KEEPING_STAGES: tuple[Rule, ...] = tuple(
    rule for rule in RULES if rule not in (push_where_through_group_keys, push_where_through_join)
)

#: Conditions only move down and operators only become fewer, so the rules terminate; reaching this is a bug.
_ROUNDS_MAX = 1_000


def rewrite(relation: Relation, rules: Sequence[Rule] = RULES) -> Relation:
    """The relation with all rules applied everywhere until nothing changes."""
    for _ in range(_ROUNDS_MAX):
        before = relation
        for rule in rules:
            relation = everywhere(rule, relation)
        if relation == before:
            return relation
    raise AssertionError(f"the rewrite rules do not terminate: {relation}")
