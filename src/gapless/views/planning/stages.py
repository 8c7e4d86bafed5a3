"""How is a view computed? In stages: stateless operators, then at most one keyed state, then stateless ones.

A stage keeps one *state row* per key. A view's row for a key is computed from its state row: whether it is
`visible`, and its columns. So a select or a project above a stage costs no state, and views share stages.

- `Events`: no state; every event of the inputs is a row, and its key is (pubend, tick), with the number of
  the leaf if there are several.
- `Keyed`: the inputs are tagged, united and aggregated once by the key. A join of aggregations by the same
  key is one such stage: each side is a *branch*, and one without events has `<branch>_events` 0 or null.
- `Reduced`: an aggregation of another stage's rows, maintained with its weighted changes (+1, -1).
- `Paired`: a join of two stages' rows, by columns that are not the key of both.

Stages are values: equal stages of different views are computed once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TypeAlias

from gapless.model.ids import TopicId
from gapless.views.expressions import Expression
from gapless.views.relation import Aggregate

#: The state column of a `Reduced` stage with the weight of a group.
GROUP_EVENTS = "group_events"


@dataclass(frozen=True, slots=True)
class Leaf:
    """What is read of one topic: the brokers do the pushed part, Spark the rest."""

    topic: TopicId
    #: A condition as subscribers write it, evaluated in the repository; empty for all events.
    where: str
    #: The columns that are read, in the topic's order.
    columns: tuple[str, ...]
    #: What the brokers cannot evaluate; None for nothing.
    residual: Expression | None
    #: The columns that the stage sees, computed from those that are read.
    outputs: tuple[tuple[str, Expression], ...]
    #: The parsed `where`, for a reader that serves several leaves. Equal texts mean the same.
    condition: Expression | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Branch:
    """One aggregation of a keyed stage. All leaves have the same outputs.

    Its state columns are the names of its aggregates, and `<name>_events`: how many events it has seen.
    """

    name: str
    leaves: tuple[Leaf, ...]
    #: One expression over the leaves' outputs for each key of the stage.
    keys: tuple[Expression, ...]
    #: Named uniquely within the stage.
    aggregates: tuple[Aggregate, ...]

    @property
    def events(self) -> str:
        """The state column that counts its events."""
        return f"{self.name}_events"


@dataclass(frozen=True, slots=True)
class Events:
    """Every event of the leaves, as it is. All leaves have the same outputs: those are the state columns."""

    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Keyed:
    """One native aggregation by key over all branches. State columns: the keys, then those of each branch."""

    #: Name and type of each key.
    keys: tuple[tuple[str, str], ...]
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """What is seen of a stage: the state rows that are visible, and columns computed from each."""

    stage: Stage
    #: None for every row.
    visible: Expression | None
    outputs: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """An aggregation over the weighted changes of what a stage shows. State columns: keys, then aggregates.

    `events` is the weight of a group, which rows it has now: at 0 the group is gone.
    """

    input: Shown
    keys: tuple[tuple[str, Expression], ...]
    aggregates: tuple[Aggregate, ...]

    @property
    def events(self) -> str:
        """The state column with the weight of the group."""
        return GROUP_EVENTS


@dataclass(frozen=True, slots=True)
class Paired:
    """An inner join of what two stages show. Key: those of both. State columns: the outputs of both."""

    left: Shown
    right: Shown
    on: tuple[tuple[str, str], ...]


Stage: TypeAlias = Events | Keyed | Reduced | Paired


@dataclass(frozen=True, slots=True)
class Top:
    """The first `k` rows for each value of `per`; see `relation.TopK`."""

    k: int
    order: tuple[tuple[str, bool], ...]
    per: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """How one view is computed."""

    shown: Shown
    top: Top | None = None


def stage_name(stage: Stage) -> str:
    """A short name that equal stages share, whichever view they came from."""
    return hashlib.blake2b(repr(stage).encode(), digest_size=6).hexdigest()
