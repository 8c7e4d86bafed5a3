"""What does an expression of a view's SQL compute? From a tree of sqlglot to a typed `Expression`.

Names are looked up in a `Scope`: the columns of FROM. Aggregates are handed to an `AggregateReader`, which
substitutes a column for each; where there is none (in WHERE, say), an aggregate is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NoReturn, Protocol, TypeAlias

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from gapless.content.sql.operands import literal_operand, number
from gapless.content.sql.scanner import SHOWN_CHARACTERS_MAX, TokenLeaf, TokenScan, shown
from gapless.content.values import Value as ContentValue
from gapless.errors import ContentError
from gapless.views.expressions import ColumnRef, Expression, Literal
from gapless.views.functions import AGGREGATES, CASTS, FUNCTIONS, NULL, cast_to, typed
from gapless.views.sql.tokens import refuse

#: Maximum nesting of operators and calls.
EXPRESSION_DEPTH_MAX = 64
#: Values in one IN list.
LIST_VALUES_MAX = 1_000

Node: TypeAlias = exp.Expr

_BINARY: dict[type[Node], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.DPipe: "concat",
}
#: Functions that are written with a name and parentheses; SQL's additional names for them.
_CALLED = {
    **{name: name for name in FUNCTIONS if name.isidentifier()},
    "ceiling": "ceil",
    "substr": "substring",
    "len": "length",
    "char_length": "length",
    "mod": "%",
}
_OPERATORS_ONLY = ("neg", "and", "or", "not", "is_null", "is_not_null", "in", "like", "case", "cast")
#: Functions that give another answer each time.
UNSTEADY = frozenset(
    {"now", "rand", "random", "uuid", "gen_random_uuid", "current_timestamp", "current_date", "current_time"}
    | {"localtime", "localtimestamp", "getdate", "sysdate", "unix_timestamp", "current_user", "today"}
)
_KEEPS_ALL = "it would keep every value of every group"
_PART_OF_TIME = "write DATE_TRUNC('day', t)"
#: Functions that people expect, why they are missing, and what to write instead.
_INSTEAD = {
    **dict.fromkeys(["median", "mode", "percentile", "percentile_cont", "percentile_disc"], _KEEPS_ALL),
    **dict.fromkeys(["string_agg", "group_concat", "listagg", "array_agg", "collect_list"], _KEEPS_ALL),
    **dict.fromkeys(
        ["stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"],
        "show sum(x * x), sum(x) and count(x), from which it follows",
    ),
    **dict.fromkeys(["year", "month", "day", "hour", "minute", "date_part"], _PART_OF_TIME),
    **dict.fromkeys(["if", "iif", "decode"], "write CASE WHEN a THEN b ELSE c END"),
    **dict.fromkeys(["ifnull", "nvl", "isnull"], "write COALESCE(a, b)"),
    **dict.fromkeys(["regexp_like", "regexp_matches", "regexp_replace"], "use LIKE"),
}
_WINDOW = "only ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) <= k is supported, after QUALIFY"
_WINDOW_FUNCTIONS = frozenset(
    {"row_number", "rank", "dense_rank", "percent_rank", "ntile", "lag", "lead", "first_value", "last_value"}
    | {"nth_value", "cume_dist"}
)
#: Other names of types.
_TYPES = {
    **{name: name for name in CASTS},
    **dict.fromkeys(["integer", "bigint", "long"], "int"),
    **dict.fromkeys(["double", "real"], "float"),
    **dict.fromkeys(["text", "varchar"], "string"),
    "boolean": "bool",
    "numeric": "decimal",
}


@dataclass(frozen=True, slots=True)
class Visible:
    """A column that expressions may name."""

    qualifier: str | None
    name: str
    column: ColumnRef
    #: Whether it has the unqualified name, and is part of `*`; not so the second column of a USING.
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns of FROM, in order."""

    columns: tuple[Visible, ...]

    def qualifiers(self) -> list[str]:
        """The names of the inputs."""
        return [name for name in dict.fromkeys(each.qualifier for each in self.columns) if name is not None]


