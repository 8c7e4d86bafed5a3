"""What do all the small records of a log amount to? The promises of a pubend, in bounded space.

Reservations, releases and start ticks are logged one by one as they are made, and only their sum matters
after a restart. So every segment begins with a *checkpoint* of it, and recovery reads one segment, however
long the history.

Reservations and releases amount to one number each. Start ticks do not: of each edge the newest `GRANTS_MAX`
are kept as they are, for repeated requests. Older ones are folded into one promise that is at least as strict
as all of them, and even that is dropped when a newer one makes it redundant.

Implements docs/protocol.md, sections 5 and 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from gapless.model.ids import BrokerId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.effects import BatchRecord, Record, ReleaseRecord, ReserveRecord, StartRecord
from gapless.protocol.pubend import GRANTS_MAX, Recovered

#: The wanted tick of a folded promise: outside all time, so that no request matches it.
FOLDED: Tick = TICK_MIN - 1


class _Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    next_tick: Tick
    reserved: Tick
    released: Tick
    starts: Sequence[tuple[str, int, Tick | None, Tick]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Checkpoint)


@dataclass(slots=True)
class Control:
    """The sum of the durable records of a log."""

    next_tick: Tick = 0
    reserved: Tick = 0
    released: Tick = 0
    #: Every start record that is kept, in the order of the log.
    _starts: dict[StartRecord, None] = field(default_factory=dict)
    #: The same by edge: at most GRANTS_MAX each.
    _by_edge: dict[BrokerId, deque[StartRecord]] = field(default_factory=dict)
    #: The folded older ones of each edge.
    _folded: dict[BrokerId, StartRecord] = field(default_factory=dict)

    def apply(self, record: Record) -> None:
        """A record became durable."""
        match record:
            case BatchRecord(batch=batch):
                self.apply_batch(batch.last)
            case ReserveRecord(before=before):
                self.reserved = max(self.reserved, before)
            case ReleaseRecord(before=before):
                self.released = max(self.released, before)
            case StartRecord():
                self._add(record)

    def apply_batch(self, last: Tick) -> None:
        """A batch that ends at `last` became durable."""
        self.next_tick = max(self.next_tick, last + 1)

    def recovered(self) -> Recovered:
        """What a broker needs when it starts."""
        for edge in list(self._folded):
            if self._redundant(self._folded[edge]):
                del self._folded[edge]
        return Recovered(
            next_tick=self.next_tick,
            reserved=self.reserved,
            released=self.released,
            starts=(*self._folded.values(), *self._starts),
        )

    def encoded(self) -> bytes:
        """The payload of a checkpoint."""
        found = self.recovered()
        starts = [(each.edge, each.epoch, each.wanted, each.start) for each in found.starts]
        return _encoder.encode(_Checkpoint(found.next_tick, found.reserved, found.released, starts))

    @staticmethod
    def decoded(payload: memoryview) -> Control:
        """Decodes a checkpoint. Raises msgspec.DecodeError when it is invalid."""
        found = _decoder.decode(payload)
        self = Control(found.next_tick, found.reserved, found.released)
        for edge, epoch, wanted, start in found.starts:
            record = StartRecord(edge=BrokerId(edge), epoch=epoch, wanted=wanted, start=start)
            if wanted == FOLDED:
                self._folded[record.edge] = record
            else:
                self._add(record)
        return self

    def _add(self, record: StartRecord) -> None:
        if record in self._starts:
            return
        self._starts[record] = None
        of_edge = self._by_edge.setdefault(record.edge, deque())
        of_edge.append(record)
        if len(of_edge) > GRANTS_MAX:
            oldest = of_edge.popleft()
            del self._starts[oldest]
            self._fold(oldest)

    def _fold(self, record: StartRecord) -> None:
        if record.wanted is None:
            # It was granted "from now on", so events published after a restart come after it.
            self.reserved = max(self.reserved, record.start)
        before = self._folded.get(record.edge, record)
        self._folded[record.edge] = StartRecord(
            edge=record.edge,
            epoch=max(before.epoch, record.epoch),
            wanted=FOLDED,
            start=min(before.start, record.start),
        )

    def _redundant(self, folded: StartRecord) -> bool:
        # An ack older than `folded` is also older than these, so it is believed at most up to their start,
        # and everything up to there is already released.
        return any(
            each.epoch > folded.epoch and each.start <= self.released
            for each in self._by_edge.get(folded.edge, ())
        )
