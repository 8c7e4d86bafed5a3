"""Which rows come first? ORDER BY ... LIMIT k, and ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) <= k.

A top-k orders by columns that it shows: the reason for a row's rank is visible in it. So the order is looked
up among the columns of SELECT, by name, by position, or because it is the same expression.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from gapless.views.expressions import ColumnRef, Expression
from gapless.views.functions import OPERANDS, described
from gapless.views.logic import substitute
from gapless.views.relation import Relation, TopK
from gapless.views.sql.expressions import AggregateReader, ExpressionReader, Node, Scope, Visible
from gapless.views.sql.groups import STAND_IN, Item

#: Rows of a top-k, for each group.
K_MAX = 100_000

_MIRRORED: dict[type[Node], type[Node]] = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}


@dataclass(frozen=True, slots=True)
class Ranking:
    """A `ROW_NUMBER() OVER (...)`: for each value of some columns, an order by others."""

    per: tuple[Expression, ...]
    order: tuple[tuple[Expression, bool], ...]
    at: int


@dataclass(frozen=True, slots=True)
class SelectedColumns:
    """What a SELECT shows, and how its ORDER BY may refer to it."""

    reader: ExpressionReader
    scope: Scope
    items: tuple[Item, ...]
    aggregates: AggregateReader | None

    def named_scope(self) -> Scope:
        """Names of SELECT first, then those of FROM."""
        names = {item.name for item in self.items}
        items = [
            Visible(None, item.name, ColumnRef(f"{STAND_IN}={index}", item.expression.kind))
            for index, item in enumerate(self.items)
        ]
        rest = [replace(each, shown=each.shown and each.name not in names) for each in self.scope.columns]
        return Scope((*items, *rest))

    def expression(self, node: Node) -> Expression:
        """An expression, in which names of SELECT stand for what they name."""
        found = self.reader.read(node, self.named_scope(), self.aggregates)
        meant = {f"{STAND_IN}={index}": item.expression for index, item in enumerate(self.items)}
        return replace(substitute(found, meant), at=found.at)

    def ordered(self, nodes: list[Node], *, positions: bool) -> tuple[tuple[Expression, bool], ...]:
        """Expressions and whether they descend."""
        found = []
        for node in nodes:
            descends, inner = False, node
            if isinstance(node, exp.Ordered):
                descends, inner = bool(node.args.get("desc")), node.this
            if positions and isinstance(inner, exp.Literal):
                expression = self.position(inner, "ORDER BY")
            else:
                expression = self.expression(inner)
            if expression.kind not in OPERANDS["value"]:
                message = f"ORDER BY takes anything but xml, not {described(expression)}"
                self.reader.refuse("E167", message, expression.at)
            found.append((expression, descends))
        return tuple(found)

    def position(self, node: Node, clause: str) -> Expression:
        """`GROUP BY 1` and `ORDER BY 1` mean the first column of SELECT."""
        at = self.reader.at(node)
        place = self.reader.whole_number(node, clause, len(self.items))
        return replace(self.items[place - 1].expression, at=at)

    def column(self, expression: Expression, clause: str) -> str:
        """The name under which SELECT shows an expression."""
        name = next((item.name for item in self.items if item.expression == expression), None)
        if name is None:
            message = f"{clause} takes columns that SELECT shows: add {described(expression)} to SELECT"
            self.reader.refuse("E168", message, expression.at)
        return name

    def top(self, relation: Relation, ranking: Ranking, k: int, clause: str) -> Relation:
        """The first `k` of each group."""
        order = tuple((self.column(expression, clause), descends) for expression, descends in ranking.order)
        per = tuple(dict.fromkeys(self.column(each, "PARTITION BY") for each in ranking.per))
        return TopK(relation, k, order, per, ranking.at)


def read_ranking(shown: SelectedColumns, node: Node) -> Ranking:
    """A window that numbers rows. Raises ViewError E168 for any other."""
    reader = shown.reader
    at = reader.at(node)
    function = reader.leaf(node.this.this).text if isinstance(node.this, exp.Anonymous) else node.this.key
    order = node.args.get("order")
    extra = {name for name, value in node.args.items() if value} - {"this", "partition_by", "order", "over"}
    if function.upper() != "ROW_NUMBER" or node.this.expressions or extra or order is None:
        way_out = "only ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) <= k is supported"
        reader.refuse("E168", f"the window function {function}() is not supported so: {way_out}", at)
    per = tuple(shown.expression(each) for each in node.args.get("partition_by") or ())
    return Ranking(per, shown.ordered(order.expressions, positions=False), at)


def ranking_bound(reader: ExpressionReader, node: Node) -> tuple[Node, int] | None:
    """The rank and k of `rank <= k`, `rank < k`, `rank = 1` and their mirrored forms; None for others."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.LTE | exp.LT | exp.EQ | exp.GTE | exp.GT):
        return None
    operator: type[Node] = type(node)
    left, right = node.this, node.expression
    if isinstance(left, exp.Literal) and operator in _MIRRORED:
        left, right, operator = right, left, _MIRRORED[operator]
    if not isinstance(right, exp.Literal) or operator in (exp.GTE, exp.GT):
        return None
    k = reader.whole_number(right, "the number of rows", K_MAX)
    if operator is exp.EQ and k != 1:
        reader.refuse("E168", "the row of one rank is not supported: write <= instead of =", reader.at(node))
    if operator is exp.LT:
        k -= 1
        if k == 0:
            reader.refuse("E165", "the number of rows takes a whole number from 1", reader.at(right))
    return left, k
