"""What are the tokens of an SQL condition, and is their order valid?

Which token may follow which is one table, `_AFTER`. It is stricter than sqlglot, which for example
accepts `x BETWEEN 1 5` and `x IN (1,,2)`.

How the text is cut, and what names and literals are, is in `scanner`: the SQL of views has the same.

Implements docs/content.md, section 3.
"""

from __future__ import annotations

import re
from typing import NoReturn

from sqlglot.tokenizer_core import TokenType

from gapless.content.language import TEXT_CHARACTERS_MAX, WRITTEN_CHARACTERS_MAX
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
from gapless.errors import ContentError
from gapless.model.schema import Schema

#: Maximum number of tokens; a list of plain values is one token. Reading one takes about 15 us.
TOKENS_MAX = 1_000
#: The same for the text of a parsed condition, whose normal form may have this many.
WRITTEN_TOKENS_MAX = 8_000
#: Chains of comparisons are searched for if at least this many characters are left; a shorter one is read
#: quickly.
CHAIN_CHARACTERS_MIN = 100
#: Maximum nesting of parentheses, NOTs and signs: parsers recurse that deep.
DEPTH_MAX = 64


def refuse(code: str, message: str, text: str, at: int) -> NoReturn:
    """Raise the error that points at one place of the text."""
    raise ContentError(code, message, text=text, at=at)


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

# Lists of thousands of values are common, and need neither tokens nor a tree: an IN list of plain integers or
# texts is one value. So are `a = 1 OR a = 2 OR ...` and `a <> 1 AND a <> 2 AND ...` of one column, where
# nothing around them binds tighter.
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

#: The class of each sign; all others are comparisons.
_SIGN_CLASSES = {"(": "(", ")": ")", ",": ",", "+": "+", "-": "+", "*": "*", "/": "*"}
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

#: Unsupported SQL, and what to write instead. Only where no column has that name.
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


def scan(text: str, schema: Schema, *, is_written: bool = False) -> TokenScan:
    """Tokenize a condition; a column may have the name of an unsupported keyword.

    Raises ContentError at the first token that is invalid or misplaced.
    """
    characters_max = WRITTEN_CHARACTERS_MAX if is_written else TEXT_CHARACTERS_MAX
    if len(text) > characters_max:
        message = f"a condition has at most {characters_max} characters, got {len(text)}: split it"
        refuse("E164", message, text, 0)
    return _Scanner(text, schema, WRITTEN_TOKENS_MAX if is_written else TOKENS_MAX).scanned()


