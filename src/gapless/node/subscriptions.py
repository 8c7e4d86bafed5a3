"""How does a node host the subscriptions of its clients? It says who may, reads conditions, and has the disk.

What becomes of a subscription is decided by `EdgeSubscribing`. This is its host: it checks rights and quotas
before anything is done, tells clients what they are to hear, and writes named subscriptions down.

A name belongs to the principal that made it. Other principals are refused, and the owner notices nothing.

A client may leave thousands of subscriptions behind, and each of them is a step of the broker: they are
parked, and ended later, a few in a turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never, cast

from gapless.errors import GaplessError, StoreError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.node.delivery import Delivery, Feed
from gapless.node.guard import Guard
from gapless.node.leaving import FewAtATime
from gapless.node.logs import event_log
from gapless.node.losses import Losses, told_of_gap
from gapless.node.named import NamedBook
from gapless.node.principals import Principal, Principals
from gapless.node.reading import Reading, read_now
from gapless.node.security import NOBODY, Rights
from gapless.protocol.effects import ConfirmChange, ConfirmSubscription
from gapless.protocol.events import (
    FilterChangeRequested,
    Order,
    SubscribeRequested,
    SubscriptionsRestored,
)
from gapless.protocol.network import Network
from gapless.protocol.sessions.messages import (
    ChangeFilter,
    Confirmed,
    Done,
    NodeMessage,
    RequestRefused,
    Subscribe,
)
from gapless.protocol.sessions.readers import TellBroker
from gapless.protocol.sessions.subscribing import EdgeSubscribing
from gapless.protocol.sessions.subscriptions import (
    ConditionChange,
    Confirm,
    DropName,
    EdgeClient,
    EdgeSubscription,
    EndLater,
    Finish,
    Judging,
    NamedSubscription,
    Purpose,
    ReleaseOwner,
    SubscriptionEffect,
    SubscriptionOwner,
    WriteLosses,
    WriteName,
    WriteNameLater,
    WritePositions,
    check_asked,
)
from gapless.store.recovery import RecoveryDatabase

if TYPE_CHECKING:
    from gapless.node.sessions import Session

log = event_log("gapless.subscriptions")

#: How long the subscriptions of a lost connection are kept as they are.
PARKED_SECONDS = 30.0
#: What the disk has refused is tried again after this time.
RETRY_SECONDS = 1.0


class Subscriptions:
    """All subscriptions of one node."""

    def __init__(
        self,
        network: Network,
        delivery: Delivery,
        sources: Mapping[PubendId, int],
        feed: Feed,
        *,
        principals: Principals,
        database: RecoveryDatabase | None = None,
        losses: Losses | None = None,
        guard: Guard | None = None,
        reach: Callable[[PubendId], Tick],
        is_gone: Callable[[str], bool],
    ) -> None:
        """Without a database there are no named subscriptions. `guard` is told of our own bugs.

        `reach` gives the tick of a pubend up to which anybody may have read; `is_gone` tells whether a
        principal cannot come any more, such as one whose token was removed from the network file.
        """
        self._losses = losses or Losses()
        #: Reads conditions.
        self.reading = Reading(guard)
        self._principals = principals
        self._is_gone = is_gone
        self.network = network
        self._delivery = delivery
        self._sources = sources
        self._feed = feed
        self.session = EdgeSubscribing(
            delivery.session, self._losses, self._pubends_of, reach, has_folder=database is not None
        )
        self._loop = asyncio.get_running_loop()
        self._book = None if database is None else NamedBook(database, self.session.moved, guard)
        self._losses.book = self._book
        #: Those whose client is gone and that are not parked yet, with the client that they had.
        self._leaving: FewAtATime[tuple[Session, EdgeSubscription]] = FewAtATime(self._lose, guard=guard)
        #: Those that are parked for a while.
        self._parked: FewAtATime[EdgeSubscription] = FewAtATime(self._end, PARKED_SECONDS, guard)

    def __len__(self) -> int:
        return len(self.session)

    def held(self) -> Collection[EdgeSubscription]:
        """All of them, parked ones included."""
        return self.session.held()

    def troubles(self) -> list[str]:
        """What is wrong with the threads that read conditions and write the named ones."""
        found = (None if self._book is None else self._book.trouble(), self.reading.trouble())
        return [trouble for trouble in found if trouble is not None]

    async def close(self) -> None:
        """Write down how far the named ones have come."""
        await self.reading.close()
        if self._book is not None:
            await self._book.close()

    def _pubends_of(self, topic: TopicId) -> tuple[PubendId, ...]:
        return self.network.pubends_of(topic)

    # What clients ask for.

    def subscribe(self, client: Session, asked: Subscribe) -> None:
        """A client subscribes. Raises UsageError or NotReadYetError, and nothing has changed then."""
        if asked.topic not in self.network.topics:
            raise client.rights.no_topic(asked.topic, self.network.topics)
        session, name = self.session, asked.name
        found = None if name is None else session.named(name)
        # Before anything is done for it: reading a condition may take long.
        if found is None:
            if name is not None and name in session.unrestored:
                self._check_owner(session.unrestored[name], client, asked)
            self._principals.check_subscription(
                client.principal, len(client.subscriptions), asked.where, named=name is not None
            )
        else:
            self._check_owner(found.owner.name, client, asked)
        condition = self.reading.condition(client, asked.where, self.network.topics[asked.topic])
        self._principals.check_matching(client.principal, asked.topic, condition)
        positions = asked.start if isinstance(asked.start, Mapping) else {}
        check_pubends(self.network, client.rights, asked.topic, (*positions, *asked.logs))
        if found is not None:
            check_asked(asked, has_folder=self._book is not None, is_known=True)
            if (found.asked.topic, found.asked.order) != (asked.topic, asked.order):
                raise another_topic(found, client.rights)
            if found.conditions[-1][2] != condition:
                self._principals.check_condition(cast(Principal, found.owner), asked.where)
                self.perform(session.adjust(asked, condition))
            if found.owner is not client.principal:
                log.info(
                    "name_adopted", name=name, former_owner=found.owner.name, owner=client.principal.name
                )
        self.perform(session.subscribe(client, client.principal, asked, condition))

    def change(self, client: Session, asked: ChangeFilter) -> None:
        """A client wants other events. Raises UsageError or NotReadYetError, and nothing has changed."""
        subscription = client.named(asked.subscription)
        owner = cast(Principal, subscription.owner)
        self._principals.check_condition(owner, asked.where)
        topic = subscription.asked.topic
        condition = self.reading.condition(client, asked.where, self.network.topics[topic])
        self._principals.check_matching(owner, topic, condition)
        change = ConditionChange(asked.request, asked.where, client)
        self.perform(self.session.change(subscription, change, condition))

    def leave(self, subscription: EdgeSubscription, request: int, *, forget: bool) -> None:
        """The client is done with it for now, or for ever."""
        if forget and subscription.asked.name is not None:
            _session(subscription.client).begin_request()
        self.perform(self.session.leave(subscription, request, forget=forget))

    def acknowledged(self, subscription: EdgeSubscription, positions: Mapping[PubendId, Tick]) -> None:
        """A client needs nothing below these ticks: as far as they were delivered, or could have been read.

        Raises UsageError when it names a pubend of another topic, and nothing has changed then.
        """
        rights = _session(subscription.client).rights
        check_pubends(self.network, rights, subscription.asked.topic, positions)
        self.perform(self.session.acknowledged(subscription, positions))

    def left(self, client: Session) -> None:
        """A client is gone: its subscriptions are parked, a few at a time."""
        self.reading.forget(client)
        gone = [(client, each) for each in client.subscriptions.values()]
        client.subscriptions.clear()
        self._leaving.extend(gone)

    def _lose(self, gone: tuple[Session, EdgeSubscription]) -> None:
        self.perform(self.session.lost(*gone))

    def _end(self, subscription: EdgeSubscription) -> None:
        self.perform(self.session.end(subscription))

    # What the broker says.

    def confirmed(self, effect: ConfirmSubscription | ConfirmChange) -> None:
        """A subscription is gapless from a tick on, or another condition of it decides."""
        if isinstance(effect, ConfirmSubscription):
            if effect.lost_from is not None and not self._is_claim(effect):
                told_of_gap(effect)
            self.perform(self.session.confirmed(effect))
        else:
            self.perform(self.session.changed(effect))

    def _is_claim(self, effect: ConfirmSubscription) -> bool:
        """Whether nobody but a client says that there was another log."""
        found = self.session.found(effect.subscription)
        return found is not None and effect.pubend in found.asked.logs and effect.pubend not in found.starts

    # What the session asks for.

    def perform(self, effects: Iterable[SubscriptionEffect]) -> None:
        """Do what the session asks for. Raises UsageError when the broker refuses what a client asks for."""
        for effect in effects:
            match effect:
                case TellBroker(event=SubscribeRequested() | FilterChangeRequested()):
                    self._request(effect)
                case Confirm():
                    _session(effect.client).send(self._confirmed_message(effect))
                case Finish(client=client, request=request, error=error):
                    _session(client).send(_answer(request, error))
                case WriteName() | WriteNameLater() | DropName() | WritePositions() | WriteLosses():
                    self._use_disk(effect)
                case EndLater(subscription=subscription):
                    self._parked.extend([subscription])
                case ReleaseOwner(owner=owner):
                    self._principals.left(cast(Principal, owner))
                case _:
                    self._delivery.perform([effect])

    def _request(self, effect: TellBroker) -> None:
        event = effect.event
        try:
            self._feed(event)
        except UsageError:
            self.perform(self.session.undo(event))
            raise
        if isinstance(event, FilterChangeRequested):
            self.session.changes(event)

    def _confirmed_message(self, effect: Confirm) -> Confirmed:
        subscription = effect.subscription
        log_id, began = subscription.logs.get(effect.pubend, ("", TICK_MIN))
        return Confirmed(
            request=effect.request,
            subscription=subscription.number,
            source=self._sources[effect.pubend],
            pubends=len(subscription.pubends),
            pubend=effect.pubend,
            schema=self.network.topics[subscription.asked.topic],
            start=effect.start,
            lost_from=effect.lost_from,
            log=log_id,
            began=began,
            awaited=subscription.awaited,
        )

    # The disk.

    def _use_disk(self, effect: WriteName | WriteNameLater | DropName | WritePositions | WriteLosses) -> None:
        assert self._book is not None, "somebody has a name, so there is a database"
        match effect:
            case WriteName():
                self._book.put(_owned(effect.record), partial(self._written, effect))
            case WriteNameLater(write=write):
                self._loop.call_later(RETRY_SECONDS, self._write_again, write)
            case DropName():
                self._book.drop(effect.name, partial(self._dropped, effect))
            case WritePositions():
                self._book.moved()
            case WriteLosses():
                self._losses.save()
            case _:
                assert_never(effect)

    def _written(self, write: WriteName, error: StoreError | None) -> None:
        if error is not None and write.purpose is Purpose.CHANGE:
            log.repeated("change_not_written", by=error.code, code=error.code, reason=error.message)
        elif error is not None and write.purpose is Purpose.ADOPT:
            # Nobody else can have it before a restart, and then it can be adopted again.
            log.warning("owner_not_written", code=error.code, reason=error.message)
        self.perform(self.session.written(write, error))

    def _write_again(self, write: WriteName) -> None:
        self.perform(self.session.write_again(write))

    def _dropped(self, effect: DropName, error: StoreError | None) -> None:
        effects = self.session.dropped(effect, error)
        if not any(isinstance(each, DropName) for each in effects):
            _session(effect.client).end_request()
        self.perform(effects)

    def restore(self, records: Iterable[NamedSubscription]) -> None:
        """Go on with the named subscriptions of an earlier life, before anything is acknowledged upwards."""
        found: list[tuple[NamedSubscription, Subscribe, SubscriptionOwner, list[Judging]]] = []
        for record in records:
            owner = record.owner or NOBODY
            try:
                asked, phases = self._read(record)
            except UsageError as error:
                # It stays on the disk: the description of the network may come back to what it was.
                self.session.unrestored[record.name] = owner
                log.warning("not_restored", name=record.name, code=error.code, reason=error.message)
                continue
            found.append((record, asked, self._principals.of(owner), phases))
        requests = self.session.restore(found)
        if requests:
            self._feed(SubscriptionsRestored(requests=tuple(requests)))

    def _read(self, record: NamedSubscription) -> tuple[Subscribe, list[Judging]]:
        """What a record asks for, and its conditions. Raises UsageError."""
        schema = self.network.topics.get(record.topic)
        if schema is None:
            raise UsageError("E141", f"there is no topic '{record.topic}'")
        wheres: list[tuple[str, dict[PubendId, Tick]]] = [(record.condition, {})]
        for where, since in record.changes:
            is_whole = record.order is not Order.TOTAL or len(since) == len(self._pubends_of(record.topic))
            wheres.append((where, dict(since) if is_whole else {}))
        phases = [(where, since, read_now(where, schema, is_kept=True)) for where, since in wheres]
        if any(not TICK_MIN <= tick < TICK_MAX for tick in record.positions.values()):
            # Earlier versions did not cap acknowledgements; one bad name must not stop the node.
            raise UsageError(
                "E145", "its position is not a tick: subscribe again under its name to replace it"
            )
        asked = Subscribe(
            request=0, topic=record.topic, where=wheres[-1][0], name=record.name, order=record.order
        )
        return asked, phases

    def _check_owner(self, owner: str, client: Session, asked: Subscribe) -> None:
        """Raise UsageError unless a name is the client's, or its owner is gone and it may adopt it."""
        name, own = asked.name, client.principal
        assert name is not None
        if owner == own.name:
            return
        if not (self._is_gone(owner) and client.rights.may_adopt(name)):
            raise UsageError(
                "E105",
                f"subscription '{name}' belongs to another principal: choose another name, or use "
                "the token or certificate that made it",
            )
        self._principals.check_subscription(own, len(client.subscriptions), asked.where, named=True)


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


def another_topic(found: EdgeSubscription, rights: Rights) -> UsageError:
    """The error for a name whose subscription is of another topic or order than the one asked for."""
    of, order = found.asked.topic, found.asked.order.value
    shown = f"topic '{of}', {order} order" if rights.may_see(of) else "another topic"
    return UsageError(
        "E138",
        f"subscription '{found.asked.name}' is of {shown}: choose another name, or forget that one first",
    )


def _session(client: EdgeClient | None) -> Session:
    """The clients of this host are its sessions."""
    assert client is not None, "nobody is there"
    return cast("Session", client)


def _owned(record: NamedSubscription) -> NamedSubscription:
    """As the disk has it: what belongs to everybody has no owner there."""
    return replace(record, owner=None) if record.owner == NOBODY else record


def _answer(request: int, error: GaplessError | None) -> NodeMessage:
    """The answer to a request that was carried out, or refused."""
    if error is None:
        return Done(request=request)
    return RequestRefused(request=request, code=error.code, message=error.message, retry=error.retry)
