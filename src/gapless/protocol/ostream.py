"""What is owed to one downstream cell? The output stream behind its filter edge.

An ostream does not copy the istream. It keeps what is peculiar to its cell: which ticks are settled
or on their way (with the epochs their silence was made under), which data ticks the cell has not
acked, and which ticks the cell is curious about. The data itself is looked up in the istream and
put through the cell's filter when it is needed.

First-time data goes down when the filter accepts it. First-time silence goes down only where the
cell is curious, and so do retransmissions. What the filter rejects is final for this cell, and
therefore acked on the spot, without waiting for anybody below.

Implements docs/protocol.md, sections 6 and 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gapless.content.selection import Selection
from gapless.model.batch import EventBatch
from gapless.model.epochs import EPOCH_ALL, EPOCH_NONE, NEVER, Epochs
from gapless.model.ids import BrokerId, CellId
from gapless.model.stream import KnowledgeStream, Run, joining, rows_inside
from gapless.model.tickmap import TickMap
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickArray, TickRange, TickSet
from gapless.protocol.marks import mark, reached

SILENCE_WITHHELD = mark("silence_withheld", "first-time silence was not sent to a cell that is not curious")
SILENCE_SENT = mark("silence_sent", "first-time silence was sent to a curious cell")
RETRANSMISSION_WITHHELD = mark("retransmission_withheld", "a retransmission did not go to an incurious cell")
NACK_SATISFIED = mark("nack_satisfied", "a nack was answered from what this broker still knew")
NACK_NEWER_EPOCH = mark(
    "nack_newer_epoch", "known silence was no answer: its epochs are older than the cell's"
)
ACK_OLDER_EPOCH = mark("ack_older_epoch", "an ack made under older epochs covered data of newer ones")
FILTERED_TO_FINAL = mark("filtered_to_final", "a data tick became final because the filter rejected it")
CURIOSITY_FORGOTTEN = mark(
    "curiosity_forgotten", "an ostream reached its bound of curious runs and forgot some"
)

#: Maximum number of runs in an ack; the epochs of further ones are met into the last.
ACK_RUNS_MAX = 8


class TickQueue:
    """Ticks of data that was passed on and is not acked, ascending."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[TickArray] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def first(self) -> Tick:
        """The lowest tick, TICK_MAX when there is none."""
        return int(self._parts[0][0]) if self._parts else TICK_MAX

    def add(self, ticks: TickArray) -> None:
        """Insert ticks, which ascend."""
        if not len(ticks):
            return
        if self._parts and self._parts[-1][-1] >= ticks[0]:
            self._parts = [np.union1d(np.concatenate(self._parts), ticks)]
        else:
            self._parts.append(ticks)

    def drop(self, start: Tick, stop: Tick) -> None:
        """Remove the ticks of `start..stop`."""
        while self._parts and start <= self._parts[0][0] and self._parts[0][-1] < stop:
            self._parts.pop(0)
        if not self._parts or self._parts[0][0] >= stop or self._parts[-1][-1] < start:
            return
        parts = []
        for part in self._parts:
            low, high = np.searchsorted(part, (start, stop))
            parts += [part[:low], part[high:]] if low < high else [part]
        self._parts = [part for part in parts if len(part)]


@dataclass(slots=True)
class CellFilter:
    """What a downstream cell wants, and which epochs of its edges that speaks for.

    It follows the advertisements of the cell, and is what it is only now: nobody keeps one for later.
    """

    accepts: Selection = field(default_factory=Selection)
    epochs: Epochs = NEVER


@dataclass(frozen=True, slots=True)
class Telling:
    """What to send to the cell: known runs and the data rows inside them."""

    runs: list[Run]
    rows: list[EventBatch]
    first_time: bool
    #: The broker of the cell that asked; None for the one that the pubend's knowledge goes to.
    to: BrokerId | None = None


