"""What does a host keep for its subscribers? A bounded queue each, and who has not taken which delivery yet.

A subscriber whose queue is full when more arrives loses all that it had not taken: the host remembers
where that began, and reports it to the broker before it counts those deliveries as done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import Tick
from gapless.protocol.effects import Deliver
from gapless.protocol.events import Order, SubscribeRequested
from gapless.protocol.network import Network
from gapless.sim.conditions import Condition
from gapless.sim.observer import Wish
from gapless.sim.translate import condition_of

#: One event in a queue: the serial of its delivery, its name, and the id of its row.
Waiting: TypeAlias = tuple[int, PubendId, Tick, int]


@dataclass(slots=True, eq=False)
class Subscriber:
    """One subscription as its host sees it."""

    wish: Wish
    #: Maximum number of rows in the queue; more overflow it.
    queue_max: int
    #: How long the subscriber takes to come back to its queue.
    take_us_max: int
    queue: deque[Waiting] = field(default_factory=deque)
    #: The conditions it asked for instead, in this order.
    changes: list[Condition] = field(default_factory=list)
    #: How many of these each pubend has confirmed.
    changed: dict[PubendId, int] = field(default_factory=dict)
    #: Per change and pubend, the tick from which on it decides: what a host keeps of a durable subscriber.
    since: list[dict[PubendId, Tick]] = field(default_factory=list)
    #: It outlives its broker: the host keeps what it asked for, and how far it was some time ago.
    durable: bool = False
    #: The positions on the disk of the host, which are behind those of the subscriber.
    kept: dict[PubendId, Tick] = field(default_factory=dict)
    #: The logs that these positions are in.
    logs: dict[PubendId, str] = field(default_factory=dict)
    #: What the subscriber itself remembers: the log that it reads, and from where on it lost the one before.
    heard: dict[PubendId, tuple[str, Tick]] = field(default_factory=dict)
    #: Nobody is there to take anything.
    away: bool = False
    #: It does not read at the moment.
    paused: bool = False
    #: It unsubscribed, or its broker crashed.
    closed: bool = False
    #: The broker knows that it is gone, and must not deliver to it any more.
    forgotten: bool = False
    #: A visit to the queue is planned.
    visiting: bool = False
    #: Per pubend the first tick that was thrown away since the last report.
    dropped: dict[PubendId, Tick] = field(default_factory=dict)
    #: The deliveries that were thrown away since the last report, in order.
    dropped_serials: dict[int, None] = field(default_factory=dict)
    #: How many rows of each delivery are still in the queue.
    holding: dict[int, int] = field(default_factory=dict)
    #: Per pubend, one past the last event it took.
    positions: dict[PubendId, Tick] = field(default_factory=dict)


@dataclass(slots=True)
class Subscribers:
    """All subscribers of one life of a broker."""

    by_name: dict[str, Subscriber] = field(default_factory=dict)
    by_slot: dict[int, Subscriber] = field(default_factory=dict)
    #: Those who left; a broker that was stalled may still confirm them.
    _gone: dict[str, Subscriber] = field(default_factory=dict)
    #: How many subscribers have not taken all of a delivery yet.
    _waiting: dict[int, int] = field(default_factory=dict)

    def confirm(self, name: str, slot: int) -> None:
        """The broker calls a subscriber by this number from now on."""
        subscriber = self.by_name.get(name) or self._gone[name]
        assert not subscriber.forgotten, f"{name} is confirmed after it left"
        holder = self.by_slot.get(slot)
        assert holder is None or holder is subscriber or holder.closed, f"slot {slot} is taken"
        self.by_slot[slot] = subscriber

    def confirm_change(self, name: str, pubend: PubendId, since: Tick) -> Condition | None:
        """The broker confirms the next change of a subscriber; None when that one has left."""
        subscriber = self.by_name.get(name)
        if subscriber is None:
            assert not self._gone[name].forgotten, f"a change of {name} is confirmed after it left"
            return None
        confirmed = subscriber.changed.get(pubend, 0)
        assert confirmed < len(subscriber.changes), f"{name} is confirmed a change it did not ask for"
        subscriber.changed[pubend] = confirmed + 1
        subscriber.since[confirmed][pubend] = since
        return subscriber.changes[confirmed]

    def deliver(self, effect: Deliver) -> tuple[list[Subscriber], list[int]]:
        """Fill the queues; gives the subscribers concerned, and the serials that are done already."""
        serial = effect.serial
        assert serial not in self._waiting, f"delivery {serial} was handed out before"
        touched: dict[Subscriber, bool] = {}
        ticks, ids = effect.batch.ticks.tolist(), effect.batch.array("id").tolist()
        sources = None if effect.source is None else effect.source.tolist()
        for row, slot in zip(effect.rows.tolist(), effect.slots.tolist(), strict=True):
            subscriber = self.by_slot.get(slot)
            assert subscriber is not None, f"delivery {serial} to slot {slot}, which was never confirmed"
            assert not subscriber.forgotten, f"delivery {serial} to slot {slot}, whose subscriber left"
            if subscriber.closed:
                continue
            if subscriber not in touched:
                touched[subscriber] = len(subscriber.queue) < subscriber.queue_max
            pubend = effect.pubends[0 if sources is None else sources[row]]
            self._enqueue(subscriber, touched[subscriber], (serial, pubend, ticks[row], ids[row]))
        self._waiting[serial] = len(touched)
        return list(touched), self._finished([serial], 0)

    def _enqueue(self, subscriber: Subscriber, fits: bool, waiting: Waiting) -> None:
        if fits and not subscriber.dropped:
            subscriber.queue.append(waiting)
            subscriber.holding[waiting[0]] = subscriber.holding.get(waiting[0], 0) + 1
            return
        for serial, pubend, tick, _ in (*subscriber.queue, waiting):
            subscriber.dropped.setdefault(pubend, tick)
            subscriber.dropped_serials[serial] = None
        subscriber.queue.clear()
        subscriber.holding.clear()

    def take(self, subscriber: Subscriber, count: int) -> tuple[list[Waiting], list[int]]:
        """The subscriber takes the next `count` rows; gives them, and the serials that are done now.

        A durable one remembers what it has: what it gets again, it drops.
        """
        taken = [subscriber.queue.popleft() for _ in range(min(count, len(subscriber.queue)))]
        fresh: list[Waiting] = []
        emptied: list[int] = []
        for waiting in taken:
            serial, pubend, tick, _ = waiting
            if tick >= subscriber.positions.get(pubend, tick) or not subscriber.durable:
                subscriber.positions[pubend] = tick + 1
                fresh.append(waiting)
            subscriber.holding[serial] -= 1
            if not subscriber.holding[serial]:
                del subscriber.holding[serial]
                emptied.append(serial)
        return fresh, self._finished(emptied)

    def forsake(self, subscriber: Subscriber) -> tuple[dict[PubendId, Tick], list[int]]:
        """The subscriber is away: what waits for it is thrown away; gives what `report` gives."""
        subscriber.away = True
        for serial, pubend, tick, _ in subscriber.queue:
            subscriber.dropped.setdefault(pubend, tick)
            subscriber.dropped_serials[serial] = None
        subscriber.queue.clear()
        subscriber.holding.clear()
        return self.report(subscriber)

    def survivors(self) -> Subscribers:
        """The desk of the next life of a broker: durable subscribers alone, and they are away."""
        desk = Subscribers()
        for name, subscriber in self.by_name.items():
            if subscriber.durable:
                desk.by_name[name] = subscriber
                subscriber.away = True
                subscriber.queue.clear()
                subscriber.holding.clear()
                subscriber.dropped, subscriber.dropped_serials = {}, {}
        return desk

    def report(self, subscriber: Subscriber) -> tuple[dict[PubendId, Tick], list[int]]:
        """What must be reported as thrown away, and the serials that are done after that report."""
        positions, serials = subscriber.dropped, list(subscriber.dropped_serials)
        subscriber.dropped, subscriber.dropped_serials = {}, {}
        return positions, self._finished(serials)

    def leave(self, subscriber: Subscriber) -> list[int]:
        """The subscriber is gone; gives the serials that are done now."""
        subscriber.closed = True
        serials = sorted({*subscriber.holding, *subscriber.dropped_serials})
        subscriber.queue.clear()
        subscriber.holding.clear()
        self._gone[subscriber.wish.subscription] = self.by_name.pop(subscriber.wish.subscription)
        return self._finished(serials)

    def _finished(self, serials: Sequence[int], by: int = 1) -> list[int]:
        done: list[int] = []
        for serial in serials:
            self._waiting[serial] -= by
            if self._waiting[serial] <= 0:
                del self._waiting[serial]
                done.append(serial)
        return done


def restored(subscriber: Subscriber, network: Network) -> SubscribeRequested:
    """What a host that starts says of a subscription that it kept."""
    wish = subscriber.wish
    start = dict(subscriber.kept)
    if wish.wanted is not None:
        # Pubends that had not confirmed it owe it what it asked for.
        start = dict.fromkeys(network.pubends_of(TopicId(wish.topic)), wish.wanted) | start
    return SubscribeRequested(
        subscription=SubscriptionId(wish.subscription),
        topic=TopicId(wish.topic),
        condition=condition_of(wish.condition),
        order=Order.TOTAL if wish.total else Order.PUBLISHER,
        start=start,
        logs=dict(subscriber.logs),
        changes=tuple(
            (condition_of(condition), dict(since))
            for condition, since in zip(subscriber.changes, subscriber.since, strict=True)
        ),
    )
