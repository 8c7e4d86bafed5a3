"""What is one subscription at an edge? What its client asked for, whose it is, and how far it has come.

Here are also the effects that subscriptions ask of their host.

Implements docs/protocol.md, section 15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from gapless.content.condition import Condition
from gapless.errors import GaplessError, UsageError
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.events import Order, SubscribeRequested
from gapless.protocol.sessions.messages import Subscribe
from gapless.protocol.sessions.readers import UNBOUNDED, DeliveryEffect, Outlet, Reader

#: The start of a pubend that came after the subscription: everything.
EARLIEST = TICK_MIN + 1
#: Maximum number of subscriptions of a connection that are remembered because the node ended them. Beyond,
#: the one that ended first is forgotten, and every number up to it counts as ended.
ENDED_MAX = 1_024


class SubscriptionOwner(Protocol):
    """Whose subscriptions are counted together."""

    name: str
    subscriptions: int
    names: int
    condition_bytes: int

    def match(self, matched: tuple[TopicId, Condition], sign: int) -> None:
        """One more subscription has this condition, or one less."""


class EdgeClient(Protocol):
    """One connected client, as its edge knows it."""

    name: str

    @property
    def outlet(self) -> Outlet:
        """Its connection."""

    @property
    def subscriptions(self) -> ClientSubscriptions:
        """What it has subscribed to on this connection, by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSubscription:
    """A subscription that outlives its connection, as it is written down."""

    name: str
    topic: TopicId
    #: The condition as its text; empty for "everything".
    condition: str
    order: Order
    #: Per pubend, the tick below which everything is acknowledged.
    positions: Mapping[PubendId, Tick]
    #: What replaces the condition, as texts, and per pubend from which tick on; the oldest change first.
    changes: tuple[tuple[str, Mapping[PubendId, Tick]], ...] = ()
    #: The principal that it belongs to; None when it was made before subscriptions had owners.
    owner: str | None = None
    #: The pubends at which it has not begun: a position there is what it asked for, none is "from now on".
    awaited: tuple[PubendId, ...] = ()


@dataclass(slots=True, eq=False)
class ConditionChange:
    """A change of a condition that not all pubends have confirmed."""

    #: The client's number for it; None when coming back with another condition is what asked for it.
    request: int | None
    where: str
    client: EdgeClient | None
    since: dict[PubendId, Tick] = field(default_factory=dict)


#: A condition as text, the ticks from which on it decides, and as it was read.
Judging: TypeAlias = tuple[str, dict[PubendId, Tick], Condition]


