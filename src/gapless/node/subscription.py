"""What is one subscription at a node? What its client asked for, whose it is, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.content.condition import Condition
from gapless.errors import StoreError, UsageError
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.node.delivery import UNBOUNDED, Reader
from gapless.node.principals import Principal
from gapless.node.security import Rights
from gapless.protocol.events import Order
from gapless.protocol.network import Network
from gapless.wire.client_messages import Done, RequestRefused, Subscribe

if TYPE_CHECKING:
    from gapless.node.sessions import Session

#: The start of a pubend that came after the subscription: everything.
EARLIEST = TICK_MIN + 1


@dataclass(slots=True)
class Change:
    """A change of a condition that not all pubends have confirmed."""

    #: The client's number for it; None when coming back with another condition is what asked for it.
    request: int | None
    where: str
    session: Session | None
    since: dict[PubendId, Tick] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription of a client."""

    name: SubscriptionId
    number: int
    asked: Subscribe
    #: None when the client is gone and the subscription is parked.
    session: Session | None
    #: The pubends of its topic when it began.
    pubends: tuple[PubendId, ...]
    #: Whose it is.
    principal: Principal
    #: The characters of its conditions, as they are counted there.
    condition_bytes: int = 0
    #: Its conditions, oldest first, as they are counted there because events cost more with them.
    matched: list[Condition] = field(default_factory=list)
    #: Where it starts at each pubend that has confirmed it.
    starts: dict[PubendId, Tick] = field(default_factory=dict)
    #: What it is to deliveries, once a pubend has confirmed it.
    reader: Reader | None = None
    #: Changes of its condition that are under way, in order.
    changing: list[Change] = field(default_factory=list)
    #: Of a named one: its conditions, each as text, with the ticks from which on it decides, and as it was
    #: read; the last is the newest.
    conditions: list[tuple[str, dict[PubendId, Tick], Condition]] = field(default_factory=list)
    #: Of one that continues an earlier one: the positions that one had.
    resumed: Mapping[PubendId, Tick] = field(default_factory=dict)
    #: Of a named one: whether the disk has it, so that its client may hear of it.
    is_kept: bool = False
    #: Of a named one: whether it goes on from an earlier life of the node.
    is_restored: bool = False
    #: The one that it stands for, which holds what both need until this one is confirmed.
    before: Subscription | None = None

    def count(self, sign: int) -> None:
        """Count it as its principal's, or no longer."""
        principal = self.principal
        principal.subscriptions += sign
        principal.names += sign * (self.asked.name is not None)
        principal.condition_bytes += sign * self.condition_bytes
        for condition in self.matched:
            principal.match((self.asked.topic, condition), sign)

    def charge(self, condition_bytes: int, matched: list[Condition]) -> None:
        """These are its conditions now, of so many characters."""
        self.count(-1)
        self.condition_bytes, self.matched = condition_bytes, matched
        self.count(1)

    @property
    def is_holding(self) -> bool:
        """Whether nothing is delivered: its client reads in bulk, and only keeps the log from going."""
        return self.asked.mode == "holding"

    @property
    def is_confirmed(self) -> bool:
        """Whether all pubends have said from which tick on it is gapless."""
        return len(self.starts) == len(self.pubends)


def id_of(name: str) -> SubscriptionId:
    """What the broker calls a named subscription. `unnamed_id` and `renewed_id` never give the same text."""
    return SubscriptionId(f"named {name}")


def renewed_id(name: str, number: int) -> SubscriptionId:
    """What the broker calls a subscription that stands for a named one."""
    return SubscriptionId(f"named#{number} {name}")


def unnamed_id(client: str, number: int) -> SubscriptionId:
    """What the broker calls a subscription without a name, whatever a client calls itself."""
    return SubscriptionId(f"client {client}#{number}")


def answer(session: Session, request: int, error: StoreError | None) -> None:
    """Tell a client that its request was carried out, or that the disk refused it."""
    if error is None:
        session.send(Done(request=request))
    else:
        session.send(
            RequestRefused(request=request, code=error.code, message=error.message, retry=error.retry)
        )


def start_of(asked: Subscribe) -> Tick | Mapping[PubendId, Tick] | None:
    """Where a subscription begins, as the broker is told."""
    match asked.start:
        case "now" | "stored":
            return None
        case "earliest":
            return EARLIEST
        case start:
            return start


def check_pubends(network: Network, rights: Rights, topic: TopicId, pubends: Iterable[PubendId]) -> None:
    """Whether pubends that a client names are its topic's, as far as is known here. Raises UsageError.

    A client that comes from another edge may know some that this one has not heard of yet. One of a topic
    that it may not see is as unknown: nothing is done with either.
    """
    for pubend in pubends:
        place = network.pubends.get(pubend)
        if place is not None and place.topic != topic and rights.may_see(place.topic):
            raise UsageError(
                "E115",
                f"pubend '{pubend}' is of topic '{place.topic}' and not of '{topic}': start at pubends of "
                f"'{topic}' only",
            )


def another_topic(found: Subscription, rights: Rights) -> UsageError:
    """The error for a name whose subscription is of another topic or order than the one asked for."""
    of, order = found.asked.topic, found.asked.order.value
    shown = f"topic '{of}', {order} order" if rights.may_see(of) else "another topic"
    return UsageError(
        "E138",
        f"subscription '{found.asked.name}' is of {shown}: choose another name, or forget that one first",
    )


def reader_of(subscription: Subscription, slot: int) -> Reader:
    """What a subscription is to deliveries."""
    asked, session = subscription.asked, subscription.session
    pubends = subscription.pubends
    # A named one is served when its client has heard that the disk has it.
    is_served = session is not None and asked.name is None
    return Reader(
        subscription=subscription.name,
        topic=asked.topic,
        number=subscription.number,
        slot=slot,
        guaranteed=asked.mode != "best-effort",
        connection=session.connection if session is not None and is_served else None,
        groups=(pubends,) if asked.order is Order.TOTAL else tuple((pubend,) for pubend in pubends),
        credit=UNBOUNDED if asked.credit_rows is None else asked.credit_rows,
    )


def check_named(asked: Subscribe, *, has_folder: bool, is_known: bool) -> None:
    """Raise UsageError unless a node may keep such a named subscription."""
    if not has_folder:
        raise UsageError(
            "E136", f"this node has no data folder, so it cannot keep '{asked.name}': give it one, or no name"
        )
    if asked.start == "stored" and not is_known:
        raise UsageError("E142", f"there is no subscription '{asked.name}' at this node: see gapless status")
    if asked.mode == "best-effort":
        raise UsageError(
            "E138", f"subscription '{asked.name}' has a name, so it is guaranteed: leave the mode out"
        )


def check_unnamed(asked: Subscribe) -> None:
    """Raise UsageError unless there may be such a subscription without a name."""
    if asked.start == "stored":
        raise UsageError("E138", "only a subscription with a name has a stored position: give the name")
    if asked.mode == "holding":
        raise UsageError("E138", "a subscription that holds the log has a name: give it one")
