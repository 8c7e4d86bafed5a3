"""How is something done once per turn of the event loop? Asked for any number of times, called once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gapless.node.guard import Guard


class NextTurn:
    """Calls a function in the next turn of the event loop, once, however often it is asked to."""

    __slots__ = ("_do", "_is_due", "_loop")

    def __init__(self, do: Callable[[], None], guard: Guard | None = None) -> None:
        """`guard` is told of our own bugs."""
        self._do = do if guard is None else guard.call(do)
        self._loop = asyncio.get_running_loop()
        self._is_due = False

    def ask(self) -> None:
        """Call the function in the next turn."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        self._do()