@dataclass(slots=True)
class Ostream:
    """Knowledge owed to one downstream cell for one pubend."""

    cell: CellId
    #: The edges in and below the cell: stamps for this cell speak of these alone.
    edges: frozenset[BrokerId]
    runs_max: int
    #: Ticks whose knowledge passed here or that were acked, with the epochs of their silence.
    passed: TickMap[Epochs] = field(default_factory=TickMap)
    #: Data ticks that the filter accepted and the cell has not acked.
    unacked: TickQueue = field(default_factory=TickQueue)
    #: Ticks that were asked for and not known then, with the broker of the cell that asked last.
    curious: TickMap[BrokerId] = field(default_factory=TickMap)
    #: First-time silence that the cell was not told of: it travels with the next data.
    withheld: TickMap[Epochs] = field(default_factory=TickMap)

    def pass_on(
        self,
        fresh: list[Run],
        rows: EventBatch | None,
        wants: CellFilter,
        *,
        first_time: bool,
        route: BrokerId | None,
    ) -> list[Telling]:
        """Put news through the filter; returns what to tell the cell now.

        First-time data takes the `route`; whoever of the cell asked for some of the ticks gets those.
        """
        accepted, runs = self._filtered(fresh, rows, wants)
        for start, stop, stamp in runs:
            self.passed.update(start, stop, joining(stamp))
        asked = self._by_asker(runs)
        told: list[Telling] = []
        if accepted is not None:
            self.unacked.add(accepted.ticks)
            if first_time:
                for start, stop, _ in runs:
                    self.withheld.clear(start, stop)
                told.append(Telling([*self.withheld, *runs], [accepted], first_time=True))
                self.withheld = TickMap()
                asked.pop(route, None)
        elif first_time:
            reached(SILENCE_SENT if asked else SILENCE_WITHHELD)
            self._withhold(runs)
        if not first_time and not asked:
            reached(RETRANSMISSION_WITHHELD)
        for asker, curious in asked.items():
            # Silence costs nothing more when it is longer, and spares the next question.
            whole = first_time and accepted is None
            part = runs if whole else curious
            inside = None if accepted is None else rows_inside(accepted, part)
            told.append(Telling(part, [] if inside is None else [inside], first_time=whole, to=asker))
        for telling in told:
            self._no_longer_curious(telling.runs, wants)
        return told

    def answer(
        self, asker: BrokerId, asked: TickRange, stream: KnowledgeStream, wants: CellFilter
    ) -> tuple[Telling | None, TickSet]:
        """A broker of the cell nacks `asked`: returns what is known of it, and the ticks that are not."""
        need = self._need(wants)
        runs: list[Run] = []
        rows: list[EventBatch] = []
        unknown = TickSet.between(asked.start, asked.stop)
        for start, stop, stamp in stream.known.runs(asked.start, asked.stop):
            if not stamp.covers(need):
                reached(NACK_NEWER_EPOCH)
                continue
            unknown -= TickSet.between(start, stop)
            told = stamp.restrict(self.edges)
            for batch in stream.rows.between(start, stop):
                accepted, filtered = self._filtered([(start, stop, stamp)], batch, wants)
                told = told.meet(filtered[0][2])
                if accepted is not None:
                    rows.append(accepted)
            runs.append((start, stop, told))
        if runs:
            reached(NACK_SATISFIED)
        self._no_longer_curious(runs, wants)
        for start, stop in unknown.pairs():
            self.curious.set_range(start, stop, asker)
        if self.curious.drop_highest(self.runs_max):
            reached(CURIOSITY_FORGOTTEN)
        return (Telling(runs, rows, first_time=False, to=asker) if runs else None), unknown

    def acked_by_cell(self, runs: tuple[tuple[Tick, Epochs], ...]) -> None:
        """The cell acked: those ticks are not needed by the subscriptions of those epochs."""
        start = TICK_MIN
        for stop, whole in runs:
            # A cell speaks for its own edges. Where silence is true for everybody, `passed` knows it already.
            stamp = whole.said_by(self.edges)
            first = max(start, self.unacked.first)
            self.passed.update(start, min(stop, first), joining(stamp))
            if first < stop:
                self._settle_data(first, stop, stamp)
            start = max(start, stop)
        self.unacked.drop(TICK_MIN, start)
        self.curious.clear(TICK_MIN, start)
        self.withheld.clear(TICK_MIN, start)

    def acked(self) -> list[tuple[Tick, Epochs]]:
        """The settled prefix as ascending (stop, epochs) runs; empty when not even the past is settled."""
        limit = self.unacked.first
        out: list[tuple[Tick, Epochs]] = []
        at = TICK_MIN
        while at < limit:
            run = self.passed.run_at(at)
            if run is None:
                break
            at = min(run[0], limit)
            if len(out) == ACK_RUNS_MAX:
                out[-1] = (at, out[-1][1].meet(run[1]))
            else:
                out.append((at, run[1]))
        return out

    def acked_under(self, wants: CellFilter) -> Tick:
        """Up to where the prefix is settled for the newest subscriptions that we know of."""
        need = wants.epochs.restrict(self.edges)
        at = TICK_MIN
        for stop, stamp in self.acked():
            if not stamp.covers(need):
                break
            at = stop
        return at

    def forget(self, start: Tick, stop: Tick) -> None:
        """The istream forgot these ticks: we do not know any more whether the cell has them."""
        self.passed.clear(start, stop)
        self.unacked.drop(start, stop)
        self.withheld.clear(start, stop)

    def check(self) -> None:
        """Raise if an invariant is broken."""
        self.passed.check()
        self.curious.check()
        assert len(self.curious) <= self.runs_max, f"{self.cell} is curious about too many runs"

    def _filtered(
        self, fresh: list[Run], rows: EventBatch | None, wants: CellFilter
    ) -> tuple[EventBatch | None, list[Run]]:
        accepted = rows
        rejected = False
        if rows is not None:
            accepted = rows.where(wants.accepts.mask(rows))
            rejected = len(accepted) < len(rows)
        if rejected:
            reached(FILTERED_TO_FINAL)
        local = wants.epochs.restrict(self.edges)
        runs = []
        for start, stop, whole in fresh:
            stamp = whole.restrict(self.edges)
            runs.append((start, stop, stamp.meet(local) if rejected else stamp))
        return (accepted if accepted is not None and len(accepted) else None), runs

    def _need(self, wants: CellFilter) -> Epochs:
        # An edge that never advertised here is owed an answer that we cannot give: its filter is unknown.
        local = wants.epochs
        return Epochs(
            {edge: local.get(edge) if local.get(edge) != EPOCH_NONE else EPOCH_ALL for edge in self.edges}
        )

    def _by_asker(self, runs: list[Run]) -> dict[BrokerId | None, list[Run]]:
        found: dict[BrokerId | None, list[Run]] = {}
        for start, stop, stamp in runs if self.curious else ():
            for low, high, asker in self.curious.runs(start, stop):
                found.setdefault(asker, []).append((low, high, stamp))
        return found

    def _no_longer_curious(self, runs: list[Run], wants: CellFilter) -> None:
        if not self.curious:
            return
        need = wants.epochs.restrict(self.edges)
        for start, stop, stamp in runs:
            if stamp.covers(need):
                self.curious.clear(start, stop)
        if self.curious.drop_highest(self.runs_max):
            reached(CURIOSITY_FORGOTTEN)

    def _withhold(self, runs: list[Run]) -> None:
        for start, stop, stamp in runs:
            self.withheld.update(start, stop, joining(stamp))
        self.withheld.drop_highest(self.runs_max)

    def _settle_data(self, start: Tick, stop: Tick, stamp: Epochs) -> None:
        for _, _, old in self.passed.runs(start, stop):
            if not stamp.covers(old):
                reached(ACK_OLDER_EPOCH)
        # Rows in here were data for newer subscriptions than the ack speaks of. The ack is all that is
        # known of them now, so its epochs replace what the silence around them had.
        self.passed.set_range(start, stop, stamp)


def split(telling: Telling, rows_max: int) -> list[tuple[list[Run], EventBatch | None]]:
    """Cut what is told into messages of at most `rows_max` rows; each says all about its own ticks."""
    if sum(len(batch) for batch in telling.rows) <= rows_max:
        return [(telling.runs, EventBatch.joined(telling.rows) if telling.rows else None)]
    pieces = EventBatch.joined(telling.rows).pieces(rows_max)
    out: list[tuple[list[Run], EventBatch | None]] = []
    start = TICK_MIN
    for at, piece in enumerate(pieces):
        stop = piece.last + 1 if at + 1 < len(pieces) else TICK_MAX
        runs = [
            (max(a, start), min(b, stop), stamp) for a, b, stamp in telling.runs if a < stop and b > start
        ]
        out.append((runs, piece))
        start = stop
    return out
