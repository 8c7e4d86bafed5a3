"""What do all commands share that talk to a node? The address, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import typer

#: Where a node listens unless it is told otherwise.
ADDRESS = "gapless://127.0.0.1:7400"
TO: Any = typer.Option("--to", metavar="ADDRESS", help="Where the node is, or several nodes with commas.")
#: What shells report for a command that Ctrl-C has ended.
EXIT_INTERRUPTED = 130


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a command to its end; Ctrl-C ends it without a traceback."""
    try:
        asyncio.run(story)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
