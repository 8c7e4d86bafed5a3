"""Which names do the parts of a stage get? Names derived from what is computed, not from the view.

While a plan is made, a keyed stage is a set of *drafts*, one for each branch, and its state columns have
symbolic names made of digests. When it is complete, branches, keys and aggregates are sorted independently of
the view, duplicates are merged, and everything gets a readable name. So two views that write the same
aggregation differently (other aliases, another order) get equal stages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gapless.views.expressions import ColumnRef, Expression, columns_of
from gapless.views.logic import all_of, is_positive, substitute
from gapless.views.planning.pushdown import pushed
from gapless.views.planning.stages import Branch, Keyed, Leaf, Shown
from gapless.views.relation import Aggregate, AggregateFunction, Scan

Outputs = tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class TopicPiece:
    """Rows of one topic: those for which the conditions hold, with columns computed from each."""

    scan: Scan
    conditions: tuple[Expression, ...]
    outputs: Outputs

    def put(self, expression: Expression) -> Expression:
        """An expression over the outputs, as one over the topic's columns."""
        return substitute(expression, dict(self.outputs))


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate, with its operand for each piece."""

    function: AggregateFunction
    operands: tuple[Expression, ...]
    kind: str
    nullable: bool

    @property
    def symbol(self) -> str:
        """Its symbol until the stage is complete."""
        return f"{self.function}:{digest(self.operands)}"


@dataclass(frozen=True, slots=True)
class Draft:
    """A branch without names."""

    #: In an order that does not depend on the view.
    sources: tuple[tuple[Scan, tuple[Expression, ...]], ...]
    #: For each key of the stage, its expression for each source.
    keys: tuple[tuple[Expression, ...], ...]
    measures: tuple[Measure, ...]

    @property
    def symbol(self) -> str:
        """The branch's symbol until the stage is complete; its measures are not part of it."""
        return digest((self.sources, self.keys))

    def state(self, measure: Measure) -> ColumnRef:
        """The state column of a measure. It is null where the branch has no events."""
        return ColumnRef(f"{self.symbol}:{measure.symbol}", measure.kind, measure.nullable)

    @property
    def events(self) -> ColumnRef:
        """The state column that counts its events."""
        return ColumnRef(f"{self.symbol}:events", "int", nullable=False)


def digest(value: object) -> str:
    """A short text that equal values share."""
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def key_symbol(index: int) -> str:
    """A key's symbol until the stage is complete."""
    return f"key:{index}"


def drafted(
    pieces: Iterable[TopicPiece], keys: Iterable[Expression], aggregates: Iterable[Aggregate]
) -> tuple[Draft, dict[str, Measure]]:
    """A branch that aggregates the pieces, and which of its measures each aggregate is."""
    keys, aggregates = tuple(keys), tuple(aggregates)
    ordered = sorted(
        pieces,
        key=lambda piece: (
            repr((piece.scan, sorted(map(repr, piece.conditions)))),
            repr([piece.put(key) for key in keys]),
            sorted(repr(piece.put(each.operand)) for each in aggregates if each.operand is not None),
        ),
    )
    measures = {
        each.name: Measure(
            each.function, tuple(piece.put(each.operand) for piece in ordered), each.kind, each.nullable
        )
        for each in aggregates
        if each.operand is not None
    }
    draft = Draft(
        tuple((piece.scan, tuple(sorted(piece.conditions, key=repr))) for piece in ordered),
        tuple(tuple(piece.put(key) for piece in ordered) for key in keys),
        tuple(sorted(set(measures.values()), key=repr)),
    )
    return draft, measures


def united(drafts: Iterable[Draft]) -> tuple[Draft, ...]:
    """Merge drafts of the same rows by the same keys, with the measures of all."""
    by_symbol: dict[str, Draft] = {}
    for draft in drafts:
        known = by_symbol.setdefault(draft.symbol, draft)
        measures = tuple(sorted({*known.measures, *draft.measures}, key=repr))
        by_symbol[draft.symbol] = replace(known, measures=measures)
    return tuple(by_symbol.values())


