"""Into which stages is a view cut? From a tree of operators to as few stages as possible.

Stateless operators vanish: their conditions and columns are substituted into those below or above. Selections
and projections of topics become leaves, of which the brokers evaluate what they can. An aggregation of leaves
is a `Keyed` stage with one branch; a join of two such relations by all keys of both is one `Keyed` stage with
the branches of both. An aggregation of what a stage shows is `Reduced`, and a join by other columns is
`Paired`. A top-k comes last.

A branch is present in a key's row when it has events; so a join needs no state of its own: it shows the rows
in which both branches are present (inner), the left one (left), or any (full).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeAlias

from gapless.errors import ViewError
from gapless.views.expressions import Call, ColumnRef, Expression, Literal, columns_of
from gapless.views.logic import all_of, any_of, conjuncts, is_not_null, is_positive, only_if, substitute
from gapless.views.planning.draft import (
    Draft,
    Outputs,
    TopicPiece,
    column_name,
    completed,
    drafted,
    key_symbol,
    leaf,
    named,
    unique,
    united,
)
from gapless.views.planning.rewrite import RULES, Rule, rewrite
from gapless.views.planning.stages import GROUP_EVENTS, Events, Paired, Reduced, Shown, Top, ViewPlan
from gapless.views.relation import (
    Aggregate,
    GroupBy,
    Join,
    Merge,
    Project,
    Relation,
    Scan,
    TopK,
    Where,
    columns,
)


@dataclass(frozen=True, slots=True)
class _Flat:
    """Rows of topics, without state."""

    pieces: tuple[TopicPiece, ...]


@dataclass(frozen=True, slots=True)
class _Keyed:
    """Rows of a keyed stage that is not complete yet: a join may add branches. Names are symbols."""

    drafts: tuple[Draft, ...]
    #: What must hold for a row to exist; nothing for a stage with one branch.
    present: tuple[Expression, ...]
    outputs: Outputs

    def presence(self) -> tuple[Expression, ...]:
        """What must hold, also in a stage that has other branches as well."""
        alone = (is_positive(self.drafts[0].events),) if len(self.drafts) == 1 else ()
        return alone + self.present


@dataclass(frozen=True, slots=True)
class _Other:
    """Rows of any other stage."""

    stage: Reduced
    present: tuple[Expression, ...]
    outputs: Outputs


@dataclass(frozen=True, slots=True)
class _Pair:
    """Pairs of rows of two stages. `present` and `outputs` are over the columns of both."""

    left: _Rows
    right: _Rows
    on: tuple[tuple[str, str], ...]
    present: tuple[Expression, ...]
    outputs: Outputs


_Rows: TypeAlias = _Flat | _Keyed | _Other | _Pair


def plan(relation: Relation, rules: Sequence[Rule] = RULES) -> ViewPlan:
    """How a view is computed, once these rules have rewritten it.

    Raises ViewError E168 for what no stage can do, naming the operator and the reason.
    """
    relation = rewrite(relation, rules)
    top: Top | None = None
    if isinstance(relation, TopK):
        top = Top(relation.k, relation.order, relation.per)
        relation = relation.input
    return ViewPlan(_shown(_rows(relation)), top)


def _refuse(message: str, at: int | None) -> NoReturn:
    raise ViewError("E168", message, at=at)


def _rows(relation: Relation) -> _Rows:
    match relation:
        case Scan():
            identity = tuple((c.name, ColumnRef(c.name, c.type, c.nullable)) for c in relation.columns)
            return _Flat((TopicPiece(relation, (), identity),))
        case Where():
            return _where(_rows(relation.input), relation.condition)
        case Project():
            return _project(_rows(relation.input), relation.outputs)
        case Merge():
            return _merge(relation)
        case GroupBy():
            return _group(relation)
        case Join():
            return _join(relation)
        case TopK():
            _refuse("a top-k comes last: nothing can be computed from the rows that it shows", relation.at)


def _where(rows: _Rows, condition: Expression) -> _Rows:
    if isinstance(rows, _Flat):
        return _Flat(
            tuple(
                replace(piece, conditions=_added(piece.conditions, piece.put(condition)))
                for piece in rows.pieces
            )
        )
    return replace(rows, present=_added(rows.present, substitute(condition, dict(rows.outputs))))


def _added(conditions: Iterable[Expression], condition: Expression) -> tuple[Expression, ...]:
    return tuple(dict.fromkeys((*conditions, *conjuncts(condition))))


def _project(rows: _Rows, outputs: Outputs) -> _Rows:
    if isinstance(rows, _Flat):
        return _Flat(
            tuple(replace(piece, outputs=_composed(outputs, piece.outputs)) for piece in rows.pieces)
        )
    return replace(rows, outputs=_composed(outputs, rows.outputs))


def _composed(outer: Outputs, inner: Outputs) -> Outputs:
    columns_inside = dict(inner)
    return tuple((name, substitute(each, columns_inside)) for name, each in outer)


def _merge(relation: Merge) -> _Rows:
    inputs = [_rows(each) for each in relation.inputs]
    if not all(isinstance(each, _Flat) for each in inputs):
        _refuse("UNION ALL takes events: merge the topics first and aggregate the result", relation.at)
    return _Flat(tuple(piece for each in inputs if isinstance(each, _Flat) for piece in each.pieces))


def _group(relation: GroupBy) -> _Rows:
    rows = _rows(relation.input)
    if isinstance(rows, _Flat):
        return _aggregated(rows, relation)
    for aggregate in relation.aggregates:
        if aggregate.function in ("first", "last"):
            message = f"{aggregate.function} takes events: the rows of an aggregation or a join have no order"
            _refuse(message, aggregate.at)
    return _reduced(rows, relation)


def _aggregated(rows: _Flat, relation: GroupBy) -> _Keyed:
    """An aggregation of events: one branch."""
    parts = [part for aggregate in relation.aggregates for part in _lowered(aggregate)]
    keys = [key for _, key in relation.keys]
    draft, measures = drafted(rows.pieces, keys, [part for part in parts if part.operand is not None])
    states = {part.name: draft.events for part in parts if part.operand is None}
    states |= {name: draft.state(measure) for name, measure in measures.items()}
    key_outputs = [
        (name, ColumnRef(key_symbol(at), key.kind, key.nullable))
        for at, (name, key) in enumerate(relation.keys)
    ]
    results = [(each.name, _result(each, states)) for each in relation.aggregates]
    return _Keyed((draft,), (), (*key_outputs, *results))


def _lowered(aggregate: Aggregate) -> tuple[Aggregate, ...]:
    """What is kept for an aggregate: an average is a sum and a count, and events are counted anyway."""
    operand = aggregate.operand
    if aggregate.function == "count" and (operand is None or not operand.nullable):
        return (replace(aggregate, operand=None),)
    if aggregate.function != "avg":
        return (aggregate,)
    assert operand is not None, "an average has an operand"
    total = Aggregate(f"{aggregate.name}:sum", "sum", operand, operand.kind, nullable=True)
    count = Aggregate(f"{aggregate.name}:count", "count", operand, "int", nullable=False)
    return (total, *_lowered(count))


def _result(aggregate: Aggregate, states: dict[str, ColumnRef]) -> Expression:
    if aggregate.function != "avg":
        return states[aggregate.name]
    parts = (states[f"{aggregate.name}:sum"], states[f"{aggregate.name}:count"])
    return Call("/", parts, aggregate.kind)


def _reduced(rows: _Keyed | _Other | _Pair, relation: GroupBy) -> _Other:
    """An aggregation of what a stage shows."""
    inner = dict(rows.outputs)
    parts = [part for aggregate in relation.aggregates for part in _lowered(aggregate)]
    wanted = [(f"key:{name}", key) for name, key in relation.keys]
    wanted += [(f"part:{part.name}", part.operand) for part in parts if part.operand is not None]
    # The stage below is completed only now that its uses are known.
    asked = tuple((name, substitute(each, inner)) for name, each in wanted)
    shown, seen = named(_shown(replace(rows, outputs=asked)), {GROUP_EVENTS})
    keys = dict.fromkeys(seen[f"key:{name}"] for name, _ in relation.keys)
    taken = {key.name for key in keys} | {GROUP_EVENTS}
    aggregates: dict[tuple[str, ColumnRef], Aggregate] = {}
    for part in sorted(parts, key=lambda part: (part.function, repr(seen.get(f"part:{part.name}")))):
        operand = seen.get(f"part:{part.name}")
        if operand is not None and (part.function, operand) not in aggregates:
            name = unique(f"{part.function}_{operand.name}", taken)
            made = Aggregate(name, part.function, operand, part.kind, part.nullable)
            aggregates[part.function, operand] = made
    stage = Reduced(
        shown,
        tuple(sorted(((key.name, key) for key in keys), key=repr)),
        tuple(aggregates.values()),
    )
    states = {}
    for part in parts:
        operand = seen.get(f"part:{part.name}")
        if operand is None:
            states[part.name] = ColumnRef(GROUP_EVENTS, "int", nullable=False)
        else:
            made = aggregates[part.function, operand]
            states[part.name] = ColumnRef(made.name, made.kind, made.nullable)
    outputs = [(name, seen[f"key:{name}"]) for name, _ in relation.keys]
    return _Other(stage, (), (*outputs, *((a.name, _result(a, states)) for a in relation.aggregates)))


def _join(relation: Join) -> _Rows:
    left, right = _rows(relation.left), _rows(relation.right)
    if isinstance(left, _Keyed) and isinstance(right, _Keyed):
        order = _key_order(left, right, relation)
        if order is not None:
            return _fused(left, _reordered(right, order), relation)
    if relation.kind != "inner":
        _refuse(
            f"a {relation.kind} join takes two aggregations, by all keys of both: "
            "group each side by the columns that are joined",
            relation.at,
        )
    identity = tuple((c.name, ColumnRef(c.name, c.type, c.nullable)) for c in columns(relation))
    return _Pair(left, right, relation.on, (), identity)


def _key_order(left: _Keyed, right: _Keyed, relation: Join) -> tuple[int, ...] | None:
    """For each key of the left the key of the right that it equals; None unless those are all keys."""
    left_columns, right_columns = dict(left.outputs), dict(right.outputs)
    pairs: dict[int, int] = {}
    for left_name, right_name in relation.on:
        first = _key_index(left_columns[left_name], left)
        second = _key_index(right_columns[right_name], right)
        if first is None or second is None or pairs.setdefault(first, second) != second:
            return None
        if left_columns[left_name].kind != right_columns[right_name].kind:
            return None
    left_count, right_count = len(left.drafts[0].keys), len(right.drafts[0].keys)
    if sorted(pairs) != list(range(left_count)) or sorted(pairs.values()) != list(range(right_count)):
        return None
    return tuple(pairs[at] for at in range(left_count))


def _key_index(expression: Expression, rows: _Keyed) -> int | None:
    """Which key an expression is, in every row that is there."""
    index, condition = _key_when(expression)
    return index if condition is None or condition in rows.present else None


def _key_when(expression: Expression) -> tuple[int | None, Expression | None]:
    """Which key an expression is, and under which condition; it is null otherwise.

    After a full join, either side's key is there only if the side is, and COALESCE of both always.
    """
    match expression:
        case ColumnRef() if expression.name.startswith("key:"):
            return int(expression.name.removeprefix("key:")), None
        case Call("case", (condition, value, Literal(value=None))):
            index, needed = _key_when(value)
            return (index if needed is None or needed in conjuncts(condition) else None), condition
        case Call("coalesce", operands):
            found = [_key_when(each) for each in operands]
            index = found[0][0] if len({each for each, _ in found}) == 1 else None
            conditions = [each for _, each in found if each is not None]
            return index, any_of(conditions) if len(conditions) == len(found) else None
        case _:
            return None, None


def _reordered(rows: _Keyed, order: tuple[int, ...]) -> _Keyed:
    """The same rows with reordered keys: the key at `order[i]` becomes the one at `i`."""
    symbols: dict[str, Expression] = {}
    drafts = []
    for draft in rows.drafts:
        moved = replace(draft, keys=tuple(draft.keys[at] for at in order))
        symbols[draft.events.name] = moved.events
        symbols |= {draft.state(measure).name: moved.state(measure) for measure in draft.measures}
        drafts.append(moved)
    for at, old in enumerate(order):
        kind = drafts[0].keys[at][0].kind
        nullable = any(each.nullable for draft in drafts for each in draft.keys[at])
        symbols[key_symbol(old)] = ColumnRef(key_symbol(at), kind, nullable)
    return _Keyed(
        tuple(drafts),
        tuple(substitute(each, symbols) for each in rows.present),
        tuple((name, substitute(each, symbols)) for name, each in rows.outputs),
    )


def _fused(left: _Keyed, right: _Keyed, relation: Join) -> _Keyed:
    """A join by all keys of both: a stage with the branches of both."""
    drafts = united((*left.drafts, *right.drafts))
    has_keys = _never_null_in_one(left, right)
    left_there, right_there = left.presence(), right.presence()
    if relation.kind == "inner":
        present = dict.fromkeys((*left_there, *right_there, *has_keys))
        return _Keyed(drafts, tuple(present), (*left.outputs, *right.outputs))
    right_outputs = _only_if_there(right, (*right_there, *has_keys))
    if relation.kind == "left":
        return _Keyed(drafts, left_there, (*left.outputs, *right_outputs))
    if has_keys:
        _refuse("a full join by columns that may be null on both sides: leave the nulls out", relation.at)
    there = any_of(each for each in (all_of(left_there), all_of(right_there)) if each is not None)
    assert there is not None, "each side has a presence"
    return _Keyed(drafts, (there,), (*_only_if_there(left, left_there), *right_outputs))


def _never_null_in_one(left: _Keyed, right: _Keyed) -> tuple[Expression, ...]:
    """Nulls are equal to nothing: what must hold of the keys that may be null on both sides."""
    found = []
    for at, (first, second) in enumerate(zip(_key_columns(left), _key_columns(right), strict=True)):
        if first.nullable and second.nullable:
            found.append(is_not_null(ColumnRef(key_symbol(at), first.kind, nullable=True)))
    return tuple(found)


def _key_columns(rows: _Keyed) -> list[ColumnRef]:
    every = range(len(rows.drafts[0].keys))
    return [
        ColumnRef(
            key_symbol(at),
            rows.drafts[0].keys[at][0].kind,
            any(each.nullable for draft in rows.drafts for each in draft.keys[at]),
        )
        for at in every
    ]


def _only_if_there(rows: _Keyed, there: tuple[Expression, ...]) -> Outputs:
    """The columns of a side that may be missing: null where it is.

    A state column of a branch without events is null as it is, unless it counts.
    """
    alone = there == (is_positive(rows.drafts[0].events),) and len(rows.drafts) == 1
    null_anyway = {
        rows.drafts[0].state(measure).name
        for measure in rows.drafts[0].measures
        if measure.function != "count"
    }
    condition = all_of(there)
    return tuple(
        (name, each)
        if alone and isinstance(each, ColumnRef) and each.name in null_anyway
        else (name, only_if(condition, each))
        for name, each in rows.outputs
    )


def _shown(rows: _Rows) -> Shown:
    """The stage of these rows, complete, and what is seen of it."""
    match rows:
        case _Flat():
            return _events(rows)
        case _Keyed():
            return completed(rows.drafts, rows.present, rows.outputs)
        case _Other():
            return Shown(rows.stage, all_of(sorted(rows.present, key=repr)), rows.outputs)
        case _Pair():
            return _paired(rows)


def _events(rows: _Flat) -> Shown:
    names = [name for name, _ in rows.pieces[0].outputs]
    pieces = sorted(
        rows.pieces,
        key=lambda piece: (repr(piece.scan), sorted(map(repr, piece.conditions)), repr(piece.outputs)),
    )
    columns_of_all = {name: tuple(dict(piece.outputs)[name] for piece in pieces) for name in names}
    taken: set[str] = set()
    found: dict[tuple[Expression, ...], ColumnRef] = {}
    for each in sorted(set(columns_of_all.values()), key=repr):
        name = unique(column_name(each, "value"), taken)
        found[each] = ColumnRef(name, each[0].kind, any(one.nullable for one in each))
    leaves = tuple(
        leaf(piece.scan, piece.conditions, [(column.name, each[at]) for each, column in found.items()])
        for at, piece in enumerate(pieces)
    )
    return Shown(Events(leaves), None, tuple((name, found[columns_of_all[name]]) for name in names))


def _paired(rows: _Pair) -> Shown:
    """The sides in an order that does not depend on the view, each with the columns that are needed."""
    used = frozenset[str]().union(
        *(columns_of(each) for each in (*rows.present, *dict(rows.outputs).values()))
    )
    sides = [
        _shown(_only(rows.left, used | {left for left, _ in rows.on})),
        _shown(_only(rows.right, used | {right for _, right in rows.on})),
    ]
    on = rows.on
    if repr(sides[1]) < repr(sides[0]):
        sides.reverse()
        on = tuple((right, left) for left, right in on)
    taken: set[str] = set()
    (left, left_names), (right, right_names) = (named(side, taken) for side in sides)
    names: dict[str, Expression] = {**left_names, **right_names}
    pairs = {(left_names[first].name, right_names[second].name) for first, second in on}
    stage = Paired(left, right, tuple(sorted(pairs)))
    return Shown(
        stage,
        all_of(sorted((substitute(each, names) for each in rows.present), key=repr)),
        tuple((name, substitute(each, names)) for name, each in rows.outputs),
    )


def _only(rows: _Rows, names: frozenset[str]) -> _Rows:
    """The rows with only those of their columns."""
    if isinstance(rows, _Flat):
        return _Flat(
            tuple(
                replace(piece, outputs=tuple(each for each in piece.outputs if each[0] in names))
                for piece in rows.pieces
            )
        )
    return replace(rows, outputs=tuple(each for each in rows.outputs if each[0] in names))
