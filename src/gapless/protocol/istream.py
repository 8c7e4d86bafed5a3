"""What does this broker know of one pubend, and what has it asked for? The input stream.

One istream per pubend holds the knowledge that came from upstream (from the pubend itself at its own broker),
for all ostreams and subends below. Curiosity from below is consolidated here: a tick that was asked for a
moment ago is not asked for again for another asker. Asked ticks are forgotten after the minimum repetition
interval, so that a repeated nack is fresh.

All of it is soft state. When a bound is reached the stream forgets, and curiosity heals it.

Implements docs/protocol.md, section 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS, Epochs
from gapless.model.ids import PubendId
from gapless.model.logs import UNNAMED, LogLife
from gapless.model.stream import KnowledgeStream, Run
from gapless.model.tickmap import TickMap
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, Tick, TickSet
from gapless.protocol.marks import mark, reached
from gapless.protocol.parameters import Parameters

NACK_CONSOLIDATED = mark(
    "nack_consolidated", "a nack was held back because the same ticks were just asked for"
)
NACK_FRESH_AGAIN = mark("nack_fresh_again", "a repeated nack went up because the first was forgotten here")
KNOWLEDGE_REPEATED = mark("knowledge_repeated", "knowledge arrived that said nothing new")
NACKS_HELD = mark("nacks_held", "a broker had asked for so much at once that further nacks had to wait")
ROWS_FORGOTTEN = mark("rows_forgotten", "a stream reached its byte bound and forgot rows")
RUNS_FORGOTTEN = mark("runs_forgotten", "a stream reached its bound of runs and forgot some")


@dataclass(slots=True)
class Istream:
    """Knowledge from upstream of one pubend, and the curiosity that was sent back."""

    pubend: PubendId
    parameters: Parameters
    stream: KnowledgeStream = field(default_factory=KnowledgeStream)
    #: No tick below is needed by anybody. Only grows; said by the pubend.
    final_before: Tick = TICK_MIN
    #: When each tick was last asked for upstream, in milliseconds. Invariant: never a settled tick.
    asked: TickMap[int] = field(default_factory=TickMap)
    #: One past the last event that came. Only grows; only people who look at a broker read it.
    events_stop: Tick = TICK_MIN
    #: One past the last tick that upstream said anything of. Only grows. Acks from below may go beyond it:
    #: what they are about went past this broker, perhaps in a life of the host that it has not heard of.
    heard: Tick = TICK_MIN
    #: The log that all of this is about.
    log: LogLife = UNNAMED

    def renew(self, log: LogLife) -> None:
        """The pubend has begun another log: what was known of the old one says nothing about it."""
        self.log = log
        self.stream = KnowledgeStream()
        self.final_before = self.events_stop = self.heard = TICK_MIN
        self.asked = TickMap()

    def accumulate(
        self, runs: tuple[Run, ...], batch: EventBatch | None, final_before: Tick
    ) -> tuple[list[Run], EventBatch | None]:
        """Join what upstream said; returns the part that was news."""
        fresh: list[Run] = []
        if final_before > self.final_before:
            self.final_before = final_before
            self.stream.finalise(TICK_MIN, final_before, ALWAYS)
            self.asked.clear(TICK_MIN, final_before)
            fresh.append((TICK_MIN, final_before, ALWAYS))
        self.heard = max(self.heard, final_before, runs[-1][1] if runs else TICK_MIN)
        if batch is not None and len(batch) and batch.last >= self.events_stop:
            self.events_stop = batch.last + 1
        news, rows = self.stream.accumulate(list(runs), batch)
        if self.asked:
            for start, stop, _ in news:
                self.asked.clear(start, stop)
            self.asked.drop_highest(self.parameters.stream_runs_max)
        if not news:
            reached(KNOWLEDGE_REPEATED)
        return fresh + news, rows

    def ask(self, ticks: TickSet, now_ms: int) -> tuple[TickSet, TickSet]:
        """Somebody below lacks `ticks`; returns those to ask upstream for: first, or again."""
        fresh_since = now_ms - self.parameters.nack_repeat_min_ms
        held = again = EMPTY
        for start, stop in ticks.pairs():
            recent = self.asked.where(start, stop, lambda at_ms: at_ms > fresh_since)
            if recent:
                reached(NACK_CONSOLIDATED)
                held |= recent
            again |= self.asked.ticks(start, stop) - recent
        fresh = self._within_bound(ticks - held, fresh_since)
        again &= fresh
        if again:
            reached(NACK_FRESH_AGAIN)
        for start, stop in fresh.pairs():
            self.asked.set_range(start, stop, now_ms)
        self.asked.drop_highest(self.parameters.stream_runs_max)
        return fresh - again, again

    def _within_bound(self, ticks: TickSet, fresh_since: int) -> TickSet:
        room = self.parameters.stream_runs_max - len(self.asked)
        if len(ticks) <= room:
            return ticks
        for start, stop, at_ms in self.asked:
            if at_ms <= fresh_since:
                self.asked.clear(start, stop)
        room = self.parameters.stream_runs_max - len(self.asked)
        if len(ticks) <= room:
            return ticks
        # Asking without remembering it would multiply every question by the brokers of every cell on the
        # way. The highest wait: whoever lacks them will ask again.
        reached(NACKS_HELD)
        return TickSet.of(*list(ticks)[: max(0, room)])

    def settle(self, runs: tuple[tuple[Tick, Epochs], ...]) -> None:
        """Everything below has acked up to these stops: the data is not needed here any more."""
        start = TICK_MIN
        for stop, stamp in runs:
            self.stream.finalise(start, stop, stamp)
            start = stop
        self.asked.clear(TICK_MIN, start)

    @property
    def is_within_bounds(self) -> bool:
        """Whether nothing need be forgotten."""
        parameters, stream = self.parameters, self.stream
        return (
            stream.rows.nbytes <= parameters.stream_bytes_max
            and len(stream.known) <= parameters.stream_runs_max
        )

    def forget_to_bounds(
        self, position: Tick, bytes_max: int = TICK_MAX, behind: Tick = TICK_MAX
    ) -> list[tuple[Tick, Tick]]:
        """Forget until the bounds hold, and at most `bytes_max` are left; returns the forgotten ranges.

        Ticks below `position` have been passed on by all who are in step, so they go first, oldest
        first. Above it the farthest go first: what comes next is needed next. The lowest of those who are not
        in step gets its events from `behind` on: below `position`, what it needs next goes last.
        """
        forgotten: list[tuple[Tick, Tick]] = []
        rows = self.stream.rows
        bytes_max = min(bytes_max, self.parameters.stream_bytes_max)
        least = self._least_needed(behind, position)
        while rows.nbytes > bytes_max and rows.rows:
            start, stop = next(least)
            reached(ROWS_FORGOTTEN)
            self.stream.forget(start, stop)
            forgotten.append((start, stop))
        for lowest in (behind, position):
            if len(self.stream.known) > self.parameters.stream_runs_max:
                reached(RUNS_FORGOTTEN)
                for start, stop in self._runs_to_forget(lowest, position):
                    self.stream.forget(start, stop)
                    forgotten.append((start, stop))
        return forgotten

    def _least_needed(self, behind: Tick, position: Tick) -> Iterator[tuple[Tick, Tick]]:
        """The spans of the rows that are there, what is needed least first."""
        rows = self.stream.rows
        if behind < position:
            spans = [(each.first, each.last + 1) for each in rows.between(TICK_MIN, position)]
            yield from [span for span in spans if span[1] <= behind]
            yield from reversed([span for span in spans if span[0] >= behind][1:])
        while behind >= position:
            low, stop = rows.lowest()
            if stop > position:
                break
            yield low, stop
        while True:
            yield rows.highest()[0], TICK_MAX

    def _runs_to_forget(self, behind: Tick, position: Tick) -> list[tuple[Tick, Tick]]:
        """Which of too many runs go. The first is the settled past: it costs nothing and is worth most."""
        runs = list(self.stream.known)
        keep = len(runs) // 2
        if behind < position:
            needed = next((at for at, run in enumerate(runs) if at and run[1] > behind), keep)
            ahead = next((at for at, run in enumerate(runs) if run[0] >= position), len(runs))
            parts = []
            if needed > 1:
                parts.append((runs[0][1], runs[needed][0]))
            if ahead > needed + 1:
                parts.append((runs[needed + 1][0], runs[ahead - 1][1]))
            if parts:
                return parts
        if runs[keep][0] <= position:
            return [(runs[0][1], runs[keep][0])]
        return [(runs[keep][0], TICK_MAX)]

    @property
    def frontier(self) -> Tick:
        """One past the last tick that anything is known of."""
        return self.stream.known.stop if self.stream.known else TICK_MIN

    def check(self) -> None:
        """Raise if an invariant is broken."""
        self.stream.check()
        self.asked.check()
        assert len(self.asked) <= self.parameters.stream_runs_max, "asked for too many runs"
        held = self.stream.rows.nbytes
        assert held <= self.parameters.stream_bytes_max, f"{self.pubend}: {held} bytes of rows held"