@dataclass(slots=True, eq=False)
class EdgeSubscription:
    """One subscription of a client."""

    name: SubscriptionId
    number: int
    asked: Subscribe
    #: None when the client is gone and the subscription is parked.
    client: EdgeClient | None
    #: The pubends of its topic when it began.
    pubends: tuple[PubendId, ...]
    #: Whose it is.
    owner: SubscriptionOwner
    #: The characters of its conditions, as they are counted there.
    condition_bytes: int = 0
    #: Its conditions, oldest first, as they are counted there because events cost more with them.
    matched: list[Condition] = field(default_factory=list)
    #: Where it starts at each pubend that has confirmed it.
    starts: dict[PubendId, Tick] = field(default_factory=dict)
    #: What it is to deliveries, once a pubend has confirmed it.
    reader: Reader | None = None
    #: Changes of its condition that are under way, in order; and the newest condition as text, with the
    #: ticks from which on it decides.
    changing: list[ConditionChange] = field(default_factory=list)
    newest_where: str = ""
    newest_since: Mapping[PubendId, Tick] = field(default_factory=dict)
    #: Of a named one: its conditions; the last is the newest.
    conditions: list[Judging] = field(default_factory=list)
    #: Of one that continues an earlier one: the positions that one had.
    resumed: Mapping[PubendId, Tick] = field(default_factory=dict)
    #: The log that each of them is in, and the tick at which that began.
    logs: dict[PubendId, tuple[str, Tick]] = field(default_factory=dict)
    #: Where it went on in another log when the one that it read was lost.
    bases: dict[PubendId, Tick] = field(default_factory=dict)
    #: Of a named one: whether the disk has it, so that its client may hear of it.
    is_kept: bool = False
    #: Of a named one: how often it is being written down because a pubend has confirmed it.
    writes: int = 0
    #: Of a named one: where it asked to begin; None for "from now on". It counts until a pubend confirms it.
    unbegun: dict[PubendId, Tick | None] = field(default_factory=dict)
    #: Of a named one: whether it goes on from an earlier life of the node.
    is_restored: bool = False
    #: The one that it stands for, which holds what both need until this one is confirmed.
    before: EdgeSubscription | None = None

    def count(self, sign: int) -> None:
        """Count it as its owner's, or no longer."""
        owner = self.owner
        owner.subscriptions += sign
        owner.names += sign * (self.asked.name is not None)
        owner.condition_bytes += sign * self.condition_bytes
        for condition in self.matched:
            owner.match((self.asked.topic, condition), sign)

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
        """Whether all pubends that it waits for have said from which tick on it is gapless.

        In total order it waits for all of them. Otherwise those that have are served without the others.
        """
        return len(self.starts) >= (len(self.pubends) if self.asked.order is Order.TOTAL else 1)

    @property
    def awaited(self) -> tuple[PubendId, ...]:
        """The pubends that have not confirmed it."""
        return tuple(pubend for pubend in self.pubends if pubend not in self.starts)

    def new_reader(self, slot: int) -> Reader:
        """What it is to deliveries."""
        asked, client = self.asked, self.client
        # A named one is served when its client has heard that the disk has it.
        is_served = client is not None and asked.name is None
        in_total = asked.order is Order.TOTAL
        return Reader(
            subscription=self.name,
            topic=asked.topic,
            number=self.number,
            slot=slot,
            guaranteed=asked.mode != "best-effort",
            outlet=client.outlet if client is not None and is_served else None,
            groups=(self.pubends,) if in_total else tuple((pubend,) for pubend in self.pubends),
            credit=UNBOUNDED if asked.credit_rows is None else asked.credit_rows,
            roams=does_roam(asked),
        )


class ClientSubscriptions(dict[int, EdgeSubscription]):
    """What a client has subscribed to on one connection, by number."""

    __slots__ = ("_ended", "_ended_before")

    def __init__(self) -> None:
        super().__init__()
        #: Those that the node ended, the first to end first; and below which number all others count as such.
        self._ended: dict[int, None] = {}
        self._ended_before = 0

    def end(self, number: int) -> None:
        """The node ends one: what its client says of it before it hears of that is no mistake."""
        if self.pop(number, None) is None:
            return
        self._ended[number] = None
        if len(self._ended) > ENDED_MAX:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._ended_before = max(self._ended_before, oldest + 1)

    def find(self, number: int) -> EdgeSubscription | None:
        """The one of a number; None when the node ended it. Raises UsageError when there never was one."""
        found = self.get(number)
        if found is None and number >= self._ended_before and number not in self._ended:
            raise UsageError("E142", f"this client has no subscription {number}")
        return found


def does_roam(asked: Subscribe) -> bool:
    """Whether a subscription may be continued at another edge. One with a name lives at its edge."""
    return asked.roams and asked.name is None and asked.mode == "guaranteed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """Tell a client that its subscription, or a change of it, is confirmed by one pubend."""

    client: EdgeClient
    request: int
    subscription: EdgeSubscription
    pubend: PubendId
    start: Tick
    lost_from: Tick | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Tell a client that its request was carried out, or why not."""

    client: EdgeClient
    request: int
    error: GaplessError | None = None


class Purpose(Enum):
    """Why a named subscription is written down."""

    KEEP = "keep"
    CHANGE = "change"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriteName:
    """Write a named subscription down; answered by `EdgeSubscribing.written`. Repeating it is harmless."""

    subscription: EdgeSubscription
    record: NamedSubscription
    purpose: Purpose
    #: Of a change: what the client hears when the disk has it.
    confirm: Confirm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNameLater:
    """The disk refused a change that is made already: write it after a while."""

    write: WriteName


@dataclass(frozen=True, slots=True, kw_only=True)
class DropName:
    """Have the disk forget a name; answered by `EdgeSubscribing.dropped`. Repeating it is harmless."""

    name: str
    #: Who is told what became of it.
    client: EdgeClient
    request: int
    #: How often the name had been written down by then, since somebody first asked to forget it.
    writes: int = 0


