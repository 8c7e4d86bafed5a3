"""How is an SQL text tokenized? What conditions and views have in common.

The text is tokenized here, and not by sqlglot, for three reasons: every token keeps its position, so that an
error can point at it; unsupported SQL is refused by name before anything else sees it; and the depth of the
text is known before a recursive parser sees it. sqlglot then gets a stream in which every name and literal is
just a number, the position in `TokenScan.leaves`: no rule of a dialect can change what it means.

A `Scanner` knows names, literals and signs. The keywords of a language, and what may follow what, are in
`content.sql.tokens` for conditions and in `views.sql.tokens` for views.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, NoReturn

from sqlglot.tokenizer_core import Token, TokenType

from gapless.errors import ContentError

#: How much of a token an error shows.
SHOWN_CHARACTERS_MAX = 40

#: Names and literals, for a verbose expression.
LEAVES = r"""
      (?P<binary>[xX]'[^']*')
    | (?P<word>[^\W\d]\w*)
    | (?P<number>0[xX]\w* | (?:[0-9]|\.[0-9])(?:[eE][+-]|[\w.])*)
    | (?P<string>'[^']*(?:''[^']*)*')
    | (?P<quoted>"[^"]*(?:""[^"]*)*")
"""
#: The words that are values.
CONSTANTS = frozenset({"NULL", "TRUE", "FALSE"})
#: The signs of both languages.
SIGNS: dict[str, TokenType] = {
    "(": TokenType.L_PAREN,
    ")": TokenType.R_PAREN,
    ",": TokenType.COMMA,
    "=": TokenType.EQ,
    "<>": TokenType.NEQ,
    "!=": TokenType.NEQ,
    "<": TokenType.LT,
    "<=": TokenType.LTE,
    ">": TokenType.GT,
    ">=": TokenType.GTE,
    "+": TokenType.PLUS,
    "-": TokenType.DASH,
    "*": TokenType.STAR,
    "/": TokenType.SLASH,
}
#: Signs that neither language supports, and what to write instead.
ODD_SIGNS = {
    **dict.fromkeys("?:@$", "parameters are not supported: write the value into the text"),
    **dict.fromkeys("[{", "arrays are not supported: lists of values are written IN (1, 2)"),
    "`": 'names are quoted as in "name"',
    "!": "write NOT, or <> for not equal",
}
_SURROGATE = re.compile("[\ud800-\udfff]")


class TokenLeaf(NamedTuple):
    """A column or a literal, and its position in the text."""

    #: `name`, `quoted`, `number`, `string`, `binary`, `timestamp` or `word` (NULL, TRUE, FALSE). Conditions
    #: also have `numbers` or `strings` for a list of many that are all plain integers, or all texts; views
    #: have `call` for the name of a function.
    kind: str
    #: As written, even a list; but without quotes and their prefix, and with doubled quotes undoubled.
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class TokenScan:
    """The tokens of a text, for sqlglot, and their meanings."""

    tokens: list[Token]
    leaves: list[TokenLeaf]


def shown(text: str) -> str:
    """A piece of text for an error, in quotes and not too long, on one line."""
    return repr(text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "...")


def literal(group: str, written: str, at: int) -> TokenLeaf:
    """The leaf of a match of `LEAVES`, unless it is a word.

    >>> literal("string", "'it''s'", 7)
    TokenLeaf(kind='string', text="it's", at=7)
    """
    if group == "number":
        return TokenLeaf("number", written, at)
    if group == "binary":
        return TokenLeaf("binary", written[2:-1], at)
    quote = written[0]
    return TokenLeaf(group, written[1:-1].replace(quote * 2, quote), at)


class Scanner(ABC):
    """Tokenizes one text. A subclass knows the keywords of its language, and where they are allowed."""

    #: One token: a group of `LEAVES`, or `sign`, `odd`, `other` or `end`.
    pattern: ClassVar[re.Pattern[str]]
    #: The errors of this language, and the code of a text that is malformed.
    error: ClassVar[type[ContentError]]
    malformed: ClassVar[str]

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[Token] = []
        self._leaves: list[TokenLeaf] = []

    def scanned(self) -> TokenScan:
        """All tokens. Raises at the first one that is invalid or misplaced."""
        text = self._text
        if surrogate := _SURROGATE.search(text):
            self._refuse(
                self.malformed, "unpaired surrogate in the text: send it as UTF-8", surrogate.start()
            )
        at: int | None = 0
        while at is not None:
            found = self.pattern.match(text, at)
            assert found is not None, f"no token at {at} of {text!r}"
            group = found.lastgroup
            assert group is not None
            at = self._take(group, found[group], found.start(group), found.end())
        self._finish()
        return TokenScan(self._tokens, self._leaves)

    def _take(self, group: str, written: str, start: int, stop: int) -> int | None:
        """Take one token; returns where to continue, None at the end."""
        match group:
            case "end":
                return None
            case "word":
                after: int | None = self._word(written, start, stop)
            case "sign":
                after = self._sign(written, start, stop)
            case "odd" | "other":
                self._other(written, start)
            case _:
                self._leaf(literal(group, written, start), stop)
                after = stop
        self._check_count(start)
        return after

    @abstractmethod
    def _word(self, word: str, start: int, stop: int) -> int:
        """Take a word, and what belongs to it after it; returns where to continue."""

    @abstractmethod
    def _sign(self, sign: str, start: int, stop: int) -> int | None:
        """Take a sign; returns where to continue, None if it ends the text."""

    @abstractmethod
    def _leaf(self, leaf: TokenLeaf, stop: int) -> None:
        """Take a name or a literal."""

    @abstractmethod
    def _odd(self, sign: str, start: int) -> None:
        """Refuse an unsupported sign, if there is a better message for it."""

    @abstractmethod
    def _check_count(self, start: int) -> None:
        """Refuse a text of too many tokens."""

    @abstractmethod
    def _finish(self) -> None:
        """Refuse a text that may not end here."""

    def _other(self, written: str, start: int) -> NoReturn:
        if written in "'\"":
            self._refuse(self.malformed, f"the quote {written} is opened and never closed", start)
        self._odd(written, start)
        self._refuse(self.malformed, f"{shown(written)} has no meaning here", start)

    def _append(self, kind: TokenType, word: str, start: int, stop: int) -> None:
        self._tokens.append(Token(kind, word, 1, start, start, stop - 1))

    def _last_written(self) -> str:
        """The last token as written, for an error."""
        return shown(self._text[self._tokens[-1].start : self._tokens[-1].end + 1])

    def _refuse(self, code: str, message: str, at: int) -> NoReturn:
        """Raise the error that points at one place of the text."""
        raise self.error(code, message, text=self._text, at=at)
