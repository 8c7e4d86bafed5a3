"""What do all views compute together? The transform graph: each distinct stage once.

A graph is a value. Adding or dropping a view gives another graph and says which stages begin and which end;
all others go on. A new view is planned so that it can use existing stages: a selection by the keys of an
aggregation is pushed below it, into the brokers, unless the whole aggregation is already computed, because
then the selection costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from gapless.errors import GaplessError, ViewError
from gapless.views.planning.plan import plan
from gapless.views.planning.rewrite import KEEPING_STAGES
from gapless.views.planning.stages import Events, Keyed, Paired, Reduced, Shown, Stage, ViewPlan
from gapless.views.relation import Relation


@dataclass(frozen=True, slots=True)
class TransformGraph:
    """The plans of all views, by name, in the order in which they were added."""

    plans: Mapping[str, ViewPlan] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every distinct stage, inputs before those that use them."""
        return tuple(dict.fromkeys(stage for each in self.plans.values() for stage in stages_of(each)))

    def users(self, stage: Stage) -> tuple[str, ...]:
        """The views that need a stage, directly or through other stages."""
        return tuple(name for name, each in self.plans.items() if stage in stages_of(each))

    def planned(self, relation: Relation) -> ViewPlan:
        """How a new view would be computed in this graph. Raises ViewError as `plan` does."""
        return _planned(relation, set(self.stages))

    def with_view(self, name: str, relation: Relation) -> TransformGraph:
        """The graph with one more view, or with a view of that name replaced."""
        others = {each: made for each, made in self.plans.items() if each != name}
        made = TransformGraph(MappingProxyType(others)).planned(relation)
        return TransformGraph(MappingProxyType({**others, name: made}))


class Planner:
    """Plans all views together, in the order in which they were created.

    A plan depends only on the views before it. So all who plan the same views, a restarted application
    or a person who asks how a view is computed, gets the same stages.
    """

    def __init__(self) -> None:
        #: The texts, in order, from which this was made. Adding more costs only those.
        self._texts: list[tuple[str, str]] = []
        self._plans: dict[str, ViewPlan] = {}
        self._stages: set[Stage] = set()

    def planned(
        self, texts: Mapping[str, str], relations: Mapping[str, Relation]
    ) -> tuple[TransformGraph, dict[str, GaplessError]]:
        """The graph of all views, oldest first, and what is wrong with those that cannot be planned."""
        listed = list(texts.items())
        # A view that could not be planned may be plannable now, and then later ones share its stages.
        if listed[: len(self._texts)] != self._texts or len(self._plans) < len(self._texts):
            self._plans, self._stages = {}, set()
        self._texts = listed
        refused: dict[str, GaplessError] = {}
        for name in texts:
            if name in self._plans:
                continue
            try:
                made = self._plans[name] = _planned(relations[name], self._stages)
            except GaplessError as error:
                refused[name] = error
            else:
                self._stages.update(stages_of(made))
        return TransformGraph(MappingProxyType(dict(self._plans))), refused


def _planned(relation: Relation, there: AbstractSet[Stage]) -> ViewPlan:
    """How a view is computed given existing stages."""
    try:
        shared = plan(relation, KEEPING_STAGES)
    except ViewError:
        return plan(relation)
    return shared if set(stages_of(shared)) <= there else plan(relation)


def inputs_of(stage: Stage) -> tuple[Shown, ...]:
    """What a stage takes from other stages."""
    match stage:
        case Events() | Keyed():
            return ()
        case Reduced():
            return (stage.input,)
        case Paired():
            return (stage.left, stage.right)


def stages_of(made: ViewPlan) -> tuple[Stage, ...]:
    """All stages of one view, inputs before those that use them."""
    found: dict[Stage, None] = {}

    def visit(stage: Stage) -> None:
        for each in inputs_of(stage):
            visit(each.stage)
        found[stage] = None

    visit(made.shown.stage)
    return tuple(found)
