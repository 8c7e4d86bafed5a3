"""Who gets which rows of a delivery, and when has everybody taken it? The edge's half, in arrays.

A delivery is for many subscribers. A guaranteed subscriber has taken what its client acknowledged, not what
was written to a socket: only then may the broker let go of it. Clients acknowledge seldom, with a position,
so the books are three numbers per subscriber and pubend: below which tick everything was acknowledged, up
to which something was handed out, and up to which something may be acknowledged beside that. Nobody can
acknowledge more than it was handed. The lowest acknowledged position of those that owe something is the
*low water*: what was handed out below it is taken by all. It is looked for now and then, with one pass over
two arrays, so the books cost the same for one subscriber and for sixteen thousand.

A subscriber that has no credit left, does not read, or holds the low water back for too long is reported
slow: the deliveries that it held are free for everybody else, and the broker catches it up later, from what
it acknowledged last. More is asked of the broker for such a laggard when what it was handed has been sent,
and has left the process: how fast it reads decides how fast it is served, not how often it acknowledges.

A client that may come back at another edge (it *roams*) has to know its horizon, and not only its last
event: the broker says how far its readers are (`horizon`), each of them is told, and what they have
acknowledged bounds what the edge acknowledges upwards.

Implements docs/protocol.md, section 15.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from gapless.content.rows import Positions
from gapless.model.ids import PubendId, SubscriptionId
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickArray
from gapless.protocol.effects import Deliver
from gapless.protocol.events import DeliveryTaken, RoamersReached, SubscriberReady, SubscriberSlow
from gapless.protocol.sessions.readers import (
    UNBOUNDED,
    DeliveryEffect,
    Held,
    LookLater,
    Outlet,
    Parcel,
    Reader,
    RowSet,
    SendHorizon,
    SendRow,
    SendRows,
    TellBroker,
    WorkLater,
)

#: Single rows are sent to so many readers before it is looked again whether their connections have room; to
#: fewer if they are together larger than this.
_TOGETHER_MAX, _TOGETHER_BYTES_MAX = 256, 1 * 2**20
_NONE = np.zeros(0, dtype=np.int64)


class _Work(Enum):
    """What is done for one laggard in a turn that has time for it."""

    REPORT_SLOW = "report slow"
    REPORT_TAKEN = "report taken"
    ASK = "ask"
    GO_ON = "go on"
    TELL_HORIZON = "tell horizon"


class DeliveryLedger:
    """The books of one group of pubends: what was handed out and acknowledged, by slot."""

    __slots__ = ("acked", "handed", "reached", "waiting")

    def __init__(self, pubends: tuple[PubendId, ...]) -> None:
        self.handed: dict[PubendId, TickArray] = {pubend: _ticks(0) for pubend in pubends}
        self.acked: dict[PubendId, TickArray] = {pubend: _ticks(0) for pubend in pubends}
        #: What may be acknowledged beside what is handed out: acknowledgements may be on their way.
        self.reached: dict[PubendId, TickArray] = {pubend: _ticks(0) for pubend in pubends}
        #: Deliveries that were not taken by all, in order: the serial, and one past the last tick.
        self.waiting: deque[tuple[int, Tick]] = deque()

    def grow(self, size: int) -> None:
        """Have room for so many slots."""
        for books in (self.handed, self.acked, self.reached):
            for pubend, old in books.items():
                if len(old) < size:
                    new = _ticks(max(size, 2 * len(old), 64))
                    new[: len(old)] = old
                    books[pubend] = new

    def low_water(self) -> Tick:
        """The tick below which everything that was handed out is acknowledged."""
        low = TICK_MAX
        for pubend, acked in self.acked.items():
            owing = acked[self.handed[pubend] > acked]
            if len(owing):
                low = min(low, int(owing.min()))
        return low

    def holding(self, below: Tick) -> list[int]:
        """The slots that have not acknowledged everything below a tick."""
        held: set[int] = set()
        for pubend, acked in self.acked.items():
            held.update(np.flatnonzero((self.handed[pubend] > acked) & (acked < below)).tolist())
        return sorted(held)


def _ticks(size: int) -> TickArray:
    return np.full(size, TICK_MIN, dtype=np.int64)


class Deliveries:
    """The deliveries of one edge."""

    def __init__(self, waiting_max: int) -> None:
        """`waiting_max` is how many deliveries the broker hands out before it waits for one to be taken."""
        self._waiting_max = waiting_max // 2
        self._readers: dict[int, Reader] = {}
        self._ledgers: dict[tuple[PubendId, ...], DeliveryLedger] = {}
        #: Whether the reader of a slot acknowledges what it gets; and whether it is told its horizon.
        self._guaranteed: npt.NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)
        self._roams: npt.NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)
        #: Per pubend, what all who roam have acknowledged, as the broker was told.
        self._roamed: dict[PubendId, Tick] = {}
        self._looking = False
        #: What is to be done for laggards, in order, when there is time.
        self._later: deque[tuple[_Work, Reader]] = deque()
        #: The laggards that get more when their connection has sent what it holds.
        self._congested: dict[Outlet, dict[Reader, None]] = {}
        #: Rows that were handed out, counted once for each reader.
        self.rows = 0

    @property
    def congested(self) -> Collection[Outlet]:
        """The connections that laggards wait for."""
        return self._congested.keys()

    # Who is there.

    def enter(self, reader: Reader, starts: Mapping[PubendId, Tick]) -> list[DeliveryEffect]:
        """A subscription is confirmed by some pubends, from these ticks on."""
        slot = reader.slot
        self._readers[slot] = reader
        if slot >= len(self._guaranteed):
            more = np.zeros(slot + 2, dtype=np.bool_)
            self._guaranteed = np.append(self._guaranteed, more)
            self._roams = np.append(self._roams, more)
        # One that is being reported slow gets nothing, so it will not acknowledge what is handed out.
        self._guaranteed[slot] = reader.guaranteed and not reader.leaving
        self._roams[slot] = reader.roams
        for group in reader.groups:
            ledger = self._ledger(group)
            ledger.grow(slot + 1)
            for pubend in group:
                if pubend in starts:
                    # Its position bounds the others' from now on, so it is reported whatever it is.
                    self._roamed.pop(pubend, None)
                    for books in (ledger.acked, ledger.handed, ledger.reached):
                        books[pubend][slot] = starts[pubend]
        return self._look_soon(is_certain=True) if reader.roams else []

    def reached(self, reader: Reader, positions: Mapping[PubendId, Tick]) -> None:
        """The client has everything below these ticks, as a laggard or from elsewhere."""
        for group in reader.groups:
            books = self._ledger(group).reached
            for pubend in group:
                tick = positions.get(pubend)
                if tick is not None and tick > books[pubend][reader.slot]:
                    books[pubend][reader.slot] = tick

    def leave(self, reader: Reader) -> list[DeliveryEffect]:
        """A subscription has ended: nothing is owed to it."""
        if self._readers.pop(reader.slot, None) is None:
            return []
        # The broker may not know yet, and still hand out to its slot.
        self._guaranteed[reader.slot] = self._roams[reader.slot] = False
        reader.catching.clear()
        reader.unsent.clear()
        for group in reader.groups:
            ledger = self._ledger(group)
            for pubend in group:
                for books in (ledger.acked, ledger.handed, ledger.reached):
                    books[pubend][reader.slot] = TICK_MIN
                self._roamed.pop(pubend, None)
        return self._look_soon(is_certain=reader.roams)

    def positions(self, reader: Reader) -> dict[PubendId, Tick]:
        """Per pubend the tick below which the subscriber needs nothing any more."""
        return {
            pubend: int(self._ledger(group).acked[pubend][reader.slot])
            for group in reader.groups
            for pubend in group
            if self._ledger(group).acked[pubend][reader.slot] > TICK_MIN
        }

    # What goes out.

    def deliver(self, effect: Deliver) -> Iterator[DeliveryEffect]:
        """Hand out the rows of one delivery.

        What is asked for is to be done before the next is asked for: thousands of readers may share one
        connection, and it has to be seen when it has no room for more.
        """
        parcel = Parcel(effect)
        self.rows += len(effect.rows)
        if effect.laggard:
            yield from self._hand_laggard(effect, parcel)
        elif effect.source is None and len(effect.rows) == 1:
            yield from self._deliver_one(effect, parcel)
        else:
            yield from self._deliver_many(effect, parcel)

    def _deliver_many(self, effect: Deliver, parcel: Parcel) -> Iterator[DeliveryEffect]:
        slots, starts, rows = _by_slot(effect)
        held = self._guaranteed[slots].any()
        if held:
            ledger = self._ledger(effect.pubends)
            self._book(ledger, effect, slots, starts, rows)
            ledger.waiting.append((effect.serial, int(effect.batch.ticks[effect.rows].max()) + 1))
        readers = self._readers
        single: list[tuple[Reader, int]] = []
        together_max = _together_max(effect)
        slow: list[Reader] = []
        firsts = starts.tolist()
        places = rows[starts].tolist()
        for slot, place, start, stop in zip(
            slots.tolist(), places, firsts, [*firsts[1:], len(rows)], strict=True
        ):
            reader = readers.get(slot)
            if reader is None:
                continue
            outlet = reader.outlet
            if (
                stop - start == 1
                and outlet is not None
                and reader.credit
                and not (reader.leaving or reader.slowing or reader.unsent or outlet.is_congested)
            ):
                # Of thousands of subscribers most get one row: the shortest way for them.
                reader.credit -= 1
                single.append((reader, place))
                if len(single) == together_max:
                    yield SendRow(parcel=parcel, to=single)
                    single = []
            elif self._may_send(reader, stop - start, effect.pubends):
                reader.credit -= stop - start
                yield SendRows(parcel=parcel, reader=reader, rows=rows[start:stop])
            else:
                self._miss(reader, effect, rows[start:stop])
                if self._is_slowed(reader):
                    slow.append(reader)
        if single:
            yield SendRow(parcel=parcel, to=single)
        if not held:
            yield TellBroker(event=DeliveryTaken(serial=effect.serial))
        for reader in slow:
            yield from self._report_slow_soon(reader)
        if held and len(self._ledger(effect.pubends).waiting) > self._waiting_max:
            yield from self._relieve(self._ledger(effect.pubends))

    def _deliver_one(self, effect: Deliver, parcel: Parcel) -> list[DeliveryEffect]:
        """Hand one row to one subscriber: what `deliver` does, without arrays for it."""
        slot, row = int(effect.slots[0]), int(effect.rows[0])
        held = bool(self._guaranteed[slot])
        if held:
            ledger = self._ledger(effect.pubends)
            stop = int(effect.batch.ticks[row]) + 1
            ledger.handed[effect.pubends[0]][slot] = stop
            ledger.waiting.append((effect.serial, stop))
        effects: list[DeliveryEffect] = []
        reader = self._readers.get(slot)
        is_slow = False
        if reader is not None:
            if self._may_send(reader, 1, effect.pubends):
                reader.credit -= 1
                effects.append(SendRow(parcel=parcel, to=[(reader, row)]))
            else:
                self._miss(reader, effect, effect.rows)
                is_slow = self._is_slowed(reader)
        if not held:
            effects.append(TellBroker(event=DeliveryTaken(serial=effect.serial)))
        if is_slow and reader is not None:
            effects += self._report_slow_soon(reader)
        if held and len(ledger.waiting) > self._waiting_max:
            effects += self._relieve(ledger)
        return effects

    def _book(
        self, ledger: DeliveryLedger, effect: Deliver, slots: Positions, starts: Positions, rows: Positions
    ) -> None:
        """Write down up to where each guaranteed slot was handed something. Rows ascend within a slot."""
        keep = self._guaranteed[slots]
        if effect.source is None:
            ends = np.append(starts[1:], len(rows)) - 1
            stops = effect.batch.ticks[rows[ends]] + 1
            ledger.handed[effect.pubends[0]][slots[keep]] = stops[keep]
            return
        counts = np.diff(np.append(starts, len(rows)))
        owner, source = np.repeat(slots, counts), effect.source[rows]
        wanted = self._guaranteed[owner]
        for at, pubend in enumerate(effect.pubends):
            mine = wanted & (source == at)
            np.maximum.at(ledger.handed[pubend], owner[mine], effect.batch.ticks[rows[mine]] + 1)

    def _may_send(self, reader: Reader, rows: int, pubends: tuple[PubendId, ...]) -> bool:
        """Whether a subscriber can take so many rows of a live delivery.

        Not one that could not take some before, which it is to get again, with these; and not one that was
        handed earlier rows of these pubends as a laggard, which wait here: it would take them for repeats.
        """
        outlet = reader.outlet
        if reader.leaving or reader.slowing or outlet is None or reader.credit < rows:
            return False
        if any(pubend in held.stops for held in reader.unsent for pubend in pubends):
            return False
        return not (outlet.is_congested and outlet.is_flooded)

    def _is_slowed(self, reader: Reader) -> bool:
        """Whether somebody who could not take a delivery has to be reported for it."""
        return reader.guaranteed and not (reader.leaving or reader.slowing)

    def _miss(self, reader: Reader, effect: Deliver, rows: Positions) -> None:
        """These rows were booked as handed out, and are not sent: nobody can acknowledge them yet."""
        if not self._guaranteed[reader.slot]:
            return
        for pubend, (first, _) in extents_of(effect, rows).items():
            reader.missed.setdefault(pubend, first)

    def _sent(self, reader: Reader, ledger: DeliveryLedger, pubend: PubendId) -> Tick:
        """One past the last tick that the client was sent, or is known to have."""
        handed = min(ledger.handed[pubend][reader.slot], reader.missed.get(pubend, TICK_MAX))
        return int(max(handed, ledger.reached[pubend][reader.slot]))

    def _hand_laggard(self, effect: Deliver, parcel: Parcel) -> list[DeliveryEffect]:
        slot, rows = int(effect.slots[0]), effect.rows
        reader = self._readers.get(slot)
        if reader is None:
            return [TellBroker(event=DeliveryTaken(serial=effect.serial))]
        # One client may have thousands that do not take what they are handed: nothing is held for each row.
        parcel.delivery = replace(effect, rows=_NONE, slots=_NONE)
        held = Held(effect.serial, stops_of(effect, rows), (parcel, RowSet.of(rows, len(effect.batch))))
        before = reader.catching.setdefault(effect.pubends, deque())
        if before and effect.batch.ticks[rows[0]] < max(before[-1].stops.values()):
            # It was handed out before the broker knew that the reader is slow, and all of it comes again.
            for each in before:
                each.unsent = None
            before.clear()
        before.append(held)
        reader.unsent.append(held)
        effects = self._send_unsent(reader)
        acked = self._ledger(effect.pubends).acked
        if all(acked[each][slot] >= stop for each, stop in before[0].stops.items()):
            # It acknowledged them while it was being reported slow, and will not do so again. The broker
            # hands out more as soon as it hears of it, so it hears of it in a later turn.
            effects += self._soon(_Work.REPORT_TAKEN, reader)
        return effects

    def _send_unsent(self, reader: Reader) -> list[DeliveryEffect]:
        """Send a laggard as much as it has credit for, and let go of what is sent.

        Not while its connection holds much that was not read: encoding more is work for nothing then.
        """
        effects: list[DeliveryEffect] = []
        while reader.unsent and reader.outlet is not None:
            held = reader.unsent[0]
            if held.unsent is not None:
                if reader.outlet.is_congested:
                    self._congested.setdefault(reader.outlet, {})[reader] = None
                    return effects
                if reader.credit > 0:
                    parcel, unsent = held.unsent
                    rows = unsent.positions()
                    now, later = rows[: reader.credit], rows[reader.credit :]
                    reader.credit -= len(now)
                    effects.append(SendRows(parcel=parcel, reader=reader, rows=now))
                    self.reached(reader, stops_of(parcel.delivery, now) if len(later) else held.stops)
                    held.unsent = (parcel, unsent.without(now)) if len(later) else None
            if held.unsent is not None:
                return effects
            del reader.unsent[0]
            if not reader.asking:
                # When the connection has seen what was sent: it tells only then whether it has room.
                reader.asking = True
                effects += self._soon(_Work.ASK, reader)
        return effects

    def _ask(self, reader: Reader) -> list[DeliveryEffect]:
        """Ask the broker for more if the laggard was sent all that it was handed, and its client reads."""
        reader.asking = False
        outlet = reader.outlet
        if reader.unsent or outlet is None or not outlet.is_open:
            return []
        if outlet.is_congested:
            self._congested.setdefault(outlet, {})[reader] = None
            return []
        if self._readers.get(reader.slot) is not reader:
            return []
        if reader.guaranteed:
            return [TellBroker(event=SubscriberReady(subscription=reader.subscription))]
        done = [held.serial for queue in reader.catching.values() for held in queue]
        reader.catching.clear()
        return _taken(done)

    def drained(self, outlet: Outlet) -> list[DeliveryEffect]:
        """What was sent has left, or is lost with the connection."""
        effects: list[DeliveryEffect] = []
        for reader in self._congested.pop(outlet, {}):
            # One client may have thousands of them.
            effects += self._soon(_Work.GO_ON, reader)
        return effects

    def horizon(
        self, pubend: PubendId, before: Tick, lagging: Collection[SubscriptionId]
    ) -> list[DeliveryEffect]:
        """All readers of a pubend but these were handed everything below a tick: tell those who roam.

        Not those who could not be sent all of it, and not those who know it from what they acknowledged.
        """
        effects: list[DeliveryEffect] = []
        for group, ledger in self._ledgers.items():
            acked = ledger.acked.get(pubend)
            if acked is None:
                continue
            roaming = self._roaming(acked)
            for slot in roaming[acked[roaming] < before].tolist():
                reader = self._readers[slot]
                if group in reader.groups and reader.subscription not in lagging and self._is_level(reader):
                    self.reached(reader, {pubend: before})
                    if not reader.horizon:
                        effects += self._soon(_Work.TELL_HORIZON, reader)
                    reader.horizon[pubend] = before
        return effects

    def _is_level(self, reader: Reader) -> bool:
        """Whether a subscriber was sent all that it was handed."""
        if reader.leaving or reader.slowing or reader.catching:
            return False
        return reader.outlet is not None and not reader.outlet.is_congested

    # What comes back.

    def acknowledged(self, reader: Reader, positions: Mapping[PubendId, Tick]) -> list[DeliveryEffect]:
        """The client needs nothing below these ticks, of what it was sent; the rest of it is cut off."""
        slot = reader.slot
        for group in reader.groups:
            ledger = self._ledger(group)
            for pubend in group:
                tick = positions.get(pubend)
                if tick is not None and tick > ledger.acked[pubend][slot]:
                    sent = self._sent(reader, ledger, pubend)
                    ledger.acked[pubend][slot] = max(min(tick, sent), ledger.acked[pubend][slot])
        effects = self._caught_up(reader) if reader.catching else []
        return effects + self._look_soon(is_certain=reader.roams)

    def granted(self, reader: Reader, rows: int) -> list[DeliveryEffect]:
        """The client has room for more rows."""
        if reader.credit < UNBOUNDED:
            reader.credit += rows
        return self._send_unsent(reader)

    def _caught_up(self, reader: Reader) -> list[DeliveryEffect]:
        """Report what a laggard has acknowledged of what it was handed."""
        done: list[int] = []
        for group, queue in list(reader.catching.items()):
            acked = self._ledger(group).acked
            while queue and all(acked[each][reader.slot] >= stop for each, stop in queue[0].stops.items()):
                held = queue.popleft()
                held.unsent = None
                done.append(held.serial)
            if not queue:
                del reader.catching[group]
        return _taken(done)

    def _report_slow_soon(self, reader: Reader) -> list[DeliveryEffect]:
        """Send it nothing more from now on, and report it in a turn that has time for it.

        Until then it holds what it was handed out, so that the broker hears first that it is slow and then
        that all others have taken their part.
        """
        if reader.slowing or reader.leaving:
            return []
        reader.slowing = True
        return self._soon(_Work.REPORT_SLOW, reader)

    def _soon(self, work: _Work, reader: Reader) -> list[DeliveryEffect]:
        """Do something that costs a step of the broker, a little of that in each turn of the host."""
        self._later.append((work, reader))
        return [WorkLater()]

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._later)

    def work(self) -> list[DeliveryEffect]:
        """Do the next thing for some laggard."""
        work, reader = self._later.popleft()
        match work:
            case _Work.REPORT_SLOW:
                # Meanwhile it may have left, or been reported for another reason.
                is_due = reader.slowing and self._readers.get(reader.slot) is reader
                return self.report_slow(reader) if is_due else []
            case _Work.REPORT_TAKEN:
                return self._caught_up(reader)
            case _Work.ASK:
                return self._ask(reader)
            case _Work.GO_ON:
                return self._send_unsent(reader) if reader.unsent else self._ask(reader)
            case _Work.TELL_HORIZON:
                before, reader.horizon = reader.horizon, {}
                return [] if reader.outlet is None else [SendHorizon(reader=reader, before=before)]

    def report_slow(self, reader: Reader, *, away: bool = False) -> list[DeliveryEffect]:
        """The subscriber does not keep up: it goes on from what it acknowledged, and holds nothing back.

        One that is away gets nothing until this is called once more.
        """
        reader.slowing = False
        if reader.slot not in self._readers or (reader.leaving and away == reader.away):
            return []
        # Whoever comes back before the broker knows that it left is reported once more.
        reader.leaving += 1
        reader.away = away
        self._guaranteed[reader.slot] = False
        positions = self.positions(reader)
        self._clear(reader)
        slow = SubscriberSlow(subscription=reader.subscription, positions=positions, away=away)
        return [TellBroker(event=slow, reader=reader), *self._look_soon()]

    def told(self, reader: Reader) -> None:
        """The broker knows that it is slow: what it hands out from now on is for it again."""
        reader.leaving -= 1
        if not reader.leaving and self._readers.get(reader.slot) is reader:
            self._guaranteed[reader.slot] = reader.guaranteed

    def _clear(self, reader: Reader) -> None:
        for group in reader.groups:
            ledger = self._ledger(group)
            for pubend in group:
                ledger.reached[pubend][reader.slot] = self._sent(reader, ledger, pubend)
                ledger.handed[pubend][reader.slot] = ledger.acked[pubend][reader.slot]
        reader.missed.clear()
        # The broker drops these by itself: they are not taken, and must not pass for it.
        reader.catching.clear()
        reader.unsent.clear()

    def _look_soon(self, *, is_certain: bool = False) -> list[DeliveryEffect]:
        if self._looking or not (is_certain or any(ledger.waiting for ledger in self._ledgers.values())):
            return []
        self._looking = True
        return [LookLater()]

    def look(self) -> list[DeliveryEffect]:
        """Report what all have taken, and how far all have come who roam."""
        self._looking = False
        effects: list[DeliveryEffect] = []
        low: dict[PubendId, Tick] = {}
        roamers: Counter[PubendId] = Counter()
        for ledger in self._ledgers.values():
            water = ledger.low_water() if ledger.waiting else TICK_MIN
            done: list[int] = []
            while ledger.waiting and ledger.waiting[0][1] <= water:
                done.append(ledger.waiting.popleft()[0])
            effects += _taken(done)
            for pubend, acked in ledger.acked.items():
                roaming = self._roaming(acked)
                if len(roaming):
                    roamers[pubend] += len(roaming)
                    low[pubend] = min(low.get(pubend, TICK_MAX), int(acked[roaming].min()))
        for pubend, before in low.items():
            if before != self._roamed.get(pubend):
                self._roamed[pubend] = before
                reached = RoamersReached(pubend=pubend, before=before, roamers=roamers[pubend])
                effects.append(TellBroker(event=reached))
        return effects

    def _roaming(self, acked: TickArray) -> Positions:
        """The slots of those who roam and have begun on one pubend."""
        slots = np.flatnonzero(self._roams[: len(acked)])
        return slots[acked[slots] > TICK_MIN]

    def _relieve(self, ledger: DeliveryLedger) -> list[DeliveryEffect]:
        """Too many deliveries wait: those who hold the older half of them are slow."""
        below = ledger.waiting[len(ledger.waiting) // 2][1]
        effects: list[DeliveryEffect] = []
        for slot in ledger.holding(below):
            reader = self._readers.get(slot)
            if reader is not None:
                effects += self._report_slow_soon(reader)
        return effects

    def _ledger(self, group: tuple[PubendId, ...]) -> DeliveryLedger:
        found = self._ledgers.get(group)
        if found is None:
            found = self._ledgers[group] = DeliveryLedger(group)
        return found

    def check(self) -> None:
        """Raise if an invariant is broken."""
        for reader in self._readers.values():
            assert reader.credit >= 0, f"{reader.subscription} was sent more than it has credit for"
            for group in reader.groups:
                ledger = self._ledger(group)
                for pubend in group:
                    acked, slot = ledger.acked[pubend], reader.slot
                    most = max(ledger.handed[pubend][slot], ledger.reached[pubend][slot])
                    assert acked[slot] <= most, f"{reader.subscription} acknowledged beyond {most}"


def _taken(serials: list[int]) -> list[DeliveryEffect]:
    if not serials:
        return []
    return [TellBroker(event=DeliveryTaken(serial=serials[0], also=tuple(serials[1:])))]


def _by_slot(effect: Deliver) -> tuple[Positions, Positions, Positions]:
    """The slots of a delivery, where the rows of each begin, and the rows, which ascend within a slot."""
    slots = effect.slots
    if slots[0] == slots[-1] and (slots == slots[0]).all():
        return slots[:1], np.zeros(1, dtype=np.int64), effect.rows
    alike = max(1, int(np.searchsorted(effect.rows, effect.rows[0], side="right")))
    if len(slots) % alike == 0:
        by_row, wanted = slots.reshape(-1, alike), effect.rows.reshape(-1, alike)
        if (by_row == by_row[0]).all() and (wanted == wanted[:, :1]).all():
            # All get the same rows, as those do who want everything: there is nothing to sort.
            return by_row[0], np.arange(alike) * len(wanted), np.tile(wanted[:, 0], alike)
    order = np.argsort(slots, kind="stable")
    unique, starts = np.unique(slots[order], return_index=True)
    return unique, starts, effect.rows[order]


def _together_max(effect: Deliver) -> int:
    """How many single rows of a delivery are sent at once."""
    row_bytes = effect.batch.nbytes // len(effect.batch) + 1
    return max(1, min(_TOGETHER_MAX, _TOGETHER_BYTES_MAX // row_bytes))


def extents_of(effect: Deliver, rows: Positions) -> dict[PubendId, tuple[Tick, Tick]]:
    """Per pubend the first tick of some rows, which ascend, and one past the last."""
    ticks = effect.batch.ticks
    if effect.source is None:
        return {effect.pubends[0]: (int(ticks[rows[0]]), int(ticks[rows[-1]]) + 1)}
    extents: dict[PubendId, tuple[Tick, Tick]] = {}
    sources = effect.source[rows]
    for at in np.unique(sources).tolist():
        mine = rows[np.flatnonzero(sources == at)]
        extents[effect.pubends[at]] = int(ticks[mine[0]]), int(ticks[mine[-1]]) + 1
    return extents


def stops_of(effect: Deliver, rows: Positions) -> dict[PubendId, Tick]:
    """Per pubend one past the last tick of some rows, which ascend."""
    return {pubend: stop for pubend, (_, stop) in extents_of(effect, rows).items()}
