"""How does work that may wait for the disk leave the event loop? One thread, one piece of work at a time.

An executor makes two futures and several callbacks for each piece, which takes longer than a small flush
does. Here a piece of work is one entry of a queue, and its end is one call on the loop. `WorkThread` is the
same with futures, for work that is rare.

A thread that has ended, or that has been at one piece for longer than its patience, says so: a node that
waits for it is not ready (`trouble`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeAlias, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

#: A piece of work, and what is called with its result or with what it raised.
_Piece: TypeAlias = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]

#: Work that takes longer than this counts as stuck, unless the worker was made with another patience.
PATIENCE_SECONDS = 5.0


class _Busy:
    """Since when a thread has been at one piece of work. Written by the thread, read by the loop."""

    def __init__(self, name: str, patience_s: float) -> None:
        self.name = name
        self._patience_s = patience_s
        self._since: float | None = None

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._since = None

    def trouble(self) -> str | None:
        """What a person should know, None when all is well."""
        since = self._since
        if since is None or (seconds := time.monotonic() - since) <= self._patience_s:
            return None
        return f"thread {self.name}, which has been busy for {seconds:.0f} s"


class Worker:
    """A thread of its own for one kind of work."""

    def __init__(
        self,
        name: str,
        died: Callable[[BaseException], None] | None = None,
        *,
        patience_s: float = PATIENCE_SECONDS,
    ) -> None:
        """`died` hears on the loop what ended the thread, should that ever happen."""
        self._loop = asyncio.get_running_loop()
        self._busy = _Busy(name, patience_s)
        self._died = died
        self._closed = False
        self._queue: SimpleQueue[_Piece | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], Result], then: Callable[[Result, BaseException | None], None]) -> None:
        """Do the work in the thread, then call `then` on the loop: with the result, or what was raised."""
        self._queue.put((work, then))

    def trouble(self) -> str | None:
        """What a person should know, None when all is well."""
        if not self._thread.is_alive() and not self._closed:
            return f"thread {self._busy.name}, which has ended"
        return self._busy.trouble()

    @property
    def is_dead(self) -> bool:
        """Whether the thread has ended although nobody had asked for it."""
        return not self._closed and not self._thread.is_alive()

    async def close(self) -> None:
        """Finish what was asked for, and end the thread."""
        self._closed = True
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        try:
            while (piece := self._queue.get()) is not None:
                work, then = piece
                result: Any = None
                error: BaseException | None = None
                try:
                    with self._busy:
                        result = work()
                except BaseException as raised:  # noqa: BLE001  # whoever asked decides what to do about it
                    error = raised
                self._call(then, result, error)
        except BaseException as raised:  # noqa: BLE001  # it must not end without a word
            if self._died is not None:
                self._call(self._died, raised)

    def _call(self, then: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(then, *arguments)
        except RuntimeError:
            # Of a loop that is closed nobody waits for an answer; on any other this is a mistake.
            if not self._loop.is_closed():
                raise


class WorkThread:
    """A thread of its own whose work is awaited."""

    def __init__(self, name: str, *, patience_s: float = PATIENCE_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy = _Busy(name, patience_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def do(
        self, work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> asyncio.Future[Result]:
        """Do the work in the thread."""

        def timed() -> Result:
            with self._busy:
                return work(*arguments, **named)

        return self._loop.run_in_executor(self._thread, timed)

    def trouble(self) -> str | None:
        """What a person should know, None when all is well."""
        return self._busy.trouble()

    async def close(self) -> None:
        """Finish what was asked for, and end the thread."""
        await self._loop.run_in_executor(self._thread, lambda: None)
        self._thread.shutdown()
