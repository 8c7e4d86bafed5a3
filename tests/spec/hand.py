"""How is a network driven by hand? Brokers, a queue between them, and nothing that happens by itself.

A test feeds events with `step` and sees the effects, or lets messages flow with `settle`. Disks flush when
`settle` runs, unless `flushing` is off; messages that `loses` picks are lost; subscribers take everything at
once, unless they are in `stalled`. Time moves only with `wait`. Every step is followed by `check`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from gapless.content.condition import EVERYTHING, Condition
from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MIN, TICKS_PER_MS, Tick, TickRange
from gapless.protocol.broker import Broker
from gapless.protocol.creations import Creation
from gapless.protocol.effects import (
    AppendRecord,
    BatchRecord,
    ConfirmChange,
    ConfirmSubscription,
    Deliver,
    Effect,
    ReadRecords,
    Record,
    ReleaseRecord,
    RememberTopics,
    ReserveRecord,
    SendMessage,
    StartRecord,
    StartTimer,
)
from gapless.protocol.events import (
    BrokerStarted,
    DeliveryTaken,
    Event,
    FilterChangeRequested,
    LinkUp,
    MessageReceived,
    Now,
    Order,
    PublishRequested,
    RecordDurable,
    RecordsRead,
    SubscribeRequested,
    TimerFired,
    TopicsLearned,
)
from gapless.protocol.messages import Message, Want
from gapless.protocol.network import Network
from gapless.protocol.pubend import Pubend, Recovered

M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=Effect)

TOPIC = TopicId("trades")
PUBEND = PubendId("nyse")
#: The wall clock of all brokers when they start, and a millisecond later, when a test begins.
CLOCK: Tick = 9_000
FIRST: Tick = 10_000

CHAIN: Mapping[str, object] = {
    "cells": {"P": ["p"], "B": ["b"], "S": ["s"]},
    "links": ["P--B", "B--S"],
    "topics": {"trades": {"price": "int"}},
    "pubends": {"nyse": {"topic": "trades", "broker": "p"}},
    "edges": ["s"],
}


def network(parameters: Mapping[str, object] | None = None, **changes: object) -> Network:
    """The chain p--b--s, with other parameters or sections."""
    return Network.parse({**CHAIN, **changes, "parameters": dict(parameters or {})})


def two_pubends(**parameters: object) -> Network:
    """lse and nyse feed one topic; each has a broker of its own."""
    return network(
        parameters,
        cells={"P": ["p"], "Q": ["q"], "B": ["b"], "S": ["s"]},
        links=["P--B", "Q--B", "B--S"],
        pubends={"nyse": {"topic": "trades", "broker": "p"}, "lse": {"topic": "trades", "broker": "q"}},
    )


def wanting(*conditions: Condition) -> frozenset[Want]:
    """These conditions on the events of the one topic, as an advertisement lists them."""
    return frozenset((TOPIC, condition) for condition in conditions)


def rows(*prices: int | None) -> pa.RecordBatch:
    """Rows with one column."""
    return pa.RecordBatch.from_pydict({"price": pa.array(prices, pa.int64())})


def publish_at(pubend: Pubend, rows: pa.RecordBatch, token: int, now: Now) -> list[Effect]:
    """What a pubend does when rows are published."""
    event = PublishRequested(pubend=pubend.pubend, token=token, rows=rows)
    return pubend.publish(event, rows, now)


def batch(ticks: Sequence[Tick], prices: Sequence[int] | None = None) -> EventBatch:
    """Events with these ticks; their prices are their ticks unless given."""
    return EventBatch.of(ticks, {"price": list(prices if prices is not None else ticks)})


def messages(effects: Iterable[Effect], kind: type[M]) -> list[tuple[str, M]]:
    """The messages of a kind among effects, each with its receiver."""
    return [
        (effect.to, effect.message)
        for effect in effects
        if isinstance(effect, SendMessage) and isinstance(effect.message, kind)
    ]


@dataclass
class Hand:
    """All brokers of a network, driven by a test."""

    network: Network
    clock: Tick = CLOCK
    ms: int = 0
    flushing: bool = True
    loses: Callable[[str, str, Message], bool] = lambda _sender, _to, _message: False
    #: Subscriptions that take nothing.
    stalled: set[str] = field(default_factory=set)
    brokers: dict[str, Broker] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)
    #: The creations that each broker has written down.
    created: dict[str, set[Creation]] = field(default_factory=dict)
    #: What the disk of each pubend has kept.
    logs: dict[str, list[Record]] = field(default_factory=dict)
    unflushed: list[tuple[str, AppendRecord]] = field(default_factory=list)
    #: Every effect so far, with its broker.
    effects: list[tuple[str, Effect]] = field(default_factory=list)
    timers: dict[str, int] = field(default_factory=dict)
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    coming: deque[tuple[str, Event]] = field(default_factory=deque)
    #: The ids of logs that have one, with the ticks at which they began.
    log_ids: dict[str, tuple[str, Tick]] = field(default_factory=dict)
    #: Where the loss ends of those that were older copies.
    lost_before: dict[str, Tick] = field(default_factory=dict)
    _tokens: int = 0

    @staticmethod
    def started(net: Network, **options: object) -> Hand:
        """All brokers up for a millisecond, all links up, all quiet; the next event gets the tick FIRST."""
        hand = Hand(net, **options)  # type: ignore[arg-type]
        for broker in net.cell_of:
            hand.start(broker)
        for one, other in net.connections():
            hand.link_up(one, other)
        hand.settle()
        hand.wait(1)
        return hand

    # ---- what a test can do ----

    def start(self, name: str) -> None:
        """Begin a life of a broker from its logs."""
        broker = BrokerId(name)
        self.incarnations[name] = self.incarnations.get(name, 0) + 1
        net = self.network.extended(self.created.get(name, ()))
        hosted = [p for p, place in net.pubends.items() if place.broker == broker]
        recovered = {pubend: self.recovered(pubend) for pubend in hosted}
        self.brokers[name] = Broker(net, broker, self.incarnations[name], recovered)
        self.coming.append((name, BrokerStarted()))

    def crash(self, name: str) -> None:
        """Stop a broker: what is not durable is gone."""
        del self.brokers[name]
        self.timers.pop(name, None)
        self.unflushed = [(broker, record) for broker, record in self.unflushed if broker != name]

    def lose_log(self, pubend: str, log_id: str) -> None:
        """The disk of a pubend is empty: it begins a log now."""
        self.logs.pop(pubend, None)
        self.log_ids[pubend] = (log_id, self.clock + self.ms * TICKS_PER_MS)

    def link_up(self, one: str, other: str) -> None:
        """Bring a connection up for both ends."""
        self.coming.append((one, LinkUp(neighbour=BrokerId(other))))
        self.coming.append((other, LinkUp(neighbour=BrokerId(one))))

    def publish(self, *prices: int | None, pubend: str = PUBEND) -> None:
        """One batch, and all that follows from it."""
        self._tokens += 1
        event = PublishRequested(pubend=PubendId(pubend), token=self._tokens, rows=rows(*prices))
        [broker] = [
            name
            for name, each in self.brokers.items()
            if pubend in each.network.pubends and each.network.pubends[PubendId(pubend)].broker == name
        ]
        self.coming.append((broker, event))
        self.settle()

    def subscribe(
        self,
        name: str,
        condition: Condition = EVERYTHING,
        *,
        edge: str = "s",
        order: Order = Order.PUBLISHER,
        start: Tick | Mapping[PubendId, Tick] | None = None,
        topic: str = TOPIC,
    ) -> None:
        """One subscription, and all that follows from it."""
        event = SubscribeRequested(
            subscription=SubscriptionId(name),
            topic=TopicId(topic),
            condition=condition,
            order=order,
            start=start,
        )
        self.coming.append((edge, event))
        self.settle()

    def change(self, name: str, condition: Condition, *, edge: str = "s") -> None:
        """One change of a condition, and all that follows from it."""
        self.feed(edge, FilterChangeRequested(subscription=SubscriptionId(name), condition=condition))

    def feed(self, name: str, event: Event) -> None:
        """One event, and all that follows from it."""
        self.coming.append((name, event))
        self.settle()

    def step(self, name: str, event: Event) -> list[Effect]:
        """One event and nothing else; the effects are not performed."""
        now = Now(ms=self.ms, clock=self.clock + self.ms * TICKS_PER_MS)
        effects = self.brokers[name].step(event, now)
        self.brokers[name].check()
        return effects

    def settle(self) -> None:
        """Perform effects until all is quiet; no time passes."""
        while self.coming:
            name, event = self.coming.popleft()
            if name in self.brokers:
                for effect in self.step(name, event):
                    self.effects.append((name, effect))
                    self._perform(name, effect)

    def flush(self) -> None:
        """Make durable what waits for a disk, and go on."""
        waiting, self.unflushed = self.unflushed, []
        for name, append in waiting:
            self._durable(name, append)
        self.settle()

    def wait(self, duration_ms: int) -> None:
        """Let time pass and timers fire."""
        until = self.ms + duration_ms
        while self.timers and min(self.timers.values()) <= until:
            self.ms = max(self.ms, min(self.timers.values()))
            for name in [name for name, at in self.timers.items() if at <= self.ms]:
                del self.timers[name]
                self.coming.append((name, TimerFired()))
            self.settle()
        self.ms = until

    # ---- what a test can see ----

    def sent(self, kind: type[M], sender: str | None = None, to: str | None = None) -> list[M]:
        """The messages of a kind that were sent so far, lost ones too."""
        effects = [effect for name, effect in self.effects if sender in (None, name)]
        return [message for receiver, message in messages(effects, kind) if to in (None, receiver)]

    def got(self, name: str) -> list[Tick]:
        """The ticks that were delivered to a subscription, in order."""
        return [tick for _, tick in self.events(name)]

    def events(self, name: str) -> list[tuple[str, Tick]]:
        """The (pubend, tick) names of all that was delivered to a subscription, in order."""
        return [
            (str(d.pubends[0 if d.source is None else int(d.source[row])]), int(d.batch.ticks[row]))
            for broker, d in self.of(Deliver)
            for row, slot in zip(d.rows.tolist(), d.slots.tolist(), strict=True)
            if self.names[broker, slot] == name
        ]

    def starts(self, name: str) -> dict[str, Tick]:
        """Per pubend, the start tick that a subscription was confirmed with."""
        return {str(c.pubend): c.start for _, c in self.of(ConfirmSubscription) if c.subscription == name}

    def changes(self, name: str) -> list[tuple[str, Tick]]:
        """The (pubend, tick) pairs at which changes of a condition were confirmed, in order."""
        return [(str(c.pubend), c.since) for _, c in self.of(ConfirmChange) if c.subscription == name]

    def of(self, kind: type[E]) -> list[tuple[str, E]]:
        """All effects of a kind so far, with their brokers."""
        return [(name, effect) for name, effect in self.effects if isinstance(effect, kind)]

    def recovered(self, pubend: str) -> Recovered:
        """What a log says to a broker that starts."""
        log = self.logs.get(pubend, [])
        return Recovered(
            next_tick=max((r.batch.last + 1 for r in log if isinstance(r, BatchRecord)), default=0),
            reserved=max((r.before for r in log if isinstance(r, ReserveRecord)), default=0),
            released=max((r.before for r in log if isinstance(r, ReleaseRecord)), default=0),
            starts=tuple(r for r in log if isinstance(r, StartRecord)),
            log_id=self.log_ids.get(pubend, ("", TICK_MIN))[0],
            began=self.log_ids.get(pubend, ("", TICK_MIN))[1],
            lost_before=self.lost_before.get(pubend, TICK_MIN),
        )

    # ---- what brokers ask for ----

    def _perform(self, name: str, effect: Effect) -> None:
        match effect:
            case SendMessage(to=to, message=message):
                if not self.loses(name, to, message):
                    self.coming.append((to, MessageReceived(sender=BrokerId(name), message=message)))
            case AppendRecord():
                if self.flushing:
                    self._durable(name, effect)
                else:
                    self.unflushed.append((name, effect))
            case ReadRecords(pubend=pubend, ticks=ticks, rows_max=rows_max):
                self.coming.append((name, self._read(pubend, ticks, rows_max)))
            case ConfirmSubscription(subscription=subscription, slot=slot):
                self.names[name, slot] = subscription
            case Deliver(serial=serial, slots=slots):
                if not self.stalled.intersection(self.names[name, int(slot)] for slot in slots):
                    self.coming.append((name, DeliveryTaken(serial=serial)))
            case StartTimer(at_ms=at_ms):
                self.timers[name] = at_ms
            case RememberTopics(creations=creations):
                self._remember(name, creations)
            case _:
                pass

    def create(self, name: str, *creations: Creation) -> None:
        """A broker creates topics, and all that follows from it."""
        self._remember(name, creations)
        self.settle()

    def _remember(self, name: str, creations: Iterable[Creation]) -> None:
        if self.flushing:
            self.created.setdefault(name, set()).update(creations)
            hosted = {each.pubend: self.recovered(each.pubend) for each in creations if each.broker == name}
            self.coming.append((name, TopicsLearned(creations=tuple(creations), recovered=hosted)))

    def _durable(self, name: str, append: AppendRecord) -> None:
        self.logs.setdefault(append.pubend, []).append(append.record)
        self.coming.append((name, RecordDurable(pubend=append.pubend, token=append.token)))

    def _read(self, pubend: PubendId, ticks: TickRange, rows_max: int) -> RecordsRead:
        batches = [r.batch for r in self.logs[pubend] if isinstance(r, BatchRecord)]
        parts = [part for each in batches if len(part := each.between(ticks.start, ticks.stop))]
        found = EventBatch.joined(parts) if parts else None
        if found is not None and len(found) > rows_max:
            found = found.slice(0, rows_max)
            ticks = TickRange(ticks.start, found.last + 1)
        return RecordsRead(pubend=pubend, ticks=ticks, batch=found)
