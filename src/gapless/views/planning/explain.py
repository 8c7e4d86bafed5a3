"""How is a view computed, in words? What `gapless view explain` prints.

First the facts about the view: its columns, how each may change (its monotonic domain), and what may happen
to a row. Then the operators, as written and as rewritten. Then the stages, from the topics up: what the
brokers select, what Spark computes, and which other views use the same stage.
"""

from __future__ import annotations

from collections.abc import Iterable

from gapless.views.analysis.analyse import analyse
from gapless.views.planning.graph import TransformGraph, stages_of
from gapless.views.planning.plan import plan
from gapless.views.planning.rewrite import KEEPING_STAGES, RULES, rewrite
from gapless.views.planning.stages import (
    Events,
    Keyed,
    Leaf,
    Paired,
    Reduced,
    Shown,
    Stage,
    ViewPlan,
    stage_name,
)
from gapless.views.printing import aggregate_text, order_text, outputs_text, relation_text
from gapless.views.relation import Relation, columns
from gapless.views.sql.text import expression_sql


def explain(name: str, relation: Relation, graph: TransformGraph | None = None) -> str:
    """The explanation of a view, which may be in the graph or be new to it.

    Raises ViewError as `plan` does.
    """
    graph = TransformGraph() if graph is None else graph
    made = graph.plans.get(name) or graph.planned(relation)
    numbers = {stage: at for at, stage in enumerate(stages_of(made), start=1)}
    lines = [f"view {name}", *_indented(_columns(relation)), ""]
    lines += _operators(relation, made)
    for stage, number in numbers.items():
        lines += ["", *_stage(stage, number, numbers, [each for each in graph.users(stage) if each != name])]
    return "\n".join([*lines, "", *_shown_lines(made, numbers)]) + "\n"


def _columns(relation: Relation) -> list[str]:
    found = analyse(relation)
    rows = [
        (c.name, f"{c.type}{'?' if c.nullable else ''}", str(found.domains[c.name]))
        for c in columns(relation)
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    table = [f"{name:{widths[0]}}  {kind:{widths[1]}}  {domain}" for name, kind, domain in rows]
    return [*table, f"a row is {found.visibility}"]


def _operators(relation: Relation, made: ViewPlan) -> list[str]:
    # The graph keeps selections above an aggregation that other views compute as a whole.
    better = rewrite(relation, RULES if plan(relation) == made else KEEPING_STAGES)
    if better == relation:
        return ["operators", *_indented(relation_text(relation).splitlines())]
    return [
        "operators, as written",
        *_indented(relation_text(relation).splitlines()),
        "operators, rewritten",
        *_indented(relation_text(better).splitlines()),
    ]


def _stage(stage: Stage, number: int, numbers: dict[Stage, int], others: list[str]) -> list[str]:
    head = f"stage {number} ({stage_name(stage)}): "
    match stage:
        case Events():
            lines = [f"{head}every event is a row; Spark keeps no state", *_indented(_leaves(stage.leaves))]
        case Keyed():
            lines = [head + _keyed_by(stage), *_indented(_branches(stage))]
        case Reduced():
            keys = outputs_text(stage.keys)
            by = f"one group per {keys}" if keys else "one group"
            made = [f"{aggregate_text(each)} AS {each.name}" for each in stage.aggregates]
            lines = [
                f"{head}{by}, kept up to date from the changes of stage {numbers[stage.input.stage]}",
                *_indented(_shown(stage.input)),
                *_indented([f"Spark computes {', '.join([*made, f'count(*) AS {stage.events}'])}"]),
            ]
        case Paired():
            on = " and ".join(f"{left} = {right}" for left, right in stage.on)
            inputs = " and ".join(str(numbers[each.stage]) for each in (stage.left, stage.right))
            lines = [
                f"{head}pairs where {on}, kept up to date from the changes of stages {inputs}",
                *_indented(["of the first", *_indented(_shown(stage.left))]),
                *_indented(["of the second", *_indented(_shown(stage.right))]),
            ]
    shared = f"shared with {_listed(others)}" if others else "used by this view alone"
    return [*lines, f"  {shared}"]


def _keyed_by(stage: Keyed) -> str:
    names = ", ".join(name for name, _ in stage.keys)
    by = f"one state per {names}" if names else "one state"
    branches = len(stage.branches)
    return f"{by}, one native aggregation" + (f" for {branches} branches" if branches > 1 else "")


def _branches(stage: Keyed) -> list[str]:
    lines: list[str] = []
    for branch in stage.branches:
        made = [f"{aggregate_text(each)} AS {each.name}" for each in branch.aggregates]
        lines += [
            f"branch {branch.name}",
            *_indented(_leaves(branch.leaves)),
            f"  Spark computes {', '.join([*made, f'count(*) AS {branch.events}'])}",
        ]
    return lines


def _leaves(leaves: Iterable[Leaf]) -> list[str]:
    lines: list[str] = []
    for leaf in leaves:
        read = ", ".join(leaf.columns) or "no columns, only that there is an event"
        lines += [f"topic {leaf.topic}: {read}", f"  brokers select {leaf.where or 'all events'}"]
        if leaf.residual is not None:
            lines.append(f"  Spark selects {expression_sql(leaf.residual)}")
        computed = [(name, each) for name, each in leaf.outputs if outputs_text(((name, each),)) != name]
        if computed:
            lines.append(f"  Spark computes {outputs_text(tuple(computed))}")
    return lines


def _shown(shown: Shown) -> list[str]:
    rows = "all rows" if shown.visible is None else f"rows where {expression_sql(shown.visible)}"
    return [f"takes {rows}", *([f"  as {outputs_text(shown.outputs)}"] if shown.outputs else [])]


def _shown_lines(made: ViewPlan, numbers: dict[Stage, int]) -> list[str]:
    shown = made.shown
    rows = "all rows" if shown.visible is None else f"rows where {expression_sql(shown.visible)}"
    lines = [f"the view shows of stage {numbers[shown.stage]} {rows}", f"  as {outputs_text(shown.outputs)}"]
    if made.top is not None:
        lines.append(f"  the first {made.top.k} {order_text(made.top.order, made.top.per)}")
    return lines


def _listed(names: list[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
