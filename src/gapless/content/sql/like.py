"""Does a text match a LIKE pattern? In time linear in the text, whatever the pattern.

`%` stands for any text, `_` for one character, and what follows the ESCAPE character for itself.
Patterns are kept as tokens in a normal form, so that `a%%_` and `a_%` are one. Matching is Arrow's:
simple shapes are searched for directly, the rest by RE2, which never backtracks.

Implements docs/content.md, section 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from gapless.errors import ContentError

#: Maximum length of a pattern: the cost of a row grows with it.
PATTERN_CHARACTERS_MAX = 1_000


class Wild(Enum):
    """The wildcards of a pattern."""

    ONE = "_"
    MANY = "%"


Token: TypeAlias = str | Wild

_SPECIAL = re.compile(r"[%_\\]")


@dataclass(frozen=True, slots=True)
class LikePattern:
    """A pattern as tokens, in normal form. Make one with `parse_like`."""

    tokens: tuple[Token, ...]
    #: Made on first use: a pattern may have a thousand tokens, and is compared often.
    _hash: int | None = field(default=None, init=False, compare=False, repr=False)
    _text: str | None = field(default=None, init=False, compare=False, repr=False)
    _regex: str | None = field(default=None, init=False, compare=False, repr=False)

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(str(self)))
        assert self._hash is not None
        return self._hash

    @property
    def prefix(self) -> str:
        """The literal text that every match begins with."""
        first = self.tokens[0] if self.tokens else ""
        return first if isinstance(first, str) else ""

    @property
    def exact(self) -> str | None:
        """The only text that matches, if there is just one."""
        if not self.tokens:
            return ""
        return self.prefix if len(self.tokens) == 1 and self.prefix else None

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern is only a prefix, possibly empty."""
        return self.tokens[-1:] == (Wild.MANY,) and (
            len(self.tokens) == 1 or (len(self.tokens) == 2 and bool(self.prefix))
        )

    @property
    def automaton_size(self) -> int:
        """Number of characters and wildcards of the automaton; 0 when none is needed."""
        if self._is_searched:
            return 0
        return sum(len(token) if isinstance(token, str) else 1 for token in self.tokens)

    @property
    def _is_searched(self) -> bool:
        """Whether it is only a substring or a suffix."""
        match self.tokens:
            case (Wild.MANY, str()) | (Wild.MANY, str(), Wild.MANY):
                return True
            case _:
                return False

    def matches(self, texts: pa.Array) -> pa.Array:
        """Which texts match; null for null."""
        match self.tokens:
            case (Wild.MANY, str() as middle, Wild.MANY):
                return pc.match_substring(texts, middle)
            case (Wild.MANY, str() as end):
                return pc.ends_with(texts, end)
            case _:
                return pc.match_substring_regex(texts, self.regex())

    def regex(self) -> str:
        """The same pattern for RE2."""
        if self._regex is None:
            pieces = [_quoted(token) if isinstance(token, str) else _REGEX[token] for token in self.tokens]
            object.__setattr__(self, "_regex", f"(?s)\\A{''.join(pieces)}\\z")
        assert self._regex is not None
        return self._regex

    def __str__(self) -> str:
        """The pattern as SQL text, with its ESCAPE clause when it needs one."""
        if self._text is None:
            object.__setattr__(self, "_text", self._written())
        assert self._text is not None
        return self._text

    def _written(self) -> str:
        plain = [token for token in self.tokens if isinstance(token, str)]
        escaped = _SPECIAL.search("".join(plain)) is not None
        texts = iter([_SPECIAL.sub(r"\\\g<0>", text) for text in plain] if escaped else plain)
        one, many = Wild.ONE, Wild.MANY
        written = ["%" if token is many else "_" if token is one else next(texts) for token in self.tokens]
        quoted = "'" + "".join(written).replace("'", "''") + "'"
        return f"{quoted} ESCAPE '\\'" if escaped else quoted


_REGEX = {Wild.ONE: ".", Wild.MANY: ".*"}


#: Adjacent wildcards.
_RUN = re.compile("([%_]+)")


@lru_cache(maxsize=64)
def _pieces(escape: str) -> re.Pattern[str]:
    """A literal text, or adjacent wildcards, or an ESCAPE character before neither."""
    wild, other = "%_".replace(escape, ""), re.escape(escape)
    literal = f"[^%_{other}]+|{other}[%_{other}]"
    return re.compile(f"(?P<literal>(?:{literal})+)|(?P<wild>[{wild}]+)|(?s:.)")


def _split(text: str, escape: str) -> list[str]:
    """A literal text, wildcards, a literal text, and so on, as `_RUN` splits a text without ESCAPE."""
    parts = [""]
    for piece in _pieces(escape).finditer(text):
        if piece.lastgroup == "literal":
            parts[-1] = re.sub(f"(?s){re.escape(escape)}(.)", r"\1", piece[0])
        elif piece.lastgroup == "wild":
            parts += [piece[0], ""]
        else:
            raise ContentError("E162", f"the ESCAPE character {escape!r} must stand before %, _ or itself")
    return parts


def parse_like(text: str, escape: str | None = None) -> LikePattern:
    """A pattern from its text.

    >>> parse_like("a%%_").tokens == parse_like("a_%").tokens
    True
    >>> parse_like("50!%", "!").exact
    '50%'

    Raises ContentError for an escape character that is not one character or escapes nothing special.
    """
    if escape is not None and len(escape) != 1:
        raise ContentError("E162", f"ESCAPE takes one character, got {escape!r}")
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise ContentError(
            "E164", f"a LIKE pattern has at most {PATTERN_CHARACTERS_MAX} characters, got {len(text)}"
        )
    parts = _RUN.split(text) if escape is None or escape not in text else _split(text, escape)
    tokens: list[Token] = []
    many = Wild.MANY
    for literal, run in zip(parts[::2], [*parts[1::2], ""], strict=True):
        if literal:
            tokens.append(literal)
        if run == "%":
            tokens.append(many)
        elif run:
            # One `%` means the same as two, and `%_` is written `_%`.
            tokens += [Wild.ONE] * run.count("_") + [many] * ("%" in run)
    return LikePattern(tuple(tokens))


def _quoted(text: str) -> str:
    return "".join(
        character if character.isalnum() or ord(character) > 127 else f"\\x{{{ord(character):x}}}"
        for character in text
    )