class _Scanner(Scanner):
    pattern = _TOKEN
    error = ContentError
    malformed = "E160"

    def __init__(self, text: str, schema: Schema, tokens_max: int) -> None:
        super().__init__(text)
        self._schema = schema
        self._tokens_max = tokens_max
        #: The pattern of a chain of comparisons of one column, by how its name is written.
        self._chains: dict[tuple[str, str], re.Pattern[str] | None] = {}
        #: The classes of the last two tokens.
        self._last = self._before = ""
        #: The current depth, where this pair of parentheses began, and those around it.
        self._depth, self._base = 0, 0
        self._around: list[tuple[int, int]] = []

    def _check_count(self, start: int) -> None:
        if len(self._tokens) > self._tokens_max:
            message = f"a condition has at most {self._tokens_max} words and signs"
            self._refuse("E164", f"{message}: write values of one column as an IN list, or split it", start)

    def _word(self, word: str, start: int, stop: int) -> int:
        upper = word.upper()
        if upper in _KEYWORDS:
            letter, token_type = _KEYWORDS[upper]
            if letter == "n" and self._last in ("v", ")", "s"):
                letter = "S" if self._last == "s" else "N"
            self._add(letter, token_type, upper, start, stop)
            return stop
        if upper in CONSTANTS:
            self._leaf(TokenLeaf("word", upper, start), stop)
            return stop
        if upper == "TIMESTAMP" and (ahead := _LITERAL_AHEAD.match(self._text, stop)):
            self._leaf(TokenLeaf("timestamp", ahead[1], start), ahead.end())
            return ahead.end()
        if _PARENTHESIS_AHEAD.match(self._text, stop):
            self._call(word, upper, start, stop)
            return stop
        if upper in _INSTEAD and not self._is_column(word):
            self._refuse("E163", f"{upper} is not supported: {_INSTEAD[upper]}", start)
        if len(self._text) - stop < CHAIN_CHARACTERS_MIN:
            self._leaf(TokenLeaf("name", word, start), stop)
            return stop
        is_first = self._last in ("", "(") or (
            self._last == "a" and self._tokens[-1].token_type is TokenType.OR
        )
        self._leaf(TokenLeaf("name", word, start), stop)
        return self._chain(word, stop) if is_first else stop

    def _list(self, at: int) -> int:
        """Take a list of plain values after IN as one; returns where to continue."""
        for kind, pattern in _LISTS.items():
            found = pattern.match(self._text, at)
            if found is not None:
                self._leaf(TokenLeaf(kind, found[1], found.start(1)), found.end())
                return found.end()
        return at

    def _chain(self, word: str, at: int) -> int:
        """Take the rest of `word = 1 OR word = 2 OR ...` as one list; returns where to continue."""
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
        self._leaf(TokenLeaf(kind, found[1], start), stop)
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
            self._leaf(TokenLeaf("name", word, start), stop)  # an operator is missing; say that
        else:
            instead = _INSTEAD.get(upper, "publish the result as a column and compare that")
            self._refuse("E163", f"the function {word}() is not supported: {instead}", start)

    def _is_column(self, name: str) -> bool:
        return any(column.name == name for column in self._schema.columns)

    def _sign(self, sign: str, start: int, stop: int) -> int:
        self._odd(sign, start)
        self._add(_SIGN_CLASSES.get(sign, "c"), SIGNS[sign], sign, start, stop)
        return self._list(stop) if self._last == "(" and self._before == "i" else stop

    def _odd(self, sign: str, start: int) -> None:
        if sign in _ODD_SIGNS:
            self._refuse("E163", _ODD_SIGNS[sign], start)

    def _leaf(self, leaf: TokenLeaf, stop: int) -> None:
        # ESCAPE needs a string where everything else takes any literal.
        token_type = TokenType.STRING if self._last == "e" else TokenType.NUMBER
        self._add("v", token_type, str(len(self._leaves)), leaf.at, stop)
        self._leaves.append(leaf)

    def _add(self, letter: str, token_type: TokenType, word: str, start: int, stop: int) -> None:
        if letter not in _AFTER[self._last]:
            self._misplaced(letter, start, stop)
        self._measure(letter, start)
        self._before, self._last = self._last, letter
        self._append(token_type, word, start, stop)

    def _measure(self, letter: str, start: int) -> None:
        """Count the nesting of parentheses, NOTs and signs."""
        if letter == "v":
            self._depth = self._base
        elif letter == "(":
            self._around.append((self._base, start))
            self._base = self._depth = self._depth + 1
        elif letter == ")":
            if not self._around:
                self._refuse("E160", "this parenthesis closes nothing: leave it out", start)
            self._base, _ = self._around.pop()
            self._depth = self._base
        elif letter == "n" or (letter == "+" and self._last not in ("v", ")")):
            self._depth += 1
        if self._depth > DEPTH_MAX:
            message = f"parentheses, NOTs and signs are at most {DEPTH_MAX} deep: split the condition"
            self._refuse("E164", message, start)

    def _finish(self) -> None:
        if not self._tokens:
            self._refuse("E160", "the condition is empty: write TRUE to accept every event", 0)
        if self._last not in _LAST:
            self._refuse("E160", f"something is missing after {self._last_written()}", len(self._text))
        if self._around:
            self._refuse("E160", "this parenthesis is never closed", self._around[-1][1])

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
            self._refuse("E163", f"{word} is not supported: {_INSTEAD[word]}", start)
        self._refuse("E160", f"expected {wanted}, found {found}", start)