class ExpressionReader:
    """Reads expressions of one text."""

    def __init__(self, text: str, scanned: TokenScan) -> None:
        self.text = text
        self._leaves = scanned.leaves
        self._tokens = scanned.tokens

    # ---- names and places ----

    def leaf(self, word: Any) -> TokenLeaf:
        """The leaf that a name, function or literal of the tree stands for."""
        found = self._leaf_of(word)
        if found is None:
            # sqlglot treats some SQL keywords as names.
            at = next((token.start for token in self._tokens if token.text == word), 0)
            self.refuse("E165", f'{word} is not allowed here: a column of that name is written "{word}"', at)
        return found

    def _leaf_of(self, word: Any) -> TokenLeaf | None:
        digits = str(word).lstrip("nf")
        return self._leaves[int(digits)] if digits.isdigit() else None

    def at(self, node: Node | None) -> int:
        """The position of the first name or literal of a node."""
        places = []
        for each in node.walk() if node is not None else ():
            is_leaf = isinstance(each, exp.Identifier | exp.Literal | exp.Anonymous)
            if is_leaf and (found := self._leaf_of(each.this)) is not None:
                places.append(found.at)
        return min(places, default=0)

    def keyword(self, node: Node | None, *kinds: TokenType) -> int:
        """The position of the last of these words before a node; otherwise that of the node."""
        at = self.at(node)
        before = [token.start for token in self._tokens if token.token_type in kinds and token.start < at]
        return before[-1] if before else at

    def refuse(self, code: str, message: str, at: int | None) -> NoReturn:
        """Raise the error that points at one place of the text."""
        refuse(code, message, self.text, at)

    def lookup(self, scope: Scope, node: exp.Column) -> ColumnRef:
        """The column that a name, with or without a prefix, stands for."""
        leaf = self.leaf(node.this.this)
        prefix = node.args.get("table")
        if node.args.get("db") is not None or node.args.get("fields"):
            self.refuse("E166", "a column has one prefix at most: write input.column", self.at(node))
        if prefix is None:
            found = [each for each in scope.columns if each.name == leaf.text and each.shown]
        else:
            named = self.leaf(prefix.this)
            if named.text not in scope.qualifiers():
                self._unknown("input", named, scope.qualifiers())
            inside = [each for each in scope.columns if each.qualifier == named.text]
            found = [each for each in inside if each.name == leaf.text]
            if not found:
                self._unknown("column", leaf, [each.name for each in inside], f" in '{named.text}'")
        if not found:
            self._no_column(leaf, scope)
        if len(found) > 1:
            owners = " or ".join(f"{each.qualifier}.{each.name}" for each in found if each.qualifier)
            self.refuse("E166", f"{leaf.text!r} is ambiguous: write {owners}", leaf.at)
        column = found[0].column
        at = leaf.at if prefix is None else self.leaf(prefix.this).at
        return ColumnRef(column.name, column.kind, column.nullable, at)

    def _no_column(self, leaf: TokenLeaf, scope: Scope) -> NoReturn:
        if leaf.text.lower() in UNSTEADY and leaf.kind == "name":
            self._unsteady(leaf)
        self._unknown("column", leaf, [each.name for each in scope.columns if each.shown])

    def _unsteady(self, leaf: TokenLeaf) -> NoReturn:
        message = (
            f"{leaf.text}() is not supported: it gives another answer each time, so the view could not be "
            "computed again: publish the value as a column"
        )
        self.refuse("E168", message, leaf.at)

    def _unknown(self, what: str, leaf: TokenLeaf, names: list[str], where: str = "") -> NoReturn:
        way_out = nearest(leaf.text, names)
        if leaf.kind == "quoted":
            way_out += " (texts are in single quotes)"
        self.refuse("E166", f"no {what} {shown(leaf.text)}{where}: {way_out}", leaf.at)

    # ---- expressions ----

    def condition(self, node: Node, scope: Scope, aggregates: AggregateReader | None = None) -> Expression:
        """An expression that must be a condition."""
        found = self.read(node, scope, aggregates)
        if found.kind == NULL:
            return Literal(None, "bool", found.at)
        if found.kind != "bool":
            what = "a column" if isinstance(found, ColumnRef) else "this"
            message = (
                f"{what} of type {found.kind} is not a condition: compare it with something, as in column = 3"
            )
            self.refuse("E167", message, found.at)
        return found

    def read(
        self, node: Node, scope: Scope, aggregates: AggregateReader | None = None, depth: int = 0
    ) -> Expression:
        """The expression that a node stands for."""
        if depth > EXPRESSION_DEPTH_MAX:
            message = (
                f"an expression is at most {EXPRESSION_DEPTH_MAX} operators deep: compute parts in a subquery"
            )
            self.refuse("E165", message, self.at(node))
        inner = _Expression(self, scope, aggregates, depth + 1)
        while isinstance(node, exp.Paren):
            node = node.this
        read = _READERS.get(type(node))
        if read is not None:
            return read(inner, node)
        function = _BINARY.get(type(node))
        if function is None:
            self.refuse(
                "E168", f"{node.key.upper()} is not supported in an expression of a view", self.at(node)
            )
        operands = (inner.read(node.this), inner.read(node.expression))
        return self.call(function, operands, operands[0].at)

    def call(self, function: str, operands: tuple[Expression, ...], at: int | None) -> Expression:
        """A call, with its operands checked."""
        return typed(function, operands, at=at, text=self.text)

    def literal(self, node: Node, *, negated: bool = False) -> Literal:
        """A literal, or minus a literal number."""
        leaf = self.leaf(node.this)
        try:
            if leaf.kind == "number":
                return _literal(number(leaf, self.text, negated=negated), leaf)
            operand = literal_operand(leaf, self.text)
        except ContentError as error:
            reason = error.message.removeprefix(f"at {leaf.at + 1}: ")
            self.refuse("E165", reason, leaf.at)
        return Literal(None, NULL, leaf.at) if operand.kind == NULL else _literal(operand.known, leaf)

    def whole_number(self, node: Node | None, what: str, most: int) -> int:
        """A literal number from 1 to `most`."""
        value = None
        if isinstance(node, exp.Literal):
            value = self.literal(node).value
        if type(value) is not int or not 1 <= value <= most:
            self.refuse("E165", f"{what} takes a whole number from 1 to {most}", self.at(node))
        return value


