"""What becomes of a mistake of our own? It stops the node, and is told: nothing is swallowed.

An event loop logs what a callback raises and goes on, and a task keeps it until somebody asks: then others
wait for ever for what was to come, and the node looks healthy. So whatever a node calls later, in a thread
or in a task goes through its guard. `Guard.last_net` is for the loop of a process that is nothing but a
node, and catches what went past it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from gapless.errors import GaplessError

Arguments = ParamSpec("Arguments")

log = logging.getLogger("gapless.guard")


class Guard:
    """Hears of every mistake of one node."""

    def __init__(self, mistaken: Callable[[BaseException], None]) -> None:
        """`mistaken` stops the node."""
        self.mistaken = mistaken

    def call(self, call: Callable[Arguments, None]) -> Callable[Arguments, None]:
        """The same for a callback: what it raises is told."""

        @wraps(call)
        def guarded(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
            try:
                call(*arguments, **named)
            except Exception as mistake:  # noqa: BLE001  # whatever it is, nobody else will hear of it
                self.mistaken(mistake)

        return guarded

    def task(self, story: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run it beside everything else: what ends it is told."""
        task = asyncio.get_running_loop().create_task(story, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (mistake := task.exception()) is not None:
            self.mistaken(mistake)

    def last_net(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on whatever goes wrong in this loop, or in any thread, is told."""

        def in_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if error is None or isinstance(error, OSError | GaplessError):
                # A connection that broke at a bad time, or something that was refused before it had changed
                # anything: worth a look, and no reason to leave everybody alone.
                log.error("unexpected: %s", context.get("message"), exc_info=error)
            else:
                self.mistaken(error)

        def in_thread(arguments: threading.ExceptHookArgs) -> None:
            if arguments.exc_value is not None and not loop.is_closed():
                loop.call_soon_threadsafe(self.mistaken, arguments.exc_value)

        loop.set_exception_handler(in_loop)
        threading.excepthook = in_thread
