"""Was this event stored already? Catenation numbers, per publisher and pubend.

A publisher numbers its events and repeats what it has no receipt for. What was stored, or is on its way to
the disk, is not stored again. The numbers travel into the log with the events (a *note*), so that after a
crash either both are known or neither is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.store.contract import RecordLog
from gapless.store.recovery import PublisherPosition

#: So many publishers are remembered per pubend; beyond, those silent for longest are forgotten.
PUBLISHERS_MAX = 100_000


_encode = msgspec.msgpack.Encoder().encode
#: The note of a batch: who published it, each with the number of its last event.
_decoder = msgspec.msgpack.Decoder(dict[str, int])


@dataclass(slots=True)
class _Publisher:
    """What is known of one publisher at one pubend."""

    #: The number of the last event that was accepted, durable or on its way.
    accepted: int = -1
    #: The number of the last event that is durable, and its tick.
    durable: int = -1
    tick: Tick = 0
    #: The number that was refused for the time being, and must come before any later one; None when none was.
    awaited: int | None = None


@dataclass(slots=True)
class Publishers:
    """The publishers of one pubend."""

    pubend: PubendId
    _known: dict[str, _Publisher] = field(default_factory=dict)

    #: Everything stored up to this tick is in here.
    known_tick: Tick = 0

    @staticmethod
    def recover(
        pubend: PubendId, log: RecordLog, positions: Iterable[PublisherPosition], start: Tick
    ) -> Publishers:
        """What was remembered, and what the notes in the log from `start` on say."""
        publishers = Publishers(pubend, known_tick=start)
        for each in positions:
            publishers.accept(each.publisher, each.catenation)
            publishers.stored(each.publisher, each.catenation, each.tick)
        for tick, data in log.notes(start):
            if data:
                for publisher, last in _decoder.decode(data).items():
                    publishers.accept(publisher, last)
                    publishers.stored(publisher, last, tick)
        return publishers

    def positions(self) -> list[PublisherPosition]:
        """What is to be remembered before the log forgets its notes."""
        return [
            PublisherPosition(publisher=name, pubend=self.pubend, catenation=each.durable, tick=each.tick)
            for name, each in self._known.items()
            if each.durable >= 0
        ]

    def fresh(self, publisher: str, first: int, count: int) -> int:
        """How many of these events, from the first on, were accepted before."""
        known = self._known.get(publisher)
        if known is None:
            return 0
        return min(max(known.accepted + 1 - first, 0), count)

    def awaited(self, publisher: str, first: int) -> int | None:
        """The number that has to come before `first` may: it was refused, and will be sent again."""
        known = self._known.get(publisher)
        return None if known is None or known.awaited is None or first <= known.awaited else known.awaited

    def given_up(self, publisher: str, last: int) -> None:
        """What was refused up to a number will not come again, and is not waited for."""
        known = self._known.get(publisher)
        if known is not None and known.awaited is not None and known.awaited <= last:
            known.awaited = None

    def durable(self, publisher: str) -> int:
        """The number of the last event that is durable; -1 when none is."""
        known = self._known.get(publisher)
        return -1 if known is None else known.durable

    def accept(self, publisher: str, last: int) -> None:
        """Events up to a number are on their way to the log."""
        known = self._known.pop(publisher, None) or _Publisher()
        known.accepted = max(known.accepted, last)
        known.awaited = None
        self._known[publisher] = known  # the one heard of last is at the end
        if len(self._known) > PUBLISHERS_MAX:
            del self._known[next(iter(self._known))]

    def stored(self, publisher: str, last: int, tick: Tick) -> None:
        """Events up to a number are durable, the last of them with this tick."""
        known = self._known.get(publisher)
        if known is not None and last > known.durable:
            known.durable, known.tick = last, tick
        self.known_tick = max(self.known_tick, tick)

    def failed(self, publisher: str, first: int) -> None:
        """Events from a number on were not stored, and will come again."""
        known = self._known.get(publisher)
        if known is not None:
            known.accepted = min(known.accepted, first - 1)
            known.awaited = first if known.awaited is None else min(first, known.awaited)


def note(lasts: Mapping[str, int]) -> bytes:
    """The note of a batch: who published it, each with the number of its last event."""
    return _encode(lasts)
