"""What are the tokens of a view's SQL, and where are they?

The text is cut as that of conditions is (`content.sql.scanner`). For sqlglot every name is `n7`, every
function `f7` and every literal `7`, the position in `TokenScan.leaves`, so whatever its tree is made of leads
back to a place in the text.

sqlglot is lenient (`SELECT a,, b` and `BETWEEN 1 5` pass), so what must be followed by a value is checked
here as well, and how deep the text is before a recursive parser sees it.
"""

from __future__ import annotations

import re
from typing import NoReturn

from sqlglot.tokenizer_core import TokenType

from gapless.content.sql.scanner import (
    CONSTANTS,
    LEAVES,
    ODD_SIGNS,
    SIGNS,
    Scanner,
    TokenLeaf,
    TokenScan,
    shown,
)
from gapless.errors import ViewError

TEXT_CHARACTERS_MAX = 100_000
TOKENS_MAX = 20_000
#: Maximum nesting of parentheses, CASEs, NOTs and signs: parsers recurse that deep.
DEPTH_MAX = 32


def refuse(code: str, message: str, text: str, at: int | None) -> NoReturn:
    """Raise the error that points at one place of the text."""
    raise ViewError(code, message, text=text, at=at)


#: What may separate two words: space and comments.
_GAP = r"(?:\s|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*"
_TOKEN = re.compile(
    rf"""{_GAP}(?:{LEAVES}
    | (?P<odd>::|==|=>|->|//|/\*)
    | (?P<sign><>|!=|<=|>=|\|\||[-+*/%(),=<>.;])
    | (?P<end>\Z)
    | (?P<other>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORD_AHEAD = re.compile(rf"{_GAP}([^\W\d]\w*)")
_LITERAL_AHEAD = re.compile(rf"{_GAP}'([^']*(?:''[^']*)*)'")
_PARENTHESIS_AHEAD = re.compile(rf"{_GAP}\(")

_SIGNS: dict[str, TokenType] = {
    **SIGNS,
    ".": TokenType.DOT,
    "%": TokenType.MOD,
    "||": TokenType.DPIPE,
}
_KEYWORDS: dict[str, TokenType] = {
    "ALL": TokenType.ALL,
    "AND": TokenType.AND,
    "AS": TokenType.ALIAS,
    "ASC": TokenType.ASC,
    "BETWEEN": TokenType.BETWEEN,
    "CASE": TokenType.CASE,
    "CROSS": TokenType.CROSS,
    "DESC": TokenType.DESC,
    "DISTINCT": TokenType.DISTINCT,
    "ELSE": TokenType.ELSE,
    "END": TokenType.END,
    "ESCAPE": TokenType.ESCAPE,
    "EXCEPT": TokenType.EXCEPT,
    "EXISTS": TokenType.EXISTS,
    "FROM": TokenType.FROM,
    "FULL": TokenType.FULL,
    "HAVING": TokenType.HAVING,
    "IN": TokenType.IN,
    "INNER": TokenType.INNER,
    "INTERSECT": TokenType.INTERSECT,
    "IS": TokenType.IS,
    "JOIN": TokenType.JOIN,
    "LEFT": TokenType.LEFT,
    "LIKE": TokenType.LIKE,
    "LIMIT": TokenType.LIMIT,
    "NATURAL": TokenType.NATURAL,
    "NOT": TokenType.NOT,
    "OFFSET": TokenType.OFFSET,
    "ON": TokenType.ON,
    "OR": TokenType.OR,
    "OUTER": TokenType.OUTER,
    "OVER": TokenType.OVER,
    "QUALIFY": TokenType.QUALIFY,
    "RECURSIVE": TokenType.RECURSIVE,
    "RIGHT": TokenType.RIGHT,
    "SELECT": TokenType.SELECT,
    "THEN": TokenType.THEN,
    "UNION": TokenType.UNION,
    "USING": TokenType.USING,
    "WHEN": TokenType.WHEN,
    "WHERE": TokenType.WHERE,
    "WITH": TokenType.WITH,
}
_BEFORE_BY: dict[str, TokenType] = {
    "GROUP": TokenType.GROUP_BY,
    "ORDER": TokenType.ORDER_BY,
    "PARTITION": TokenType.PARTITION_BY,
}

#: What SQL may begin with, and views may not.
_STATEMENTS = frozenset(
    {"ALTER", "CALL", "COPY", "CREATE", "DELETE", "DROP", "EXPLAIN", "GRANT", "INSERT", "MERGE", "REPLACE"}
    | {"SET", "SHOW", "TRUNCATE", "UPDATE", "USE", "VALUES", "FROM"}
)
#: SQL keywords that views do not support: the reason, and what to write instead.
_INSTEAD = {
    "ANY": "list the values with IN",
    "ASOF": "a join is by equality alone",
    "COLLATE": "texts are compared by code point",
    "CUBE": "one view has one grouping; make a view for each",
    "DATE": "write TIMESTAMP '2026-01-31 00:00:00'",
    "EXTRACT": "write DATE_TRUNC('day', t)",
    "FETCH": "write LIMIT",
    "FILTER": "write sum(CASE WHEN condition THEN x END)",
    "GROUPING": "one view has one grouping; make a view for each",
    "ILIKE": "write LOWER(x) LIKE '...'",
    "INTERVAL": "times are compared and truncated, never added to: publish the time you need as a column",
    "INTO": "a view is filled by itself: leave it out",
    "LATERAL": "join by equal columns",
    "MINUS": "GROUP BY both sides and LEFT JOIN them, WHERE ... IS NULL",
    "PIVOT": "write sum(CASE WHEN column = 'x' THEN y END) AS x",
    "REGEXP": "use LIKE",
    "RLIKE": "use LIKE",
    "ROLLUP": "one view has one grouping; make a view for each",
    "SEMI": "group the right side by its key and use JOIN",
    "ANTI": "group the right side by its key and use LEFT JOIN ... WHERE ... IS NULL",
    "SIMILAR": "use LIKE",
    "SOME": "list the values with IN",
    "TABLESAMPLE": "a sample would differ at every computation",
    "TOP": "write ORDER BY ... LIMIT k at the end",
    "UNNEST": "columns hold single values",
    "VALUES": "publish the rows to a topic",
    "WINDOW": "only ROW_NUMBER() OVER (...) <= k is supported",
}
#: Those of them that are ordinary names unless this follows.
_ONLY_BEFORE = {
    word: re.compile(f"{_GAP}{ahead}", re.IGNORECASE)
    for word, ahead in {"DATE": "'", "EXTRACT": r"\(", "MINUS": r"\(?\s*SELECT\b", "TOP": "[0-9]"}.items()
}
_ODD_SIGNS = {
    **ODD_SIGNS,
    "::": "write CAST(x AS type)",
    "==": "write =",
    "=>": "write >=",
    "->": "columns hold single values: write XML_TEXT(doc, '/path')",
    "//": "write / to divide, and -- before a comment",
    "/*": "this comment is never closed",
    "&": "numbers have no bits here: write AND between conditions",
    "^": "powers are not supported: write x * x",
    "~": "use LIKE",
    "#": "write -- before a comment",
}

_T = TokenType
_OPERATORS = frozenset(
    {_T.EQ, _T.NEQ, _T.LT, _T.LTE, _T.GT, _T.GTE, _T.PLUS, _T.DASH, _T.SLASH, _T.MOD, _T.DPIPE, _T.STAR}
)
#: After these a value must begin.
_OPEN = _OPERATORS | {
    *(_T.COMMA, _T.DOT, _T.AND, _T.OR, _T.NOT, _T.LIKE, _T.BETWEEN, _T.ESCAPE, _T.IN, _T.IS, _T.ALIAS),
    *(_T.SELECT, _T.DISTINCT, _T.FROM, _T.JOIN, _T.WHERE, _T.HAVING, _T.QUALIFY, _T.LIMIT, _T.OFFSET),
    *(_T.GROUP_BY, _T.ORDER_BY, _T.PARTITION_BY, _T.ON, _T.WHEN, _T.THEN, _T.ELSE, _T.USING, _T.OVER),
}
#: What a value may begin with; NOT may also be followed by IN, LIKE and BETWEEN.
_BEGINS = frozenset({_T.VAR, _T.NUMBER, _T.STRING, _T.L_PAREN, _T.DASH, _T.PLUS, _T.NOT, _T.CASE, _T.EXISTS})
_ALSO: dict[TokenType, frozenset[TokenType]] = {
    _T.NOT: frozenset({_T.IN, _T.LIKE, _T.BETWEEN}),
    _T.SELECT: frozenset({_T.DISTINCT, _T.ALL, _T.STAR}),
    _T.COMMA: frozenset({_T.STAR}),
    _T.DOT: frozenset({_T.STAR}),
    _T.IS: frozenset({_T.DISTINCT}),
    _T.DISTINCT: frozenset({_T.STAR, _T.FROM, _T.ON}),
}
#: After these comes a name, or something that gets one.
_NAMED = {
    **dict.fromkeys([_T.FROM, _T.JOIN, _T.ALIAS], frozenset({_T.VAR, _T.L_PAREN})),
    _T.DOT: frozenset({_T.VAR, _T.STAR}),
}
#: Tokens that end a value.
_ENDS = frozenset({_T.VAR, _T.NUMBER, _T.STRING, _T.R_PAREN, _T.END})
#: Where a star means all columns.
_BEFORE_ALL = frozenset({_T.SELECT, _T.COMMA, _T.DOT, _T.DISTINCT, _T.L_PAREN, _T.ALL})


def is_plain_name(name: str) -> bool:
    """Whether a name needs no quotes."""
    words = (_KEYWORDS, _BEFORE_BY, CONSTANTS, _INSTEAD, _STATEMENTS, {"NULLS", "TIMESTAMP", "BY"})
    return name.isidentifier() and not any(name.upper() in each for each in words)


def scan(text: str, known: frozenset[str], *, expression: bool = False) -> TokenScan:
    """Tokenize a view's text, or that of one expression.

    `known` names may be keywords that views do not support. Raises ViewError at the first token that is
    invalid or misplaced.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        message = f"a view has at most {TEXT_CHARACTERS_MAX} characters, got {len(text)}: make views of parts"
        refuse("E165", message, text, 0)
    return _Scanner(text, known, expression).scanned()


class _Scanner(Scanner):
    pattern = _TOKEN
    error = ViewError
    malformed = "E165"

    def __init__(self, text: str, known: frozenset[str], expression: bool) -> None:
        super().__init__(text)
        self._known = known
        #: What the text may begin with.
        self._first = _BEGINS if expression else frozenset({_T.SELECT, _T.WITH, _T.L_PAREN})
        self._beginning = "a column or a value" if expression else "SELECT or WITH"
        self._last: TokenType | None = None
        #: Whether the previous star means all columns.
        self._all_columns = False
        self._depth, self._base = 0, 0
        #: The depth around each open parenthesis or CASE, its position, and the pending BETWEENs around it.
        self._around: list[tuple[int, int, str, int]] = []
        #: Number of BETWEENs that wait for their AND.
        self._between = 0

    def _check_count(self, start: int) -> None:
        if len(self._tokens) > TOKENS_MAX:
            message = f"a view has at most {TOKENS_MAX} words and signs: make views of parts"
            self._refuse("E165", message, start)

    def _word(self, word: str, start: int, stop: int) -> int:
        upper = word.upper()
        if not self._tokens and upper in _STATEMENTS:
            self._refuse("E168", f"{upper} is not supported: a view is one SELECT", start)
        if self._last is _T.DOT:
            self._leaf(TokenLeaf("name", word, start), stop)
            return stop
        ahead = _WORD_AHEAD.match(self._text, stop)
        following = ahead[1].upper() if ahead else ""
        if upper in _BEFORE_BY and ahead and following == "BY":
            self._add(_BEFORE_BY[upper], f"{upper} BY", start, ahead.end())
            return ahead.end()
        if upper == "NULLS" and ahead and following in ("FIRST", "LAST"):
            if following == "FIRST":
                self._refuse("E168", "NULLS FIRST is not supported: nulls come last", start)
            return ahead.end()
        is_call = _PARENTHESIS_AHEAD.match(self._text, stop) is not None
        if upper in _KEYWORDS and not (is_call and upper in ("LEFT", "RIGHT")):
            self._add(_KEYWORDS[upper], upper, start, stop)
            return stop
        if upper in CONSTANTS:
            self._leaf(TokenLeaf("word", upper, start), stop)
            return stop
        quoted = _LITERAL_AHEAD.match(self._text, stop)
        if upper == "TIMESTAMP" and quoted:
            self._leaf(TokenLeaf("timestamp", quoted[1], start), quoted.end())
            return quoted.end()
        if self._last is _T.ALIAS:
            # A column may have this name.
            self._known |= {word}
        before = _ONLY_BEFORE.get(upper)
        if upper in _INSTEAD and word not in self._known and (not before or before.match(self._text, stop)):
            self._refuse("E168", f"{upper} is not supported: {_INSTEAD[upper]}", start)
        self._leaf(TokenLeaf("call" if is_call else "name", word, start), stop)
        return stop

    def _sign(self, sign: str, start: int, stop: int) -> int | None:
        if sign != ";":
            self._add(_SIGNS[sign], sign, start, stop)
            return stop
        found = _TOKEN.match(self._text, stop)
        assert found is not None
        if found.lastgroup != "end":
            self._refuse("E165", "a view is one SELECT: nothing may follow ';'", start)
        return None

    def _odd(self, sign: str, start: int) -> None:
        if sign in _ODD_SIGNS:
            self._refuse("E165", f"{shown(sign)} has no meaning here: {_ODD_SIGNS[sign]}", start)

    def _leaf(self, leaf: TokenLeaf, stop: int) -> None:
        index = len(self._leaves)
        self._leaves.append(leaf)
        if leaf.kind in ("name", "quoted"):
            self._add(_T.VAR, f"n{index}", leaf.at, stop)
        elif leaf.kind == "call":
            self._add(_T.VAR, f"f{index}", leaf.at, stop)
        else:
            # ESCAPE needs a string where everything else takes any literal.
            kind = _T.STRING if self._last is _T.ESCAPE else _T.NUMBER
            self._add(kind, str(index), leaf.at, stop)

    def _add(self, kind: TokenType, word: str, start: int, stop: int) -> None:
        if not self._tokens and kind not in self._first:
            found = shown(self._text[start:stop])
            self._refuse("E165", f"expected {self._beginning}, found {found}", start)
        self._check_place(kind, start, stop)
        if self._last is _T.L_PAREN:
            self._check_pair(kind)
        self._measure(kind, start)
        self._all_columns = kind is _T.STAR and self._last in _BEFORE_ALL
        self._last = kind
        self._append(kind, word, start, stop)

    def _check_place(self, kind: TokenType, start: int, stop: int) -> None:
        last, found = self._last, shown(self._text[start:stop])
        if last in _OPEN and not self._all_columns:
            assert last is not None
            named = None if self._is_distinct_from else _NAMED.get(last)
            if kind not in (named or _BEGINS | _ALSO.get(last, frozenset())):
                what = "a name" if named else "a column or a value"
                if last in (_T.IN, _T.USING, _T.OVER):
                    what = "a parenthesis"
                self._refuse("E165", f"expected {what}, found {found}", start)
        elif kind in (_T.NUMBER, _T.STRING) and last in _ENDS:
            what = "AND" if self._between else "an operator or a comma"
            self._refuse("E165", f"expected {what}, found {found}", start)
        elif kind is _T.VAR and last in _ENDS and self._between:
            self._refuse("E165", f"expected AND, found {found}: BETWEEN needs AND and two values", start)

    def _check_pair(self, kind: TokenType) -> None:
        """Refuses what must not directly follow an opening parenthesis, by what precedes it."""
        before = self._tokens[-2].token_type if len(self._tokens) > 1 else None
        at = self._tokens[-1].start
        if kind is _T.SELECT and before is _T.VAR:
            message = "a subquery belongs after FROM, JOIN or AS, as in WITH name AS (SELECT ...)"
            self._refuse("E165", message, at)
        if kind is _T.R_PAREN and before not in (_T.VAR, _T.IN, _T.USING, _T.OVER):
            self._refuse("E165", "these parentheses are empty", at)

    @property
    def _is_distinct_from(self) -> bool:
        """Whether the last words are those of IS DISTINCT FROM, which is refused as a whole."""
        return [each.token_type for each in self._tokens[-2:]] == [_T.DISTINCT, _T.FROM]

    def _measure(self, kind: TokenType, start: int) -> None:
        """Count the nesting of parentheses, CASEs, NOTs and signs."""
        if kind in (_T.VAR, _T.NUMBER, _T.STRING):
            self._depth = self._base
        elif kind in (_T.L_PAREN, _T.CASE):
            sign = "(" if kind is _T.L_PAREN else "CASE"
            self._around.append((self._base, start, sign, self._between))
            self._base = self._depth = self._depth + 1
            self._between = 0
        elif kind in (_T.R_PAREN, _T.END):
            self._close("(" if kind is _T.R_PAREN else "CASE", start)
        elif kind is _T.NOT or (kind in (_T.DASH, _T.PLUS) and self._last not in _ENDS):
            self._depth += 1
        elif kind is _T.BETWEEN:
            self._between += 1
        elif kind is _T.AND and self._between:
            self._between -= 1
        if self._depth > DEPTH_MAX:
            message = f"parentheses, CASEs, NOTs and signs are at most {DEPTH_MAX} deep: make views of parts"
            self._refuse("E165", message, start)

    def _close(self, sign: str, start: int) -> None:
        if not self._around or self._around[-1][2] != sign:
            what = "this parenthesis closes nothing" if sign == "(" else "END closes no CASE here"
            self._refuse("E165", f"{what}: leave it out", start)
        if self._between:
            self._refuse("E165", "BETWEEN needs AND and two values", start)
        self._base, _, _, self._between = self._around.pop()
        self._depth = self._base

    def _finish(self) -> None:
        if not self._tokens:
            self._refuse("E165", f"the text is empty: it begins with {self._beginning}", 0)
        if self._last in _OPEN and not self._all_columns:
            self._refuse("E165", f"something is missing after {self._last_written()}", len(self._text))
        if self._around:
            _, start, sign, _ = self._around[-1]
            what = "this parenthesis" if sign == "(" else "this CASE"
            end = "closed" if sign == "(" else "ended with END"
            self._refuse("E165", f"{what} is never {end}", start)
        if self._between:
            self._refuse("E165", "BETWEEN needs AND and two values", len(self._text))
