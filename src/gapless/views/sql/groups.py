"""What does GROUP BY make of a SELECT? Keys and aggregates below, expressions over both above.

The SELECT list of `SELECT item, sum(a) - sum(b) AS rest FROM t GROUP BY item` is read as if there were no
groups, with a placeholder column for each aggregate. Then whatever equals a key becomes the key's column and
each stand-in becomes its aggregate's; a column that is left is in no group, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from gapless.content.sql.scanner import TokenLeaf
from gapless.views.expressions import Call, ColumnRef, Expression, Literal, walk
from gapless.views.functions import OPERANDS, aggregate, described
from gapless.views.relation import Aggregate, GroupBy, Project, Relation, Where, columns
from gapless.views.sql.expressions import AggregateReader, ExpressionReader, Node, Scope

#: Prefix of placeholders for an aggregate or a column of SELECT; no column's name has it.
STAND_IN = "\0"


@dataclass(frozen=True, slots=True)
class Item:
    """One column of a SELECT list."""

    name: str
    expression: Expression
    at: int | None = None


class Aggregates(AggregateReader):
    """The aggregates of one SELECT, each once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.found: list[Aggregate] = []

    def read(
        self, reader: ExpressionReader, function: str, operands: list[Node], leaf: TokenLeaf
    ) -> ColumnRef:
        """A column that stands for the aggregate."""
        if len(operands) != 1:
            message = f"{function}() takes one column or expression, got {len(operands)}"
            reader.refuse("E165", message + (": write count(*)" if function == "count" else ""), leaf.at)
        (node,) = operands
        if isinstance(node, exp.Distinct):
            message = (
                f"{function}(DISTINCT ...) is not supported: it would keep every value of every group; "
                "GROUP BY the column in a subquery and count that"
            )
            reader.refuse("E168", message, leaf.at)
        if isinstance(node, exp.Order):
            reader.refuse("E168", f"ORDER BY inside {function}() is not supported", leaf.at)
        operand = None if isinstance(node, exp.Star) else reader.read(node, self._scope, _NESTED)
        return self.add(aggregate("", function, operand, at=leaf.at, text=reader.text))

    def add(self, new: Aggregate) -> ColumnRef:
        """A column that stands for the aggregate."""
        named = [replace(each, name="") for each in self.found]
        index = named.index(new) if new in named else len(self.found)
        if index == len(self.found):
            self.found.append(replace(new, name=f"{STAND_IN}{index}"))
        return ColumnRef(f"{STAND_IN}{index}", new.kind, new.nullable, new.at)


class _Nested(AggregateReader):
    def read(
        self, reader: ExpressionReader, function: str, operands: list[Node], leaf: TokenLeaf
    ) -> ColumnRef:
        del operands
        message = f"{function}() inside another aggregate is not supported: aggregate in a subquery first"
        reader.refuse("E168", message, leaf.at)


_NESTED = _Nested()


@dataclass(frozen=True, slots=True)
class Grouped:
    """A SELECT with groups, read as if there were none."""

    keys: tuple[Expression, ...]
    items: tuple[Item, ...]
    having: Expression | None
    aggregates: tuple[Aggregate, ...]
    at: int | None = None


def group(reader: ExpressionReader, source: Relation, grouped: Grouped) -> Relation:
    """The groups that HAVING accepts, with the columns of SELECT."""
    for key in grouped.keys:
        if key.kind not in OPERANDS["value"]:
            reader.refuse("E167", f"GROUP BY takes anything but xml, not {described(key)}", key.at)
    names = _names(grouped)
    keys = tuple(zip(names, grouped.keys, strict=False))
    aggregates = tuple(
        replace(each, name=name) for name, each in zip(names[len(keys) :], grouped.aggregates, strict=True)
    )
    stand_ins = {each.name: made for each, made in zip(grouped.aggregates, aggregates, strict=True)}
    above = _Above(reader, {key: name for name, key in reversed(keys)}, stand_ins)
    relation: Relation = GroupBy(source, keys, aggregates, grouped.at)
    if grouped.having is not None:
        relation = Where(relation, above.expression(grouped.having), grouped.having.at)
    return project(relation, tuple((each.name, above.expression(each.expression)) for each in grouped.items))


def project(
    relation: Relation, outputs: tuple[tuple[str, Expression], ...], at: int | None = None
) -> Relation:
    """The relation with these columns; itself if it already has exactly those."""
    has = [(each.name, ColumnRef(each.name, each.type, each.nullable)) for each in columns(relation)]
    return relation if has == list(outputs) else Project(relation, outputs, at)


def distinct(reader: ExpressionReader, relation: Relation, at: int | None = None) -> Relation:
    """Each row once: groups of all columns."""
    for each in columns(relation):
        if each.type not in OPERANDS["value"]:
            message = f"DISTINCT takes anything but xml, not column {each.name} (xml)"
            reader.refuse("E167", message, at)
    keys = tuple((each.name, ColumnRef(each.name, each.type, each.nullable)) for each in columns(relation))
    return GroupBy(relation, keys, (), at)


def has_stand_in(expression: Expression) -> bool:
    """Whether an aggregate, or something made from one, is part of an expression."""
    return any(isinstance(each, ColumnRef) and each.name.startswith(STAND_IN) for each in walk(expression))


def _names(grouped: Grouped) -> list[str]:
    """A name for each key and then for each aggregate: what SELECT calls it, or a new one."""
    given: dict[Expression, str] = {}
    for item in grouped.items:
        given.setdefault(item.expression, item.name)
    taken = {item.name for item in grouped.items}
    names: list[str] = []

    def named(expression: Expression, otherwise: str) -> None:
        name = given.get(expression, otherwise)
        number = 1
        while (name in taken and name != given.get(expression)) or name in names:
            number += 1
            name = f"{otherwise}_{number}"
        names.append(name)

    for key in grouped.keys:
        named(key, key.name if isinstance(key, ColumnRef) else "key")
    for each in grouped.aggregates:
        named(ColumnRef(each.name, each.kind, each.nullable), each.function)
    return names


@dataclass(frozen=True, slots=True)
class _Above:
    """Rewrites expressions over the rows into expressions over the groups."""

    reader: ExpressionReader
    keys: dict[Expression, str]
    aggregates: dict[str, Aggregate]

    def expression(self, expression: Expression) -> Expression:
        name = self.keys.get(expression)
        if name is not None:
            return ColumnRef(name, expression.kind, expression.nullable, expression.at)
        match expression:
            case Literal():
                return expression
            case Call():
                return replace(
                    expression, operands=tuple(self.expression(each) for each in expression.operands)
                )
            case ColumnRef():
                found = self.aggregates.get(expression.name)
                if found is None:
                    message = (
                        f"column {expression.name!r} is neither grouped nor aggregated: add it to GROUP BY, "
                        f"or write last({expression.name})"
                    )
                    self.reader.refuse("E167", message, expression.at)
                return replace(expression, name=found.name)
