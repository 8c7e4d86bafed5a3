"""When does the broker hear that records are durable? At once, unless the step would take long.

The step that reports events as durable also matches and delivers them. Flushes of several logs may end in one
turn of the event loop, and their steps would then run back to back while everybody else waits. So only a log
whose last step was quick is reported at once, or in the next turn if there are many of them. The others queue
up: one step per turn, the logs taking turns. Whatever becomes durable in the meantime joins the same step,
which spreads a high fixed cost over many events. A log whose steps take too long is reported in smaller
pieces. The time of the processor counts: a machine that is busy elsewhere makes no log a slow one.

A large document cannot be split, and takes most of the time that anybody may be kept waiting. An event that
met two of them on its way would wait for twice that, so after one the log rests while others are active, for
longer than that event needs to get through. Its publisher rests, too, but may have sent several before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter, thread_time
from typing import NamedTuple

from gapless.model.ids import PubendId
from gapless.node.guard import Guard
from gapless.node.principals import rest_after
from gapless.node.turn import NextTurn
from gapless.protocol.events import Event, RecordDurable

#: A step up to this long is quick. Steps at once take no more than the second figure in a turn, together.
QUICK_SECONDS, AT_ONCE_SECONDS = 0.002, 0.004
#: After a step longer than the first figure, the next one is for half as many rows; after a step shorter than
#: the second, for twice as many.
LONG_SECONDS, SHORT_SECONDS = 0.020, 0.010
#: The same while another log is active. An event waits for up to three steps of other logs on its way.
SHARED_LONG_SECONDS, SHARED_SHORT_SECONDS = 0.008, 0.004
#: After a step for documents of at least this weight, a log rests as a principal does after such work, if
#: another log was reported within `OTHERS_SECONDS`; but not longer than other events take on their way: many
#: publishers may share the log.
HEAVY_WEIGHT, OTHERS_SECONDS, REST_SECONDS_MAX = 8_192, 0.25, 0.1
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
        if self._is_quick(pubend) and self._at_once_s < AT_ONCE_SECONDS:
            self._tell(pubend, waiting)
        if waiting:
            self._untold[pubend] = waiting
        if self._untold or self._at_once_s:
            self._next_turn.ask()

    def _turn(self) -> None:
        self._at_once_s = 0.0
        if not self._untold:
            return
        if self._rests_until:
            now = perf_counter()
            self._rests_until = {log: until for log, until in self._rests_until.items() if until > now}
        # Those with quick steps need not wait for their turn. One of the others has it, unless a step took
        # long that was expected to be quick.
        for pubend in [each for each in self._untold if self._is_quick(each)]:
            if self._at_once_s >= AT_ONCE_SECONDS:
                break
            self._tell_waiting(pubend)
        slow = (each for each in self._untold if not self._is_quick(each) and each not in self._rests_until)
        if self._at_once_s <= AT_ONCE_SECONDS + QUICK_SECONDS and (found := next(slow, None)) is not None:
            self._tell_waiting(found)
        if not self._untold:
            self._told()
        elif all(pubend in self._rests_until for pubend in self._untold):
            self._wake_later()
        else:
            self._next_turn.ask()

    def _is_quick(self, pubend: PubendId) -> bool:
        return self._took_s.get(pubend, 0.0) <= QUICK_SECONDS and pubend not in self._rests_until

    def _tell_waiting(self, pubend: PubendId) -> None:
        """Report the first records of a log that waits; the rest of it goes to the end of the queue."""
        waiting = self._untold.pop(pubend)
        self._tell(pubend, waiting)
        if waiting:
            self._untold[pubend] = waiting

    def _wake_later(self) -> None:
        """All logs rest: the turn comes again when one of them is done."""
        if self._waking is None:
            delay_s = min(self._rests_until[pubend] for pubend in self._untold) - perf_counter()
            self._waking = asyncio.get_running_loop().call_later(max(0.0, delay_s), self._wake)

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
        began, cpu_s = perf_counter(), thread_time()
        if pubend != self._last[0]:
            self._last_other = self._last
        self._last = (pubend, began)
        self._feed(RecordDurable(pubend=pubend, token=token))
        took_s = thread_time() - cpu_s
        self._took_s[pubend] = took_s
        self._at_once_s += took_s
        is_shared = began - self._last_other[1] < OTHERS_SECONDS
        if is_shared and weight >= HEAVY_WEIGHT:
            rest_s = max(took_s, min(rest_after(took_s), REST_SECONDS_MAX))
            self._rests_until[pubend] = perf_counter() + rest_s
        if took_s > (SHARED_LONG_SECONDS if is_shared else LONG_SECONDS):
            self._rows_max[pubend] = max(STEP_ROWS_MIN, min(rows, rows_max) // 2)
        elif took_s < (SHARED_SHORT_SECONDS if is_shared else SHORT_SECONDS) and rows_max < STEP_ROWS_MAX:
            self._rows_max[pubend] = min(STEP_ROWS_MAX, 2 * rows_max)