class AggregateReader(Protocol):
    """Collects the aggregates of one SELECT; `views.parse_groups` has the one that does."""

    def read(
        self, reader: ExpressionReader, function: str, operands: list[Node], leaf: TokenLeaf
    ) -> ColumnRef:
        """A column that stands for the aggregate."""
        ...


@dataclass(frozen=True, slots=True)
class _Expression:
    """Reads one level of an expression."""

    reader: ExpressionReader
    scope: Scope
    aggregates: AggregateReader | None
    depth: int

    def read(self, node: Node) -> Expression:
        return self.reader.read(node, self.scope, self.aggregates, self.depth)

    def column(self, node: Node) -> Expression:
        assert isinstance(node, exp.Column)
        if isinstance(node.this, exp.Star):
            self.star(node)
        return self.reader.lookup(self.scope, node)

    def star(self, node: Node) -> NoReturn:
        self.reader.refuse(
            "E165", "* stands for all columns only after SELECT and in count(*)", self._at(node)
        )

    def literal(self, node: Node) -> Expression:
        return self.reader.literal(node)

    def negative(self, node: Node) -> Expression:
        if isinstance(node.this, exp.Literal) and self.reader.leaf(node.this.this).kind == "number":
            return self.reader.literal(node.this, negated=True)
        operand = self.read(node.this)
        return self.reader.call("neg", (operand,), operand.at)

    def connected(self, node: Node) -> Expression:
        """A whole chain of ANDs, or of ORs, is one call."""
        kind = exp.And if isinstance(node, exp.And) else exp.Or
        parts: list[Node] = []
        waiting: list[Node] = [node]
        while waiting:
            here = waiting.pop()
            while isinstance(here, exp.Paren):
                here = here.this
            if isinstance(here, kind):
                waiting += [here.expression, here.this]
            else:
                parts.append(here)
        operands = tuple(self.read(part) for part in parts)
        return self.reader.call("and" if kind is exp.And else "or", operands, operands[0].at)

    def negated(self, node: Node) -> Expression:
        operand = self.read(node.this)
        return self.reader.call("not", (operand,), operand.at)

    def _is_null_test(self, node: Node) -> bool:
        wanted = node.expression
        return isinstance(wanted, exp.Literal) and self.reader.literal(wanted).value is None

    def test(self, node: Node) -> Expression:
        """IS NULL, IS TRUE and IS FALSE are never unknown."""
        value = self.read(node.this)
        if self._is_null_test(node):
            return self.reader.call("is_null", (value,), value.at)
        wanted = self.read(node.expression)
        if not isinstance(wanted, Literal) or not isinstance(wanted.value, bool):
            self.reader.refuse("E165", "IS takes NULL, TRUE or FALSE: use = for other values", wanted.at)
        truth = value if wanted.value else self.reader.call("not", (value,), value.at)
        return self.reader.call("coalesce", (truth, Literal(False, "bool", value.at)), value.at)

    def between(self, node: Node) -> Expression:
        value, low, high = (self.read(node.args[name]) for name in ("this", "low", "high"))
        first = self.reader.call(">=", (value, low), value.at)
        second = self.reader.call("<=", (value, high), value.at)
        return self.reader.call("and", (first, second), value.at)

    def listed(self, node: Node) -> Expression:
        at = self._at(node)
        if node.args.get("query") is not None:
            message = "a subquery after IN is not supported: group it by the column and JOIN it"
            self.reader.refuse("E168", message, at)
        values: list[Node] = node.expressions
        if not values:
            self.reader.refuse("E165", "IN takes values in parentheses, as in IN (1, 2)", at)
        if len(values) > LIST_VALUES_MAX:
            self.reader.refuse("E165", f"an IN list has at most {LIST_VALUES_MAX} values", at)
        operands = (self.read(node.this), *(self.read(each) for each in values))
        return self.reader.call("in", operands, operands[0].at)

    def like(self, node: Node) -> Expression:
        escape: tuple[Expression, ...] = ()
        if isinstance(node, exp.Escape):
            escape = (self.read(node.expression),)
            node = node.this
            if not isinstance(node, exp.Like):
                self.reader.refuse("E165", "ESCAPE belongs after the pattern of a LIKE", self._at(node))
        value, pattern = self.read(node.this), self.read(node.expression)
        return self.reader.call("like", (value, pattern, *escape), value.at)

    def case(self, node: Node) -> Expression:
        subject = None if node.this is None else self.read(node.this)
        operands: list[Expression] = []
        for each in node.args["ifs"]:
            when = self.read(each.this)
            if subject is not None:
                when = self.reader.call("=", (subject, when), when.at)
            operands += [when, self.read(each.args["true"])]
        default = node.args.get("default")
        otherwise = Literal(None, NULL) if default is None else self.read(default)
        return self.reader.call("case", (*operands, otherwise), operands[0].at)

    def called(self, node: Node) -> Expression:
        leaf = self.reader.leaf(node.this)
        name = leaf.text.lower()
        operands: list[Node] = node.expressions
        if name in AGGREGATES:
            if self.aggregates is None:
                message = f"{name}() is not allowed here: aggregates belong to SELECT and HAVING"
                self.reader.refuse("E168", message, leaf.at)
            return self.aggregates.read(self.reader, name, operands, leaf)
        if name in ("cast", "try_cast"):
            return self._cast(operands, leaf)
        if name in UNSTEADY:
            self.reader._unsteady(leaf)
        if name in _WINDOW_FUNCTIONS:
            self.reader.refuse("E168", f"{leaf.text}() is not supported here: {_WINDOW}", leaf.at)
        if name in _INSTEAD:
            self.reader.refuse("E168", f"{leaf.text}() is not supported: {_INSTEAD[name]}", leaf.at)
        function = _CALLED.get(name)
        if function is None or function in _OPERATORS_ONLY:
            known = sorted({*_CALLED, *AGGREGATES} - {*_OPERATORS_ONLY})
            self.reader.refuse("E166", f"no function {leaf.text}(): {nearest(name, known)}", leaf.at)
        return self.reader.call(function, tuple(self.read(each) for each in operands), leaf.at)

    def _cast(self, operands: list[Node], leaf: TokenLeaf) -> Expression:
        way_out = "write CAST(x AS type)"
        if len(operands) != 1 or not isinstance(operands[0], exp.Alias):
            self.reader.refuse("E165", f"{way_out}", leaf.at)
        named = self.reader.leaf(operands[0].args["alias"].this)
        kind = _TYPES.get(named.text.lower())
        if kind is None or kind == "xml":
            kinds = "int, float, decimal, string, bool or timestamp"
            self.reader.refuse("E166", f"no type {shown(named.text)}: cast to {kinds}", named.at)
        operand = self.read(operands[0].this)
        return cast_to(operand, kind, at=leaf.at, text=self.reader.text)

    def window(self, node: Node) -> Expression:
        at = self._at(node)
        name = self.reader.leaf(node.this.this).text if isinstance(node.this, exp.Anonymous) else "OVER"
        self.reader.refuse("E168", f"the window function {name}() is not supported here: {_WINDOW}", at)

    def subquery(self, node: Node) -> Expression:
        message = "a subquery in an expression is not supported: it would be computed for each row; JOIN it"
        self.reader.refuse("E168", message, self.reader.keyword(node, TokenType.SELECT))

    def exists(self, node: Node) -> Expression:
        message = "EXISTS is not supported: group the subquery by the column and JOIN it"
        self.reader.refuse("E168", message, self.reader.keyword(node, TokenType.EXISTS))

    def null_safe(self, node: Node) -> Expression:
        message = "IS DISTINCT FROM is not supported: write = or <>, and IS NULL"
        self.reader.refuse("E168", message, self._at(node))

    def distinct(self, node: Node) -> Expression:
        self.reader.refuse("E168", "DISTINCT is allowed only after SELECT", self._at(node))

    def tuple(self, node: Node) -> Expression:
        self.reader.refuse("E168", "lists of values are allowed only after IN", self._at(node))

    def alias(self, node: Node) -> Expression:
        self.reader.refuse("E165", "AS gives names after SELECT and FROM, not here", self._at(node))

    def _at(self, node: Node) -> int:
        return self.reader.at(node)


