"""What happens on an unexpected error? It is reported and stops the node: nothing is swallowed.

An event loop logs what a callback raises and goes on, and a task keeps it until it is awaited: others then
wait for ever, and the node looks healthy. So callbacks, threads and tasks of a node run under its guard.
`Guard.last_net` catches what got past it, in a process that runs nothing but a node.
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
        """Wrap a callback: what it raises goes to `mistaken`."""

        @wraps(call)
        def guarded(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
            try:
                call(*arguments, **named)
            except Exception as mistake:  # noqa: BLE001  # nothing else would report it
                self.mistaken(mistake)

        return guarded

    def task(self, story: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task: what ends it early goes to `mistaken`."""
        task = asyncio.get_running_loop().create_task(story, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (mistake := task.exception()) is not None:
            self.mistaken(mistake)

    def last_net(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report every uncaught exception of this loop and of any thread."""

        def in_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if error is None or isinstance(error, OSError | GaplessError):
                # A connection that broke at a bad time, or a request refused before it changed anything:
                # worth a look, no reason to stop serving.
                log.error("unexpected: %s", context.get("message"), exc_info=error)
            else:
                self.mistaken(error)

        def in_thread(arguments: threading.ExceptHookArgs) -> None:
            if arguments.exc_value is not None and not loop.is_closed():
                loop.call_soon_threadsafe(self.mistaken, arguments.exc_value)

        loop.set_exception_handler(in_loop)
        threading.excepthook = in_thread
