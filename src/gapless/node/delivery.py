"""How do rows reach subscribers, and when are they taken? One pass over a delivery, arrays for the rest.

A delivery is for many subscribers; each row of it is written once, whoever gets it. The broker wants to hear
when all of them have taken it. A guaranteed subscriber has taken what its client acknowledged, not what was
written to a socket: only then may the broker let go of it. Clients acknowledge seldom, with a position, so
the books are three numbers per subscriber and pubend: below which tick everything was acknowledged, up to
which something was handed out, and up to which something was handed out before that was taken back. Nobody
can acknowledge more than it was handed. The lowest acknowledged position of those that owe something is the
*low water*: what was handed out below it is taken by all. It is looked for now and then, with one pass over
two arrays, so the books cost the same for one subscriber and for sixteen thousand.

A subscriber that has no credit left, does not read, or holds the low water back for too long is reported
slow: the deliveries that it held are free for everybody else, and the broker catches it up later, from what
it acknowledged last. More is asked of the broker for such a laggard when what it was handed has been sent,
and has left this process: how fast it reads decides how fast it is served, not how often it acknowledges.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gapless.content.rows import Positions
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickArray
from gapless.node.connection import Connection
from gapless.node.guard import Guard
from gapless.node.turn import NextTurn
from gapless.protocol.effects import Deliver
from gapless.protocol.events import DeliveryTaken, Event, SubscriberReady, SubscriberSlow
from gapless.wire.delivery import COLUMNS_ROWS_MIN, SharedColumns, SharedRows
from gapless.wire.rows import RowFormat

#: A connection with so many unsent bytes does not read.
BACKLOG_BYTES_MAX = 4 * 2**20
#: The low water is looked for so long after an acknowledgement: together with others that come meanwhile.
LOW_WATER_SECONDS = 0.05
#: Laggards get so much of each turn of the loop, and the end of the step that was begun.
TURN_SECONDS = 0.002
#: A batch up to this size stays encoded until the next one.
KEPT_BYTES_MAX = 1 * 2**20
#: A subscription without a bound of its own.
UNBOUNDED = 2**62


class Feed(Protocol):
    """How events reach the broker."""

    def __call__(self, event: Event, then: Callable[[], None] | None = None) -> None:
        """Let the broker take a step, now or after the present one, and call `then` after it."""


@dataclass(slots=True, eq=False)
class Reader:
    """Who gets the rows of one slot."""

    subscription: SubscriptionId
    topic: TopicId
    #: The number by which its client knows the subscription.
    number: int
    slot: int
    guaranteed: bool
    #: None when the client is gone and the subscription is kept for it.
    connection: Connection | None
    #: The pubends of each ledger that it is in: all at once in total order, one at a time otherwise.
    groups: tuple[tuple[PubendId, ...], ...]
    #: How many more rows it may be sent.
    credit: int = UNBOUNDED
    #: As a laggard: what was handed to it and not acknowledged, by ledger, in order.
    catching: dict[tuple[PubendId, ...], deque[_Held]] = field(default_factory=dict)
    #: Those of them that were not sent, or not wholly, for want of credit. Few, and an empty list is small.
    unsent: list[_Held] = field(default_factory=list)
    #: More is to be asked for, when what was sent has left.
    asking: bool = False
    #: It is going to be reported slow, and gets nothing until then.
    slowing: bool = False
    #: It is being reported slow: what was handed out before the broker knows is not for it.
    leaving: bool = False


@dataclass(slots=True)
class _Held:
    """One delivery to a laggard."""

    serial: int
    #: Per pubend one past the last tick.
    stops: Mapping[PubendId, Tick]
    #: What to send of it; None when all of it is sent, or need not be any more.
    unsent: tuple[_Writer, Positions] | None


class _Ledger:
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


class Delivery:
    """The deliveries of one edge."""

    def __init__(
        self,
        forms: Mapping[TopicId, RowFormat],
        sources: Mapping[PubendId, int],
        feed: Feed,
        waiting_max: int,
        guard: Guard | None = None,
    ) -> None:
        """`waiting_max` is how many deliveries the broker hands out before it waits for one to be taken.

        `guard` hears of mistakes of our own.
        """
        self._look_later = self._look if guard is None else guard.call(self._look)
        self._forms = forms
        self._sources = sources
        self._feed = feed
        self._waiting_max = waiting_max // 2
        self._loop = asyncio.get_running_loop()
        self._readers: dict[int, Reader] = {}
        self._ledgers: dict[tuple[PubendId, ...], _Ledger] = {}
        #: Whether the reader of a slot acknowledges what it gets.
        self._guaranteed: npt.NDArray[np.bool_] = np.zeros(64, dtype=np.bool_)
        self._looking: asyncio.TimerHandle | None = None
        #: What is to be done for laggards, in order, when there is time.
        self._later: deque[Callable[[], None]] = deque()
        self._next_turn = NextTurn(self._go_on, guard)
        #: The laggards that get more when their connection has sent what it holds.
        self._congested: dict[Connection, dict[Reader, None]] = {}
        self._last_whole = _LastWhole()
        #: Rows that were handed to connections, counted once for each.
        self.rows = 0

    # Who is there.

    def enter(self, reader: Reader, starts: Mapping[PubendId, Tick]) -> None:
        """A subscription is confirmed by some pubends, from these ticks on."""
        slot = reader.slot
        self._readers[slot] = reader
        if slot >= len(self._guaranteed):
            grown = np.zeros(2 * (slot + 1), dtype=np.bool_)
            grown[: len(self._guaranteed)] = self._guaranteed
            self._guaranteed = grown
        self._guaranteed[slot] = reader.guaranteed
        for group in reader.groups:
            ledger = self._ledger(group)
            ledger.grow(slot + 1)
            for pubend in group:
                if pubend in starts:
                    for books in (ledger.acked, ledger.handed, ledger.reached):
                        books[pubend][slot] = starts[pubend]

    def reached(self, reader: Reader, positions: Mapping[PubendId, Tick]) -> None:
        """The client has everything below these ticks, as a laggard or from elsewhere."""
        for group in reader.groups:
            books = self._ledger(group).reached
            for pubend in group:
                tick = positions.get(pubend)
                if tick is not None and tick > books[pubend][reader.slot]:
                    books[pubend][reader.slot] = tick

    def leave(self, reader: Reader) -> None:
        """A subscription has ended: nothing is owed to it."""
        if self._readers.pop(reader.slot, None) is not None:
            # The broker may not know yet, and still hand out to its slot.
            self._guaranteed[reader.slot] = False
            self._clear(reader)
            self._look_soon()

    def positions(self, reader: Reader) -> dict[PubendId, Tick]:
        """Per pubend the tick below which the subscriber needs nothing any more."""
        return {
            pubend: int(self._ledger(group).acked[pubend][reader.slot])
            for group in reader.groups
            for pubend in group
            if self._ledger(group).acked[pubend][reader.slot] > TICK_MIN
        }

    def owes(self, reader: Reader) -> bool:
        """Whether it was handed something that it has not acknowledged."""
        return bool(reader.catching) or any(
            ledger.handed[pubend][reader.slot] > ledger.acked[pubend][reader.slot]
            for group in reader.groups
            for ledger in (self._ledger(group),)
            for pubend in group
        )

    # What goes out.

    def deliver(self, effect: Deliver) -> None:
        """Hand out the rows of one delivery."""
        writer = _Writer(self._forms, effect, self._sources, self._last_whole)
        self.rows += len(effect.rows)
        if effect.source is None and not effect.laggard and len(effect.rows) == 1:
            self._deliver_one(effect, writer)
            return
        slots, starts, rows = _by_slot(effect)
        if effect.laggard:
            self._hand_laggard(effect, int(slots[0]), rows, writer)
            return
        held = self._guaranteed[slots].any()
        if held:
            ledger = self._ledger(effect.pubends)
            self._book(ledger, effect, slots, starts, rows)
            ledger.waiting.append((effect.serial, int(effect.batch.ticks[effect.rows].max()) + 1))
        readers = self._readers
        slow: list[Reader] = []
        firsts = starts.tolist()
        places = rows[starts].tolist()
        for slot, place, start, stop in zip(
            slots.tolist(), places, firsts, [*firsts[1:], len(rows)], strict=True
        ):
            reader = readers.get(slot)
            if reader is None:
                continue
            connection = reader.connection
            if (
                stop - start == 1
                and connection is not None
                and reader.credit
                and not (reader.leaving or reader.slowing or connection.is_congested)
            ):
                # Of thousands of subscribers most get one row: the shortest way for them.
                reader.credit -= 1
                connection.send_one(writer.rows(reader.topic).one(reader.number, place))
            elif not self._send(reader, rows[start:stop], writer):
                slow.append(reader)
        if not held:
            self._feed(DeliveryTaken(serial=effect.serial))
        for reader in slow:
            self._report_slow_soon(reader)
        if held and len(self._ledger(effect.pubends).waiting) > self._waiting_max:
            self._relieve(self._ledger(effect.pubends))

    def _deliver_one(self, effect: Deliver, writer: _Writer) -> None:
        """Hand one row to one subscriber: what `deliver` does, without arrays for it."""
        slot, row = int(effect.slots[0]), int(effect.rows[0])
        held = bool(self._guaranteed[slot])
        if held:
            ledger = self._ledger(effect.pubends)
            stop = int(effect.batch.ticks[row]) + 1
            ledger.handed[effect.pubends[0]][slot] = stop
            ledger.waiting.append((effect.serial, stop))
        reader = self._readers.get(slot)
        could = reader is None or self._send(reader, effect.rows, writer)
        if not held:
            self._feed(DeliveryTaken(serial=effect.serial))
        if not could:
            assert reader is not None
            self._report_slow_soon(reader)
        if held and len(ledger.waiting) > self._waiting_max:
            self._relieve(ledger)

    def _book(
        self, ledger: _Ledger, effect: Deliver, slots: Positions, starts: Positions, rows: Positions
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

    def _send(self, reader: Reader, rows: Positions, writer: _Writer) -> bool:
        """Send a subscriber its rows of a live delivery; says whether it could take them.

        Not to one that could not take some before, which it is to get again, with these.
        """
        connection = reader.connection
        if reader.leaving or reader.slowing:
            return True
        if connection is None or reader.credit < len(rows):
            return not reader.guaranteed
        if connection.is_congested and connection.backlog_bytes > BACKLOG_BYTES_MAX:
            return not reader.guaranteed
        reader.credit -= len(rows)
        writer.write(connection, reader.number, reader.topic, rows)
        return True

    def _hand_laggard(self, effect: Deliver, slot: int, rows: Positions, writer: _Writer) -> None:
        reader = self._readers.get(slot)
        if reader is None:
            self._feed(DeliveryTaken(serial=effect.serial))
            return
        held = _Held(effect.serial, _stops(effect, rows), (writer, rows))
        before = reader.catching.setdefault(effect.pubends, deque())
        if before and effect.batch.ticks[rows[0]] < max(before[-1].stops.values()):
            # It was handed out before the broker knew that the reader is slow, and all of it comes again.
            for each in before:
                each.unsent = None
            before.clear()
        before.append(held)
        reader.unsent.append(held)
        self._send_unsent(reader)
        acked = self._ledger(effect.pubends).acked
        if all(acked[each][slot] >= stop for each, stop in before[0].stops.items()):
            # It acknowledged them while it was being reported slow, and will not do so again. The broker
            # hands out more as soon as it hears of it, so it hears of it in a later turn.
            self._soon(partial(self._caught_up, reader))

    def _send_unsent(self, reader: Reader) -> None:
        """Send a laggard as much as it has credit for, and let go of what is sent.

        Not while its connection holds much that was not read: encoding more is work for nothing then.
        """
        while reader.unsent and reader.connection is not None:
            held = reader.unsent[0]
            if held.unsent is not None:
                if reader.connection.is_congested:
                    self._congested.setdefault(reader.connection, {})[reader] = None
                    return
                writer, rows = held.unsent
                now, later = rows[: max(reader.credit, 0)], rows[max(reader.credit, 0) :]
                if len(now):
                    reader.credit -= len(now)
                    writer.write(reader.connection, reader.number, reader.topic, now)
                    self.reached(reader, writer.stops(now) if len(later) else held.stops)
                held.unsent = (writer, later) if len(later) else None
            if held.unsent is not None:
                return
            del reader.unsent[0]
            self._ask_soon(reader)

    def _ask_soon(self, reader: Reader) -> None:
        """Ask for more when the connection has seen what was sent: it tells only then whether it has room."""
        if not reader.asking:
            reader.asking = True
            self._soon(partial(self._ask, reader))

    def _ask(self, reader: Reader) -> None:
        """Ask the broker for more if the laggard was sent all that it was handed, and its client reads."""
        reader.asking = False
        connection = reader.connection
        if reader.unsent or connection is None or not connection.is_open:
            return
        if connection.is_congested:
            self._congested.setdefault(connection, {})[reader] = None
        elif self._readers.get(reader.slot) is not reader:
            return
        elif reader.guaranteed:
            self._feed(SubscriberReady(subscription=reader.subscription))
        else:
            self._report_taken([held.serial for queue in reader.catching.values() for held in queue])
            reader.catching.clear()

    def drained(self, connection: Connection) -> None:
        """What was sent has left, or is lost with the connection."""
        for reader in self._congested.pop(connection, {}):
            # One client may have thousands of them.
            self._soon(partial(self._drained, reader))

    def _drained(self, reader: Reader) -> None:
        if reader.unsent:
            self._send_unsent(reader)
        else:
            self._ask(reader)

    # What comes back.

    def acknowledged(self, reader: Reader, positions: Mapping[PubendId, Tick]) -> None:
        """The client needs nothing below these ticks, of what it was handed; the rest of it is cut off."""
        slot = reader.slot
        for group in reader.groups:
            ledger = self._ledger(group)
            for pubend in group:
                tick = positions.get(pubend)
                if tick is not None and tick > ledger.acked[pubend][slot]:
                    handed = max(ledger.handed[pubend][slot], ledger.reached[pubend][slot])
                    ledger.acked[pubend][slot] = min(tick, handed)
        if reader.catching:
            self._caught_up(reader)
        self._look_soon()

    def granted(self, reader: Reader, rows: int) -> None:
        """The client has room for more rows."""
        if reader.credit < UNBOUNDED:
            reader.credit += rows
        self._send_unsent(reader)

    def _caught_up(self, reader: Reader) -> None:
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
        self._report_taken(done)

    def _report_taken(self, serials: list[int]) -> None:
        if serials:
            self._feed(DeliveryTaken(serial=serials[0], also=tuple(serials[1:])))

    def _report_slow_soon(self, reader: Reader) -> None:
        """Send it nothing more from now on, and report it in a turn that has time for it.

        Until then it holds what it was handed out, so that the broker hears first that it is slow and then
        that all others have taken their part.
        """
        if not (reader.slowing or reader.leaving):
            reader.slowing = True
            self._soon(partial(self._report_slow_now, reader))

    def _report_slow_now(self, reader: Reader) -> None:
        # Meanwhile it may have left, or been reported for another reason.
        if reader.slowing and self._readers.get(reader.slot) is reader:
            self.report_slow(reader)

    def _soon(self, work: Callable[[], None]) -> None:
        """Do something that costs a step of the broker, a little of that in each turn of the loop."""
        self._later.append(work)
        self._next_turn.ask()

    def _go_on(self) -> None:
        until = perf_counter() + TURN_SECONDS
        try:
            while self._later and perf_counter() < until:
                self._later.popleft()()
        finally:
            if self._later:
                self._next_turn.ask()

    def report_slow(self, reader: Reader, *, away: bool = False) -> None:
        """The subscriber does not keep up: it goes on from what it acknowledged, and holds nothing back.

        One that is away gets nothing until this is called once more.
        """
        reader.slowing = False
        if reader.leaving or reader.slot not in self._readers:
            return
        reader.leaving = True
        self._guaranteed[reader.slot] = False
        positions = self.positions(reader)
        self._clear(reader)

        def known() -> None:
            reader.leaving = False
            if self._readers.get(reader.slot) is reader:
                self._guaranteed[reader.slot] = reader.guaranteed

        self._feed(SubscriberSlow(subscription=reader.subscription, positions=positions, away=away), known)
        self._look_soon()

    def _clear(self, reader: Reader) -> None:
        for group in reader.groups:
            ledger = self._ledger(group)
            for pubend in group:
                handed, reached = ledger.handed[pubend], ledger.reached[pubend]
                reached[reader.slot] = max(handed[reader.slot], reached[reader.slot])
                handed[reader.slot] = ledger.acked[pubend][reader.slot]
        # The broker drops these by itself: they are not taken, and must not pass for it.
        reader.catching.clear()
        reader.unsent.clear()

    def _look_soon(self) -> None:
        if self._looking is None and any(ledger.waiting for ledger in self._ledgers.values()):
            self._looking = self._loop.call_later(LOW_WATER_SECONDS, self._look_later)

    def _look(self) -> None:
        """Report what all have taken."""
        self._looking = None
        for ledger in self._ledgers.values():
            low = ledger.low_water() if ledger.waiting else TICK_MIN
            done: list[int] = []
            while ledger.waiting and ledger.waiting[0][1] <= low:
                done.append(ledger.waiting.popleft()[0])
            self._report_taken(done)

    def _relieve(self, ledger: _Ledger) -> None:
        """Too many deliveries wait: those who hold the older half of them are slow."""
        below = ledger.waiting[len(ledger.waiting) // 2][1]
        for slot in ledger.holding(below):
            reader = self._readers.get(slot)
            if reader is not None:
                self._report_slow_soon(reader)

    def _ledger(self, group: tuple[PubendId, ...]) -> _Ledger:
        found = self._ledgers.get(group)
        if found is None:
            found = self._ledgers[group] = _Ledger(group)
        return found


class _LastWhole:
    """The last batch that a laggard got, encoded: those who fell behind together get the same."""

    __slots__ = ("_batch", "_columns")

    def __init__(self) -> None:
        self._batch: EventBatch | None = None
        self._columns: SharedColumns | None = None

    def of(self, effect: Deliver, numbers: list[int]) -> SharedColumns:
        """The whole batch of a delivery."""
        if effect.source is None and effect.batch is self._batch:
            assert self._columns is not None
            return self._columns
        columns = SharedColumns(effect.batch, numbers, effect.source)
        if effect.laggard and effect.source is None and effect.batch.nbytes <= KEPT_BYTES_MAX:
            self._batch, self._columns = effect.batch, columns
        return columns


class _Writer:
    """The rows of one delivery, encoded when first needed."""

    __slots__ = ("_columns", "_effect", "_forms", "_last", "_numbers", "_rows")

    def __init__(
        self,
        forms: Mapping[TopicId, RowFormat],
        effect: Deliver,
        sources: Mapping[PubendId, int],
        last: _LastWhole,
    ) -> None:
        self._last = last
        self._forms = forms
        self._effect = effect
        self._numbers = [sources[pubend] for pubend in effect.pubends]
        self._rows: SharedRows | None = None
        self._columns: SharedColumns | None = None

    def rows(self, topic: TopicId) -> SharedRows:
        """The rows, each by itself."""
        if self._rows is None:
            effect = self._effect
            self._rows = SharedRows(
                self._forms[topic], effect.batch, effect.rows, self._numbers, effect.source
            )
        return self._rows

    def stops(self, rows: Positions) -> dict[PubendId, Tick]:
        """Per pubend one past the last tick of some rows, which ascend."""
        return _stops(self._effect, rows)

    def write(self, connection: Connection, number: int, topic: TopicId, rows: Positions) -> None:
        """Send some rows, which ascend, to one subscription."""
        effect = self._effect
        if len(rows) == 1:
            connection.send_one(self.rows(topic).one(number, int(rows[0])))
        elif len(rows) < COLUMNS_ROWS_MIN:
            connection.send(self.rows(topic).few(number, rows.tolist()))
        elif len(rows) == len(effect.batch):
            if self._columns is None:
                self._columns = self._last.of(effect, self._numbers)
            connection.send(self._columns.frame([(number, None)]))
        else:
            source = None if effect.source is None else effect.source[rows]
            columns: Any = effect.batch.columns.take(rows)
            part = SharedColumns(EventBatch(effect.batch.ticks[rows], columns), self._numbers, source)
            connection.send(part.frame([(number, None)]))


def _by_slot(effect: Deliver) -> tuple[Positions, Positions, Positions]:
    """The slots of a delivery, where the rows of each begin, and the rows, which ascend within a slot."""
    slots = effect.slots
    if slots[0] == slots[-1] and (slots == slots[0]).all():
        return slots[:1], np.zeros(1, dtype=np.int64), effect.rows
    order = np.argsort(slots, kind="stable")
    unique, starts = np.unique(slots[order], return_index=True)
    return unique, starts, effect.rows[order]


def _stops(effect: Deliver, rows: Positions) -> dict[PubendId, Tick]:
    """Per pubend one past the last tick of some rows, which ascend."""
    if effect.source is None:
        return {effect.pubends[0]: int(effect.batch.ticks[rows[-1]]) + 1}
    stops: dict[PubendId, Tick] = {}
    sources = effect.source[rows]
    for at in np.unique(sources).tolist():
        last = rows[np.flatnonzero(sources == at)[-1]]
        stops[effect.pubends[at]] = int(effect.batch.ticks[last]) + 1
    return stops
