"""What does an SQL condition ask for?

`parse_sql` reads `loc = 'NY' AND price BETWEEN 3 AND 9` and returns a condition in normal form. The text is
cut into tokens by `sql_tokens`, put into a tree by sqlglot, and walked here. NOT is carried down to the
comparisons as a flag: each comparison has an opposite that is true exactly when the comparison is false, and
both are unknown for null, which gives exactly SQL's three-valued logic.

Everything is checked against the schema while it is read: columns exist, types are compatible. SQL that
conditions do not support (functions, CASE, subqueries) is refused by name, with what to write instead.

Implements docs/content.md, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from itertools import islice
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parser import Parser

from gapless.content.condition import EVERYTHING, NOTHING, Condition
from gapless.content.cost import MATCHING_COST_MAX, like_cost, matching_cost
from gapless.content.domain import Domain
from gapless.content.language import WRITTEN_CHARACTERS_MAX
from gapless.content.normal import (
    MIRRORED,
    OPPOSITE,
    AnyComparison,
    both,
    compare,
    comparison_domain,
    either,
    like,
    matches,
    within,
    written_out,
)
from gapless.content.size import size_of, written_size
from gapless.content.sql.like import LikePattern, parse_like
from gapless.content.sql.operands import (
    NUMBER_CHARACTERS_MAX,
    Operand,
    check_comparable,
    compare_constants,
    literal_operand,
    number,
    number_operand,
    timestamp,
)
from gapless.content.sql.scanner import SHOWN_CHARACTERS_MAX, TokenLeaf, TokenScan, literal, shown
from gapless.content.sql.tokens import LISTED, TOKENS_MAX, WRITTEN_TOKENS_MAX, refuse, scan
from gapless.content.terms import Arithmetic, ColumnTerm, Constant, Operator, Term, arithmetic, negative
from gapless.content.values import NUMBERS, Key, key_bounds
from gapless.content.xml.parse import parse_pattern
from gapless.errors import ContentError
from gapless.model.schema import Schema

#: Maximum number of nested operators in one arithmetic term.
TERM_DEPTH_MAX = 50
#: Values in one IN list.
LIST_VALUES_MAX = 10_000
#: Maximum number of values in all lists of a condition, except integers of an int column and texts of a
#: string column.
LIST_VALUES_SLOW_MAX = 1_000
#: Maximum number of conjunctions made while ANDs of ORs are expanded, together.
CONJUNCTIONS_MADE_MAX = 512
#: Steps, comparisons and the like of all XPath patterns of a condition.
PATTERN_NEEDS_MAX = 400
#: Maximum cost of the different LIKE patterns of a condition while it is read: far above the limit, because
#: some of them may prove redundant.
LIKE_COST_MAX = 5 * MATCHING_COST_MAX
#: A text up to this length that is not expanded is within all limits.
SMALL_CHARACTERS = 200
#: What a condition takes in a message between brokers.
CONDITION_BYTES_MAX = 4 * 2**20
#: The column types for which a list of plain values is read at once.
_LIST_TYPES = {"numbers": "int", "strings": "string"}

#: The dialect only affects operators; names and literals are ours.
_DIALECT = Dialect()

Node: TypeAlias = exp.Expr

_COMPARISONS: dict[type[Node], AnyComparison] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
#: Nodes that change only the sign of a condition.
_AROUND = (exp.Paren, exp.Not)
_ARITHMETIC: dict[type[Node], Operator] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/"}


def parse_sql(text: str, schema: Schema, *, is_written: bool = False) -> Condition:
    """Read a condition over the columns of a topic.

    >>> from gapless.model.ids import TopicId
    >>> trades = Schema.parse(TopicId("trades"), {"loc": "string", "price": "decimal", "volume": "int?"})
    >>> print(parse_sql("NOT (volume <= 3 OR loc NOT IN ('NY', 'SF')) AND price * 2 < 5", trades))
    loc IN ('NY', 'SF') AND volume >= 4 AND price * 2 < 5

    Raises ContentError: E160 for invalid SQL, E161 for an unknown column, E162 for incompatible types and bad
    literals, E163 for unsupported SQL, E164 if it is too large, E124 if it makes every event too expensive.
    """
    found = scan(text, schema, is_written=is_written)
    try:
        condition = _Reader(text, found, schema, is_written).condition(_tree(text, found), negated=False)
        if not is_written and (len(text) > SMALL_CHARACTERS or len(condition.terms) > 1):
            _check_written(condition, text)
        return condition
    except RecursionError:
        # The depth was checked; the caller must be near the end of its own stack.
        refuse("E164", "the condition is too deep for the remaining stack: split it", text, 0)


def _check_written(condition: Condition, text: str) -> None:
    """Refuse a condition that costs too much, or whose normal form another broker would refuse to read."""
    words, characters = written_size(condition)
    is_large = size_of(condition) > CONDITION_BYTES_MAX
    if is_large or words > WRITTEN_TOKENS_MAX or characters > WRITTEN_CHARACTERS_MAX:
        refuse("E164", "the condition is too large once its ANDs of ORs are expanded: split it", text, 0)
    _check_cost(matching_cost(condition), MATCHING_COST_MAX, text)


def _check_cost(cost: int, most: int, text: str) -> None:
    if cost > most:
        message = f"every event costs {cost:,} units, at most {MATCHING_COST_MAX:,} are allowed"
        refuse("E124", f"{message}: use fewer LIKE '%...', calculations and NOT XPATH, or split it", text, 0)


def _tree(text: str, found: TokenScan) -> Node:
    try:
        trees = Parser(error_level=ErrorLevel.IMMEDIATE, dialect=_DIALECT).parse_into(
            exp.Condition, found.tokens, text
        )
    except ParseError as error:
        at = error.errors[0].get("col") if error.errors else None
        _not_understood(text, at if isinstance(at, int) else 0)
    except SqlglotError:
        _not_understood(text, 0)
    if len(trees) != 1 or trees[0] is None:
        _not_understood(text, 0)
    return trees[0]


def _not_understood(text: str, at: int) -> NoReturn:
    """The order of the words was checked; two mistakes show only in the tree."""
    if text[at : at + 6].upper() == "ESCAPE":
        refuse("E160", "ESCAPE belongs after the pattern of a LIKE", text, at)
    refuse("E160", "this cannot be read: BETWEEN needs AND and two values", text, at)


class _Reader:
    """Walks the tree of one text."""

    def __init__(self, text: str, found: TokenScan, schema: Schema, is_written: bool) -> None:
        self._text = text
        self._leaves = found.leaves
        self._schema = schema
        self._columns: dict[str, ColumnTerm] = {}
        #: How many conjunctions may still be made, list values read one by one, and parts of patterns.
        scale = WRITTEN_TOKENS_MAX // TOKENS_MAX if is_written else 1
        self._conjunctions_left = CONJUNCTIONS_MADE_MAX * scale
        self._values_left = LIST_VALUES_SLOW_MAX * scale
        self._needs_left = PATTERN_NEEDS_MAX * scale
        #: The different LIKE patterns, their total cost, and the limit beyond which no more are read.
        self._likes: set[LikePattern] = set()
        self._like_cost = 0
        self._like_cost_max = LIKE_COST_MAX * scale

    def condition(self, node: Node, *, negated: bool) -> Condition:
        """The condition of the node, or of its negation."""
        while isinstance(node, _AROUND):
            negated ^= isinstance(node, exp.Not)
            node = node.this
        if isinstance(node, exp.Connector):
            operands = self._operands(node, negated)
            conditions = [self.condition(operand, negated=opposite) for operand, opposite in operands]
            is_and = isinstance(node, exp.And) is not negated
            self._count_conjunctions(conditions, is_and)
            return both(conditions) if is_and else either(conditions)
        operator = _COMPARISONS.get(type(node))
        if operator is not None:
            left, right = self._value(node.this), self._value(node.expression)
            return self._compare(left, OPPOSITE[operator] if negated else operator, right)
        read = _READERS.get(type(node))
        if read is None:
            refuse("E163", "a condition is needed here, such as column = 3", self._text, self._at(node))
        return read(self, node, negated)

    def _count_conjunctions(self, conditions: list[Condition], is_and: bool) -> None:
        """Refuse too many conjunctions before they are made."""
        made = written_out(conditions) if is_and else sum(len(each.terms) for each in conditions)
        self._conjunctions_left -= made
        if self._conjunctions_left < 0:
            message = f"ANDs of ORs expand to at most {CONJUNCTIONS_MADE_MAX} alternatives in all"
            refuse("E164", f"{message}: split the condition", self._text, 0)

    def _operands(self, node: Node, negated: bool) -> list[tuple[Node, bool]]:
        """The operands of a whole chain of ANDs, or ORs, with whether they are negated."""
        is_and = isinstance(node, exp.And) is not negated
        operands: list[tuple[Node, bool]] = []
        waiting = [(node, negated)]
        while waiting:
            here, opposite = waiting.pop()
            while isinstance(here, _AROUND):
                opposite ^= isinstance(here, exp.Not)
                here = here.this
            if isinstance(here, exp.Connector) and (isinstance(here, exp.And) is not opposite) == is_and:
                waiting += [(here.expression, opposite), (here.this, opposite)]
            else:
                operands.append((here, opposite))
        return operands

    def _compare(self, left: Operand, operator: AnyComparison, right: Operand) -> Condition:
        if left.kind == "timestamp" and right.kind == "string":
            right = self._as_time(right)
        elif right.kind == "timestamp" and left.kind == "string":
            left = self._as_time(left)
        check_comparable(left, operator, right, self._text)
        if left.kind == "null" or right.kind == "null":
            return NOTHING  # unknown for every event, and so is its opposite
        known, other = left.known, right.known
        if known is not None and other is not None:
            return EVERYTHING if compare_constants(known, operator, other) else NOTHING
        if left.term is not None and right.term is not None:
            return compare(left.term, operator, right.term)
        if left.term is None:
            left, operator, right, other = right, MIRRORED[operator], left, known
        assert left.term is not None
        assert other is not None
        return within(left.term, comparison_domain(left.kind, operator, other))

    def _as_time(self, operand: Operand) -> Operand:
        """A plain string literal next to a time is a time."""
        if not isinstance(operand.value, str):
            return operand
        value = timestamp(TokenLeaf("timestamp", operand.value, operand.at), self._text)
        return Operand("timestamp", operand.at, value=value)

    def _between(self, node: Node, negated: bool) -> Condition:
        value, low, high = (self._value(node.args[name]) for name in ("this", "low", "high"))
        first = self._compare(value, "<" if negated else ">=", low)
        second = self._compare(value, ">" if negated else "<=", high)
        return either([first, second]) if negated else both([first, second])

    def _in(self, node: Node, negated: bool) -> Condition:
        value = self._value(node.this)
        listed: list[Node] = node.expressions
        domain, operands = self._plain_list(value, listed), []
        if domain is None:
            operands = self._listed(listed)
            domain = self._listed_domain(value, operands)
        if domain is not None:
            assert value.term is not None
            if negated:
                has_null = any(each.kind == "null" for each in operands)
                return NOTHING if has_null else within(value.term, domain.without_null_inverse())
            return within(value.term, domain)
        operator: AnyComparison = "<>" if negated else "="
        conditions = [self._compare(value, operator, each) for each in operands]
        return both(conditions) if negated else either(conditions)

    def _plain_list(self, value: Operand, listed: list[Node]) -> Domain | None:
        """The values of a list of plain integers or texts, for a column of that type, all at once."""
        leaf = self._many(listed)
        if leaf is None or not isinstance(value.term, ColumnTerm) or value.kind != _LIST_TYPES[leaf.kind]:
            return None
        written = LISTED[leaf.kind].findall(leaf.text)
        self._check_length(len(written), leaf)
        if leaf.kind == "numbers":
            return Domain.points_of("int", map(int, written))
        return Domain.points_of("string", [each[1:-1].replace("''", "'") for each in written])

    def _many(self, listed: list[Node]) -> TokenLeaf | None:
        """A list that was read as one value."""
        if len(listed) != 1 or not isinstance(listed[0], exp.Literal):
            return None
        leaf = self._leaves[int(listed[0].this)]
        return leaf if leaf.kind in _LIST_TYPES else None

    def _check_length(self, count: int, leaf: TokenLeaf) -> None:
        if count > LIST_VALUES_MAX:
            first = next(islice(LISTED[leaf.kind].finditer(leaf.text), LIST_VALUES_MAX, None))
            message = f"an IN list has at most {LIST_VALUES_MAX} values, got {count}: split it"
            refuse("E164", message, self._text, leaf.at + first.start())

    def _listed(self, listed: list[Node]) -> list[Operand]:
        """The values of a list one by one."""
        leaf = self._many(listed)
        if leaf is None:
            return [self._value(each) for each in listed]  # their tokens were counted
        found = list(LISTED[leaf.kind].finditer(leaf.text))
        self._check_length(len(found), leaf)
        self._values_left -= len(found)
        if self._values_left < 0:
            message = f"lists have at most {LIST_VALUES_SLOW_MAX} values in all"
            where = "integers for an int column and texts for a string column"
            refuse("E164", f"{message}, except {where}: split the condition", self._text, leaf.at)
        kind = leaf.kind.removesuffix("s")
        return [self._leaf(literal(kind, each[0], leaf.at + each.start())) for each in found]

    def _listed_domain(self, value: Operand, operands: list[Operand]) -> Domain | None:
        """The values of an IN list as one set; None when they depend on the event, or are not a set."""
        if value.term is None or isinstance(value.term, Constant):
            return None
        if isinstance(value.term, Arithmetic) and value.kind == "decimal":
            return None
        keys: list[Key] = []
        for operand in operands:
            each = self._as_time(operand) if value.kind == "timestamp" else operand
            check_comparable(value, "=", each, self._text)
            if each.kind == "null":
                continue
            known = each.known
            if known is None:
                return None
            low, high = key_bounds(value.kind, known)
            if low == high:
                keys.append(low)
        return Domain.points(value.kind, keys)

    def _is(self, node: Node, negated: bool) -> Condition:
        negated ^= bool(node.args.get("negate"))
        value, wanted = self._value(node.this), self._value(node.expression)
        if wanted.kind == "null":
            return self._is_null(value, negated=negated)
        if not isinstance(wanted.value, bool):
            refuse("E160", "IS takes NULL, TRUE or FALSE: use = for other values", self._text, wanted.at)
        if value.kind not in ("bool", "null"):
            refuse("E162", f"{value} is neither true nor false: IS takes NULL here", self._text, value.at)
        if not isinstance(value.term, ColumnTerm):
            return EVERYTHING if (value.value is wanted.value) is not negated else NOTHING
        if not negated:
            return within(value.term, Domain.points("bool", [int(wanted.value)]))
        others = Domain.points("bool", [1 - int(wanted.value)]) | Domain.none("bool", null=True)
        return within(value.term, others)

    def _is_null(self, value: Operand, *, negated: bool) -> Condition:
        if value.term is None or isinstance(value.term, Constant):
            return EVERYTHING if (value.kind == "null") is not negated else NOTHING
        terms = _may_be_null(value.term)
        if negated:
            return both(within(term, Domain.all(term.kind)) for term in terms)
        return either(within(term, Domain.none(term.kind, null=True)) for term in terms)

    def _escape(self, node: Node, negated: bool) -> Condition:
        escape = self._value(node.expression)
        assert isinstance(node.this, exp.Like), "sqlglot reads ESCAPE only after LIKE"
        if not isinstance(escape.value, str):
            refuse("E162", "ESCAPE takes one character in quotes", self._text, escape.at)
        return self._like_with(node.this, negated, escape)

    def _like(self, node: Node, negated: bool) -> Condition:
        return self._like_with(node, negated, None)

    def _like_with(self, node: Node, negated: bool, escape: Operand | None) -> Condition:
        negated ^= bool(node.args.get("negate"))
        value, pattern = self._value(node.this), self._value(node.expression)
        if value.kind not in ("string", "null"):
            refuse("E162", f"LIKE takes a string column, not {value}", self._text, value.at)
        if pattern.kind == "null":
            return NOTHING
        if not isinstance(pattern.value, str):
            refuse("E163", "the pattern of LIKE is a literal: write it in quotes", self._text, pattern.at)
        try:
            found = parse_like(pattern.value, None if escape is None else str(escape.value))
        except ContentError as error:
            at = escape.at if escape is not None and "takes one" in error.message else pattern.at
            refuse(error.code, error.message, self._text, at)
        if isinstance(value.term, ColumnTerm):
            if found.exact is None and not found.is_prefix and found not in self._likes:
                self._likes.add(found)
                self._like_cost += like_cost(found)
                _check_cost(self._like_cost, self._like_cost_max, self._text)
            return like(value.term, found, negated=negated)
        if not isinstance(value.value, str):
            return NOTHING
        is_match: bool = found.matches(pa.array([value.value], pa.string()))[0].as_py()
        return EVERYTHING if is_match is not negated else NOTHING

    def _xpath(self, node: Node, negated: bool) -> Condition:
        arguments: list[Node] = node.expressions
        way_out = "write XPATH(column, '/a//b')"
        if len(arguments) != 2:
            refuse("E160", f"XPATH takes a column and a pattern: {way_out}", self._text, self._at(node))
        column, pattern = self._value(arguments[0]), self._value(arguments[1])
        if column.kind != "xml" or not isinstance(column.term, ColumnTerm):
            refuse("E162", f"XPATH takes an xml column, not {column}: {way_out}", self._text, column.at)
        if not isinstance(pattern.value, str):
            refuse("E163", f"the pattern of XPATH is a literal: {way_out}", self._text, pattern.at)
        try:
            found = parse_pattern(pattern.value)
            self._needs_left -= found.need.size
            if self._needs_left < 0:
                message = f"the patterns of a condition are made of at most {PATTERN_NEEDS_MAX} parts in all"
                refuse("E172", f"{message}: subscribe to them one by one", "", 0)
        except ContentError as error:
            inside = 0 if error.at is None else error.at
            # In the text a quote inside the pattern is doubled, and the pattern begins after one.
            before = pattern.at + 1 + inside + pattern.value.count("'", 0, inside)
            reason = error.message.removeprefix(f"at {inside + 1}: ")
            refuse(error.code, reason, self._text, before)
        return matches(column.term, found, negated=negated)

    def _bare(self, node: Node, negated: bool) -> Condition:
        """A boolean column, TRUE, FALSE or NULL, as a condition."""
        value = self._value(node)
        if value.kind == "null":
            return NOTHING
        if value.kind != "bool":
            message = f"{value} is not a condition: compare it with something, as in column = 3"
            refuse("E162", message, self._text, value.at)
        if isinstance(value.term, ColumnTerm):
            return within(value.term, Domain.points("bool", [int(not negated)]))
        return EVERYTHING if bool(value.value) is not negated else NOTHING

    def _value(self, node: Node, depth: int = 0) -> Operand:
        """A column, a literal, or arithmetic over them."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Literal):
            return self._leaf(self._leaves[int(node.this)])
        if depth > TERM_DEPTH_MAX:
            message = f"arithmetic has at most {TERM_DEPTH_MAX} operators in a row: split it"
            refuse("E164", message, self._text, self._at(node))
        if isinstance(node, exp.Neg):
            return self._negative(node, depth)
        operator = _ARITHMETIC.get(type(node))
        if operator is None:
            if isinstance(node, exp.Tuple):
                refuse("E163", "lists are allowed only after IN", self._text, self._at(node))
            message = "a condition is not a value: join conditions with AND, OR and NOT alone"
            refuse("E163", message, self._text, self._at(node))
        left, right = self._number(node.this, depth), self._number(node.expression, depth)
        if left.term is None or right.term is None:
            return Operand("null", left.at)
        return self._computed(arithmetic(operator, left.term, right.term), left.at)

    def _leaf(self, leaf: TokenLeaf) -> Operand:
        if leaf.kind in ("name", "quoted"):
            column = self._columns.get(leaf.text) or self._column(leaf)
            return Operand(column.kind, leaf.at, term=column)
        return literal_operand(leaf, self._text)

    def _column(self, leaf: TokenLeaf) -> ColumnTerm:
        found = next((column for column in self._schema.columns if column.name == leaf.text), None)
        if found is None:
            self._no_column(leaf)
        column = self._columns[leaf.text] = ColumnTerm(found.name, found.type, found.nullable)
        return column

    def _no_column(self, leaf: TokenLeaf) -> NoReturn:
        names = [column.name for column in self._schema.columns]
        lowered = {name.lower(): name for name in names}
        written = leaf.text[:SHOWN_CHARACTERS_MAX]  # looking for similar names is quadratic
        near = get_close_matches(written, names, n=1) or [
            lowered[name] for name in get_close_matches(written.lower(), lowered, n=1)
        ]
        way_out = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names[:10]) or 'none'}"
        if leaf.kind == "quoted":
            way_out += " (texts are in single quotes)"
        refuse("E161", f"no column {shown(leaf.text)}: {way_out}", self._text, leaf.at)

    def _number(self, node: Node, depth: int) -> Operand:
        found = self._value(node, depth + 1)
        if found.kind not in NUMBERS and found.kind != "null":
            refuse("E162", f"{found} is not a number", self._text, found.at)
        return found

    def _negative(self, node: Node, depth: int) -> Operand:
        inner = node.this
        if isinstance(inner, exp.Literal):
            leaf = self._leaves[int(inner.this)]
            if leaf.kind == "number":
                return number_operand(number(leaf, self._text, negated=True), leaf.at)
        found = self._number(inner, depth)
        if found.term is None:
            return found
        return self._computed(negative(found.term), found.at)

    def _computed(self, term: Term | None, at: int) -> Operand:
        if term is None:
            return Operand("null", at)
        if isinstance(term, Constant) and len(str(term)) > NUMBER_CHARACTERS_MAX:
            message = f"the result has more than {NUMBER_CHARACTERS_MAX} digits: write a shorter number"
            refuse("E164", message, self._text, at)
        return Operand(term.kind, at, term=term)

    def _at(self, node: Node) -> int:
        """Where the first column or literal of a node stands."""
        here: Any = node
        while not isinstance(here, exp.Literal):
            children = here.expressions
            here = here.this if isinstance(here.this, exp.Expr) else children[0]
        return self._leaves[int(here.this)].at


_READERS: dict[type[Node], Callable[[_Reader, Node, bool], Condition]] = {
    exp.Between: _Reader._between,
    exp.In: _Reader._in,
    exp.Is: _Reader._is,
    exp.Like: _Reader._like,
    exp.Escape: _Reader._escape,
    exp.Anonymous: _Reader._xpath,
    exp.Literal: _Reader._bare,
}


def _may_be_null(term: Term) -> list[Term]:
    """The terms of which one is null exactly when the term is.

    Exact arithmetic on decimals is null only where its operands are, and its results have no keys; so the
    operands are tested instead.
    """
    if isinstance(term, Constant):
        return []
    if isinstance(term, Arithmetic) and term.kind == "decimal":
        return _may_be_null(term.left) + _may_be_null(term.right)
    return [term]
