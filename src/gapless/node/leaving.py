"""How are thousands of items processed without a stall? A few in each turn of the event loop, then a rest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Generic, TypeVar

from gapless.node.guard import Guard

#: Maximum number that is done in one turn of the event loop. Each is a step of the broker, of up to 0.3 ms,
#: or several milliseconds for a large condition: none is begun when a turn has taken this many seconds.
LEAVING_MAX, TURN_SECONDS = 10, 0.003
#: After a turn, other work gets this many times as long.
REST = 2

Each = TypeVar("Each")


class FewAtATime(Generic[Each]):
    """Calls a function for each item, `delay_s` after it was put in, a few per turn."""

    def __init__(self, do: Callable[[Each], None], delay_s: float = 0.0, guard: Guard | None = None) -> None:
        """`guard` is told of our own bugs."""
        self._do = do
        self._later = self._next if guard is None else guard.call(self._next)
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        #: When each is due: these ascend.
        self._waiting: deque[tuple[float, Each]] = deque()
        self._is_called = False

    def __len__(self) -> int:
        return len(self._waiting)

    def extend(self, more: Iterable[Each]) -> None:
        """Add items."""
        due = self._loop.time() + self._delay_s
        self._waiting.extend((due, each) for each in more)
        if not self._is_called:
            self._is_called = True
            self._next()

    def _next(self) -> None:
        now = self._loop.time()
        began, spent = perf_counter(), 0.0
        for _ in range(LEAVING_MAX):
            if not self._waiting or self._waiting[0][0] > now or spent > TURN_SECONDS:
                break
            self._do(self._waiting.popleft()[1])
            spent = perf_counter() - began
        self._is_called = bool(self._waiting)
        if self._is_called:
            self._loop.call_later(max(self._waiting[0][0] - now, REST * spent), self._later)