@dataclass(slots=True)
class Forgetting:
    """A name that the disk is to forget."""

    #: How many clients wait for that.
    requests: int = 0
    #: How often it was written down since the first of them asked.
    writes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePositions:
    """Positions of named subscriptions have moved: write `EdgeSubscribing.moved` down in a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLosses:
    """What was lost has changed: have the disk know it, should the node die before the client hears of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLater:
    """The client is gone: call `EdgeSubscribing.end` after a while."""

    subscription: EdgeSubscription


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseOwner:
    """An owner has one subscription less."""

    owner: SubscriptionOwner


SubscriptionEffect: TypeAlias = (
    DeliveryEffect
    | Confirm
    | Finish
    | WriteName
    | WriteNameLater
    | DropName
    | WritePositions
    | WriteLosses
    | EndLater
    | ReleaseOwner
)


def named_id(name: str) -> SubscriptionId:
    """What the broker calls a named subscription. `unnamed_id` and `renewed_id` never give the same text."""
    return SubscriptionId(f"named {name}")


def renewed_id(name: str, number: int) -> SubscriptionId:
    """What the broker calls a subscription that stands for a named one."""
    return SubscriptionId(f"named#{number} {name}")


def unnamed_id(client: str, number: int) -> SubscriptionId:
    """What the broker calls a subscription without a name, whatever a client calls itself."""
    return SubscriptionId(f"client {client}#{number}")


def start_of(asked: Subscribe) -> Tick | Mapping[PubendId, Tick] | None:
    """Where a subscription begins, as the broker is told."""
    match asked.start:
        case "now" | "stored":
            return None
        case "earliest":
            return EARLIEST
        case start:
            return start


def claimed_logs(asked: Subscribe, pubends: Iterable[PubendId]) -> dict[PubendId, str]:
    """The logs that a client says its positions are in. Of one with a name they are known here."""
    start = asked.start
    if asked.name is not None or not isinstance(start, Mapping):
        return {}
    return {pubend: asked.logs[pubend] for pubend in pubends if pubend in start and pubend in asked.logs}


def resumption(
    subscription: EdgeSubscription,
    positions: Mapping[PubendId, Tick],
    logs: Mapping[PubendId, str],
) -> SubscribeRequested:
    """What the broker is told of one that goes on at these positions, which are in these logs."""
    first, *later = subscription.conditions
    asked = {**dict.fromkeys(subscription.pubends, EARLIEST), **subscription.unbegun, **positions}
    return SubscribeRequested(
        subscription=subscription.name,
        topic=subscription.asked.topic,
        condition=first[2],
        order=subscription.asked.order,
        start={p: at for p in subscription.pubends if (at := asked[p]) is not None},
        changes=tuple((judging, since) for _, since, judging in later),
        logs=logs,
    )


def record_of(subscription: EdgeSubscription, positions: Mapping[PubendId, Tick]) -> NamedSubscription:
    """A named subscription at these positions, as it is written down. Drops conditions that are over."""
    assert subscription.asked.name is not None
    conditions = subscription.conditions
    while len(conditions) > 1 and all(
        positions.get(pubend, TICK_MIN) >= conditions[1][1].get(pubend, positions.get(pubend, TICK_MIN) + 1)
        for pubend in subscription.pubends
    ):
        del conditions[0]
    return NamedSubscription(
        name=subscription.asked.name,
        topic=subscription.asked.topic,
        condition=conditions[0][0],
        order=subscription.asked.order,
        positions=positions,
        changes=tuple((where, dict(since)) for where, since, _ in conditions[1:] if since),
        owner=subscription.owner.name,
        awaited=tuple(pubend for pubend in subscription.awaited if pubend in subscription.unbegun),
    )


def check_asked(asked: Subscribe, *, has_folder: bool, is_known: bool) -> None:
    """Raise UsageError unless an edge may have such a subscription."""
    if asked.name is None:
        if asked.start == "stored":
            raise UsageError("E138", "only a subscription with a name has a stored position: give the name")
        if asked.mode == "holding":
            raise UsageError("E138", "a subscription that holds the log has a name: give it one")
        return
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
