"""Who has taken what: laggards and their acknowledgements."""

import asyncio
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.schema import Schema
from gapless.node.connection import Connection
from gapless.node.delivery import Delivery, Reader
from gapless.protocol.effects import Deliver
from gapless.protocol.events import DeliveryTaken, Event
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
        delivery.enter(reader, {PUBEND: 10})
        delivery.report_slow(reader)
        delivery.acknowledged(reader, {PUBEND: 30})
        delivery.deliver(_laggard(serial=7, ticks=[10, 20]))
        assert fed[-1] == DeliveryTaken(serial=7)
        delivery.deliver(_laggard(serial=8, ticks=[29, 30]))
        assert fed[-1] == DeliveryTaken(serial=7)
        delivery.acknowledged(reader, {PUBEND: 31})
        assert fed[-1] == DeliveryTaken(serial=8)

    asyncio.run(story())


def test_what_an_acknowledgement_brings_about_is_not_taken_by_it() -> None:
    """One acknowledgement frees two deliveries, and the broker answers each at once with the next one."""
    taken: list[int] = []
    next_ones = {1: ("p", 3), 2: ("q", 4)}

    def feed(event: Event, then: Callable[[], None] | None = None) -> None:
        assert isinstance(event, DeliveryTaken)
        assert then is None
        taken.append(event.serial)
        if event.serial in next_ones:
            pubend, serial = next_ones.pop(event.serial)
            delivery.deliver(_laggard(serial, [40], PubendId(pubend)))

    async def story() -> None:
        nonlocal delivery
        form = RowFormat(Schema.parse(TOPIC, {"price": "int"}))
        other = PubendId("q")
        delivery = Delivery({TOPIC: form}, {PUBEND: 0, other: 1}, feed, waiting_max=16)
        connection = Connection(FROM_CLIENT, lambda _: None)  # type: ignore[arg-type, return-value]
        reader = Reader(SubscriptionId("alice"), TOPIC, 1, 0, True, connection, ((PUBEND,), (other,)))
        delivery.enter(reader, {PUBEND: 5, other: 5})
        delivery.deliver(_laggard(1, [10]))
        delivery.deliver(_laggard(2, [10], other))
        delivery.acknowledged(reader, {PUBEND: 11, other: 11})
        assert taken == [1, 2]
        delivery.acknowledged(reader, {PUBEND: 41, other: 41})
        assert taken == [1, 2, 3, 4]

    delivery: Delivery
    asyncio.run(story())


def _laggard(serial: int, ticks: list[int], pubend: PubendId = PUBEND) -> Deliver:
    rows = np.arange(len(ticks))
    batch = EventBatch(np.array(ticks, dtype=np.int64), pa.RecordBatch.from_pydict({"price": ticks}))
    slots = np.zeros(len(ticks), dtype=np.int64)
    return Deliver(serial=serial, batch=batch, rows=rows, slots=slots, pubends=(pubend,), laggard=True)
