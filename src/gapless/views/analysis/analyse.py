"""What is known about a view before there is any event? Domains of its columns, fate of its rows, its keys.

One walk over the operators, from the topics up. Its results decide which views can be maintained
(`views.check`), and are part of a view's explanation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal as OneOf
from typing import TypeAlias

from gapless.views.analysis.domains import (
    AggregatedRows,
    Domains,
    MonotonicDomain,
    Motion,
    aggregate_domain,
    constrained,
    domain_of,
)
from gapless.views.analysis.visibility import ANY, ONCE, Visibility, all_of, any_of, one_of, visibility_of
from gapless.views.expressions import Call, ColumnRef, Expression
from gapless.views.relation import GroupBy, Join, Merge, Project, Relation, Scan, TopK, Where, columns

#: How a relation is kept: `events` of topics, one state per key (`keyed`), or computed from the changes of
#: such (`derived`).
Shape: TypeAlias = OneOf["events", "keyed", "derived"]


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a relation."""

    shape: Shape
    domains: Domains
    visibility: Visibility
    #: For each key, the columns that hold it; one without a column has lost it.
    keys: tuple[frozenset[str], ...] = ()
    #: For each key after a full join, the columns of which one holds it, and COALESCE of both is the key.
    halves: tuple[frozenset[str], ...] = ()
    #: For each key, whether it may be null in any input.
    nulls: tuple[bool, ...] = ()


class Analyst:
    """Analyses the parts of one relation, each once; the relation must live as long."""

    def __init__(self) -> None:
        #: By identity: views over views share parts, and comparing them would cost more.
        self._known: dict[int, Analysis] = {}

    def analyse(self, relation: Relation) -> Analysis:
        """What is known of a relation."""
        found = self._known.get(id(relation))
        if found is None:
            found = self._known[id(relation)] = self._analysed(relation)
        return found

    def _analysed(self, relation: Relation) -> Analysis:
        match relation:
            case Scan():
                return Analysis("events", {each.name: _EVENT for each in relation.columns}, ONCE)
            case Where():
                return _where(relation, self.analyse(relation.input))
            case Project():
                return _project(relation, self.analyse(relation.input))
            case Merge():
                return _merge(relation, [self.analyse(each) for each in relation.inputs])
            case GroupBy():
                return _group(relation, self.analyse(relation.input))
            case Join():
                return _join(relation, self.analyse(relation.left), self.analyse(relation.right))
            case TopK():
                inner = self.analyse(relation.input)
                return replace(inner, visibility=all_of(inner.visibility, ANY))


def analyse(relation: Relation) -> Analysis:
    """What is known of a relation."""
    return Analyst().analyse(relation)


def domains(relation: Relation) -> Mapping[str, MonotonicDomain]:
    """The monotonic domain of every column."""
    return analyse(relation).domains


def visibility(relation: Relation) -> Visibility:
    """What can become of a row."""
    return analyse(relation).visibility


_EVENT = MonotonicDomain("event", Motion.FIXED)


def _where(relation: Where, inner: Analysis) -> Analysis:
    holds = visibility_of(relation.condition, inner.domains)
    return replace(
        inner,
        domains=constrained(inner.domains, relation.condition),
        visibility=all_of(inner.visibility, holds),
    )


def _project(relation: Project, inner: Analysis) -> Analysis:
    found = {name: domain_of(each, inner.domains) for name, each in relation.outputs}
    keys = [frozenset(name for name, each in relation.outputs if _is_one(each, key)) for key in inner.keys]
    halves = [
        frozenset(name for name, each in relation.outputs if _is_one(each, key)) for key in inner.halves
    ]
    for at, half in enumerate(inner.halves):
        keys[at] |= {name for name, each in relation.outputs if _joins(each, half)}
    return replace(inner, domains=found, keys=tuple(keys), halves=tuple(halves))


def _is_one(expression: Expression, names: frozenset[str]) -> bool:
    return isinstance(expression, ColumnRef) and expression.name in names


def _joins(expression: Expression, half: frozenset[str]) -> bool:
    """Whether it is COALESCE of the columns that hold a key after a full join."""
    if not isinstance(expression, Call) or expression.function != "coalesce":
        return False
    names = [each.name for each in expression.operands if isinstance(each, ColumnRef)]
    return len(names) == len(expression.operands) == len(half) and half == set(names)


