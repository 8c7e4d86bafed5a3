"""What is a view? An immutable tree of relational operators over topics.

A *base relation* is the history of a topic: it only grows, and its key is (pubend, tick). Every other
relation is made from others by an operator, each of which takes relations and gives one. Views over views are
trees over trees: equal parts are equal objects, so that they can be shared.

`at` is the position of the operator in the text, for messages; it is not part of the relation's identity.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal as OneOf
from typing import TypeAlias

from gapless.model.ids import TopicId
from gapless.model.schema import Column
from gapless.views.expressions import Expression

AggregateFunction: TypeAlias = OneOf["sum", "count", "min", "max", "avg", "first", "last"]
JoinKind: TypeAlias = OneOf["inner", "left", "full"]


@dataclass(frozen=True, slots=True)
class Scan:
    """All events of a topic."""

    topic: TopicId
    columns: tuple[Column, ...]
    at: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Where:
    """The rows for which the condition is true (the paper's SELECT)."""

    input: Relation
    condition: Expression
    at: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Project:
    """Exactly these columns, each computed from the input's (the paper's PROJECT and EXTEND)."""

    input: Relation
    outputs: tuple[tuple[str, Expression], ...]
    at: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Merge:
    """The rows of all inputs, which have the same columns (UNION ALL)."""

    inputs: tuple[Relation, ...]
    at: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One computed column of a group. `count` without an operand counts rows.

    `first` and `last` are the values of the oldest and the newest event of the group, nulls included: by
    tick, and at the same tick by the CRC-32 of the pubend's name.
    """

    name: str
    function: AggregateFunction
    operand: Expression | None
    kind: str
    nullable: bool = True
    at: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GroupBy:
    """One row for each value of the keys. Without keys: one row, once there is any event."""

    input: Relation
    keys: tuple[tuple[str, Expression], ...]
    aggregates: tuple[Aggregate, ...]
    at: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Join:
    """Pairs of rows that are equal in the `on` columns (left name, right name). Nulls are equal to nothing.

    The columns are all of the left, then all of the right; their names differ (the parser ensures it). In a
    left join the right columns are null where there is no partner, in a full join either may be.
    """

    left: Relation
    right: Relation
    kind: JoinKind
    on: tuple[tuple[str, str], ...]
    at: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TopK:
    """The first `k` rows, for each value of `per`, in this order: (column, whether descending).

    Nulls come last; ties are broken by all other columns ascending, so that the answer is unique.
    """

    input: Relation
    k: int
    order: tuple[tuple[str, bool], ...]
    per: tuple[str, ...] = ()
    at: int | None = field(default=None, compare=False, repr=False)


Relation: TypeAlias = Scan | Where | Project | Merge | GroupBy | Join | TopK


def columns(relation: Relation) -> tuple[Column, ...]:
    """The columns of a relation, in order.

    >>> columns(Scan(TopicId("t"), (Column("a", "int"),)))
    (Column(name='a', type='int', nullable=False),)
    """
    match relation:
        case Scan():
            return relation.columns
        case Where() | TopK():
            return columns(relation.input)
        case Project():
            return tuple(Column(name, each.kind, each.nullable) for name, each in relation.outputs)
        case Merge():
            return _merged(relation)
        case GroupBy():
            keys = [Column(name, each.kind, each.nullable) for name, each in relation.keys]
            return (*keys, *(Column(each.name, each.kind, each.nullable) for each in relation.aggregates))
        case Join():
            return _joined(relation)


def _merged(relation: Merge) -> tuple[Column, ...]:
    each_input = [columns(each) for each in relation.inputs]
    nullable = [any(column.nullable for column in same) for same in zip(*each_input, strict=True)]
    return tuple(
        Column(first.name, first.type, maybe) for first, maybe in zip(each_input[0], nullable, strict=True)
    )


def _joined(relation: Join) -> tuple[Column, ...]:
    left_maybe, right_maybe = relation.kind == "full", relation.kind != "inner"
    return (
        *(Column(c.name, c.type, c.nullable or left_maybe) for c in columns(relation.left)),
        *(Column(c.name, c.type, c.nullable or right_maybe) for c in columns(relation.right)),
    )


def inputs(relation: Relation) -> tuple[Relation, ...]:
    """The relations that an operator takes."""
    match relation:
        case Scan():
            return ()
        case Merge():
            return relation.inputs
        case Join():
            return (relation.left, relation.right)
        case Where() | Project() | GroupBy() | TopK():
            return (relation.input,)


def size(relation: Relation) -> int:
    """How many operators there are; one that is used twice counts twice.

    >>> size(Merge((Scan(TopicId("t"), ()), Scan(TopicId("u"), ()))))
    3
    """
    return _size(relation, {})


def _size(relation: Relation, known: dict[int, int]) -> int:
    # Views over views share parts: without caching, the time would be that of the whole tree.
    found = known.get(id(relation))
    if found is None:
        found = known[id(relation)] = 1 + sum(_size(each, known) for each in inputs(relation))
    return found


def moved(relation: Relation, at: int) -> Relation:
    """The same relation with one position throughout: where a view's name is in another's text."""
    match relation:
        case Scan():
            return replace(relation, at=at)
        case Merge():
            return replace(relation, inputs=tuple(moved(each, at) for each in relation.inputs), at=at)
        case Join():
            return replace(relation, left=moved(relation.left, at), right=moved(relation.right, at), at=at)
        case GroupBy():
            aggregates = tuple(replace(each, at=at) for each in relation.aggregates)
            return replace(relation, input=moved(relation.input, at), aggregates=aggregates, at=at)
        case Where() | Project() | TopK():
            return replace(relation, input=moved(relation.input, at), at=at)
