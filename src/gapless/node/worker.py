"""How does work that may wait for the disk leave the event loop? One thread, one piece of work at a time.

An executor makes two futures and several callbacks for each piece, which takes longer than a small flush
does. Here a piece of work is one entry of a queue, and its end is one call on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """A thread of its own for one kind of work."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]] | None] = (
            SimpleQueue()
        )
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], Result], then: Callable[[Result, Exception | None], None]) -> None:
        """Do the work in the thread, then call `then` on the loop: with the result, or what was raised."""
        self._queue.put((work, then))

    async def close(self) -> None:
        """Finish what was asked for, and end the thread."""
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, then = item
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001  # whoever asked decides what to do about it
                error = raised
            with contextlib.suppress(RuntimeError):
                # Of a loop that is closed nobody waits for an answer.
                self._loop.call_soon_threadsafe(then, result, error)
