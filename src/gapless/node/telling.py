"""When does the broker hear that records are durable? At once, unless that takes long.

The step that tells of events also matches and delivers them. Flushes of several logs may end in one turn of
the event loop, so their steps would follow each other before anybody else is served. A log whose last step
was quick is told at once. The others wait in a row, one step in each turn, each log in its turn. What becomes
durable meanwhile goes along, so that a step that costs much by itself is for many events; a log whose steps
get too long for others is told of fewer at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import NamedTuple

from gapless.model.ids import PubendId
from gapless.node.guard import Guard
from gapless.node.turn import NextTurn
from gapless.protocol.events import Event, RecordDurable

#: A step up to this long is quick; so much is done at once in one turn.
QUICK_SECONDS, AT_ONCE_SECONDS = 0.002, 0.004
#: A log whose step took longer is told of half as many rows; after a shorter one, of twice as many.
LONG_SECONDS, SHORT_SECONDS = 0.020, 0.010
#: Rows and bytes that a step tells of, unless it is a single record.
STEP_ROWS_MIN, STEP_ROWS_MAX, STEP_BYTES_MAX = 16, 16_384, 4 * 2**20


class Durable(NamedTuple):
    """A record that is durable."""

    token: int
    rows: int
    nbytes: int


class Telling:
    """What is durable and not told yet."""

    def __init__(self, feed: Callable[[Event], None], told: Callable[[], None], guard: Guard) -> None:
        """`told` is called when nothing waits any more."""
        self._feed = feed
        self._told = told
        self._next_turn = NextTurn(self._turn, guard)
        #: The log whose turn it is comes first.
        self._untold: dict[PubendId, deque[Durable]] = {}
        #: How long the last step of each log took, how many rows the next one may tell of, and what was done
        #: in this turn.
        self._took_s: dict[PubendId, float] = {}
        self._rows_max: dict[PubendId, int] = {}
        self._at_once_s = 0.0

    @property
    def is_done(self) -> bool:
        """Whether nothing waits."""
        return not self._untold

    def add(self, pubend: PubendId, durable: Iterable[Durable]) -> None:
        """Records are durable. They ascend."""
        waiting = self._untold.get(pubend)
        if waiting is not None:
            waiting.extend(durable)
            return
        waiting = deque(durable)
        if not waiting:
            return
        if self._took_s.get(pubend, 0.0) <= QUICK_SECONDS and self._at_once_s < AT_ONCE_SECONDS:
            self._tell(pubend, waiting)
        if waiting:
            self._untold[pubend] = waiting
        if self._untold or self._at_once_s:
            self._next_turn.ask()

    def _turn(self) -> None:
        self._at_once_s = 0.0
        if self._untold:
            pubend = next(iter(self._untold))
            waiting = self._untold.pop(pubend)
            self._tell(pubend, waiting)
            if waiting:
                self._untold[pubend] = waiting
            if self._untold:
                self._next_turn.ask()
            else:
                self._told()

    def _tell(self, pubend: PubendId, waiting: deque[Durable]) -> None:
        """Tell of the first records, as many as one step is for."""
        rows_max = self._rows_max.get(pubend, STEP_ROWS_MAX)
        token, rows, nbytes = waiting.popleft()
        while waiting and rows + waiting[0].rows <= rows_max and nbytes + waiting[0].nbytes <= STEP_BYTES_MAX:
            token, more_rows, more_bytes = waiting.popleft()
            rows, nbytes = rows + more_rows, nbytes + more_bytes
        began = perf_counter()
        self._feed(RecordDurable(pubend=pubend, token=token))
        took_s = perf_counter() - began
        self._took_s[pubend] = took_s
        self._at_once_s += took_s
        if took_s > LONG_SECONDS:
            self._rows_max[pubend] = max(STEP_ROWS_MIN, min(rows, rows_max) // 2)
        elif took_s < SHORT_SECONDS and rows_max < STEP_ROWS_MAX:
            self._rows_max[pubend] = min(STEP_ROWS_MAX, 2 * rows_max)
