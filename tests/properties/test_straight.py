"""The straight way from a pubend to readers of its own broker does what the general way does.

Two brokers live through the same history. One of them never takes the straight way. Whatever they ask of
their hosts must be the same, at the same moment, but for timers: one that is set early does no harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId
from gapless.model.ticks import TICKS_PER_MS, TickRange
from gapless.protocol import marks
from gapless.protocol.broker import HANDED_STRAIGHT, Broker
from gapless.protocol.effects import (
    AppendRecord,
    BatchRecord,
    ConfirmSubscription,
    Deliver,
    Effect,
    ReadRecords,
    StartTimer,
)
from gapless.protocol.events import (
    BrokerStarted,
    DeliveryTaken,
    Event,
    FilterChangeRequested,
    Now,
    Order,
    PublishRequested,
    RecordDurable,
    RecordFailed,
    RecordsRead,
    SubscribeRequested,
    SubscriberReady,
    SubscriberSlow,
    TimerFired,
    UnsubscribeRequested,
)
from gapless.protocol.network import Network
from gapless.protocol.trace import describe
from tests.budget import examples
from tests.conditions import where
from tests.spec.hand import CLOCK, FIRST, TOPIC, rows

HERE = BrokerId("n")
PUBENDS = (PubendId("lse"), PubendId("nyse"))
CONDITIONS = (where("price >= 0"), where("price < 2"), where("price > 2"))
NAMES = ("alice", "bob", "carol")


def alone(parameters: dict[str, object]) -> Network:
    """One broker that hosts pubends and their readers."""
    return Network.parse(
        {
            "cells": {"N": ["n"]},
            "topics": {"trades": {"price": "int"}},
            "pubends": {name: {"topic": "trades", "broker": "n"} for name in PUBENDS},
            "edges": ["n"],
            "parameters": parameters,
        }
    )


class General(Broker):
    """Always takes the general way."""

    def _straight(self, *_: object) -> bool:
        return False


@dataclass
class Twin:
    """One of the two brokers with its host."""

    broker: Broker
    ms: int = 0
    timer_ms: int | None = None
    unflushed: deque[AppendRecord] = field(default_factory=deque)
    durable: list[tuple[PubendId, EventBatch]] = field(default_factory=list)
    #: The deliveries that were not taken.
    waiting: list[Deliver] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    #: What was asked of the host, in order: when, and what.
    story: list[str] = field(default_factory=list)

    def feed(self, event: Event) -> None:
        """One event, and what the host does at once."""
        effects = self.broker.step(event, Now(ms=self.ms, clock=CLOCK + self.ms * TICKS_PER_MS))
        self.broker.check()
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case StartTimer(at_ms=at_ms):
                self.timer_ms = at_ms
                return
            case AppendRecord():
                self.unflushed.append(effect)
            case ConfirmSubscription():
                self.slots[effect.subscription] = effect.slot
            case Deliver():
                self.waiting.append(effect)
                pairs = list(zip(effect.rows.tolist(), effect.slots.tolist(), strict=True))
                self.story.append(f"{self.ms} serial {effect.serial}: {pairs}")
            case _:
                pass
        self.story.append(f"{self.ms} {describe(effect)}")
        if isinstance(effect, ReadRecords):
            self.feed(RecordsRead(pubend=effect.pubend, ticks=effect.ticks, batch=self._read(effect)))

    def _read(self, effect: ReadRecords) -> EventBatch | None:
        parts = [batch.between(*_ends(effect.ticks)) for name, batch in self.durable if name == effect.pubend]
        parts = [part for part in parts if len(part)]
        return EventBatch.joined(parts) if parts else None

    def wait(self, until_ms: int) -> None:
        """Let time pass and the timer fire."""
        while self.timer_ms is not None and self.timer_ms <= until_ms:
            self.ms, self.timer_ms = max(self.ms, self.timer_ms), None
            self.feed(TimerFired())
        self.ms = until_ms

    def flush(self, count: int) -> None:
        """The oldest records become durable, each with an event of its own or all with one."""
        done = [self.unflushed.popleft() for _ in range(min(count, len(self.unflushed)))]
        for append in done:
            if isinstance(append.record, BatchRecord):
                self.durable.append((append.pubend, append.record.batch))
        last = {append.pubend: append.token for append in done}
        for pubend, token in last.items():
            self.feed(RecordDurable(pubend=pubend, token=token))

    def fail(self) -> None:
        """The oldest record was not written."""
        if self.unflushed:
            append = self.unflushed.popleft()
            self.feed(RecordFailed(pubend=append.pubend, token=append.token, reason="full"))

    def take(self, at: int) -> None:
        """One of the deliveries is taken."""
        if self.waiting:
            self.feed(DeliveryTaken(serial=self.waiting.pop(at % len(self.waiting)).serial))

    def slow(self, name: str) -> None:
        """A subscriber has thrown away all that it had not taken."""
        positions: dict[PubendId, int] = {}
        for deliver in self.waiting:
            for row, slot in zip(deliver.rows.tolist(), deliver.slots.tolist(), strict=True):
                if slot == self.slots.get(name):
                    source = 0 if deliver.source is None else int(deliver.source[row])
                    positions.setdefault(deliver.pubends[source], int(deliver.batch.ticks[row]))
        self.feed(SubscriberSlow(subscription=SubscriptionId(name), positions=positions))


def _ends(ticks: TickRange) -> tuple[int, int]:
    return ticks.start, ticks.stop


@dataclass
class World:
    """Both brokers, and who is subscribed."""

    twins: tuple[Twin, Twin]
    ms: int = 0
    tokens: int = 0
    live: set[str] = field(default_factory=set)

    def both(self, act: Callable[[Twin], None]) -> None:
        """The same happens to both, and they ask the same of their hosts."""
        one, other = self.twins
        before = len(one.story)
        for twin in self.twins:
            act(twin)
        assert list(islice(one.story, before, None)) == list(islice(other.story, before, None))
        assert one.broker.memory() == other.broker.memory()

    def happen(self, kind: str, number: int, name: str) -> None:
        """One thing that may happen to a broker."""
        match kind:
            case "publish":
                self.tokens += 1
                pubend, prices = PUBENDS[number % 2], range(1 + number // 2)
                event = PublishRequested(pubend=pubend, token=self.tokens, rows=rows(*prices))
                self.both(lambda twin: twin.feed(event))
            case "flush":
                self.both(lambda twin: twin.flush(1 + number))
            case "fail":
                self.both(Twin.fail)
            case "take":
                self.both(lambda twin: twin.take(number))
            case "wait":
                self.ms += (1, 5, 20, 60, 300, 1_100, 3_000)[number]
                self.both(lambda twin: twin.wait(self.ms))
            case _:
                self._subscriber_acts(kind, number, name)

    def _subscriber_acts(self, kind: str, number: int, name: str) -> None:
        subscription, condition = SubscriptionId(name), CONDITIONS[number % 3]
        if kind == "subscribe" and name not in self.live:
            self.live.add(name)
            request = SubscribeRequested(
                subscription=subscription,
                topic=TOPIC,
                condition=condition,
                order=Order.TOTAL if number == 6 else Order.PUBLISHER,
                start=FIRST if number in (4, 5) else None,
            )
            self.both(lambda twin: twin.feed(request))
        elif name not in self.live:
            return
        elif kind == "change" and len(self.twins[0].broker._edge._subends[subscription].phases) < 3:  # type: ignore[union-attr]
            change = FilterChangeRequested(subscription=subscription, condition=condition)
            self.both(lambda twin: twin.feed(change))
        elif kind == "slow":
            self.both(lambda twin: twin.slow(name))
        elif kind == "ready":
            self.both(lambda twin: twin.feed(SubscriberReady(subscription=subscription)))
        elif kind == "unsubscribe":
            self.live.discard(name)
            self.both(lambda twin: twin.feed(UnsubscribeRequested(subscription=subscription)))


#: What happens often makes events and hands them out; the rest gets in the way.
KINDS = (
    *("publish", "flush") * 5,
    *("take", "wait") * 2,
    *("subscribe", "change", "slow", "ready", "unsubscribe", "fail"),
)
happenings = st.tuples(st.sampled_from(KINDS), st.integers(0, 6), st.sampled_from(NAMES))
parameters = st.fixed_dictionaries(
    {},
    optional={
        "message_rows_max": st.sampled_from((1, 2, 16)),
        "deliveries_waiting_max": st.sampled_from((1, 2)),
        "delay_curiosity_ms": st.just(50),
        "ack_expected_ms": st.just(100),
    },
)


@examples(50)
@given(st.lists(happenings, max_size=40), parameters)
def test_the_straight_way_asks_the_same_of_a_host_as_the_general_one(
    history: list[tuple[str, int, str]], given_parameters: dict[str, object]
) -> None:
    network = alone(given_parameters)
    world = World((Twin(Broker(network, HERE, 1, {})), Twin(General(network, HERE, 1, {}))))
    world.both(lambda twin: twin.feed(BrokerStarted()))
    world.happen("subscribe", 0, NAMES[0])
    world.happen("flush", 6, "")
    for kind, number, name in history:
        world.happen(kind, number, name)
    for _ in range(3):
        world.happen("flush", 100, "")
        world.happen("wait", 6, "")


def test_events_do_go_straight() -> None:
    before = marks.counts[HANDED_STRAIGHT]
    network = alone({})
    world = World((Twin(Broker(network, HERE, 1, {})), Twin(General(network, HERE, 1, {}))))
    world.both(lambda twin: twin.feed(BrokerStarted()))
    world.happen("subscribe", 0, NAMES[0])
    for _ in range(5):
        world.happen("flush", 6, "")
        world.happen("publish", 5, "")
    assert marks.counts[HANDED_STRAIGHT] >= before + 3
