"""Escape control characters in text from nodes and peers, so that it cannot control the terminal."""

from __future__ import annotations

import re
from typing import Any

#: What a terminal obeys instead of showing it, and what turns the direction of a text.
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


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
