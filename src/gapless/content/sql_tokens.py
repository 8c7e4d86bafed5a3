"""What are the words of an SQL condition, and may they stand in this order?

The text is cut into tokens here, and not by sqlglot, for three reasons: every token keeps its place, so
that an error can point at it; what is not supported is refused by name before anything else looks at
it; and the depth of the text is known before a recursive parser sees it. sqlglot then gets a stream in
which every column and literal is a mere number, the position in `Scan.leaves`: no rule of a dialect can
change what a name or a literal means.

Which token may follow which is one table, `_AFTER`. It is stricter than sqlglot, which for example
accepts `x BETWEEN 1 5` and `x IN (1,,2)`.

The SQL of views (`views.parse_tokens`) has more words and another table, and the same names and literals:
those are defined here once.

Implements docs/content.md, section 3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from sqlglot.tokenizer_core import Token, TokenType

from gapless.content.language import TEXT_CHARACTERS_MAX, WRITTEN_CHARACTERS_MAX
from gapless.errors import ContentError
from gapless.model.schema import Schema

#: More tokens than that are refused; a list of plain values is one token. To read one takes about 15 us.
TOKENS_MAX = 1_000
#: The same for the text of a condition that was read. A normal form may have so many.
WRITTEN_TOKENS_MAX = 8_000
#: A chain of comparisons is looked for where so many characters are left; a shorter one is soon read.
CHAIN_CHARACTERS_MIN = 100
#: Parentheses, NOTs and signs inside each other. Parsers recurse that deep.
DEPTH_MAX = 64
#: How much of a token an error shows.
SHOWN_CHARACTERS_MAX = 40


class Leaf(NamedTuple):
    """A column or a literal, where it stands in the text."""

    #: `name`, `quoted`, `number`, `string`, `binary`, `timestamp` or `word` (NULL, TRUE, FALSE); `numbers` or
    #: `strings` for a list of many that are all plain integers, or all texts.
    kind: str
    #: As written, also a list; but quotes and what stands before them are gone, doubled quotes are single.
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Scan:
    """The tokens of a text, for sqlglot, and what they stand for."""

    tokens: list[Token]
    leaves: list[Leaf]


def refuse(code: str, message: str, text: str, at: int) -> NoReturn:
    """Raise the error that points at one place of the text."""
    raise ContentError(code, message, text=text, at=at)


def shown(text: str) -> str:
    """A piece of text for an error, in quotes and not too long, on one line."""
    return repr(text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "...")


#: Names and literals, for a verbose expression.
LEAVES = r"""
      (?P<binary>[xX]'[^']*')
    | (?P<word>[^\W\d]\w*)
    | (?P<number>0[xX]\w* | (?:[0-9]|\.[0-9])(?:[eE][+-]|[\w.])*)
    | (?P<string>'[^']*(?:''[^']*)*')
    | (?P<quoted>"[^"]*(?:""[^"]*)*")
"""
#: What no text may hold.
SURROGATE = re.compile("[\ud800-\udfff]")
#: Signs that neither conditions nor views have, and what to write instead.
ODD_SIGNS = {
    "?": "parameters are not supported: write the value into the text",
    ":": "parameters are not supported: write the value into the text",
    "@": "parameters are not supported: write the value into the text",
    "$": "parameters are not supported: write the value into the text",
    "[": "arrays are not supported: lists of values are written IN (1, 2)",
    "{": "arrays are not supported: lists of values are written IN (1, 2)",
    "`": 'names are quoted as in "name"',
    "!": "write NOT, or <> for not equal",
}


def literal(group: str, written: str, at: int) -> Leaf:
    """What a match of `LEAVES` stands for, unless it is a word.

    >>> literal("string", "'it''s'", 7)
    Leaf(kind='string', text="it's", at=7)
    """
    if group == "number":
        return Leaf("number", written, at)
    if group == "binary":
        return Leaf("binary", written[2:-1], at)
    quote = written[0]
    return Leaf(group, written[1:-1].replace(quote * 2, quote), at)


_TOKEN = re.compile(
    rf"""\s*(?:{LEAVES}
    | (?P<sign><>|!=|<=|>=|--|/\*|[-+*/(),=<>])
    | (?P<end>\Z)
    | (?P<other>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_LITERAL_AHEAD = re.compile(r"\s*'([^']*(?:''[^']*)*)'")
_PARENTHESIS_AHEAD = re.compile(r"\s*\(")

# Lists of thousands of values are common, and neither need to be cut into tokens nor to be put into a tree:
# an IN list of plain integers or texts is one value. So is what `a = 1 OR a = 2 OR ...` and
# `a <> 1 AND a <> 2 AND ...` say of one column, where nothing around them binds tighter.
_INTEGER, _STRING = r"-?(?:0|[1-9][0-9]{0,17})(?![\w.])", r"'[^']*(?:''[^']*)*'(?!')"
_LISTS = {
    kind: re.compile(rf"\s*({each}(?:\s*,\s*{each})+)(?=\s*\))")
    for kind, each in (("numbers", _INTEGER), ("strings", _STRING))
}
_CHAINS = {
    (column_type, operator): re.compile(
        rf"""((?:{sign})\s*{each}(?:\s+(?i:{word})\s+%s\s*(?:{sign})\s*{each}){{2,}})"""
        rf"""(?=\s*(?:\)|\Z|(?i:{after})\b))"""
    ).pattern
    for column_type, each in (("int", _INTEGER), ("string", _STRING))
    for operator, sign, word, after in (("=", "=", "OR", "OR"), ("<>", "<>|!=", "AND", "AND|OR"))
}
#: The values of a list; the name of a column between them may have digits in it.
LISTED = {"numbers": re.compile(rf"(?<![\w.]){_INTEGER}"), "strings": re.compile(_STRING)}
_CHAIN_AHEAD = re.compile(r"\s*(=|<>|!=)\s*[-'0-9]")

# The classes of tokens, one letter each: v value, ( ) comma, + sign, * times or divided by, c comparison,
# a AND or OR, n NOT before a condition, N NOT before IN, LIKE or BETWEEN, S NOT after IS, i IN, l LIKE,
# b BETWEEN, s IS, e ESCAPE, x XPATH.
_CONDITION, _VALUE, _OPERATOR = "v(+nx", "v(+", "),+*caNilbs"

#: Which classes may follow a class; the empty one is the beginning of the text.
_AFTER = {
    **dict.fromkeys(["", "(", "a", "n"], _CONDITION),
    **dict.fromkeys([",", "+", "*", "c", "b"], _VALUE),
    "v": _OPERATOR + "e",
    ")": _OPERATOR,
    "N": "ilb",
    "S": "v",
    "s": "vS",
    "i": "(",
    "l": "v",
    "e": "v",
    "x": "(",
}
#: After these the text may end.
_LAST = "v)"

_SIGNS: dict[str, tuple[str, TokenType]] = {
    "(": ("(", TokenType.L_PAREN),
    ")": (")", TokenType.R_PAREN),
    ",": (",", TokenType.COMMA),
    "=": ("c", TokenType.EQ),
    "<>": ("c", TokenType.NEQ),
    "!=": ("c", TokenType.NEQ),
    "<": ("c", TokenType.LT),
    "<=": ("c", TokenType.LTE),
    ">": ("c", TokenType.GT),
    ">=": ("c", TokenType.GTE),
    "+": ("+", TokenType.PLUS),
    "-": ("+", TokenType.DASH),
    "*": ("*", TokenType.STAR),
    "/": ("*", TokenType.SLASH),
}
_KEYWORDS: dict[str, tuple[str, TokenType]] = {
    "AND": ("a", TokenType.AND),
    "OR": ("a", TokenType.OR),
    "NOT": ("n", TokenType.NOT),
    "IN": ("i", TokenType.IN),
    "LIKE": ("l", TokenType.LIKE),
    "BETWEEN": ("b", TokenType.BETWEEN),
    "IS": ("s", TokenType.IS),
    "ESCAPE": ("e", TokenType.ESCAPE),
}
_CONSTANTS = frozenset({"NULL", "TRUE", "FALSE"})

#: What SQL has and we have not, and what to write instead. Only where no column has that name.
_INSTEAD = {
    "ALL": "list the values with IN",
    "ANY": "list the values with IN",
    "CASE": "write the branches with AND and OR",
    "CAST": "compare columns as they are",
    "COLLATE": "texts are compared by code point",
    "DATE": "write TIMESTAMP '2026-01-31 00:00:00'",
    "DISTINCT": "write = and IS NULL",
    "EXISTS": "a condition sees one event alone",
    "FROM": "write only the condition that would follow WHERE",
    "GLOB": "use LIKE",
    "ILIKE": "use LIKE, which tells upper case from lower case",
    "INTERVAL": "compare with a TIMESTAMP '...'",
    "REGEXP": "use LIKE",
    "RLIKE": "use LIKE",
    "SELECT": "write only the condition that would follow WHERE",
    "SIMILAR": "use LIKE",
    "SOME": "list the values with IN",
    "TIME": "write TIMESTAMP '2026-01-31 00:00:00'",
    "WHERE": "write only the condition that would follow WHERE",
    "XOR": "write (a OR b) AND NOT (a AND b)",
}
_ODD_SIGNS = {
    **ODD_SIGNS,
    "--": "comments are not supported: leave it out, or write - -5 with a space",
    "/*": "comments are not supported: leave it out",
    ";": "one condition, without ';'",
    ":": "parameters and casts are not supported: write the value into the text",
    "%": "'%' is not supported: compare the column itself",
    "|": "joining texts is not supported: compare the columns one by one",
    ".": "columns have no prefix: write the column's name alone",
}


def scan(text: str, schema: Schema, *, is_written: bool = False) -> Scan:
    """Cut a condition into tokens; a column may be named like a word that we do not support.

    Raises ContentError at the first token that cannot be, or cannot stand where it does.
    """
    characters_max = WRITTEN_CHARACTERS_MAX if is_written else TEXT_CHARACTERS_MAX
    if len(text) > characters_max:
        message = f"a condition has at most {characters_max} characters, got {len(text)}: split it"
        refuse("E164", message, text, 0)
    if found := SURROGATE.search(text):
        refuse("E160", "half a surrogate pair is no character: send the text as UTF-8", text, found.start())
    return _Scanner(text, schema, WRITTEN_TOKENS_MAX if is_written else TOKENS_MAX).scanned()


class _Scanner:
    def __init__(self, text: str, schema: Schema, tokens_max: int) -> None:
        self._text = text
        self._schema = schema
        self._tokens_max = tokens_max
        #: The pattern of a chain of comparisons of one column, by how its name is written.
        self._chains: dict[tuple[str, str], re.Pattern[str] | None] = {}
        self._tokens: list[Token] = []
        self._leaves: list[Leaf] = []
        #: The class of the token before, and of the one before that.
        self._last = self._before = ""
        #: How deep we are now, where this pair of parentheses began, and those around it.
        self._depth, self._base = 0, 0
        self._around: list[tuple[int, int]] = []

    def scanned(self) -> Scan:
        text, at = self._text, 0
        while True:
            found = _TOKEN.match(text, at)
            assert found is not None, f"no token at {at} of {text!r}"
            group = found.lastgroup
            assert group is not None
            at = found.end()
            start = found.start(group)
            if group == "end":
                break
            if group == "word":
                at = self._word(found[group], start, at)
            elif group == "sign":
                self._sign(found[group], start)
                if self._last == "(" and self._before == "i":
                    at = self._list(at)
            elif group == "other":
                self._other(found[group], start)
            else:
                self._leaf(literal(group, found[group], start), at)
            if len(self._tokens) > self._tokens_max:
                message = f"a condition has at most {self._tokens_max} words and signs"
                refuse(
                    "E164", f"{message}: write values of one column as an IN list, or split it", text, start
                )
        self._finish()
        return Scan(self._tokens, self._leaves)

    def _word(self, word: str, start: int, stop: int) -> int:
        """Take a word, and the literal behind it when the two belong together; where to go on."""
        upper = word.upper()
        if upper in _KEYWORDS:
            letter, token_type = _KEYWORDS[upper]
            if letter == "n" and self._last in ("v", ")", "s"):
                letter = "S" if self._last == "s" else "N"
            self._add(letter, token_type, upper, start, stop)
            return stop
        if upper in _CONSTANTS:
            self._leaf(Leaf("word", upper, start), stop)
            return stop
        if upper == "TIMESTAMP" and (ahead := _LITERAL_AHEAD.match(self._text, stop)):
            self._leaf(Leaf("timestamp", ahead[1], start), ahead.end())
            return ahead.end()
        if _PARENTHESIS_AHEAD.match(self._text, stop):
            self._call(word, upper, start, stop)
            return stop
        if upper in _INSTEAD and not self._is_column(word):
            refuse("E163", f"{upper} is not supported: {_INSTEAD[upper]}", self._text, start)
        if len(self._text) - stop < CHAIN_CHARACTERS_MIN:
            self._leaf(Leaf("name", word, start), stop)
            return stop
        is_first = self._last in ("", "(") or (
            self._last == "a" and self._tokens[-1].token_type is TokenType.OR
        )
        self._leaf(Leaf("name", word, start), stop)
        return self._chain(word, stop) if is_first else stop

    def _list(self, at: int) -> int:
        """Take a list of plain values behind IN as one; where to go on."""
        for kind, pattern in _LISTS.items():
            found = pattern.match(self._text, at)
            if found is not None:
                self._leaf(Leaf(kind, found[1], found.start(1)), found.end())
                return found.end()
        return at

    def _chain(self, word: str, at: int) -> int:
        """Take what `word = 1 OR word = 2 OR ...` goes on with as one list; where to go on."""
        ahead = _CHAIN_AHEAD.match(self._text, at)
        pattern = self._chain_of(word, "=" if ahead[1] == "=" else "<>") if ahead else None
        found = pattern.match(self._text, ahead.start(1)) if ahead and pattern else None
        if found is None:
            return at
        assert ahead is not None
        start, stop = found.span(1)
        if ahead[1] != "=":
            self._add("N", TokenType.NOT, "NOT", start, stop)
        self._add("i", TokenType.IN, "IN", start, stop)
        self._add("(", TokenType.L_PAREN, "(", start, stop)
        kind = "strings" if found[1].endswith("'") else "numbers"
        self._leaf(Leaf(kind, found[1], start), stop)
        self._add(")", TokenType.R_PAREN, ")", start, stop)
        return stop

    def _chain_of(self, word: str, operator: str) -> re.Pattern[str] | None:
        key = word, operator
        if key not in self._chains:
            column = next((each for each in self._schema.columns if each.name == word), None)
            pattern = None if column is None else _CHAINS.get((column.type, operator))
            self._chains[key] = None if pattern is None else re.compile(pattern % re.escape(word))
        return self._chains[key]

    def _call(self, word: str, upper: str, start: int, stop: int) -> None:
        if upper == "XPATH":
            self._add("x", TokenType.VAR, upper, start, stop)
        elif self._last in ("v", ")") or self._is_column(word):
            self._leaf(Leaf("name", word, start), stop)  # an operator is missing; say that
        else:
            instead = _INSTEAD.get(upper, "publish the result as a column and compare that")
            refuse("E163", f"the function {word}() is not supported: {instead}", self._text, start)

    def _is_column(self, name: str) -> bool:
        return any(column.name == name for column in self._schema.columns)

    def _sign(self, sign: str, start: int) -> None:
        if sign in _ODD_SIGNS:
            refuse("E163", _ODD_SIGNS[sign], self._text, start)
        letter, token_type = _SIGNS[sign]
        self._add(letter, token_type, sign, start, start + len(sign))

    def _other(self, character: str, start: int) -> None:
        if character in "'\"":
            refuse("E160", f"the quote {character} is opened and never closed", self._text, start)
        if character in _ODD_SIGNS:
            refuse("E163", _ODD_SIGNS[character], self._text, start)
        refuse("E160", f"{shown(character)} has no meaning here", self._text, start)

    def _leaf(self, leaf: Leaf, stop: int) -> None:
        # ESCAPE wants a string where everything else takes any literal.
        token_type = TokenType.STRING if self._last == "e" else TokenType.NUMBER
        self._add("v", token_type, str(len(self._leaves)), leaf.at, stop)
        self._leaves.append(leaf)

    def _add(self, letter: str, token_type: TokenType, word: str, start: int, stop: int) -> None:
        if letter not in _AFTER[self._last]:
            self._misplaced(letter, start, stop)
        self._measure(letter, start)
        self._before, self._last = self._last, letter
        self._tokens.append(Token(token_type, word, 1, start, start, stop - 1))

    def _measure(self, letter: str, start: int) -> None:
        """Count how deep parentheses, NOTs and signs stand inside each other."""
        if letter == "v":
            self._depth = self._base
        elif letter == "(":
            self._around.append((self._base, start))
            self._base = self._depth = self._depth + 1
        elif letter == ")":
            if not self._around:
                refuse("E160", "this parenthesis closes nothing: leave it out", self._text, start)
            self._base, _ = self._around.pop()
            self._depth = self._base
        elif letter == "n" or (letter == "+" and self._last not in ("v", ")")):
            self._depth += 1
        if self._depth > DEPTH_MAX:
            message = f"parentheses, NOTs and signs are at most {DEPTH_MAX} deep: split the condition"
            refuse("E164", message, self._text, start)

    def _finish(self) -> None:
        if not self._tokens:
            refuse("E160", "the condition is empty: write TRUE to accept every event", self._text, 0)
        if self._last not in _LAST:
            what = self._text[self._tokens[-1].start : self._tokens[-1].end + 1]
            refuse("E160", f"something is missing after {shown(what)}", self._text, len(self._text))
        if self._around:
            refuse("E160", "this parenthesis is never closed", self._text, self._around[-1][1])

    def _misplaced(self, letter: str, start: int, stop: int) -> NoReturn:
        found = shown(self._text[start:stop])
        allowed = _AFTER[self._last]
        if allowed == "(":
            wanted = "a parenthesis and then the values" if self._last == "i" else "a parenthesis"
        elif "v" in allowed:
            wanted = "a condition" if "n" in allowed else "a column or a value"
            if self._last in ("s", "S"):
                wanted = "NULL, TRUE or FALSE"
        elif self._last == "N":
            wanted = "IN, LIKE or BETWEEN"
        else:
            wanted = "AND, OR or a comparison"
        if letter == "v" and self._last in _LAST and (word := self._text[start:stop].upper()) in _INSTEAD:
            refuse("E163", f"{word} is not supported: {_INSTEAD[word]}", self._text, start)
        refuse("E160", f"expected {wanted}, found {found}", self._text, start)
