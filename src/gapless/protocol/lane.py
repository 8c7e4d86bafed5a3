"""How far is the edge's stream settled for its subends, and what is missing? One lane per pubend.

All subends of an edge share one consolidated stream per pubend, the istream. A lane reads it with
the eyes of the local subends: silence counts only if it was made under an epoch that knew of every
subscription that needs the tick. From it follow the doubt horizon, the gaps, and the questions to ask.

Implements docs/protocol.md, sections 3, 8 and 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gapless.model.epochs import EPOCH_NONE, Epoch
from gapless.model.ids import BrokerId, PubendId
from gapless.model.tickmap import TickMap
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, Tick, TickSet
from gapless.protocol.curiosity import NackClock
from gapless.protocol.istream import Istream
from gapless.protocol.marks import mark, reached

SILENCE_TOO_OLD = mark(
    "silence_too_old", "silence was treated as unknown: its filter was older than a subscription"
)


@dataclass(slots=True)
class Lane:
    """One pubend's stream as the subends of this edge see it."""

    pubend: PubendId
    edge: BrokerId
    istream: Istream
    clock: NackClock
    #: The epoch that silence must have been made under, per tick. Covers all ticks.
    requires: TickMap[Epoch] = field(default_factory=TickMap)
    #: The pubend expected the ticks below to be acked by now.
    expected: Tick = TICK_MIN
    #: By the local clock the ticks below should be known by now. It may be wrong, and is never acked.
    overdue: Tick = TICK_MIN

    def __post_init__(self) -> None:
        self.requires.set_range(TICK_MIN, TICK_MAX, EPOCH_NONE)

    def renewed(self) -> None:
        """The pubend has begun another log: what was expected and asked of the old one is void."""
        self.expected = self.overdue = TICK_MIN
        self.clock.reset()

    def require(self, start: Tick, epoch: Epoch) -> None:
        """From `start` on there is a subscription that only silence of `epoch` or later speaks for."""
        self.requires.update(start, TICK_MAX, lambda old: epoch if old is None else max(old, epoch))

    def settled_below(self, tick: Tick) -> None:
        """Nobody looks below `tick` any more: one run is enough for all that."""
        if len(self.requires) == 1:
            return
        need = self.requires.get(tick)
        if need is not None and self.requires.start < tick:
            self.requires.set_range(TICK_MIN, tick, need)

    def is_settled(self, horizon: Tick) -> bool:
        """Whether there is nothing to ask for below the horizon of all readers, nor was."""
        clock = self.clock
        return not clock.noticed and not clock.asked and max(self.expected, self.overdue) <= horizon

    def resolved(self, start: Tick) -> Tick:
        """The doubt horizon of a reader at `start`: every tick up to it is data or good silence."""
        at = start
        while at < TICK_MAX:
            run = self.requires.run_at(at)
            assert run is not None, f"no requirement at {at}"
            stop, need = run
            reach = self.resolved_under(at, need)
            if reach < stop:
                return reach
            at = stop
        return at

    def resolved_under(self, start: Tick, need: Epoch) -> Tick:
        """The doubt horizon of a reader at `start` for whom silence of epoch `need` is enough."""
        edge = self.edge
        return self.istream.stream.known.reach(start, lambda stamp: stamp.get(edge) >= need)

    def gaps(self, start: Tick, stop: Tick) -> TickSet:
        """The ticks of `start..stop` that are unknown, or silent by too old a filter."""
        missing = EMPTY
        for low, high, need in self.requires.runs(start, stop):
            missing |= self.gaps_under(low, high, need)
        return missing

    def gaps_under(self, start: Tick, stop: Tick, need: Epoch) -> TickSet:
        """The ticks of `start..stop` that are unknown, or silent by a filter older than `need`."""
        if start >= stop:
            return EMPTY
        edge = self.edge
        known = self.istream.stream.known
        good = known.where(start, stop, lambda stamp: stamp.get(edge) >= need)
        missing = TickSet.between(start, stop) - good
        if missing and known.ticks(start, stop) != good:
            reached(SILENCE_TOO_OLD)
        return missing