def completed(drafts: tuple[Draft, ...], present: Iterable[Expression], outputs: Outputs) -> Shown:
    """The stage of these branches, and what is seen of it, with names for the symbols."""
    ordered = sorted(drafts, key=lambda draft: (repr(draft.sources), sorted(map(repr, draft.keys))))
    order = sorted(range(len(ordered[0].keys)), key=lambda at: repr([draft.keys[at] for draft in ordered]))
    taken: set[str] = set()
    key_names = [unique(column_name(ordered[0].keys[at], "key"), taken) for at in order]
    branch_names = _branch_names(ordered, taken)
    symbols: dict[str, Expression] = {}
    keys: list[tuple[str, str]] = []
    for at, name in zip(order, key_names, strict=True):
        kind = ordered[0].keys[at][0].kind
        nullable = any(each.nullable for draft in ordered for each in draft.keys[at])
        symbols[key_symbol(at)] = ColumnRef(name, kind, nullable)
        keys.append((name, kind))
    branches: list[Branch] = []
    for draft, name in zip(ordered, branch_names, strict=True):
        by_name = [(key_name, draft.keys[at]) for at, key_name in zip(order, key_names, strict=True)]
        branches.append(_branch(draft, name, by_name, taken, symbols, alone=len(ordered) == 1))
    # In a stage of one branch a key exists because the branch has events.
    needed = [each for each in present if len(ordered) > 1 or each != is_positive(ordered[0].events)]
    return Shown(
        Keyed(tuple(keys), tuple(branches)),
        all_of(sorted((substitute(each, symbols) for each in needed), key=repr)),
        tuple((name, substitute(output, symbols)) for name, output in outputs),
    )


def _branch_names(drafts: list[Draft], taken: set[str]) -> list[str]:
    """Branches are named after their topics. Their event counts get their names first."""
    names: list[str] = []
    used: set[str] = set()
    for draft in drafts:
        topics = dict.fromkeys(str(scan.topic) for scan, _ in draft.sources)
        wanted = "_".join(re.sub(r"\W", "_", topic) for topic in list(topics)[:2])
        name = wanted
        count = 2
        while name in used or f"{name}_events" in taken:
            name, count = f"{wanted}_{count}", count + 1
        used.add(name)
        taken.add(f"{name}_events")
        names.append(name)
    return names


def _branch(
    draft: Draft,
    name: str,
    keys: list[tuple[str, tuple[Expression, ...]]],
    taken: set[str],
    symbols: dict[str, Expression],
    *,
    alone: bool,
) -> Branch:
    columns = dict(keys)
    by_operands: dict[tuple[Expression, ...], str] = {}
    aggregates: list[Aggregate] = []
    for measure in draft.measures:
        column = by_operands.get(measure.operands)
        if column is None:
            column = unique(column_name(measure.operands, "value"), set(columns))
            by_operands[measure.operands] = column
            columns[column] = measure.operands
        operand = _column(column, measure.operands)
        state = unique(f"{name}_{measure.function}_{column}", taken)
        aggregates.append(Aggregate(state, measure.function, operand, measure.kind, measure.nullable))
        nullable = measure.nullable or not alone
        symbols[draft.state(measure).name] = ColumnRef(state, measure.kind, nullable)
    symbols[draft.events.name] = ColumnRef(f"{name}_events", "int", not alone)
    leaves = tuple(
        leaf(scan, conditions, [(column, each[at]) for column, each in columns.items()])
        for at, (scan, conditions) in enumerate(draft.sources)
    )
    return Branch(name, leaves, tuple(_column(key, each) for key, each in keys), tuple(aggregates))


def leaf(scan: Scan, conditions: Iterable[Expression], outputs: Iterable[tuple[str, Expression]]) -> Leaf:
    """What is read of a topic: as little as these outputs need; the brokers do as much as they can."""
    outputs, conditions = tuple(outputs), tuple(conditions)
    where, left = pushed(scan, conditions)
    residual = all_of(sorted(left, key=repr))
    needed = frozenset[str]().union(*(columns_of(each) for _, each in outputs))
    if residual is not None:
        needed |= columns_of(residual)
    read = tuple(column.name for column in scan.columns if column.name in needed)
    condition = all_of([each for each in conditions if each not in left])
    return Leaf(scan.topic, where, read, residual, outputs, condition)


def unique(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken; it is taken then."""
    found, count = name, 2
    while found in taken:
        found, count = f"{name}_{count}", count + 1
    taken.add(found)
    return found


def column_name(expressions: Iterable[Expression], otherwise: str) -> str:
    """The name of the column that all of them are, if they are one."""
    names = {each.name if isinstance(each, ColumnRef) else None for each in expressions}
    (name, *others) = names
    return otherwise if others or name is None else name


def named(shown: Shown, taken: set[str]) -> tuple[Shown, dict[str, ColumnRef]]:
    """The same rows with names derived from what is computed, and the new name of each column."""
    found: dict[Expression, ColumnRef] = {}
    for each in sorted({each for _, each in shown.outputs}, key=repr):
        found[each] = ColumnRef(unique(column_name([each], "value"), taken), each.kind, each.nullable)
    outputs = tuple((column.name, each) for each, column in found.items())
    return replace(shown, outputs=outputs), {name: found[each] for name, each in shown.outputs}


def _column(name: str, expressions: Iterable[Expression]) -> ColumnRef:
    expressions = tuple(expressions)
    return ColumnRef(name, expressions[0].kind, any(each.nullable for each in expressions))
