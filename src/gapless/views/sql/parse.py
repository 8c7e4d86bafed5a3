"""Which view does an SQL text describe?

`parse_view` tokenizes the text (`parse_tokens`), has sqlglot build a tree, and walks the tree: FROM and its
joins here and in `parse_joins`, expressions in `parse_expressions`, GROUP BY in `parse_groups`, top-k in
`parse_tops`. WITH, subqueries and the names of other views are put in where they are used.

Unsupported SQL is refused by name, with the reason and the alternative. Nothing is silently ignored: unknown
parts of the tree are refused as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parser import Parser
from sqlglot.tokenizer_core import TokenType

from gapless.content.sql.scanner import TokenScan, shown
from gapless.model.ids import TopicId
from gapless.model.schema import COLUMNS_MAX, Column, Schema
from gapless.views.analysis.check import check
from gapless.views.expressions import ColumnRef, Expression
from gapless.views.functions import NULL
from gapless.views.logic import substitute
from gapless.views.relation import Relation, Scan, Where, columns, moved, size
from gapless.views.sql.expressions import ExpressionReader, Node, Scope, Visible, nearest
from gapless.views.sql.groups import (
    STAND_IN,
    Aggregates,
    Grouped,
    Item,
    distinct,
    group,
    has_stand_in,
    project,
)
from gapless.views.sql.joins import Inputs, join, united
from gapless.views.sql.tokens import refuse, scan
from gapless.views.sql.tops import K_MAX, Ranking, SelectedColumns, ranking_bound, read_ranking

#: Maximum number of operators of one view, including those of the views that it uses.
OPERATORS_MAX = 500

_DIALECT = Dialect()
#: Prefix of the names of the columns that hosted views add to their own.
RESERVED = "gapless_"

_SET_OPERATIONS = (exp.Intersect, exp.Except)
_ARGUMENTS = {
    "offset": "OFFSET is not supported: which rows are skipped would change with every event; leave it out",
    "laterals": "LATERAL is not supported: join by equal columns",
    "windows": "WINDOW is not supported: write the window after OVER",
    "grouping_sets": "GROUPING SETS is not supported: one view has one grouping; make a view for each",
    "cube": "CUBE is not supported: one view has one grouping; make a view for each",
    "rollup": "ROLLUP is not supported: one view has one grouping; make a view for each",
    "except_": "* EXCEPT is not supported: name the columns",
    "columns": "a list of column names after an alias is not supported: name them with AS in the SELECT",
}
_SELECT = frozenset(
    {"expressions", "from_", "joins", "where", "group", "having", "qualify", "order", "limit", "distinct"}
    | {"with_", "kind", "hint"}
)


def parse_view(text: str, topics: Mapping[str, Schema], views: Mapping[str, Relation]) -> Relation:
    """The relation that a SELECT over topics and other views describes, checked to be maintainable.

    >>> buys = Schema.parse(TopicId("buys"), {"item": "string", "qty": "int"})
    >>> total = parse_view("SELECT item, sum(qty) AS total FROM buys GROUP BY item", {"buys": buys}, {})
    >>> [column.name for column in columns(total)]
    ['item', 'total']

    Raises ViewError: E165 for invalid SQL, E166 for unknown names, E167 for incompatible types, E168 for
    unsupported SQL, E169 for a view that cannot be maintained.
    """
    known = frozenset(column.name for schema in topics.values() for column in schema.columns)
    try:
        scanned = scan(text, known)
        tree = _tree(text, scanned, exp.Query)
        relation = _Queries(ExpressionReader(text, scanned), topics, views).view(tree)
        check(relation, text)
    except RecursionError:
        # The depth was checked; the caller must be near the end of its own stack.
        refuse("E165", "the view is too deep for the remaining stack: make views of parts", text, 0)
    return relation


def parse_in_scope(text: str, scope: Scope, aggregates: Aggregates | None = None) -> Expression:
    """The expression over some columns that a text describes. Raises ViewError like `parse_view`."""
    scanned = scan(text, frozenset(each.name for each in scope.columns), expression=True)
    reader = ExpressionReader(text, scanned)
    return reader.read(_tree(text, scanned, exp.Condition), scope, aggregates)


def row_scope(row: tuple[Column, ...], qualifier: str | None = None) -> Scope:
    """The columns of a relation under their own names."""
    return Scope(
        tuple(Visible(qualifier, each.name, ColumnRef(each.name, each.type, each.nullable)) for each in row)
    )


def _tree(text: str, scanned: TokenScan, kind: type[Node]) -> Node:
    parser = Parser(error_level=ErrorLevel.IMMEDIATE, dialect=_DIALECT)
    try:
        if kind is exp.Query:
            trees = parser.parse(scanned.tokens, text)
        else:
            trees = parser.parse_into(kind, scanned.tokens, text)
    except ParseError as error:
        at = error.errors[0].get("col") if error.errors else None
        _not_understood(text, scanned, at if isinstance(at, int) else 0)
    except SqlglotError:
        _not_understood(text, scanned, 0)
    if len(trees) != 1 or trees[0] is None:
        _not_understood(text, scanned, 0)
    return trees[0]


def _not_understood(text: str, scanned: TokenScan, at: int) -> NoReturn:
    token = next((each for each in scanned.tokens if each.start <= at <= each.end), scanned.tokens[-1])
    found = shown(text[token.start : token.end + 1])
    if token is scanned.tokens[-1]:
        refuse("E165", f"something is missing after {found}, or it is not allowed here", text, token.start)
    refuse("E165", f"{found} is not allowed here", text, token.start)


@dataclass(frozen=True, slots=True)
class _Source:
    """The result of a query; with a rank, if it numbers its rows without a limit."""

    relation: Relation
    ranking: Ranking | None = None
    rank: str = ""


class _Queries:
    """Reads the queries of one text."""

    def __init__(
        self, reader: ExpressionReader, topics: Mapping[str, Schema], views: Mapping[str, Relation]
    ) -> None:
        self._reader = reader
        self._topics = topics
        self._views = views

    def view(self, tree: Node) -> Relation:
        """The whole view, with names that a hosted topic can have."""
        source = self._query(tree, {})
        if source.ranking is not None:
            self._refuse(
                "E168", "ROW_NUMBER() needs a bound: write QUALIFY ROW_NUMBER() OVER (...) <= k", source
            )
        self._check_size(source.relation, tree)
        return source.relation

    def _refuse(self, code: str, message: str, where: Node | _Source | None) -> NoReturn:
        if isinstance(where, _Source):
            assert where.ranking is not None
            self._reader.refuse(code, message, where.ranking.at)
        self._reader.refuse(code, message, self._reader.at(where))

    def _only(self, node: Node, known: frozenset[str]) -> None:
        """Refuse parts that are not handled here."""
        for name, value in node.args.items():
            if value and name not in known:
                message = _ARGUMENTS.get(name, f"{name.strip('_').upper()} is not supported here")
                where = value if isinstance(value, exp.Expr) else node
                at = self._reader.at(where) or self._reader.at(node)
                self._reader.refuse("E168", message, at)

    # ---- queries ----

    def _query(self, node: Node, around: Mapping[str, _Source]) -> _Source:
        """The result of a query; `around` are the WITHs that it sees."""
        if not isinstance(node, exp.Select | exp.Subquery | exp.Union) or isinstance(node, _SET_OPERATIONS):
            at = self._reader.keyword(node.expression, TokenType.INTERSECT, TokenType.EXCEPT)
            self._reader.refuse("E168", _unsupported(node), at)
        named = self._with(node, around)
        if isinstance(node, exp.Select):
            return self._select(node, named)
        if isinstance(node, exp.Union):
            return self._union(node, named)
        self._only(node, frozenset({"this", "order", "limit", "with_"}))
        return self._ordered(node, self._query(node.this, named))

    def _with(self, node: Node, around: Mapping[str, _Source]) -> Mapping[str, _Source]:
        clause = node.args.get("with_")
        if clause is None:
            return around
        if clause.args.get("recursive"):
            message = "WITH RECURSIVE is not supported: a view that depends on itself may never settle"
            self._refuse("E168", message, clause)
        named = dict(around)
        own: set[str] = set()
        for each in clause.expressions:
            self._only(each, frozenset({"this", "alias"}))
            self._only(each.args["alias"], frozenset({"this"}))
            name = self._reader.leaf(each.args["alias"].this.this).text
            if name in own:
                message = f"two parts of WITH are called {name!r}: give one another name"
                self._refuse("E166", message, each.args["alias"])
            own.add(name)
            named[name] = self._query(each.this, named)
        return named

    def _union(self, node: Node, named: Mapping[str, _Source]) -> _Source:
        known = frozenset({"this", "expression", "distinct", "order", "limit", "with_"})
        parts: list[Node] = []
        here = node
        while isinstance(here, exp.Union):
            self._only(here, known)
            if here.args.get("distinct"):
                message = "UNION is not supported: write UNION ALL, or SELECT DISTINCT over it"
                self._reader.refuse("E168", message, self._reader.keyword(here.expression, TokenType.UNION))
            parts.append(here.expression)
            here = here.this
        sources = [self._query(each, named) for each in (here, *reversed(parts))]
        for source in sources:
            self._no_rank(source, "UNION ALL")
        places = [self._reader.at(each) for each in (here, *reversed(parts))]
        at = self._reader.keyword(parts[-1], TokenType.UNION)
        relation = united(self._reader, [each.relation for each in sources], [*places], at)
        return self._ordered(node, _Source(relation))

    def _no_rank(self, source: _Source, what: str) -> None:
        if source.ranking is not None:
            message = (
                f"{what} over ROW_NUMBER() is not supported: select the first rows of each group outermost"
            )
            self._refuse("E168", message, source)

    def _ordered(self, node: Node, source: _Source) -> _Source:
        """The result of a query, with the ORDER BY and LIMIT after it."""
        if not node.args.get("order") and not node.args.get("limit"):
            return source
        self._no_rank(source, "ORDER BY")
        row = columns(source.relation)
        items = tuple(
            Item(each.name, ColumnRef(each.name, each.type, each.nullable), self._reader.at(node))
            for each in row
        )
        return _Source(
            self._top(node, SelectedColumns(self._reader, row_scope(row), items, None), source.relation)
        )

    def _top(self, node: Node, shown_here: SelectedColumns, relation: Relation) -> Relation:
        order, limit = node.args.get("order"), node.args.get("limit")
        if order is None and limit is None:
            return relation
        if limit is None:
            message = (
                "ORDER BY without LIMIT is not supported: a view has no order; add LIMIT k, or leave it out"
            )
            self._reader.refuse("E168", message, self._reader.keyword(order, TokenType.ORDER_BY))
        if not isinstance(limit, exp.Limit):
            self._refuse("E168", "FETCH is not supported: write LIMIT", limit)
        if order is None:
            message = "LIMIT without ORDER BY is not supported: any rows would do; say which come first"
            self._reader.refuse("E168", message, self._reader.keyword(limit, TokenType.LIMIT))
        self._only(order, frozenset({"expressions"}))
        self._only(limit, frozenset({"expression"}))
        k = self._reader.whole_number(limit.expression, "LIMIT", K_MAX)
        at = self._reader.keyword(order, TokenType.ORDER_BY)
        ranking = Ranking((), shown_here.ordered(order.expressions, positions=True), at)
        return shown_here.top(relation, ranking, k, "ORDER BY")

    # ---- one SELECT ----

    def _select(self, node: exp.Select, named: Mapping[str, _Source]) -> _Source:
        self._only(node, _SELECT)
        source, scope = self._from(node, named)
        relation, conditions = source.relation, _conjuncts(node.args.get("where"))
        bound = None
        if source.ranking is not None:
            bound, conditions = self._bound(source, conditions)
            scope = Scope((*scope.columns, Visible(None, source.rank, ColumnRef(f"{STAND_IN}rank", "int"))))
        if conditions:
            where = node.args["where"]
            condition = self._reader.condition(where.this, scope)
            relation = Where(relation, condition, condition.at)
        aggregates = Aggregates(scope)
        items, rank = self._items(node, scope, aggregates)
        here = SelectedColumns(self._reader, scope, items, aggregates)
        ranking = None if rank is None else read_ranking(here, rank[1])
        if not items:
            self._refuse("E165", "SELECT names no columns beside the rank: name some", node)
        top = self._qualified(node, here, rank)
        groups = self._groups(node, here)
        having = self._having(node, scope, here, aggregates)
        if groups or having is not None or aggregates.found:
            at = self._reader.keyword(node.args.get("group") or node.args["from_"], TokenType.GROUP_BY)
            grouped = Grouped(groups, items, having, tuple(aggregates.found), at)
            relation = group(self._reader, relation, grouped)
        else:
            relation = project(relation, tuple((each.name, each.expression) for each in items), items[0].at)
        if node.args.get("distinct"):
            self._check_distinct(node.args["distinct"])
            relation = distinct(self._reader, relation, items[0].at)
        self._check_size(relation, node)
        if source.ranking is not None and bound is not None:
            self._only_projects(node, source, groups, aggregates, top or ranking)
            return _Source(here.top(relation, source.ranking, bound, "ROW_NUMBER() OVER (ORDER BY ...)"))
        if rank is not None and ranking is not None:
            if node.args.get("order") or node.args.get("limit") or node.args.get("distinct"):
                self._refuse("E168", "ROW_NUMBER() beside ORDER BY or DISTINCT is not supported", rank[1])
            return self._numbered(relation, here, ranking, rank[0])
        if top is not None:
            if node.args.get("order") or node.args.get("limit"):
                self._refuse("E168", "QUALIFY and ORDER BY in one SELECT are not supported: choose one", node)
            return _Source(here.top(relation, top[0], top[1], "ROW_NUMBER() OVER (ORDER BY ...)"))
        return _Source(self._top(node, here, relation))

    def _check_size(self, relation: Relation, node: Node) -> None:
        count = size(relation)
        if count > OPERATORS_MAX:
            message = f"a view has at most {OPERATORS_MAX} operators, those of the views it uses included"
            self._refuse("E165", f"{message}: got {count}", node)

    def _from(self, node: exp.Select, named: Mapping[str, _Source]) -> tuple[_Source, Scope]:
        clause = node.args.get("from_")
        if clause is None:
            self._refuse("E165", "FROM is missing: name the topic or view to select from", node)
        self._only(clause, frozenset({"this"}))
        source, scope = self._input(clause.this, named)
        joins = [*(clause.this.args.get("joins") or ()), *(node.args.get("joins") or ())]
        if not joins:
            return source, scope
        self._no_rank(source, "JOIN")
        inputs = Inputs(source.relation, scope)
        for each in joins:
            right, right_scope = self._input(each.this, named)
            self._no_rank(right, "JOIN")
            if each.this.args.get("joins"):
                self._refuse(
                    "E168", "a join inside a join is not supported: write one after the other", each.this
                )
            inputs = join(self._reader, each, inputs, Inputs(right.relation, right_scope))
            self._check_size(inputs.relation, each.this)
        return _Source(inputs.relation), inputs.scope

    def _input(self, node: Node, named: Mapping[str, _Source]) -> tuple[_Source, Scope]:
        """A topic, a view, a WITH or a subquery, and its columns."""
        alias = node.args.get("alias")
        if alias is not None:
            self._only(alias, frozenset({"this"}))
        if isinstance(node, exp.Subquery):
            self._only(node, frozenset({"this", "alias", "order", "limit", "with_", "joins"}))
            name = None
            if isinstance(node.this, exp.Table):
                self._refuse("E168", "parentheses around an input are not supported: leave them out", node)
            source = self._ordered(node, self._query(node.this, self._with(node, named)))
        elif isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            self._only(node, frozenset({"this", "db", "catalog", "alias", "joins"}))
            source, name = self._table(node, named)
        else:
            self._refuse("E168", "FROM takes a topic, a view or a subquery", node)
        if alias is not None and alias.this is not None:
            name = self._reader.leaf(alias.this.this).text
        return source, row_scope(columns(source.relation), name)

    def _table(self, node: Node, named: Mapping[str, _Source]) -> tuple[_Source, str]:
        parts = [node.args[each] for each in ("catalog", "db", "this") if node.args.get(each) is not None]
        leaves = [self._reader.leaf(each.this) for each in parts]
        name, at = ".".join(each.text for each in leaves), leaves[0].at
        if name in named:
            return named[name], leaves[-1].text
        if name in self._views:
            return _Source(moved(self._views[name], at)), leaves[-1].text
        schema = self._topics.get(name)
        if schema is None:
            known = sorted({*named, *self._views, *self._topics})
            self._reader.refuse("E166", f"no topic or view {shown(name)}: {nearest(name, known)}", at)
        return _Source(Scan(TopicId(name), schema.columns, at)), leaves[-1].text

    # ---- the list of columns ----

    def _items(
        self, node: exp.Select, scope: Scope, aggregates: Aggregates
    ) -> tuple[tuple[Item, ...], tuple[str, Node] | None]:
        """The columns of SELECT, and the numbering of rows among them."""
        if not node.expressions:
            self._refuse("E165", "SELECT names no columns: write SELECT * for all", node.args.get("from_"))
        items: list[Item] = []
        rank: tuple[str, Node] | None = None
        for each in node.expressions:
            inner = each.this if isinstance(each, exp.Alias) else each
            if isinstance(inner, exp.Star) or (
                isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)
            ):
                items += self._starred(node, inner, scope)
            elif isinstance(inner, exp.Window) and isinstance(each, exp.Alias):
                if rank is not None:
                    self._refuse("E168", "more than one window function is not supported", each)
                rank = (self._reader.leaf(each.args["alias"].this).text, inner)
            else:
                items.append(self._item(each, inner, scope, aggregates))
        self._check_names(items)
        return tuple(items), rank

    def _item(self, node: Node, inner: Node, scope: Scope, aggregates: Aggregates) -> Item:
        at = self._reader.at(node)
        expression = self._reader.read(inner, scope, aggregates)
        if expression.kind == NULL:
            self._reader.refuse("E167", "NULL has no type: write CAST(NULL AS int)", expression.at)
        if isinstance(node, exp.Alias):
            name = self._reader.leaf(node.args["alias"].this).text
        elif isinstance(inner, exp.Column):
            name = self._reader.leaf(inner.this.this).text
        else:
            self._reader.refuse("E165", "this column has no name: write ... AS name", at)
        if isinstance(expression, ColumnRef) and expression.name == f"{STAND_IN}rank":
            message = f"the rank {name!r} changes with every event and is not shown: leave it out of SELECT"
            self._reader.refuse("E168", message, at)
        return Item(name, expression, at)

    def _starred(self, node: exp.Select, star: Node, scope: Scope) -> list[Item]:
        self._only(star if isinstance(star, exp.Star) else star.this, frozenset())
        at = self._reader.at(node.args.get("from_"))
        found = [each for each in scope.columns if each.shown]
        if isinstance(star, exp.Column):
            prefix = self._reader.leaf(star.args["table"].this)
            at = prefix.at
            if prefix.text not in scope.qualifiers():
                message = f"no input {shown(prefix.text)}: {nearest(prefix.text, scope.qualifiers())}"
                self._reader.refuse("E166", message, at)
            found = [each for each in scope.columns if each.qualifier == prefix.text]
        rank = next((each.name for each in found if each.column.name == f"{STAND_IN}rank"), None)
        if rank is not None:
            message = f"* includes the rank {rank!r}, which is not shown: name the other columns"
            self._reader.refuse("E168", message, at)
        return [Item(each.name, replace(each.column, at=at), at) for each in found]

    def _check_distinct(self, node: Node) -> None:
        on = node.args.get("on")
        if on is not None:
            message = (
                "DISTINCT ON is not supported: any row of a group would do; "
                "write first(x) or last(x) with GROUP BY"
            )
            self._refuse("E168", message, on.expressions[0] if on.expressions else on)

    def _check_names(self, items: list[Item]) -> None:
        seen: set[str] = set()
        for item in items:
            if item.name in seen:
                message = f"two columns are called {item.name!r}: give one another name with AS"
                self._reader.refuse("E166", message, item.at)
            if not item.name.isidentifier():
                message = f"{shown(item.name)} is not a valid column name: use letters, digits and _"
                self._reader.refuse("E166", message, item.at)
            if item.name.startswith(RESERVED):
                message = f"names that begin with {RESERVED} are taken: call {item.name!r} something else"
                self._reader.refuse("E166", message, item.at)
            seen.add(item.name)
        if len(items) > COLUMNS_MAX:
            self._reader.refuse("E165", f"a view has at most {COLUMNS_MAX} columns", items[COLUMNS_MAX].at)

    # ---- groups ----

    def _groups(self, node: exp.Select, here: SelectedColumns) -> tuple[Expression, ...]:
        clause = node.args.get("group")
        if clause is None:
            return ()
        self._only(clause, frozenset({"expressions"}))
        names = {each.name for each in here.scope.columns if each.shown}
        keys: list[Expression] = []
        for each in clause.expressions:
            if isinstance(each, exp.Literal):
                key = here.position(each, "GROUP BY")
            elif isinstance(each, exp.Column) and self._is_item(each, here, names):
                key = here.expression(each)
            else:
                key = self._reader.read(each, here.scope)
            if has_stand_in(key):
                self._reader.refuse(
                    "E168", "GROUP BY takes no aggregates: aggregate in a subquery first", key.at
                )
            keys.append(key)
        return tuple(dict.fromkeys(keys))

    def _is_item(self, node: exp.Column, here: SelectedColumns, names: set[str]) -> bool:
        """Whether a plain name means a column of SELECT; one of FROM comes first."""
        name = self._reader.leaf(node.this.this).text
        plain = node.args.get("table") is None
        return plain and name not in names and any(item.name == name for item in here.items)

    def _having(
        self, node: exp.Select, scope: Scope, here: SelectedColumns, aggregates: Aggregates
    ) -> Expression | None:
        clause = node.args.get("having")
        if clause is None:
            return None
        names = {each.name for each in scope.columns if each.shown}
        stand_ins = {f"{STAND_IN}={index}": item.expression for index, item in enumerate(here.items)}
        visible = [
            Visible(
                None,
                item.name,
                ColumnRef(f"{STAND_IN}={index}", item.expression.kind, item.expression.nullable),
            )
            for index, item in enumerate(here.items)
            if item.name not in names
        ]
        found = self._reader.condition(clause.this, Scope((*scope.columns, *visible)), aggregates)
        return substitute(found, stand_ins)

    # ---- numbered rows ----

    def _qualified(
        self, node: exp.Select, here: SelectedColumns, rank: tuple[str, Node] | None
    ) -> tuple[Ranking, int] | None:
        clause = node.args.get("qualify")
        if clause is None:
            return None
        found = ranking_bound(self._reader, clause.this)
        if found is None or not isinstance(found[0], exp.Window):
            way_out = "write QUALIFY ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) <= k"
            if rank is not None:
                way_out += f", and leave {rank[0]!r} out of SELECT: it changes with every event"
            self._refuse("E168", f"this QUALIFY is not supported: {way_out}", clause)
        return read_ranking(here, found[0]), found[1]

    def _bound(self, source: _Source, conditions: list[Node]) -> tuple[int, list[Node]]:
        """The number of rows of each group wanted by a WHERE over a subquery that numbers them."""
        bounds = [(each, self._rank_bound(source, each)) for each in conditions]
        k = next((bound for _, bound in bounds if bound is not None), None)
        if k is None:
            message = f"ROW_NUMBER() needs a bound: write WHERE {source.rank} <= k around it"
            self._refuse("E168", message, source)
        rest = [each for each, bound in bounds if bound != k]
        if rest:
            message = "a condition beside the rank would come after the top-k: put it into the subquery"
            self._refuse("E169", message, rest[0])
        return k, []

    def _rank_bound(self, source: _Source, node: Node) -> int | None:
        found = ranking_bound(self._reader, node)
        if found is None or not isinstance(found[0], exp.Column):
            return None
        return found[1] if self._reader.leaf(found[0].this.this).text == source.rank else None

    def _only_projects(
        self,
        node: exp.Select,
        source: _Source,
        groups: tuple[Expression, ...],
        aggregates: Aggregates,
        top: object,
    ) -> None:
        others = ("distinct", "order", "limit", "having", "joins")
        if groups or aggregates.found or top is not None or any(node.args.get(each) for each in others):
            message = "nothing can be computed from the rows of a top-k: it comes last"
            self._refuse("E169", message, source)

    def _numbered(self, relation: Relation, here: SelectedColumns, ranking: Ranking, name: str) -> _Source:
        """A query that numbers its rows; the outer query says how many are wanted."""
        row = {each.name: ColumnRef(each.name, each.type, each.nullable) for each in columns(relation)}
        clause = "ROW_NUMBER() OVER (ORDER BY ...)"
        order = tuple(
            (replace(row[here.column(each, clause)], at=each.at), descends)
            for each, descends in ranking.order
        )
        per = tuple(replace(row[here.column(each, "PARTITION BY")], at=each.at) for each in ranking.per)
        return _Source(relation, Ranking(per, order, ranking.at), name)


def _unsupported(node: Node) -> str:
    if isinstance(node, exp.Intersect):
        return "INTERSECT is not supported: GROUP BY both sides and JOIN them"
    if isinstance(node, exp.Except):
        return "EXCEPT is not supported: GROUP BY both sides and LEFT JOIN them, WHERE ... IS NULL"
    return f"{node.key.upper()} is not supported: write SELECT"


def _conjuncts(where: Node | None) -> list[Node]:
    """The operands of the ANDs of a WHERE, to find the rank among them."""
    waiting, found = ([] if where is None else [where.this]), []
    while waiting:
        here = waiting.pop()
        while isinstance(here, exp.Paren):
            here = here.this
        if isinstance(here, exp.And):
            waiting += [here.expression, here.this]
        else:
            found.append(here)
    return found
