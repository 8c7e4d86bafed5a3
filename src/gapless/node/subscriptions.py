"""Who has subscribed at this node, and what becomes of it when the client is gone?

A subscription lasts a little longer than its connection: what a client had not acknowledged when the
connection broke stays wanted for `PARKED_SECONDS`, so that a client that comes back, here or at another
edge, resumes where it was and nothing is gone meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from gapless.content.language import parse_condition
from gapless.errors import UsageError
from gapless.model.ids import PubendId, SubscriptionId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.node.delivery import UNBOUNDED, Delivery, Feed, Reader
from gapless.protocol.effects import ConfirmSubscription
from gapless.protocol.events import Order, SubscribeRequested, UnsubscribeRequested
from gapless.protocol.network import Network
from gapless.wire.client_messages import Confirmed, Subscribe

if TYPE_CHECKING:
    from gapless.node.sessions import Session

#: How long the subscriptions of a lost connection are kept as they are.
PARKED_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription of a client."""

    name: SubscriptionId
    number: int
    asked: Subscribe
    #: None when the client is gone and the subscription is parked.
    session: Session | None
    #: Where it starts at each pubend that has confirmed it.
    starts: dict[PubendId, Tick] = field(default_factory=dict)
    #: What it is to deliveries, once a pubend has confirmed it.
    reader: Reader | None = None


class Subscriptions:
    """All subscriptions of one node."""

    def __init__(
        self, network: Network, delivery: Delivery, sources: Mapping[PubendId, int], feed: Feed
    ) -> None:
        self.network = network
        self._delivery = delivery
        self._sources = sources
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._by_name: dict[SubscriptionId, Subscription] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._by_name)

    def held(self) -> list[Subscription]:
        """All of them, parked ones included."""
        return list(self._by_name.values())

    def subscribe(self, session: Session, asked: Subscribe) -> None:
        """A client subscribes. Raises UsageError, and nothing has changed then."""
        schema = self.network.topics.get(asked.topic)
        if schema is None:
            known = ", ".join(self.network.topics) or "none"
            raise UsageError("E141", f"there is no topic '{asked.topic}': there is {known}")
        condition = parse_condition(asked.where, schema)
        number = next(self._numbers)
        name = SubscriptionId(f"{session.name}#{number}")
        subscription = Subscription(name, number, asked, session)
        self._by_name[name] = subscription
        session.subscriptions[number] = subscription
        try:
            self._feed(
                SubscribeRequested(
                    subscription=name,
                    topic=asked.topic,
                    condition=condition,
                    order=asked.order,
                    start=_start(asked),
                )
            )
        except UsageError:
            self._forget(subscription)
            raise

    def confirmed(self, effect: ConfirmSubscription) -> None:
        """A subscription is gapless from a tick on: the client hears of it."""
        subscription = self._by_name.get(effect.subscription)
        if subscription is None:
            return
        subscription.starts[effect.pubend] = effect.start
        if subscription.reader is None:
            subscription.reader = self._reader(subscription, effect.slot)
        self._delivery.enter(subscription.reader, {effect.pubend: effect.start})
        if subscription.session is None:
            return
        asked = subscription.asked
        subscription.session.send(
            Confirmed(
                request=asked.request,
                subscription=subscription.number,
                source=self._sources[effect.pubend],
                pubends=len(self.network.pubends_of(asked.topic)),
                pubend=effect.pubend,
                schema=self.network.topics[asked.topic],
                start=effect.start,
            )
        )

    def end(self, subscription: Subscription) -> None:
        """A subscription is over."""
        if self._by_name.get(subscription.name) is subscription:
            self._forget(subscription)
            self._feed(UnsubscribeRequested(subscription=subscription.name))
            if subscription.reader is not None:
                self._delivery.leave(subscription.reader)

    def park(self, subscription: Subscription) -> None:
        """The client is gone: nothing is sent, and what it lacks stays wanted for a while."""
        subscription.session = None
        reader = subscription.reader
        if subscription.asked.mode == "best-effort" or reader is None:
            self.end(subscription)
            return
        reader.connection = None
        self._delivery.report_slow(reader)
        self._loop.call_later(PARKED_SECONDS, self.end, subscription)

    def _reader(self, subscription: Subscription, slot: int) -> Reader:
        asked, session = subscription.asked, subscription.session
        pubends = self.network.pubends_of(asked.topic)
        return Reader(
            subscription=subscription.name,
            topic=asked.topic,
            number=subscription.number,
            slot=slot,
            guaranteed=asked.mode == "guaranteed",
            connection=None if session is None else session.connection,
            groups=(pubends,) if asked.order is Order.TOTAL else tuple((pubend,) for pubend in pubends),
            credit=UNBOUNDED if asked.credit_rows is None else asked.credit_rows,
        )

    def _forget(self, subscription: Subscription) -> None:
        self._by_name.pop(subscription.name, None)
        if subscription.session is not None:
            subscription.session.subscriptions.pop(subscription.number, None)


def _start(asked: Subscribe) -> Tick | None:
    match asked.start:
        case "now":
            return None
        case "earliest":
            return TICK_MIN + 1
        case int():
            return asked.start
        case positions:
            # One start for all pubends: what a client has already, it drops.
            return min(positions.values(), default=None)
