"""How do tasks wait for a change? Each on its own future."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes all waiting tasks. Cancelling one does not affect the others."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next `notify`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if not future.done() or future.cancelled():
                self._waiting = [each for each in self._waiting if each is not future]

    def notify(self) -> None:
        """Wake all tasks that are waiting now."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
