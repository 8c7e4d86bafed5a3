"""What time is it, and is that plausible? The wall clock of a node, and its leaps.

Ticks never go backwards, so a clock that was far ahead for a moment leaves its mark: what was published then
has ticks that others must wait for, or follow. A leap is therefore told, and one that is too long to be
believed is not passed on: the clock goes on at the pace of the monotonic one until it is set right, or until
somebody starts the node again, who then has seen to it.

The monotonic clock is the one that goes on while a machine sleeps, where there is such a clock: waking up is
no leap. Implements docs/protocol.md, clause 5.23.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from gapless.errors import UsageError
from gapless.model.epochs import CLOCK_LIVES_MAX, life_at
from gapless.model.ids import PubendId
from gapless.model.ticks import TICKS_PER_MS, Tick
from gapless.node.logs import event_log
from gapless.protocol.parameters import VALUE_MAX

log = event_log("gapless.clock")

#: A smaller step is how clocks are usually set.
LEAP_TICKS_MIN = 1_000_000
_TICKS_PER_SECOND = 1_000 * TICKS_PER_MS
_DAY_MS = 86_400_000
#: The last one that has a date.
_LAST_SECOND = 253_402_300_799
#: Goes on while the machine sleeps, where the system has such a clock.
_MONOTONIC: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _monotonic_ns() -> int:
    return time.clock_gettime_ns(_MONOTONIC)


class WallClock:
    """The wall clock in ticks, without implausible leaps."""

    def __init__(
        self,
        ticks_ahead_ms: int,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = _monotonic_ns,
    ) -> None:
        """A leap of more than `ticks_ahead_ms` is not believed."""
        self.leap_max = ticks_ahead_ms * TICKS_PER_MS
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._last = wall_ns() // 1_000
        self._last_at = monotonic_ns() // 1_000
        #: How many leaps there were, and the last one in ticks; below zero it went back.
        self.leaps = 0
        self.last_leap: Tick = 0
        #: How far the clock is ahead of what is told; above zero while a leap is not believed.
        self.held: Tick = 0

    def now(self) -> Tick:
        """The time."""
        wall, at = self._wall_ns() // 1_000, self._monotonic_ns() // 1_000
        expected = self._last + at - self._last_at
        if self.held or not -LEAP_TICKS_MIN < wall - expected < LEAP_TICKS_MIN:
            wall = self._leapt(wall, expected)
        self._last, self._last_at = wall, at
        return wall

    def _leapt(self, wall: Tick, expected: Tick) -> Tick:
        leap = wall - expected
        if abs(leap - self.held) >= LEAP_TICKS_MIN:
            # Not the one that is known already.
            self.leaps += 1
            self.last_leap = leap - self.held
        elif self.held:
            return expected
        seconds = round(leap / _TICKS_PER_SECOND, 3)
        if leap > self.leap_max:
            self.held = leap
            log.error("clock_leap_held", code="E118", leap_s=seconds, reason=held_reason(leap))
            return expected
        if self.held:
            self.held = 0
            log.info("clock_right_again", leap_s=seconds)
        else:
            log.warning("clock_leap", leap_s=seconds)
        return wall


def held_reason(leap: Tick) -> str:
    """Why a leap of so many ticks is not believed, and what to do."""
    return (
        f"the clock of this machine leapt {_days(leap)} ahead, and ticks go on without it: "
        "set it right, or restart the node if it is right"
    )


def least_incarnation(clock: Tick) -> int:
    """What the clock says of the number of a life: above all that others have seen, whatever the disk says.

    A folder may be lost, or be an older copy. Raises UsageError, before anything is written down, when the
    clock cannot be right: numbers never go back, and neighbours would not believe this one.
    """
    life = life_at(clock)
    if life > CLOCK_LIVES_MAX:
        raise UsageError(
            "E119", f"the clock of this machine says {_date(clock)}: set it right, and start again"
        )
    return life


def check_ahead(floors: dict[PubendId, Tick], clock: Tick, ticks_ahead_ms: int) -> None:
    """See that no pubend would begin too far ahead of the clock. Raises UsageError."""
    pubend, floor = max(floors.items(), key=lambda each: each[1], default=(None, clock))
    ahead_ms = (floor - clock) // TICKS_PER_MS
    if ahead_ms > ticks_ahead_ms:
        # Even a log without events: others were promised silence up to there, and wait for nothing below.
        needed = (ahead_ms // _DAY_MS + 2) * _DAY_MS
        # Ahead of the clock, time goes on at half speed.
        caught_up = 2 * floor - clock
        way_out = f"set ticks_ahead_ms = {needed} in [parameters] for all nodes, until {_date(caught_up)}"
        if needed > VALUE_MAX:
            way_out = "start with an empty folder: what is in this one is lost"
        raise UsageError(
            "E117",
            f"the log of pubend '{pubend}' ends {_days(floor - clock)} after the clock of this machine, "
            f"which says {_date(clock)}: set the clock right; if it was wrong before and is right now, "
            f"{way_out}",
        )


def _date(clock: Tick) -> str:
    seconds = min(clock // _TICKS_PER_SECOND, _LAST_SECOND)
    return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%d %H:%M} UTC"


def _days(ticks: Tick) -> str:
    """A long time for people.

    >>> _days(3 * 86_400_000_000), _days(5_400_000_000)
    ('3.0 days', '1.5 hours')
    """
    hours = ticks / (3_600 * _TICKS_PER_SECOND)
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} hours"
