"""When does a subend ask for what it lacks? Gap timers, repetition and the estimate of NRT.

A missing tick is asked for once it has been missing for the gap curiosity threshold (GCT), because
a gap that only comes from reordering closes by itself; what somebody waits for is asked for at once.
A question that is not answered is repeated after the nack repetition threshold (NRT), which is
estimated from answered questions the way TCP estimates its retransmission timeout, and doubles with
every repetition.

Implements docs/protocol.md, section 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gapless.model.tickmap import TickMap
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, Tick, TickRange, TickSet
from gapless.protocol.marks import mark, reached
from gapless.protocol.parameters import Parameters

GAP_CLOSED_BY_ITSELF = mark("gap_closed_by_itself", "a gap closed before it was old enough to be asked for")
NACK_REPEATED = mark("nack_repeated", "a nack was repeated because nobody answered in time")
NACK_BACKED_OFF = mark("nack_backed_off", "a nack was repeated for at least the third time")
QUESTIONS_HELD = mark("questions_held", "an edge lacked more than it could keep, and asked for the lowest")
NACK_TIMED = mark("nack_timed", "an answered nack taught the estimate of the repetition interval")


@dataclass(slots=True)
class RepeatEstimate:
    """The nack repetition threshold: smoothed response time plus four times its deviation."""

    smoothed_ms: float | None = None
    deviation_ms: float = 0.0

    def learn(self, response_ms: int) -> None:
        """A question that was asked once was answered after `response_ms`."""
        if self.smoothed_ms is None:
            self.smoothed_ms, self.deviation_ms = float(response_ms), response_ms / 2
            return
        error = response_ms - self.smoothed_ms
        self.smoothed_ms += error / 8
        self.deviation_ms += (abs(error) - self.deviation_ms) / 4

    def repeat_ms(self, parameters: Parameters) -> int:
        """How long to wait for an answer before asking again."""
        guess = 0.0 if self.smoothed_ms is None else self.smoothed_ms + 4 * self.deviation_ms
        return int(min(max(guess, parameters.nack_repeat_min_ms), parameters.nack_repeat_max_ms))


class Asked(NamedTuple):
    """When a tick was last asked for, how long to wait for the answer, and how often it was asked."""

    at_ms: int
    repeat_ms: int
    times: int


@dataclass(slots=True)
class NackClock:
    """Decides, for one pubend at one edge, which missing ticks to ask for now."""

    parameters: Parameters
    estimate: RepeatEstimate = field(default_factory=RepeatEstimate)
    #: Since when each gap tick has been missing, in milliseconds.
    noticed: TickMap[int] = field(default_factory=TickMap)
    #: The questions that wait for an answer.
    asked: TickMap[Asked] = field(default_factory=TickMap)
    updated_ms: int = 0

    def update(self, gaps: TickSet, urgent: TickSet, now_ms: int, position: Tick = TICK_MAX) -> TickSet:
        """Given all ticks that are missing now, return those to ask for.

        `gaps` may close by themselves; somebody waits for `urgent`. Below `position` only laggards lack
        anything: what they ask for does not hold back what the others do.
        """
        if not (gaps or urgent or self.noticed or self.asked):
            return EMPTY
        self.updated_ms = now_ms
        self._forget_answered(gaps | urgent, now_ms)
        self._notice(gaps, now_ms)
        old_enough = now_ms - self.parameters.gap_curiosity_ms
        due = urgent | self.noticed.where(TICK_MIN, TICK_MAX, lambda since: since <= old_enough)
        return self._ask(self._within_bound(due, position, now_ms), now_ms)

    def reset(self) -> None:
        """Nothing is missing and nothing was asked for; what was learned of answers stays."""
        self.noticed, self.asked = TickMap(), TickMap()

    def hurry(self, now_ms: int) -> None:
        """The pubend is known to be there: ask again now for everything that was not asked just now."""
        self.noticed = _all_set(self.noticed, now_ms - self.parameters.gap_curiosity_ms)
        old = now_ms - self.parameters.nack_repeat_min_ms
        for start, stop, asked in self.asked:
            if asked.at_ms <= old:
                self.asked.clear(start, stop)

    def deadline_ms(self) -> int | None:
        """When `update` must be called again even if nothing happens."""
        if not (self.noticed or self.asked):
            return None
        # A gap that was old enough at the last update has been asked for then, or waits for other answers.
        gaps = {since + self.parameters.gap_curiosity_ms for _, _, since in self.noticed}
        repeats = {asked.at_ms + asked.repeat_ms for _, _, asked in self.asked}
        return min((at for at in gaps | repeats if at > self.updated_ms), default=None)

    def _forget_answered(self, missing: TickSet, now_ms: int) -> None:
        answered = self.asked.ticks(TICK_MIN, TICK_MAX) - missing
        for start, stop in answered.pairs():
            for _, _, asked in self.asked.runs(start, stop):
                if asked.times == 1:
                    # Karn's rule: after a repetition nobody can say which question was answered.
                    reached(NACK_TIMED)
                    self.estimate.learn(now_ms - asked.at_ms)
            self.asked.clear(start, stop)

    def _notice(self, gaps: TickSet, now_ms: int) -> None:
        before = self.noticed.ticks(TICK_MIN, TICK_MAX)
        if before == gaps:
            return
        for start, stop in (before - gaps).pairs():
            if not self.asked.ticks(start, stop):
                reached(GAP_CLOSED_BY_ITSELF)
            self.noticed.clear(start, stop)
        for start, stop in (gaps - before).pairs():
            self.noticed.set_range(start, stop, now_ms)

    def _within_bound(self, due: TickSet, position: Tick, now_ms: int) -> TickSet:
        """Of what is due, the lowest parts that the stream can keep besides those that are under way.

        Answers that lie apart from each other take up the runs of a stream, and what it forgets for want of
        runs has to be asked for again.
        """
        parameters, open_max = self.parameters, self.parameters.questions_open_max
        if len(due) + len(self.asked) + parameters.nack_parts_max <= open_max:
            return due
        waiting = [(low, high) for low, high, asked in self.asked if asked.at_ms + asked.repeat_ms > now_ms]
        due -= TickSet.from_pairs(waiting)
        lowest: list[TickRange] = []
        for start, stop in ((TICK_MIN, position), (position, TICK_MAX)):
            room = open_max - sum(start <= low < stop for low, _ in waiting)
            parts = due.clip(start, stop).chopped(parameters.nack_ticks_max, parameters.nack_parts_max)
            if len(parts) > room:
                reached(QUESTIONS_HELD)
            lowest += parts[: max(0, room)]
        return TickSet.of(*lowest)

    def _ask(self, due: TickSet, now_ms: int) -> TickSet:
        fresh = due - self.asked.ticks(TICK_MIN, TICK_MAX)
        ask = list(fresh.pairs())
        for low, high, asked in self.asked:
            if asked.at_ms + asked.repeat_ms <= now_ms:
                overdue = due.clip(low, high)
                ask += overdue.pairs()
                for start, stop in overdue.pairs():
                    self.asked.set_range(start, stop, self._repeated(asked, now_ms))
        first = Asked(now_ms, self.estimate.repeat_ms(self.parameters), 1)
        for start, stop in fresh.pairs():
            self.asked.set_range(start, stop, first)
        return TickSet.from_pairs(ask)

    def _repeated(self, asked: Asked, now_ms: int) -> Asked:
        reached(NACK_REPEATED)
        if asked.times >= 2:
            reached(NACK_BACKED_OFF)
        repeat_ms = min(asked.repeat_ms * 2, self.parameters.nack_repeat_max_ms)
        return Asked(now_ms, repeat_ms, asked.times + 1)


def _all_set(ticks: TickMap[int], value: int) -> TickMap[int]:
    changed: TickMap[int] = TickMap()
    for start, stop, old in ticks:
        changed.set_range(start, stop, min(old, value))
    return changed
