"""Was this event stored already? Catenation numbers, per publisher and pubend.

A publisher numbers its events and repeats what it has no receipt for. What was stored, or is on its way to
the disk, is not stored again. The numbers travel into the log with the events (a *note*), so that after a
crash either both are known or neither is.

Every publish names the number before it: the last one that the publisher counts on. While the node lacks that
one it takes nothing later, and says from where on it lacks events. What it lacks between the two will not
come: it is a *hole*, remembered as not stored, and refused for good when it comes after all. A receipt is for
what is certainly stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from gapless.errors import UsageError
from gapless.model.ids import PubendId
from gapless.model.notes import Hole, NoteValue, PublisherPosition, PublisherState, decode_note
from gapless.model.ticks import Tick
from gapless.protocol.sessions.identities import ANONYMOUS, Identity, PublisherIdentities

#: Maximum number of holes that are remembered for each publisher. Beyond, the oldest two become one, with
#: everything between them: what is in it may have been stored, and is refused all the same.
HOLES_MAX = 8


class NotedLog(Protocol):
    """A log, of which only the notes are asked for."""

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        """The notes of the batches whose last tick is `start` or later, each with that tick."""


class HoleError(UsageError):
    """Events cannot be stored before others that the publisher counts on."""

    def __init__(self, publisher: str, had: int) -> None:
        """`had` is the number of the last event that is there, -1 when there is none."""
        there = f"after event {had}" if had >= 0 else "from the first on"
        super().__init__(
            "E182", f"events of publisher '{publisher}' are missing: send again {there}", retry=True
        )
        self.had = had


@dataclass(slots=True)
class Publishers:
    """The publishers of one pubend."""

    pubend: PubendId
    identities: PublisherIdentities = field(default_factory=PublisherIdentities)
    _known: dict[str, Identity] = field(default_factory=dict)
    #: Everything stored up to this tick is in here.
    known_tick: Tick = 0
    #: What has changed since all was written down, and who was forgotten.
    _unwritten: dict[str, Identity] = field(default_factory=dict)
    _forgotten: set[str] = field(default_factory=set)

    # ---- over restarts -------------------------------------------------------------------------------

    @staticmethod
    def recover(
        pubend: PubendId,
        log: NotedLog,
        positions: Iterable[PublisherPosition],
        start: Tick,
        identities: PublisherIdentities | None = None,
    ) -> Publishers:
        """What was remembered, and what the notes in the log behind `start` say."""
        publishers = Publishers(pubend, identities or PublisherIdentities(), known_tick=start)
        for each in positions:
            state = PublisherState(each.catenation, each.owner, each.is_temporary, each.holes)
            publishers._learn(each.publisher, state, each.tick)
        publishers._unwritten.clear()
        for tick, data in log.notes(start + 1 if start else start):
            if data:
                for publisher, value in decode_note(data).items():
                    publishers._learn(publisher, value, tick)
                publishers.known_tick = max(publishers.known_tick, tick)
        return publishers

    def _learn(self, publisher: str, value: NoteValue, tick: Tick) -> None:
        """Events up to a number are in the log."""
        known = self._known.get(publisher)
        if isinstance(value, int):
            # Earlier versions wrote no more than this, and knew of no holes.
            before = PublisherState(value, None, is_temporary=False, holes=())
            if known is not None:
                before = PublisherState(value, known.owner, known.is_temporary, known.holes)
            value = before
        if known is None:
            known = Identity(publisher, self, value.owner, value.is_temporary)
            self._known[publisher] = known
            self.identities.add(known)
        elif known.owner != value.owner:
            self.identities.give(known, value.owner)
        known.accepted = known.durable = value.last
        known.tick, known.holes = tick, value.holes
        self._unwritten[publisher] = known

    def doubt(self, before: Tick) -> None:
        """A part of the log or of what was remembered is lost: nothing below a tick is known to be stored."""
        for known in self._known.values():
            if known.tick < before:
                known.holes = ((0, known.durable),)
                self._unwritten[known.name] = known

    @property
    def unwritten(self) -> int:
        """How many changes are to be written down before the log forgets its notes."""
        return len(self._unwritten) + len(self._forgotten)

    def take(self, most: int) -> tuple[list[str], list[PublisherPosition]]:
        """Who was forgotten, and what has changed: at most so many of each. Whoever takes them writes them.

        In parts they do no harm: what has changed since is told again, by the notes of the log, too. Whoever
        was forgotten and came anew is among the forgotten ones as well.
        """
        changed = [self._unwritten.pop(name) for name in list(islice(self._unwritten, most))]
        forgotten = {each.name for each in changed} & self._forgotten
        forgotten.update(islice(self._forgotten, most))
        self._forgotten -= forgotten
        # Of one that has stored nothing there is nothing to write; what it stores changes it again.
        return sorted(forgotten), [self._position(each) for each in changed if each.durable >= 0]

    def put_back(self, forgotten: Iterable[str], positions: Iterable[PublisherPosition]) -> None:
        """What was taken could not be written."""
        self._forgotten.update(forgotten)
        for each in positions:
            known = self._known.get(each.publisher)
            if known is not None:
                self._unwritten[each.publisher] = known

    def _position(self, known: Identity) -> PublisherPosition:
        return PublisherPosition(
            publisher=known.name,
            pubend=self.pubend,
            catenation=known.durable,
            tick=known.tick,
            owner=known.owner,
            is_temporary=known.is_temporary,
            holes=_up_to(known.holes, known.durable),
        )

    # ---- what comes ----------------------------------------------------------------------------------

    def check_owner(self, publisher: str, principal: str) -> None:
        """Raise UsageError when the identity belongs to somebody else."""
        known = self._known.get(publisher)
        if known is not None and known.owner != principal:
            self.identities.check_owner(known, principal)

    def check_before(self, publisher: str, before: int | None, first: int, last: int) -> None:
        """Raise `HoleError` when events from `first` to `last` may not be stored yet.

        `before` is the number that the publisher names: what is between that and `first` will not come. None
        comes from clients that name none: they are kept from passing what they were refused.
        """
        known = self._known.get(publisher)
        had = -1 if known is None else known.accepted
        if before is not None:
            if before > had and last > had:
                raise HoleError(publisher, had)
        elif known is not None and known.awaited is not None and first > known.awaited:
            raise HoleError(publisher, had)

    def given_up(self, publisher: str, last: int) -> None:
        """What was refused up to a number will not come again, and is not waited for."""
        known = self._known.get(publisher)
        if known is not None and known.awaited is not None and known.awaited <= last:
            known.awaited = None

    def fresh(self, publisher: str, first: int, count: int) -> int:
        """How many of these events, from the first on, are not above what was accepted before."""
        known = self._known.get(publisher)
        if known is None:
            return 0
        return min(max(known.accepted + 1 - first, 0), count)

    def accepted(self, publisher: str) -> int:
        """The number of the last event that was accepted; -1 when none was."""
        known = self._known.get(publisher)
        return -1 if known is None else known.accepted

    def durable(self, publisher: str) -> int:
        """The number of the last event that is durable; -1 when none is."""
        known = self._known.get(publisher)
        return -1 if known is None else known.durable

    def pieces(self, publisher: str, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Numbers up to the last accepted one, in runs, each with whether they were accepted."""
        for low, high in self._known[publisher].holes:
            if high < first:
                continue
            if low > last:
                break
            if low > first:
                yield first, low - 1, True
            yield max(low, first), min(high, last), False
            first = high + 1
        if first <= last:
            yield first, last, True

    def accept(
        self,
        publisher: str,
        first: int,
        last: int,
        principal: str = ANONYMOUS,
        *,
        now: Tick = 0,
        is_temporary: bool = False,
    ) -> NoteValue:
        """Events are on their way to the log; what their note is to say.

        Raises UsageError, and nothing has changed, when the principal has too many identities.
        """
        known = self._known.get(publisher)
        if known is None:
            known = self.identities.make(self, publisher, principal, now, is_temporary=is_temporary)
            self._known[publisher] = known
        elif known.owner != principal:
            self.identities.adopt(known, principal, now)
            known.changed = last
        else:
            self.identities.heard(known)
        if first > known.accepted + 1:
            known.holes = _with_hole(known.holes, (known.accepted + 1, first - 1))
            known.changed = last
        known.accepted = last
        known.awaited = None
        return last if known.durable >= known.changed else _state(known)

    def stored(self, publisher: str, last: int, tick: Tick) -> None:
        """Events up to a number are durable, the last of them with this tick. May come in any order."""
        known = self._known[publisher]
        if last > known.durable:
            known.durable, known.tick = last, tick
        self._unwritten[publisher] = known
        self.known_tick = max(self.known_tick, tick)

    def failed(self, publisher: str, first: int) -> None:
        """Events from a number on were not stored, and may come again."""
        known = self._known[publisher]
        accepted = min(known.accepted, first - 1)
        # The hole below them is none before something above it is durable.
        while known.holes and known.durable < known.holes[-1][0] and accepted <= known.holes[-1][1]:
            accepted = min(accepted, known.holes[-1][0] - 1)
            known.holes = known.holes[:-1]
        known.accepted = max(accepted, known.durable)
        known.holes = _up_to(known.holes, known.accepted)
        known.awaited = first if known.awaited is None else min(first, known.awaited)

    # ---- what operators do, and quotas ---------------------------------------------------------------

    def release(self, publisher: str) -> bool:
        """The identity is nobody's until somebody uses it; whether it was known."""
        known = self._known.get(publisher)
        if known is None:
            return False
        self.identities.give(known, None)
        self._unwritten[publisher] = known
        return True

    def forget(self, identity: Identity) -> None:
        """Its numbers are not needed any more."""
        del self._known[identity.name]
        self._unwritten.pop(identity.name, None)
        self._forgotten.add(identity.name)


def _with_hole(holes: tuple[Hole, ...], hole: Hole) -> tuple[Hole, ...]:
    if len(holes) == HOLES_MAX:
        holes = ((holes[0][0], holes[1][1]), *holes[2:])
    return (*holes, hole)


def _up_to(holes: tuple[Hole, ...], last: int) -> tuple[Hole, ...]:
    """What of the holes lies at or below a number."""
    if not holes or holes[-1][1] <= last:
        return holes
    return tuple((low, min(high, last)) for low, high in holes if low <= last)


def _state(known: Identity) -> PublisherState:
    return PublisherState(known.accepted, known.owner, known.is_temporary, known.holes)