_READERS: dict[type[Node], Callable[[_Expression, Node], Expression]] = {
    exp.Alias: _Expression.alias,
    exp.And: _Expression.connected,
    exp.Anonymous: _Expression.called,
    exp.Between: _Expression.between,
    exp.Case: _Expression.case,
    exp.Column: _Expression.column,
    exp.Distinct: _Expression.distinct,
    exp.Escape: _Expression.like,
    exp.Exists: _Expression.exists,
    exp.In: _Expression.listed,
    exp.Is: _Expression.test,
    exp.Like: _Expression.like,
    exp.Literal: _Expression.literal,
    exp.Neg: _Expression.negative,
    exp.Not: _Expression.negated,
    exp.NullSafeEQ: _Expression.null_safe,
    exp.NullSafeNEQ: _Expression.null_safe,
    exp.Or: _Expression.connected,
    exp.Select: _Expression.subquery,
    exp.Star: _Expression.star,
    exp.Subquery: _Expression.subquery,
    exp.Tuple: _Expression.tuple,
    exp.Union: _Expression.subquery,
    exp.Window: _Expression.window,
}


def _literal(value: ContentValue | None, leaf: TokenLeaf) -> Literal:
    match value:
        case bool():
            kind = "bool"
        case int():
            kind = "int"
        case float():
            kind = "float"
        case Decimal():
            kind = "decimal"
        case str():
            kind = "string"
        case datetime():
            kind = "timestamp"
        case _:
            assert isinstance(value, bytes), f"{leaf} is {value!r}"
            kind = "binary"
    return Literal(value, kind, leaf.at)


def nearest(written: str, names: list[str]) -> str:
    """A hint for an unknown name: the most similar one, or a list.

    >>> nearest("prise", ["item", "price"]), nearest("x", ["item", "price"])
    ("did you mean 'price'?", 'there are item, price')
    """
    written = written[:SHOWN_CHARACTERS_MAX]  # looking for similar names is quadratic
    lowered = {name.lower(): name for name in names}
    near = get_close_matches(written, names, n=1) or [
        lowered[name] for name in get_close_matches(written.lower(), lowered, n=1)
    ]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names[:10]) or 'none'}{more}"
