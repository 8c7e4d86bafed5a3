"""How do commands print to a terminal, a file or a program? Plain lines, and JSON objects."""

from __future__ import annotations

import json

from rich.console import Console
from rich.text import Text

#: How wide tables are where there is no terminal to fit into.
PLAIN_WIDTH = 120


def new_console() -> Console:
    """Standard output, as wide as the terminal, without colours that nobody sees."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is: no markup, and no line broken by us."""
    console.print(Text(text, style=style), soft_wrap=True)


def say_json(value: object) -> None:
    """Print one JSON object on one line."""
    # Straight to standard output: a program reads it, and rich would fold it.
    print(json.dumps(value), flush=True)  # noqa: T201
