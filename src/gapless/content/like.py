"""Does a text match a LIKE pattern? In time linear in the text, whatever the pattern.

`%` stands for any text, `_` for one character, and what follows the ESCAPE character for itself.
Patterns are kept as tokens in a normal form, so that `a%%_` and `a_%` are one. Matching is Arrow's:
simple shapes are searched for directly, the rest by RE2, which never backtracks.

Implements docs/content.md, section 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from gapless.errors import ContentError

#: Longer patterns are refused: the cost of a row grows with them.
PATTERN_CHARACTERS_MAX = 1_000


class Wild(Enum):
    """What is not a literal text in a pattern."""

    ONE = "_"
    MANY = "%"


Token: TypeAlias = str | Wild

_WILD = {"_": Wild.ONE, "%": Wild.MANY}
_SPECIAL = re.compile(r"[%_\\]")


@dataclass(frozen=True, slots=True)
class LikePattern:
    """A pattern as tokens, in normal form. Make one with `parse_like`."""

    tokens: tuple[Token, ...]

    @property
    def prefix(self) -> str:
        """The literal text that every match begins with."""
        first = self.tokens[0] if self.tokens else ""
        return first if isinstance(first, str) else ""

    @property
    def exact(self) -> str | None:
        """The only text that matches, when there is just one."""
        if not self.tokens:
            return ""
        return self.prefix if len(self.tokens) == 1 and self.prefix else None

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern asks for a beginning and nothing else; the beginning may be empty."""
        return self.tokens[-1:] == (Wild.MANY,) and (
            len(self.tokens) == 1 or (len(self.tokens) == 2 and bool(self.prefix))
        )

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
        pieces = [_REGEX[token] if isinstance(token, Wild) else _quoted(token) for token in self.tokens]
        return f"(?s)\\A{''.join(pieces)}\\z"

    def __str__(self) -> str:
        """The pattern as SQL text, with its ESCAPE clause when it needs one."""
        plain = [token for token in self.tokens if isinstance(token, str)]
        escaped = any(_SPECIAL.search(text) for text in plain)
        text = "".join(
            token.value
            if isinstance(token, Wild)
            else (_SPECIAL.sub(lambda found: "\\" + found[0], token) if escaped else token)
            for token in self.tokens
        )
        quoted = "'" + text.replace("'", "''") + "'"
        return f"{quoted} ESCAPE '\\'" if escaped else quoted


_REGEX = {Wild.ONE: ".", Wild.MANY: ".*"}


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
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character == escape:
            at += 1
            if at == len(text) or (text[at] not in _WILD and text[at] != escape):
                raise ContentError(
                    "E162", f"the ESCAPE character {escape!r} must stand before %, _ or itself"
                )
            _append(tokens, text[at])
        elif character in _WILD:
            _append(tokens, _WILD[character])
        else:
            _append(tokens, character)
        at += 1
    return LikePattern(tuple(tokens))


def _append(tokens: list[Token], token: Token) -> None:
    last = tokens[-1] if tokens else None
    if isinstance(token, str):
        if isinstance(last, str):
            tokens[-1] = last + token
        else:
            tokens.append(token)
    elif last is Wild.MANY:
        # One `%` is as good as two, and `%_` is written `_%`.
        if token is Wild.ONE:
            tokens.insert(len(tokens) - 1, token)
    else:
        tokens.append(token)


def _quoted(text: str) -> str:
    return "".join(
        character if character.isalnum() or ord(character) > 127 else f"\\x{{{ord(character):x}}}"
        for character in text
    )
