"""Who has taken what, and who gets more: laggards, their acknowledgements and their connections."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.schema import Schema
from gapless.node import delivery as delivering
from gapless.node.connection import Connection
from gapless.node.delivery import Delivery
from gapless.protocol.effects import Deliver
from gapless.protocol.events import DeliveryTaken, Event, SubscriberReady, SubscriberSlow
from gapless.protocol.sessions.readers import Reader
from gapless.wire.delivery import SharedColumns
from gapless.wire.frames import FROM_CLIENT
from gapless.wire.rows import RowFormat

PUBEND = PubendId("p")
TOPIC = TopicId("trades")


def test_a_laggard_need_not_acknowledge_again_what_it_is_sent_again() -> None:
    """It acknowledged while it was being reported slow: what comes is old news, and its client is silent."""
    fed: list[Event] = []

    def feed(event: Event, then: Callable[[], None] | None = None) -> None:
        fed.append(event)
        if then is not None:
            then()

    async def story() -> None:
        form = RowFormat(Schema.parse(TOPIC, {"price": "int"}))
        delivery = Delivery({TOPIC: form}, {PUBEND: 0}, feed, waiting_max=16)
        connection = Connection(FROM_CLIENT, lambda _: None)  # type: ignore[arg-type, return-value]
        reader = Reader(SubscriptionId("alice"), TOPIC, 1, 0, True, connection, ((PUBEND,),))
        delivery.session.enter(reader, {PUBEND: 10})
        delivery.deliver(replace(_laggard(serial=6, ticks=[10, 20, 29]), laggard=False))
        delivery.perform(delivery.session.report_slow(reader))
        delivery.perform(delivery.session.acknowledged(reader, {PUBEND: 30}))
        delivery.deliver(_laggard(serial=7, ticks=[10, 20]))
        assert DeliveryTaken(serial=7) not in fed, "a reader that is far behind would take the whole turn"
        await _a_turn()
        assert fed[-1] == DeliveryTaken(serial=7)
        delivery.deliver(_laggard(serial=8, ticks=[29, 30]))
        await _a_turn()
        assert fed[-1] == DeliveryTaken(serial=7)
        delivery.perform(delivery.session.acknowledged(reader, {PUBEND: 31}))
        assert fed[-1] == DeliveryTaken(serial=8)

    asyncio.run(story())


def test_what_an_acknowledgement_brings_about_is_not_taken_by_it() -> None:
    """One acknowledgement frees two deliveries, and the broker answers at once with the next ones."""
    taken: list[int] = []
    next_ones = {1: ("p", 3), 2: ("q", 4)}

    def feed(event: Event, then: Callable[[], None] | None = None) -> None:
        assert isinstance(event, DeliveryTaken)
        assert then is None
        taken.extend((event.serial, *event.also))
        for each in (event.serial, *event.also):
            if each in next_ones:
                pubend, serial = next_ones.pop(each)
                delivery.deliver(_laggard(serial, [40], PubendId(pubend)))

    async def story() -> None:
        nonlocal delivery
        form = RowFormat(Schema.parse(TOPIC, {"price": "int"}))
        other = PubendId("q")
        delivery = Delivery({TOPIC: form}, {PUBEND: 0, other: 1}, feed, waiting_max=16)
        connection = Connection(FROM_CLIENT, lambda _: None)  # type: ignore[arg-type, return-value]
        reader = Reader(SubscriptionId("alice"), TOPIC, 1, 0, True, connection, ((PUBEND,), (other,)))
        delivery.session.enter(reader, {PUBEND: 5, other: 5})
        delivery.deliver(_laggard(1, [10]))
        delivery.deliver(_laggard(2, [10], other))
        delivery.perform(delivery.session.acknowledged(reader, {PUBEND: 11, other: 11}))
        assert taken == [1, 2]
        delivery.perform(delivery.session.acknowledged(reader, {PUBEND: 41, other: 41}))
        assert taken == [1, 2, 3, 4]

    delivery: Delivery
    asyncio.run(story())


async def _a_turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class _Line(Connection):
    """A connection that keeps what is sent, and is congested when it is told so."""

    def __init__(self) -> None:
        super().__init__(FROM_CLIENT, lambda _: None)  # type: ignore[arg-type, return-value]
        self.sent = 0

    @property
    def is_open(self) -> bool:
        return True

    def send(self, parts: object) -> None:
        self.sent += 1

    def send_one(self, frame: bytes) -> None:
        self.sent += 1


class _Desk:
    """One laggard, and what the broker hears of it."""

    def __init__(self, *, guaranteed: bool = True, credit: int = 1_000) -> None:
        self.fed: list[Event] = []
        self.line = _Line()
        form = RowFormat(Schema.parse(TOPIC, {"price": "int"}))
        self.delivery = Delivery({TOPIC: form}, {PUBEND: 0}, self._feed, waiting_max=16)
        name = SubscriptionId("alice")
        self.reader = Reader(name, TOPIC, 1, 0, guaranteed, self.line, ((PUBEND,),), credit=credit)
        self.delivery.session.enter(self.reader, {PUBEND: 10})

    def _feed(self, event: Event, then: Callable[[], None] | None = None) -> None:
        self.fed.append(event)
        if then is not None:
            then()

    async def heard(self) -> list[Event]:
        """What the broker has heard since this was last called, when the loop has had its turns."""
        await _a_turn()
        fed, self.fed = self.fed, []
        return fed


READY = SubscriberReady(subscription=SubscriptionId("alice"))


def _run(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(story())


def test_more_is_asked_for_when_all_is_sent_and_nothing_is_taken_by_that() -> None:
    async def story() -> None:
        desk = _Desk()
        desk.delivery.deliver(_laggard(1, [10, 11]))
        assert desk.fed == [], "not before the connection has seen it"
        assert await desk.heard() == [READY]
        desk.delivery.deliver(_laggard(2, [12]))
        desk.delivery.deliver(_laggard(3, [13]))
        assert await desk.heard() == [READY]
        desk.delivery.perform(desk.delivery.session.acknowledged(desk.reader, {PUBEND: 13}))
        assert await desk.heard() == [DeliveryTaken(serial=1, also=(2,))]
        desk.delivery.perform(desk.delivery.session.acknowledged(desk.reader, {PUBEND: 14}))
        assert await desk.heard() == [DeliveryTaken(serial=3)]
        assert not desk.reader.catching
        assert desk.delivery.session.positions(desk.reader) == {PUBEND: 14}

    _run(story)


def test_rows_beyond_the_credit_wait_and_more_is_asked_for_after_them() -> None:
    async def story() -> None:
        desk = _Desk(credit=3)
        desk.delivery.deliver(_laggard(1, [10, 11]))
        desk.delivery.deliver(_laggard(2, [12, 13]))
        desk.delivery.deliver(_laggard(3, [14, 15]))
        assert await desk.heard() == []
        assert desk.line.sent == 2, "one and a half"
        desk.delivery.perform(desk.delivery.session.granted(desk.reader, 2))
        assert await desk.heard() == []
        assert desk.line.sent == 4, "the rest of one, and half of the next"
        desk.delivery.perform(desk.delivery.session.granted(desk.reader, 2))
        assert await desk.heard() == [READY]
        assert (desk.line.sent, desk.reader.credit) == (5, 1)

    _run(story)


def test_a_client_that_does_not_read_gets_more_when_it_has_read() -> None:
    async def story() -> None:
        desk = _Desk()
        desk.line.is_congested = True
        desk.delivery.deliver(_laggard(1, [10]))
        assert await desk.heard() == []
        assert not desk.line.sent, "nothing is encoded for somebody who does not read"
        desk.line.is_congested = False
        desk.delivery.drained(desk.line)
        assert await desk.heard() == [READY]
        assert desk.line.sent == 1
        desk.delivery.drained(desk.line)
        assert await desk.heard() == [], "nobody waits any more"

    _run(story)


def test_who_leaves_a_congested_connection_asks_for_nothing() -> None:
    async def story() -> None:
        desk = _Desk()
        desk.line.is_congested = True
        desk.delivery.deliver(_laggard(1, [10]))
        assert await desk.heard() == []
        desk.delivery.perform(desk.delivery.session.leave(desk.reader))
        desk.line.is_congested = False
        desk.delivery.drained(desk.line)
        assert await desk.heard() == []

    _run(story)


def test_best_effort_takes_what_has_left() -> None:
    async def story() -> None:
        desk = _Desk(guaranteed=False)
        desk.line.is_congested = True
        desk.delivery.deliver(_laggard(1, [10]))
        assert await desk.heard() == []
        desk.line.is_congested = False
        desk.delivery.drained(desk.line)
        assert await desk.heard() == [DeliveryTaken(serial=1)]

    _run(story)


def test_what_was_handed_out_before_the_broker_went_back_is_void() -> None:
    """It was on its way when the subscriber was reported slow: it comes again, and is not sent twice."""

    async def story() -> None:
        desk = _Desk(credit=1)
        desk.delivery.perform(desk.delivery.session.report_slow(desk.reader))
        desk.delivery.deliver(_laggard(1, [14, 15]))
        desk.delivery.deliver(_laggard(2, [10, 11]))
        desk.fed.clear()
        desk.delivery.perform(desk.delivery.session.granted(desk.reader, 10))
        assert await desk.heard() == [READY]
        assert desk.reader.credit == 8, "one row of the first, and the second"
        desk.delivery.perform(desk.delivery.session.acknowledged(desk.reader, {PUBEND: 12}))
        assert await desk.heard() == [DeliveryTaken(serial=2)]

    _run(story)


def _laggard(serial: int, ticks: list[int], pubend: PubendId = PUBEND) -> Deliver:
    rows = np.arange(len(ticks))
    batch = EventBatch(np.array(ticks, dtype=np.int64), pa.RecordBatch.from_pydict({"price": ticks}))
    slots = np.zeros(len(ticks), dtype=np.int64)
    return Deliver(serial=serial, batch=batch, rows=rows, slots=slots, pubends=(pubend,), laggard=True)


def test_what_laggards_are_handed_together_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[EventBatch] = []

    def columns(batch: EventBatch, numbers: list[int], source: None) -> SharedColumns:
        encoded.append(batch)
        return SharedColumns(batch, numbers, source)

    async def story() -> None:
        desk = _Desk()
        monkeypatch.setattr(delivering, "SharedColumns", columns)
        monkeypatch.setattr(delivering, "COLUMNS_ROWS_MIN", 2)
        first = _laggard(1, [10, 11])
        desk.delivery.deliver(first)
        desk.delivery.deliver(replace(first, serial=2))
        other = _laggard(3, [12, 13])
        desk.delivery.deliver(other)
        assert desk.line.sent == 3
        assert [each.first for each in encoded] == [10, 12]

    _run(story)


# Nobody can acknowledge what it was not handed.


def test_an_acknowledgement_counts_as_far_as_rows_were_handed_out() -> None:
    async def story() -> None:
        desk = _Desk()
        desk.delivery.perform(desk.delivery.session.acknowledged(desk.reader, {PUBEND: 2**61}))
        assert desk.delivery.session.positions(desk.reader) == {PUBEND: 10}
        desk.delivery.deliver(replace(_laggard(1, [12, 15]), laggard=False))
        desk.delivery.perform(
            desk.delivery.session.acknowledged(desk.reader, {PUBEND: 2**61, PubendId("another"): 2**61})
        )
        assert desk.delivery.session.positions(desk.reader) == {PUBEND: 16}
        desk.delivery.perform(desk.delivery.session.acknowledged(desk.reader, {PUBEND: -5}))
        assert desk.delivery.session.positions(desk.reader) == {PUBEND: 16}

    _run(story)


def test_a_laggard_acknowledges_as_far_as_rows_were_sent() -> None:
    async def story() -> None:
        desk = _Desk(credit=1)
        desk.delivery.deliver(_laggard(1, [10, 11]))
        desk.delivery.perform(desk.delivery.session.acknowledged(desk.reader, {PUBEND: 2**61}))
        assert desk.delivery.session.positions(desk.reader) == {PUBEND: 11}, "one row of two"
        desk.delivery.perform(desk.delivery.session.granted(desk.reader, 1))
        desk.delivery.perform(desk.delivery.session.acknowledged(desk.reader, {PUBEND: 2**61}))
        assert desk.delivery.session.positions(desk.reader) == {PUBEND: 12}

    _run(story)


def test_what_was_handed_out_may_be_acknowledged_after_it_was_taken_back() -> None:
    """The client read it before the node took it for slow."""

    async def story() -> None:
        desk = _Desk()
        desk.delivery.deliver(replace(_laggard(1, [12, 15]), laggard=False))
        desk.delivery.perform(desk.delivery.session.report_slow(desk.reader))
        desk.delivery.perform(desk.delivery.session.acknowledged(desk.reader, {PUBEND: 16}))
        assert desk.delivery.session.positions(desk.reader) == {PUBEND: 16}

    _run(story)


def _live(serial: int, ticks: list[int]) -> Deliver:
    return replace(_laggard(serial, ticks), laggard=False)


def _slow(position: int, *, away: bool = False) -> SubscriberSlow:
    return SubscriberSlow(subscription=SubscriptionId("alice"), positions={PUBEND: position}, away=away)


def test_who_could_not_take_a_delivery_gets_no_later_one_before_it_is_reported() -> None:
    """A later one would be acknowledged, and what lies before it with it."""

    async def story() -> None:
        desk = _Desk(credit=1)
        desk.delivery.deliver(_live(1, [10, 11]))
        desk.delivery.perform(desk.delivery.session.granted(desk.reader, 5))
        desk.delivery.deliver(_live(2, [12]))
        desk.delivery.deliver(_live(3, [13, 14]))
        assert desk.line.sent == 0
        assert desk.fed == [], "in a turn of its own"
        assert await desk.heard() == [_slow(10)]

    _run(story)


def test_the_broker_hears_that_one_is_slow_before_the_rest_is_taken() -> None:
    async def story() -> None:
        desk = _Desk(credit=1)
        desk.delivery.deliver(_live(1, [10, 11]))
        desk.delivery._look()
        assert desk.fed == []
        heard = await desk.heard()
        desk.delivery._look()
        assert [*heard, *await desk.heard()] == [_slow(10), DeliveryTaken(serial=1)]

    _run(story)


def test_one_that_leaves_before_it_is_reported_slow_is_reported_away_only() -> None:
    async def story() -> None:
        desk = _Desk(credit=1)
        desk.delivery.deliver(_live(1, [10, 11]))
        desk.reader.outlet = None
        desk.delivery.perform(desk.delivery.session.report_slow(desk.reader, away=True))
        assert await desk.heard() == [_slow(10, away=True)]

    _run(story)


class _Narrow:
    """A connection of a client that does not read, with many subscriptions."""

    def __init__(self) -> None:
        self.backlog_bytes = 0
        self.is_open = True

    is_congested = property(lambda self: self.backlog_bytes > 10_000)
    is_flooded = property(lambda self: self.backlog_bytes > 40_000)

    def send(self, parts: list[bytes]) -> None:
        self.backlog_bytes += sum(map(len, parts))

    def send_one(self, frame: bytes) -> None:
        self.backlog_bytes += len(frame)


@pytest.mark.parametrize("rows", [1, 20, 200])
def test_what_one_delivery_leaves_on_a_connection_is_bounded(rows: int) -> None:
    """Thousands of subscriptions of one client that does not read want all of it."""

    async def story() -> None:
        fed: list[Event] = []
        form = RowFormat(Schema.parse(TOPIC, {"price": "string"}))
        delivery = Delivery({TOPIC: form}, {PUBEND: 0}, lambda event, _=None: fed.append(event), 1_000)
        line = _Narrow()
        for slot in range(2_000):
            name = SubscriptionId(f"mallory-{slot}")
            reader = Reader(name, TOPIC, slot, slot, True, line, ((PUBEND,),))  # type: ignore[arg-type]
            delivery.session.enter(reader, {PUBEND: 10})
        ticks = np.arange(10, 10 + rows)
        batch = EventBatch(ticks, pa.RecordBatch.from_pydict({"price": ["x" * 1_000] * rows}))
        delivery.deliver(
            Deliver(
                serial=1,
                batch=batch,
                rows=np.repeat(np.arange(rows), 2_000),
                slots=np.tile(np.arange(2_000), rows),
                pubends=(PUBEND,),
            )
        )
        # Up to 256 single rows are sent before it is looked whether there is room, or else one frame.
        assert line.backlog_bytes < 40_000 + 1_100 * (256 if rows == 1 else rows)

    _run(story)


def test_nothing_is_held_for_each_row_that_a_laggard_has_no_credit_for() -> None:
    async def story() -> None:
        desk = _Desk(credit=0)
        ticks = list(range(10, 16_010))
        desk.delivery.deliver(_laggard(1, ticks))
        for credit in (1, 1, 70):
            desk.delivery.perform(desk.delivery.session.granted(desk.reader, credit))
        [held] = desk.reader.unsent
        assert held.unsent is not None
        parcel, rows = held.unsent
        assert rows.nbytes == 2_000
        assert rows.positions().tolist() == list(range(72, 16_000))
        assert parcel.encoded is None
        assert not len(parcel.delivery.rows), "a number for each row"
        assert not len(parcel.delivery.slots), "a number for each row"

    _run(story)
