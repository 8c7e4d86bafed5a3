"""Was this event stored already? Catenation numbers, per publisher and pubend.

A publisher numbers its events and repeats what it has no receipt for. What was stored, or is on its way to
the disk, is not stored again. The numbers travel into the log with the events (a *note*), so that after a
crash either both are known or neither is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.store.contract import RecordLog

#: So many publishers are remembered per pubend; beyond, those silent for longest are forgotten.
PUBLISHERS_MAX = 100_000


class Note(msgspec.Struct, frozen=True, array_like=True):
    """Beside a batch in the log: who published it, and the number of its last event."""

    publisher: str
    last: int


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Note)


@dataclass(slots=True)
class _Publisher:
    """What is known of one publisher at one pubend."""

    #: The number of the last event that was accepted, durable or on its way.
    accepted: int = -1
    #: The number of the last event that is durable.
    durable: int = -1


@dataclass(slots=True)
class Publishers:
    """The publishers of one pubend."""

    pubend: PubendId
    _known: dict[str, _Publisher] = field(default_factory=dict)

    @staticmethod
    def recover(pubend: PubendId, log: RecordLog, start: Tick) -> Publishers:
        """What the notes in the log say."""
        publishers = Publishers(pubend)
        for _, data in log.notes(start):
            if data:
                note = _decoder.decode(data)
                publishers.accept(note.publisher, note.last)
                publishers.stored(note.publisher, note.last)
        return publishers

    def fresh(self, publisher: str, first: int, count: int) -> int:
        """How many of these events, from the first on, were accepted before."""
        known = self._known.get(publisher)
        if known is None:
            return 0
        return min(max(known.accepted + 1 - first, 0), count)

    def is_stored(self, publisher: str, last: int) -> bool:
        """Whether everything up to a number is durable."""
        known = self._known.get(publisher)
        return known is not None and known.durable >= last

    def accept(self, publisher: str, last: int) -> None:
        """Events up to a number are on their way to the log."""
        known = self._known.pop(publisher, None) or _Publisher()
        known.accepted = max(known.accepted, last)
        self._known[publisher] = known  # the one heard of last is at the end
        if len(self._known) > PUBLISHERS_MAX:
            del self._known[next(iter(self._known))]

    def stored(self, publisher: str, last: int) -> None:
        """Events up to a number are durable."""
        known = self._known.get(publisher)
        if known is not None:
            known.durable = max(known.durable, last)

    def failed(self, publisher: str, first: int) -> None:
        """Events from a number on were not stored, and may come again."""
        known = self._known.get(publisher)
        if known is not None:
            known.accepted = min(known.accepted, first - 1)


def note(publisher: str, last: int) -> bytes:
    """The note of a batch."""
    return _encode(Note(publisher, last))
