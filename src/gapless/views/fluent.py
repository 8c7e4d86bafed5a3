"""How is a view written in Python? As tables, with methods that return new tables.

    bought = topic("buys", schema).where("qty > 0").group_by("item").agg(total=sum_("qty"))
    offered.join(bought, on="item").extend(avail=col("qty") - col("total")).where("avail > 0")

Wherever an expression is expected, a text is SQL and `col`, `lit`, `sum_` and their operators build the same
in Python. Both, and a whole SQL text, give equal relations: `table.relation` is what `parse_view` returns,
and `table.sql()` is its text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import NoReturn, TypeAlias

from gapless.content.sql.scanner import TokenScan
from gapless.errors import ViewError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.views.analysis.check import check
from gapless.views.expressions import ColumnRef, Expression, Literal, Value
from gapless.views.functions import AGGREGATES, CASTS, FUNCTIONS, NULL, aggregate, cast_to, typed
from gapless.views.relation import JoinKind, Relation, Scan, TopK, Where, columns
from gapless.views.sql.expressions import ExpressionReader, Scope, nearest
from gapless.views.sql.groups import Aggregates, Grouped, Item, distinct, group, project
from gapless.views.sql.joins import Inputs, joined, renamed, united
from gapless.views.sql.parse import parse_in_scope, row_scope
from gapless.views.sql.text import view_sql
from gapless.views.sql.tops import K_MAX


def _refuse(code: str, message: str) -> NoReturn:
    raise ViewError(code, message)


# ---- expressions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """An expression not yet bound to a table. Make one with `col`, `lit`, `call`."""

    #: A function of the table of functions, an aggregate, or `column`, `literal`, `text`, `cast`.
    function: str
    operands: tuple[Term, ...] = ()
    #: The name of a column or a type, a constant, or SQL.
    value: Value = None

    def __add__(self, other: Operand) -> Term:
        return call("+", self, other)

    def __radd__(self, other: Operand) -> Term:
        return call("+", other, self)

    def __sub__(self, other: Operand) -> Term:
        return call("-", self, other)

    def __rsub__(self, other: Operand) -> Term:
        return call("-", other, self)

    def __mul__(self, other: Operand) -> Term:
        return call("*", self, other)

    def __rmul__(self, other: Operand) -> Term:
        return call("*", other, self)

    def __truediv__(self, other: Operand) -> Term:
        return call("/", self, other)

    def __rtruediv__(self, other: Operand) -> Term:
        return call("/", other, self)

    def __mod__(self, other: Operand) -> Term:
        return call("%", self, other)

    def __neg__(self) -> Term:
        return call("neg", self)

    def __eq__(self, other: Operand) -> Term:  # type: ignore[override]  # an expression, like all others
        return call("=", self, other)

    def __ne__(self, other: Operand) -> Term:  # type: ignore[override]
        return call("<>", self, other)

    def __lt__(self, other: Operand) -> Term:
        return call("<", self, other)

    def __le__(self, other: Operand) -> Term:
        return call("<=", self, other)

    def __gt__(self, other: Operand) -> Term:
        return call(">", self, other)

    def __ge__(self, other: Operand) -> Term:
        return call(">=", self, other)

    def __and__(self, other: Operand) -> Term:
        return call("and", self, other)

    def __or__(self, other: Operand) -> Term:
        return call("or", self, other)

    def __invert__(self) -> Term:
        return call("not", self)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        message = "an expression is neither true nor false yet: join conditions with & | ~, not and or not"
        raise ViewError("E165", message)

    def is_null(self) -> Term:
        """Whether there is no value."""
        return call("is_null", self)

    def is_not_null(self) -> Term:
        """Whether there is a value."""
        return call("is_not_null", self)

    def isin(self, *values: Operand) -> Term:
        """Whether it is one of some values."""
        return call("in", self, *values)

    def between(self, low: Operand, high: Operand) -> Term:
        """Whether it is neither below nor above."""
        return (self >= low) & (self <= high)

    def like(self, pattern: str) -> Term:
        """Whether a text has a pattern: `%` is any text, `_` one character."""
        return call("like", self, pattern)

    def cast(self, kind: str) -> Term:
        """The value as another type."""
        if kind not in CASTS:
            _refuse("E166", f"no type {kind!r}: {nearest(kind, list(CASTS))}")
        return Term("cast", (self,), kind)


Operand: TypeAlias = Term | Value
#: An expression as SQL text or built in Python.
Written: TypeAlias = str | Term


def col(name: str) -> Term:
    """A column by its name."""
    return Term("column", (), name)


def lit(value: Value) -> Term:
    """A constant; a time without an offset is in UTC."""
    if isinstance(value, float) and not math.isfinite(value):
        _refuse("E165", f"{value} cannot be a constant of a view: use a finite number")
    return Term("literal", (), value)


def call(function: str, *operands: Operand) -> Term:
    """A function of the language by its name: `call("lower", col("item"))`."""
    if function not in FUNCTIONS and function not in AGGREGATES:
        known = [name for name in (*FUNCTIONS, *AGGREGATES) if name.isidentifier()]
        _refuse("E166", f"no function {function}(): {nearest(function, known)}")
    return Term(function, tuple(each if isinstance(each, Term) else lit(each) for each in operands))


def _aggregate(function: str, operand: Written) -> Term:
    return Term(function, (Term("text", (), operand) if isinstance(operand, str) else operand,))


def sum_(operand: Written) -> Term:
    """The sum of an expression over a group; like the next ones, for `agg`."""
    return _aggregate("sum", operand)


def count_(operand: Written | None = None) -> Term:
    """The number of rows of a group, or of rows in which an expression is not null."""
    return Term("count") if operand is None else _aggregate("count", operand)


def min_(operand: Written) -> Term:
    """The least value."""
    return _aggregate("min", operand)


def max_(operand: Written) -> Term:
    """The greatest value."""
    return _aggregate("max", operand)


def avg_(operand: Written) -> Term:
    """The mean value, a float."""
    return _aggregate("avg", operand)


def first_(operand: Written) -> Term:
    """The value of the oldest event."""
    return _aggregate("first", operand)


def last_(operand: Written) -> Term:
    """The value of the newest event."""
    return _aggregate("last", operand)


def _bound(written: Written, scope: Scope, aggregates: Aggregates | None = None) -> Expression:
    """The expression over the columns of a table."""
    if isinstance(written, str):
        return parse_in_scope(written, scope, aggregates)
    match written.function:
        case "text":
            return parse_in_scope(str(written.value), scope, aggregates)
        case "column":
            return _column(str(written.value), scope)
        case "literal":
            return _literal(written.value)
        case "cast":
            return cast_to(_bound(written.operands[0], scope, aggregates), str(written.value))
        case function if function in AGGREGATES:
            if aggregates is None:
                _refuse("E168", f"{function}() is not allowed here: aggregates belong to agg()")
            operand = _bound(written.operands[0], scope) if written.operands else None
            return aggregates.add(aggregate("", function, operand))
        case function:
            operands = [_bound(each, scope, aggregates) for each in written.operands]
            if function == "case" and len(operands) % 2 == 0:
                operands.append(Literal(None, NULL))
            return typed(function, tuple(operands))


def _column(name: str, scope: Scope) -> ColumnRef:
    found = [each.column for each in scope.columns if each.name == name and each.shown]
    if not found:
        _refuse("E166", f"no column {name!r}: {nearest(name, [each.name for each in scope.columns])}")
    if len(found) > 1:
        _refuse("E166", f"{name!r} is ambiguous: rename one with select() below the join")
    return found[0]


def _literal(value: Value) -> Literal:
    match value:
        case None:
            return Literal(None, NULL)
        case bool():
            return Literal(value, "bool")
        case int():
            return Literal(value, "int") if -(2**63) <= value < 2**63 else Literal(Decimal(value), "decimal")
        case float():
            return Literal(value, "float")
        case Decimal():
            return Literal(value, "decimal")
        case str():
            return Literal(value, "string")
        case datetime():
            return Literal(value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC), "timestamp")
        case bytes():
            return Literal(value, "binary")


# ---- tables ------------------------------------------------------------------------------------------

#: For expressions without a text, and so without positions.
_NO_TEXT = ExpressionReader("", TokenScan([], []))


@dataclass(frozen=True, slots=True)
class Table:
    """A relation under construction. Every method returns a new one.

    >>> buys = topic("buys", Schema.parse(TopicId("buys"), {"item": "string", "qty": "int"}))
    >>> print(buys.where("qty > 0").group_by("item").agg(total=sum_("qty")).columns)
    ('item', 'total')
    """

    inputs: Inputs

    @property
    def relation(self) -> Relation:
        """What `parse_view` would return for the same view."""
        return self._with_columns(tuple(self._shown())).inputs.relation

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(each.name for each in self.inputs.scope.columns if each.shown)

    def sql(self) -> str:
        """The view as SQL. Raises ViewError E169 when it cannot be maintained."""
        relation = self.relation
        check(relation)
        return view_sql(relation)

    def named(self, name: str) -> Table:
        """The same table under a name, which SQL texts may use to qualify columns after a join."""
        table = self._with_columns(tuple(self._shown()))
        visible = tuple(replace(each, qualifier=name) for each in table.inputs.scope.columns)
        return Table(Inputs(table.inputs.relation, Scope(visible)))

    def where(self, condition: Written) -> Table:
        """The rows for which a condition is true."""
        found = _bound(condition, self.inputs.scope)
        if found.kind == NULL:
            found = Literal(None, "bool")
        if found.kind != "bool":
            _refuse(
                "E167", f"an expression of type {found.kind} is not a condition: compare it with something"
            )
        return Table(Inputs(Where(self.inputs.relation, found), self.inputs.scope))

    def select(self, *names: str, **computed: Written) -> Table:
        """These columns and these computed ones, and no others."""
        items = [Item(name, _column(name, self.inputs.scope)) for name in names]
        items += [Item(name, _bound(each, self.inputs.scope)) for name, each in computed.items()]
        if not items:
            _refuse("E165", "select() names no columns")
        return self._with_columns(tuple(items))

    def project(self, *names: str) -> Table:
        """These columns, and no others."""
        return self.select(*names)

    def extend(self, **computed: Written) -> Table:
        """All columns, followed by computed ones."""
        items = [Item(name, _bound(each, self.inputs.scope)) for name, each in computed.items()]
        return self._with_columns((*self._shown(), *items))

    def group_by(self, *names: str, **computed: Written) -> Groups:
        """Groups by columns and by computed values; without any, all rows are one group."""
        keys = [Item(name, _column(name, self.inputs.scope)) for name in names]
        keys += [Item(name, _bound(each, self.inputs.scope)) for name, each in computed.items()]
        return Groups(self, tuple(keys))

    def agg(self, **aggregates: Written) -> Table:
        """One row, aggregated from all."""
        return Groups(self, ()).agg(**aggregates)

    def distinct(self) -> Table:
        """Each row once."""
        return _table(distinct(_NO_TEXT, self.relation))

    def join(
        self, other: Table, on: str | Sequence[str] | Mapping[str, str], *, how: JoinKind = "inner"
    ) -> Table:
        """Pairs of rows with equal columns: names that both have, or left names to right ones."""
        if how not in ("inner", "left", "full"):
            _refuse("E168", f"a join is inner, left or full, not {how!r}")
        left, right = self.inputs, renamed(self.inputs, other.inputs)
        names = [on] if isinstance(on, str) else list(on)
        partners = on if isinstance(on, Mapping) else {}
        pairs = [
            (_column(name, left.scope), _column(partners.get(name, name), right.scope)) for name in names
        ]
        using = [] if partners else names
        return Table(joined(_NO_TEXT, left, right, pairs, kind=how, using=using))

    def merge(self, *others: Table) -> Table:
        """The rows of all tables, whose columns have the same types."""
        relations = [self.relation, *(each.relation for each in others)]
        return _table(united(_NO_TEXT, relations, [None] * len(relations)))

    def top(self, k: int, *order: str, per: str | Sequence[str] = ()) -> Table:
        """The first `k` rows, for each value of `per`: `top(10, "score desc", "item", per="category")`."""
        if type(k) is not int or not 1 <= k <= K_MAX:
            _refuse("E165", f"top() takes a whole number from 1 to {K_MAX}")
        if not order:
            _refuse("E168", "top() without an order: any rows would do; say which come first")
        found = []
        for each in order:
            name, _, direction = each.strip().partition(" ")
            if direction.strip().lower() not in ("", "asc", "desc"):
                _refuse("E165", f"{each!r} is not an order: write 'column' or 'column desc'")
            found.append((self._own(name), direction.strip().lower() == "desc"))
        groups = [per] if isinstance(per, str) else list(per)
        top = TopK(self.relation, k, tuple(found), tuple(self._own(name) for name in groups))
        return _table(top)

    def _own(self, name: str) -> str:
        _column(name, self.inputs.scope)
        return name

    def _shown(self) -> list[Item]:
        return [Item(each.name, each.column) for each in self.inputs.scope.columns if each.shown]

    def _with_columns(self, items: tuple[Item, ...]) -> Table:
        _check_items(items)
        relation = project(self.inputs.relation, tuple((each.name, each.expression) for each in items))
        return _table(relation)


@dataclass(frozen=True, slots=True)
class Groups:
    """A table in groups: aggregate them."""

    table: Table
    keys: tuple[Item, ...]

    def agg(self, **aggregates: Written) -> Table:
        """One row for each group: its keys, and these aggregates or expressions over aggregates."""
        scope = self.table.inputs.scope
        collected = Aggregates(scope)
        items = [Item(name, _bound(each, scope, collected)) for name, each in aggregates.items()]
        everything = (*self.keys, *items)
        if not everything:
            _refuse("E165", "agg() names no columns")
        _check_items(everything)
        keys = tuple(dict.fromkeys(each.expression for each in self.keys))
        grouped = Grouped(keys, everything, None, tuple(collected.found))
        return _table(group(_NO_TEXT, self.table.inputs.relation, grouped))


def _check_items(items: tuple[Item, ...]) -> None:
    seen: set[str] = set()
    for each in items:
        if each.name in seen:
            _refuse("E166", f"two columns are called {each.name!r}: name them with select()")
        if each.expression.kind == NULL:
            _refuse("E167", f"column {each.name!r} is NULL and has no type: write lit(None).cast('int')")
        seen.add(each.name)


def _table(relation: Relation) -> Table:
    return Table(Inputs(relation, row_scope(columns(relation))))


def topic(name: str, schema: Schema) -> Table:
    """All events of a topic."""
    scan = Scan(TopicId(name), schema.columns)
    return Table(Inputs(scan, row_scope(schema.columns, name)))


def table(relation: Relation) -> Table:
    """A view that exists, to make another from it."""
    return _table(relation)
