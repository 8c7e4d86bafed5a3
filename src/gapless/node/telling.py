"""When does the broker hear that records are durable? At once, unless the step would take long.

The step that reports events as durable also matches and delivers them. Flushes of several logs may end in one
turn of the event loop, and their steps would then run back to back while everybody else waits. So only a log
whose last step was quick is reported at once. The others queue up: one step per turn, the logs taking turns.
Whatever becomes durable in the meantime joins the same step, which spreads a high fixed cost over many
events. A log whose steps take too long is reported in smaller pieces.

A large document cannot be split, and takes most of the time that anybody may be kept waiting. Two of them in
a row would take twice that, so after one the log rests while others are active.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import NamedTuple

from gapless.model.ids import PubendId
from gapless.node.guard import Guard
from gapless.node.turn import NextTurn
from gapless.protocol.events import Event, RecordDurable

#: A step up to this long is quick. Steps at once take no more than the second figure in a turn, together.
QUICK_SECONDS, AT_ONCE_SECONDS = 0.002, 0.004
#: After a step longer than the first figure, the next one is for half as many rows; after a step shorter than
#: the second, for twice as many.
LONG_SECONDS, SHORT_SECONDS = 0.020, 0.010
#: After a step for documents of at least this weight, a log rests for as long as the step took if another
#: log was reported within `OTHERS_SECONDS`.
HEAVY_WEIGHT, OTHERS_SECONDS = 8_192, 0.25
#: Bounds for the rows and bytes of one step; a single record may exceed them.
STEP_ROWS_MIN, STEP_ROWS_MAX, STEP_BYTES_MAX = 16, 16_384, 4 * 2**20


class Durable(NamedTuple):
    """A record that is durable."""

    token: int
    #: Its rows, and those that its documents count for.
    rows: int
    nbytes: int
    #: What its documents count for.
    weight: int = 0


class DurableRecords:
    """Records that are durable and that the broker has not heard of yet."""

    def __init__(self, feed: Callable[[Event], None], told: Callable[[], None], guard: Guard) -> None:
        """`told` is called when the broker has heard of everything."""
        self._feed = feed
        self._told = told
        self._next_turn = NextTurn(self._turn, guard)
        #: What waits, by log; the log whose turn is next comes first.
        self._untold: dict[PubendId, deque[Durable]] = {}
        #: How long the last step of each log took, how many rows its next one may have, and how long the
        #: steps of this turn took.
        self._took_s: dict[PubendId, float] = {}
        self._rows_max: dict[PubendId, int] = {}
        self._at_once_s = 0.0
        #: The log that was reported last and when; then the same for the last one of another log.
        self._last: tuple[PubendId | None, float] = (None, -OTHERS_SECONDS)
        self._last_other: tuple[PubendId | None, float] = self._last
        #: Until when each log rests. A log that never rested has no entry.
        self._rests_until: dict[PubendId, float] = {}
        self._waking: asyncio.TimerHandle | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing waits."""
        return not self._untold

    def add(self, pubend: PubendId, durable: Iterable[Durable]) -> None:
        """Records are durable; their tokens ascend."""
        waiting = self._untold.get(pubend)
        if waiting is not None:
            waiting.extend(durable)
            return
        waiting = deque(durable)
        if not waiting:
            return
        is_quick = self._took_s.get(pubend, 0.0) <= QUICK_SECONDS and pubend not in self._rests_until
        if is_quick and self._at_once_s < AT_ONCE_SECONDS:
            self._tell(pubend, waiting)
        if waiting:
            self._untold[pubend] = waiting
        if self._untold or self._at_once_s:
            self._next_turn.ask()

    def _turn(self) -> None:
        self._at_once_s = 0.0
        if self._untold:
            pubend = self._next_log()
            if pubend is None:
                return
            waiting = self._untold.pop(pubend)
            self._tell(pubend, waiting)
            if waiting:
                self._untold[pubend] = waiting
            if self._untold:
                self._next_turn.ask()
            else:
                self._told()

    def _next_log(self) -> PubendId | None:
        """The first log that waits and does not rest. If all rest, the turn comes again when one is done."""
        if not self._rests_until:
            return next(iter(self._untold))
        now = perf_counter()
        self._rests_until = {log: until for log, until in self._rests_until.items() if until > now}
        found = next((log for log in self._untold if log not in self._rests_until), None)
        if found is None and self._waking is None:
            delay_s = min(self._rests_until[log] for log in self._untold) - now
            self._waking = asyncio.get_running_loop().call_later(delay_s, self._wake)
        return found

    def _wake(self) -> None:
        self._waking = None
        self._next_turn.ask()

    def _tell(self, pubend: PubendId, waiting: deque[Durable]) -> None:
        """Report the first records that wait, as many as fit one step."""
        rows_max = self._rows_max.get(pubend, STEP_ROWS_MAX)
        token, rows, nbytes, weight = waiting.popleft()
        while waiting and rows + waiting[0].rows <= rows_max and nbytes + waiting[0].nbytes <= STEP_BYTES_MAX:
            token, more_rows, more_bytes, more_weight = waiting.popleft()
            rows, nbytes, weight = rows + more_rows, nbytes + more_bytes, weight + more_weight
        began = perf_counter()
        if pubend != self._last[0]:
            self._last_other = self._last
        self._last = (pubend, began)
        self._feed(RecordDurable(pubend=pubend, token=token))
        took_s = perf_counter() - began
        self._took_s[pubend] = took_s
        self._at_once_s += took_s
        if weight >= HEAVY_WEIGHT and began - self._last_other[1] < OTHERS_SECONDS:
            self._rests_until[pubend] = began + 2 * took_s
        if took_s > LONG_SECONDS:
            self._rows_max[pubend] = max(STEP_ROWS_MIN, min(rows, rows_max) // 2)
        elif took_s < SHORT_SECONDS and rows_max < STEP_ROWS_MAX:
            self._rows_max[pubend] = min(STEP_ROWS_MAX, 2 * rows_max)
