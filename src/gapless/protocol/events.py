"""What can happen to a broker? Everything a host may feed into `Broker.step`.

Implements docs/protocol.md, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from gapless.content.condition import Condition
from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.model.packed import PackedRows
from gapless.model.ticks import Tick, TickRange
from gapless.protocol.creations import Creation
from gapless.protocol.messages import KnowledgeMessage, Message

if TYPE_CHECKING:
    from gapless.protocol.pubend import Recovered


class Now(NamedTuple):
    """The time of a step, read by the host: the machines have no clock."""

    #: Monotonic milliseconds, for timers. Never compared between brokers.
    ms: int
    #: The wall clock in ticks, for the ticks of new events. It may jump.
    clock: Tick


class Order(Enum):
    """In which order a subscription gets its events."""

    #: Each pubend's events in tick order; those of different pubends in any interleaving.
    PUBLISHER = "publisher"
    #: All events of the topic by tick and then pubend: the same for every such subscription.
    TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStarted:
    """The first event of a broker's life. All its links are down until `LinkUp` says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequested:
    """A publisher hands over rows. Answered by `AcceptPublish` or `RefusePublish` with the token."""

    pubend: PubendId
    token: int
    #: Packed rows were seen to fit the schema by whoever packed them.
    rows: pa.RecordBatch | PackedRows
    #: The rows as an Arrow message, when they came as one.
    encoded: memoryview | None = None
    #: What the log keeps beside the rows, so that nothing is stored twice; see `model.notes`.
    note: bytes = b""
    #: How many more rows would take as long, because of the documents in these.
    weight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDurable:
    """The log of `pubend` has flushed every record up to and including `token`."""

    pubend: PubendId
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFailed:
    """The record was not written and never will be (disk full, I/O error)."""

    pubend: PubendId
    token: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRead:
    """Answer to `ReadRecords`: all rows with ticks in `ticks`, which may be less than was asked for."""

    pubend: PubendId
    ticks: TickRange
    batch: EventBatch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionMoved:
    """The host keeps events of `pubend` from this tick on although everybody has them, and no others."""

    pubend: PubendId
    kept_from: Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived:
    """A neighbour sent a message."""

    sender: BrokerId
    message: Message
    #: Knowledge that came right behind it, when it is knowledge itself. All of it is taken in one step.
    also: tuple[KnowledgeMessage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUp:
    """The link to `neighbour` works, perhaps again; it may have forgotten everything."""

    neighbour: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDown:
    """The link to `neighbour` is gone."""

    neighbour: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeRequested:
    """A subscriber wants the events of `topic` that `condition` accepts.

    Answered by one `ConfirmSubscription` per pubend of the topic.
    """

    subscription: SubscriptionId
    topic: TopicId
    condition: Condition
    order: Order = Order.PUBLISHER
    #: The earliest tick that is wanted: of all pubends, or of each that is named; None, or a pubend that is
    #: not named, for "from now on".
    start: Tick | Mapping[PubendId, Tick] | None = None
    #: Changes of the condition that an earlier life of the edge confirmed, the oldest first: what decides
    #: instead, per pubend from which tick on. Those of pubends that are not named are confirmed anew.
    changes: tuple[tuple[Condition, Mapping[PubendId, Tick]], ...] = ()
    #: The ids of the logs in which `start` names positions that this subscription had before.
    logs: Mapping[PubendId, str] = field(default_factory=dict)
    #: Whether its subscriber may come back at another edge: nothing is acked that it does not know of.
    roams: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionsRestored:
    """Subscriptions that the host kept over a restart, at the positions they had; their subscribers are away.

    Fed right after `BrokerStarted`, so that nothing is acked that they need. Answered like the requests.
    """

    requests: tuple[SubscribeRequested, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterChangeRequested:
    """A subscriber wants the events that `condition` accepts instead of those it gets now.

    Answered by one `ConfirmChange` per pubend of the topic, which names the tick of the change.
    """

    subscription: SubscriptionId
    condition: Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsubscribeRequested:
    """The subscriber is gone: nothing is owed to it any more."""

    subscription: SubscriptionId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryTaken:
    """All subscribers of the `Deliver` with this serial have taken it, were reported slow, or have ended."""

    serial: int
    #: Further deliveries that were taken by the same moment.
    also: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberReady:
    """All that a laggard was handed has been sent to its client, which has room for more.

    It has not taken any of it by that. A repeat, or one that comes when it is no laggard, is harmless.
    """

    subscription: SubscriptionId


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSlow:
    """A subscriber's queue is full; what it had not taken has been thrown away.

    It gets no live deliveries until it has caught up by curiosity from `positions` on. One that is `away`
    gets nothing at all until it is reported slow once more, which says that it is back.
    """

    subscription: SubscriptionId
    #: Per pubend, the tick below which it has taken all its events; of a pubend not named, all that was
    #: handed out.
    positions: Mapping[PubendId, Tick]
    away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoamersReached:
    """All subscribers of `pubend` that roam have said that they have everything below `before`.

    Ignored unless `roamers` is how many of them there are: one more or less is reported on its own.
    """

    pubend: PubendId
    before: Tick
    roamers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsLearned:
    """These topics were created, here or elsewhere, and the host has written it down.

    A repeat is harmless.
    """

    creations: tuple[Creation, ...]
    #: What the logs say of those pubends that live here. A log that is not named is empty.
    recovered: Mapping[PubendId, Recovered]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """The moment of the last `StartTimer` has come. An early or extra firing is harmless."""


#: What subscribers do, and what becomes of what they are handed.
SubscriberEvent: TypeAlias = (
    SubscribeRequested
    | SubscriptionsRestored
    | FilterChangeRequested
    | UnsubscribeRequested
    | DeliveryTaken
    | SubscriberReady
    | SubscriberSlow
    | RoamersReached
)

Event: TypeAlias = (
    BrokerStarted
    | PublishRequested
    | RecordDurable
    | RecordFailed
    | RecordsRead
    | RetentionMoved
    | MessageReceived
    | LinkUp
    | LinkDown
    | SubscriberEvent
    | TopicsLearned
    | TimerFired
)
