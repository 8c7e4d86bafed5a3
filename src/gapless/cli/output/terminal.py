"""Escape control characters in text from nodes and peers, so that it cannot control the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

#: What a terminal obeys instead of showing it, and what cannot be seen: the Unicode categories Cc, Cf, Cs, Zl
#: and Zp.
CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u2064\u2066-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)


def tame(text: str) -> str:
    """A text with its control characters spelled out.

    >>> tame("a\\x1b[31mb\\n")
    'a\\\\x1b[31mb\\\\n'
    """
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def tame_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(tame, text.split("\n")))


def tamed(value: Any) -> Any:
    """A report of a node, with control characters escaped in all its texts.

    >>> tamed({"clients": [{"name": "\\x1b[2J", "count": 1}]})
    {'clients': [{'name': '\\\\x1b[2J', 'count': 1}]}
    """
    match value:
        case str():
            return tame(value)
        case dict():
            return {tamed(key): tamed(each) for key, each in value.items()}
        case list():
            return [tamed(each) for each in value]
        case _:
            return value


def print_table(head: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> None:
    """Print lines in columns under their names; nothing without lines."""
    widths = [max(len(line[at]) for line in [head, *lines]) for at in range(len(head) - 1)]
    for line in [head, *lines] if lines else []:
        cells = [f"{cell:<{width}}" for cell, width in zip(line, [*widths, 0], strict=True)]
        typer.echo(tame("  ".join(cells).rstrip()))