def _merge(relation: Merge, inner: list[Analysis]) -> Analysis:
    names = [each.name for each in columns(relation)]
    found: dict[str, MonotonicDomain] = {}
    for place, name in enumerate(names):
        same = [
            analysis.domains[columns(each)[place].name]
            for each, analysis in zip(relation.inputs, inner, strict=True)
        ]
        domain = same[0]
        for other in same[1:]:
            domain = MonotonicDomain(
                domain.name if domain.name == other.name else "latest",
                domain.motion | other.motion,
                domain.not_negative and other.not_negative,
                domain.not_positive and other.not_positive,
                domain.arrives or other.arrives,
            )
        found[name] = domain
    fate = inner[0].visibility
    for analysis in inner[1:]:
        fate = one_of(fate, analysis.visibility)
    events = all(each.shape == "events" for each in inner)
    return Analysis("events" if events else "derived", found, fate)


def rows_of(relation: GroupBy, inner: Analysis) -> AggregatedRows:
    """What is known about the input rows of a GROUP BY: a row leaves its group also when its keys change."""
    moves = any(not domain_of(key, inner.domains).is_final for _, key in relation.keys)
    are_events = inner.shape == "events"
    return AggregatedRows(are_events, not are_events and (moves or inner.visibility.may_leave))


def _group(relation: GroupBy, inner: Analysis) -> Analysis:
    rows = rows_of(relation, inner)
    found: dict[str, MonotonicDomain] = {}
    for name, key in relation.keys:
        was = domain_of(key, inner.domains)
        found[name] = MonotonicDomain("key", Motion.FIXED, was.not_negative, was.not_positive)
    for each in relation.aggregates:
        found[each.name] = aggregate_domain(each, inner.domains, rows)
    fate = all_of(ONCE, ANY) if rows.may_leave else ONCE
    keys = tuple(frozenset({name}) for name, _ in relation.keys)
    nulls = tuple(key.nullable for _, key in relation.keys)
    return Analysis("keyed" if rows.are_events else "derived", found, fate, keys, nulls=nulls)


def paired_keys(relation: Join, left: Analysis, right: Analysis) -> dict[int, int] | None:
    """For each key of the left the key of the right that it equals; None unless those are all keys."""
    if left.shape != "keyed" or right.shape != "keyed" or len(left.keys) != len(right.keys):
        return None
    pairs: dict[int, int] = {}
    for one, other in relation.on:
        first = next((at for at, key in enumerate(left.keys) if one in key), None)
        second = next((at for at, key in enumerate(right.keys) if other in key), None)
        if first is None or second is None or pairs.setdefault(first, second) != second:
            return None
    return pairs if len(pairs) == len(left.keys) == len(set(pairs.values())) else None


def _join(relation: Join, left: Analysis, right: Analysis) -> Analysis:
    pairs = paired_keys(relation, left, right)
    on = {name for pair in relation.on for name in pair}
    together = {**left.domains, **right.domains}
    moves = any(not together[name].is_final for name in on)
    left_domains = _missing(left) if relation.kind == "full" else left.domains
    right_domains = right.domains if relation.kind == "inner" else _missing(right)
    match relation.kind:
        case "inner":
            fate = all_of(left.visibility, right.visibility)
        case "left":
            fate = left.visibility
        case "full":
            fate = any_of(left.visibility, right.visibility)
    if moves:
        fate = all_of(fate, ANY)
    found = {**left_domains, **right_domains}
    if pairs is None:
        return Analysis("derived", found, fate, (*left.keys, *right.keys))
    nulls = tuple(null or right.nulls[pairs[at]] for at, null in enumerate(left.nulls))
    partner = dict(relation.on)
    both = tuple(key | {partner[name] for name in key if name in partner} for key in left.keys)
    match relation.kind:
        case "inner":
            return Analysis("keyed", found, fate, both, nulls=nulls)
        case "left":
            return Analysis("keyed", found, fate, left.keys, nulls=nulls)
        case "full":
            halves = tuple(frozenset({*pair}) for pair in _paired(left, relation))
            return Analysis("keyed", found, fate, tuple(frozenset() for _ in left.keys), halves, nulls)


def _paired(left: Analysis, relation: Join) -> list[tuple[str, str]]:
    """For each key of the left, the first two columns by which it is joined."""
    return [next(pair for pair in relation.on if pair[0] in key) for key in left.keys]


def _missing(side: Analysis) -> dict[str, MonotonicDomain]:
    """The columns of a side that may have no row, yet or any more."""
    if side.visibility.may_leave:
        return {
            name: replace(each, name="latest", motion=Motion.ANY, arrives=True)
            for name, each in side.domains.items()
        }
    return {
        name: replace(each, name="event" if each.name == "key" else each.name, arrives=True)
        for name, each in side.domains.items()
    }
