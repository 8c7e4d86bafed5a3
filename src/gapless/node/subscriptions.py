"""Who has subscribed at this node, and what becomes of it when the client is gone?

A subscription lasts a little longer than its connection: what a client had not acknowledged when the
connection broke stays wanted for `PARKED_SECONDS`, so that a client that comes back, here or at another
edge, resumes where it was and nothing is gone meanwhile.

A subscription with a name lasts until it is forgotten, and belongs to the principal that made it. A client of
that principal that comes with its name goes on where it was acknowledged last; whoever had it before is told.
Everybody else is refused, and the owner notices nothing. It is restored when the node starts, before anything
is acknowledged upwards, and confirmed to its client only when the disk has it.

A client may leave thousands of subscriptions behind, and each of them is a step of the broker: they are
parked, and ended later, a few in a turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING

from gapless.content.condition import Condition
from gapless.errors import StoreError, UsageError
from gapless.model.ids import PubendId, SubscriptionId
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.node.delivery import UNBOUNDED, Delivery, Feed
from gapless.node.guard import Guard
from gapless.node.leaving import FewAtATime
from gapless.node.logs import event_log
from gapless.node.losses import Losses
from gapless.node.named import NamedBook, Then
from gapless.node.principals import Principal, Principals
from gapless.node.reading import Reading, read_now
from gapless.node.returning import Returning
from gapless.node.security import NOBODY
from gapless.node.subscription import (
    EARLIEST,
    Change,
    Subscription,
    another_topic,
    answer,
    check_named,
    check_pubends,
    check_unnamed,
    id_of,
    reader_of,
    renewed_id,
    start_of,
    unnamed_id,
)
from gapless.protocol.edge import PHASES_MAX
from gapless.protocol.effects import ConfirmChange, ConfirmSubscription
from gapless.protocol.events import (
    FilterChangeRequested,
    Order,
    SubscribeRequested,
    SubscriptionsRestored,
    UnsubscribeRequested,
)
from gapless.protocol.network import Network
from gapless.store.recovery import NamedSubscription, RecoveryDatabase
from gapless.wire.client_messages import ChangeFilter, Confirmed, Done, RequestRefused, Subscribe

if TYPE_CHECKING:
    from gapless.node.sessions import Session

log = event_log("gapless.subscriptions")

#: How long the subscriptions of a lost connection are kept as they are.
PARKED_SECONDS = 30.0
#: What the disk has refused is tried again after this time.
RETRY_SECONDS = 1.0
#: A node keeps no more named subscriptions than this; another one is refused (E135).
NAMED_MAX = 100_000


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
        """Without a database there are no named subscriptions. `guard` hears of mistakes of our own.

        `reach` gives the tick of a pubend up to which anybody may have read; `is_gone` tells whether a
        principal cannot come any more, such as one whose token was removed from the network file.
        """
        self._losses = losses or Losses()
        #: Reads conditions.
        self.reading = Reading(guard)
        self._principals = principals
        self._reach = reach
        self._is_gone = is_gone
        self.network = network
        self._delivery = delivery
        self._returning = Returning(self._positions)
        self._sources = sources
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._by_name: dict[SubscriptionId, Subscription] = {}
        self._numbers = count(1)
        self._book = None if database is None else NamedBook(database, self._moved_positions, guard)
        #: The named ones, by the name that clients use.
        self._named: dict[str, Subscription] = {}
        self._moved: set[str] = set()
        #: Names on the disk that could not be restored, with their owners.
        self._unrestored: dict[str, str] = {}
        #: Those whose client is gone and that are not parked yet, with the session that they had.
        self._leaving: FewAtATime[tuple[Session, Subscription]] = FewAtATime(self._park_gone, guard=guard)
        #: Those that are parked for a while.
        self._parked: FewAtATime[Subscription] = FewAtATime(self.end, PARKED_SECONDS, guard)

    def __len__(self) -> int:
        return len(self._by_name)

    def held(self) -> list[Subscription]:
        """All of them, parked ones included."""
        return list(self._by_name.values())

    def troubles(self) -> list[str]:
        """What is wrong with the threads that read conditions and write the named ones."""
        found = (None if self._book is None else self._book.trouble(), self.reading.trouble())
        return [trouble for trouble in found if trouble is not None]

    async def close(self) -> None:
        """Write down how far the named ones have come."""
        await self.reading.close()
        if self._book is not None:
            await self._book.close()

    # Coming and going.

    def subscribe(self, session: Session, asked: Subscribe) -> None:
        """A client subscribes. Raises UsageError or NotReadYetError, and nothing has changed then."""
        if asked.topic not in self.network.topics:
            raise session.rights.no_topic(asked.topic, self.network.topics)
        found = None if asked.name is None else self._named.get(asked.name)
        # Before anything is done for it: reading a condition may take long.
        if found is None:
            if asked.name is not None and asked.name in self._unrestored:
                self._check_owner(self._unrestored[asked.name], session, asked)
            self._principals.check_subscription(
                session.principal, len(session.subscriptions), asked.where, named=asked.name is not None
            )
        else:
            self._check_owner(found.principal.name, session, asked)
        condition = self.reading.condition(session, asked.where, self.network.topics[asked.topic])
        self._principals.check_matching(session.principal, asked.topic, condition)
        if isinstance(asked.start, Mapping):
            check_pubends(self.network, session.rights, asked.topic, asked.start)
        if asked.name is not None:
            self._subscribe_named(session, asked, asked.name, condition)
            return
        check_unnamed(asked)
        number = next(self._numbers)
        made = self._made(unnamed_id(session.name, number), number, asked, session, session.principal)
        self._begin(made, condition, start_of(asked))

    def confirmed(self, effect: ConfirmSubscription) -> None:
        """A subscription is gapless from a tick on: the client hears of it."""
        subscription = self._by_name.get(effect.subscription)
        if subscription is None:
            return
        subscription.starts[effect.pubend] = effect.start
        if subscription.is_restored:
            self._look_for_loss(subscription, effect)
        if subscription.reader is None:
            subscription.reader = reader_of(subscription, effect.slot)
        self._delivery.enter(subscription.reader, {effect.pubend: effect.start})
        if subscription.asked.name is None:
            start = self._returning.start(subscription, effect)
            self._tell(subscription, subscription.asked.request, effect.pubend, start)
        elif subscription.is_confirmed:
            self._keep(subscription)

    def leave(self, subscription: Subscription, request: int, *, forget: bool) -> None:
        """The client is done with it for now, or for ever."""
        session = subscription.session
        assert session is not None, "nobody is there to leave"
        name = subscription.asked.name
        if name is not None and forget:
            session.begin_request()
        if name is None or forget:
            self.end(subscription)
        else:
            session.subscriptions.pop(subscription.number, None)
            self.park(subscription)
        if name is None or not forget:
            session.send(Done(request=request))
            return
        assert self._book is not None

        def dropped(error: StoreError | None) -> None:
            session.end_request()
            answer(session, request, error)

        self._losses.forget(name)
        self._book.drop(name, dropped)

    def end(self, subscription: Subscription) -> None:
        """A subscription is over."""
        if self._by_name.get(subscription.name) is subscription:
            self._forget(subscription)
            self._feed(UnsubscribeRequested(subscription=subscription.name))
            if subscription.reader is not None:
                self._delivery.leave(subscription.reader)
        if subscription.before is not None:
            self.end(subscription.before)
            subscription.before = None

    def left(self, session: Session) -> None:
        """A client is gone: its subscriptions are parked, a few at a time."""
        self.reading.forget(session)
        gone = [(session, each) for each in session.subscriptions.values()]
        session.subscriptions.clear()
        self._leaving.extend(gone)

    def _park_gone(self, gone: tuple[Session, Subscription]) -> None:
        session, subscription = gone
        # Meanwhile it may have ended, or its name have been taken over.
        if subscription.session is session and self._by_name.get(subscription.name) is subscription:
            self.park(subscription)

    def park(self, subscription: Subscription) -> None:
        """The client is gone: nothing is sent, and what it lacks stays wanted, for a while or for ever."""
        subscription.session = None
        reader, is_named = subscription.reader, subscription.asked.name is not None
        if reader is None:
            if not is_named:
                self.end(subscription)
            return
        if not reader.guaranteed:
            self.end(subscription)
            return
        reader.connection = None
        self._delivery.report_slow(reader, away=True)
        if not is_named:
            self._parked.extend([subscription])

    # Other conditions.

    def change(self, session: Session, asked: ChangeFilter) -> None:
        """A client wants other events. Raises UsageError or NotReadYetError, and nothing has changed."""
        subscription = session.named(asked.subscription)
        self._principals.check_condition(subscription.principal, asked.where)
        topic = subscription.asked.topic
        condition = self.reading.condition(session, asked.where, self.network.topics[topic])
        self._principals.check_matching(subscription.principal, topic, condition)
        self._change(subscription, Change(asked.request, asked.where, session), condition)

    def changed(self, effect: ConfirmChange) -> None:
        """Another condition decides from a tick on: the client hears of it."""
        subscription = self._by_name.get(effect.subscription)
        if subscription is None:
            return
        change = next((each for each in subscription.changing if effect.pubend not in each.since), None)
        if change is not None:
            change.since[effect.pubend] = effect.since
            if len(change.since) == len(subscription.pubends):
                subscription.changing.remove(change)
                left = (change, *subscription.changing)
                subscription.charge(sum(len(each.where) for each in left), subscription.matched[-len(left) :])
        else:
            # A change of an earlier life that this pubend had not confirmed then.
            later = subscription.conditions[1:]
            since = next(since for _, since, _ in later if effect.pubend not in since)
            since[effect.pubend] = effect.since

        def told(error: StoreError | None) -> None:
            if error is not None:
                # The change is made and cannot be taken back: its client hears of it when the disk has it.
                log.repeated("change_not_written", by=error.code, code=error.code, reason=error.message)
                self._loop.call_later(RETRY_SECONDS, again)
            elif change is not None and change.request is not None and change.session is subscription.session:
                self._tell(subscription, change.request, effect.pubend, effect.since)

        def again() -> None:
            if self._by_name.get(subscription.name) is subscription:
                self._put(subscription, told)

        if subscription.asked.name is None:
            told(None)
        elif subscription.is_kept:
            self._put(subscription, told)

    def _change(self, subscription: Subscription, change: Change, condition: Condition) -> None:
        subscription.changing.append(change)
        try:
            self._feed(FilterChangeRequested(subscription=subscription.name, condition=condition))
        except UsageError:
            subscription.changing.remove(change)
            raise
        self._returning.add(subscription, change.where)
        matched = [*subscription.matched, condition]
        subscription.charge(subscription.condition_bytes + len(change.where), matched)
        if subscription.asked.name is not None:
            subscription.conditions.append((change.where, change.since, condition))
            # The edge has no more phases than this, so what came before them is over.
            del subscription.conditions[:-PHASES_MAX]

    # Those with a name.

    def restore(self, records: Iterable[NamedSubscription]) -> None:
        """Go on with the named subscriptions of an earlier life, before anything is acknowledged upwards."""
        requests: list[SubscribeRequested] = []
        for record in records:
            try:
                request = self._restored(record)
            except UsageError as error:
                # It stays on the disk: the description of the network may come back to what it was.
                self._unrestored[record.name] = record.owner or NOBODY
                log.warning("not_restored", name=record.name, code=error.code, reason=error.message)
                continue
            requests.append(request)
        if requests:
            self._feed(SubscriptionsRestored(requests=tuple(requests)))

    def _write_losses(self) -> None:
        """Have the disk know what was lost, should the node die before the client hears of it."""

        def written(error: StoreError | None) -> None:
            if error is not None:
                log.repeated("losses_not_written", by=error.code, code=error.code, reason=error.message)
                self._loop.call_later(RETRY_SECONDS, self._write_losses)

        assert self._book is not None, "somebody has a name, so there is a database"
        self._book.write(self._losses.write(), written)

    def _look_for_loss(self, subscription: Subscription, effect: ConfirmSubscription) -> None:
        """The pubend begins later than it was asked to: did it release what was never acked here?"""
        name, position = subscription.asked.name, subscription.resumed.get(effect.pubend)
        assert name is not None, "it was restored by its name"
        if position is not None and self._losses.granted(name, position, effect):
            self._write_losses()

    def _restored(self, record: NamedSubscription) -> SubscribeRequested:
        schema = self.network.topics.get(record.topic)
        if schema is None:
            raise UsageError("E141", f"there is no topic '{record.topic}'")
        wheres: list[tuple[str, dict[PubendId, Tick]]] = [(record.condition, {})]
        for where, since in record.changes:
            is_whole = record.order is not Order.TOTAL or len(since) == len(
                self.network.pubends_of(record.topic)
            )
            wheres.append((where, dict(since) if is_whole else {}))
        phases = [(where, since, read_now(where, schema, is_kept=True)) for where, since in wheres]
        if any(not TICK_MIN <= tick < TICK_MAX for tick in record.positions.values()):
            # Earlier versions did not cap acknowledgements; one bad name must not stop the node.
            raise UsageError("E145", "its position is no tick: subscribe again under its name to replace it")
        asked = Subscribe(
            request=0, topic=record.topic, where=wheres[-1][0], name=record.name, order=record.order
        )
        principal = self._principals.of(NOBODY if record.owner is None else record.owner)
        subscription = self._made(id_of(record.name), 0, asked, None, principal)
        subscription.conditions = phases
        subscription.resumed = record.positions
        subscription.is_kept = subscription.is_restored = True
        subscription.matched = [condition for _, _, condition in phases]
        self._add(subscription)
        return SubscribeRequested(
            subscription=subscription.name,
            topic=record.topic,
            condition=phases[0][2],
            order=record.order,
            start={pubend: record.positions.get(pubend, EARLIEST) for pubend in subscription.pubends},
            changes=tuple((condition, since) for _, since, condition in phases[1:]),
        )

    def acknowledged(self, subscription: Subscription, positions: Mapping[PubendId, Tick]) -> None:
        """A client needs nothing below these ticks: as far as they were delivered, or could have been read.

        Raises UsageError when it names a pubend of another topic, and nothing has changed then.
        """
        assert subscription.session is not None, "nobody is there to acknowledge"
        check_pubends(self.network, subscription.session.rights, subscription.asked.topic, positions)
        if subscription.reader is not None:
            if subscription.is_holding:
                could = {p: min(positions[p], self._reach(p)) for p in subscription.pubends if p in positions}
                self._delivery.reached(subscription.reader, could)
            self._delivery.acknowledged(subscription.reader, positions)
            if subscription.is_holding:
                # It was handed nothing: that it has moved is all that the broker hears of it.
                self._delivery.report_slow(subscription.reader, away=True)
            if subscription.is_kept and self._book is not None:
                assert subscription.asked.name is not None
                self._moved.add(subscription.asked.name)
                self._book.moved()

    def _subscribe_named(self, session: Session, asked: Subscribe, name: str, condition: Condition) -> None:
        found = self._named.get(name)
        is_known = found is not None or name in self._unrestored
        check_named(asked, has_folder=self._book is not None, is_known=is_known)
        if found is None:
            if len(self._named) >= NAMED_MAX:
                raise UsageError(
                    "E135", f"this node keeps {NAMED_MAX:,} named subscriptions: forget some first"
                )
            number = next(self._numbers)
            subscription = self._made(id_of(name), number, asked, session, session.principal)
            subscription.conditions = [(asked.where, {}, condition)]
            self._begin(subscription, condition, start_of(asked))
            return
        if (found.asked.topic, found.asked.order) != (asked.topic, asked.order):
            raise another_topic(found, session.rights)
        last = found.conditions[-1][2]
        is_wider = found.pubends != self.network.pubends_of(asked.topic)
        if is_wider or (last != condition and isinstance(asked.start, Mapping)):
            self._take_over(found, None, found.asked)
            self._replace(found, session, asked, None if last == condition else condition)
            return
        if last != condition:
            # What it has not acknowledged is judged by the old condition, as when a client changes its mind.
            self._principals.check_condition(found.principal, asked.where)
            self._change(found, Change(None, asked.where, None), condition)
        self._take_over(found, session, asked)
        if found.principal is not session.principal:
            self._adopt(found, session.principal)
        if found.is_kept and found.is_confirmed:
            self._resume(found)

    def _check_owner(self, owner: str, session: Session, asked: Subscribe) -> None:
        """Raise UsageError unless a name is the client's, or its owner is gone and it may adopt it."""
        name, own = asked.name, session.principal
        assert name is not None
        if owner == own.name:
            return
        if not (self._is_gone(owner) and session.rights.may_adopt(name)):
            raise UsageError(
                "E105",
                f"subscription '{name}' belongs to another principal: choose another name, or use "
                "the token or certificate that made it",
            )
        self._principals.check_subscription(own, len(session.subscriptions), asked.where, named=True)

    def _adopt(self, subscription: Subscription, principal: Principal) -> None:
        """A subscription whose owner is gone belongs to somebody else now."""
        former = subscription.principal
        log.info("name_adopted", name=subscription.asked.name, former_owner=former.name, owner=principal.name)
        subscription.count(-1)
        subscription.principal = principal
        subscription.count(1)
        self._principals.left(former)

        def written(error: StoreError | None) -> None:
            if error is not None:
                # Nobody else can have it before a restart, and then it can be adopted again.
                log.warning("owner_not_written", code=error.code, reason=error.message)

        if subscription.is_kept:
            self._put(subscription, written)

    def _take_over(self, found: Subscription, session: Session | None, asked: Subscribe) -> None:
        """Another client has the name now: whoever had it is told."""
        if found.session is not None:
            found.session.subscriptions.pop(found.number, None)
            found.session.send(
                RequestRefused(
                    request=found.asked.request,
                    code="E137",
                    message=f"another client subscribed as '{asked.name}': one client has a name at a time",
                    retry=False,
                )
            )
            found.session = None
            if found.reader is not None:
                found.reader.connection = None
                self._delivery.report_slow(found.reader, away=True)
        found.asked = asked
        found.number = next(self._numbers)
        if session is not None:
            found.session = session
            session.subscriptions[found.number] = found

    def _replace(
        self, found: Subscription, session: Session, asked: Subscribe, condition: Condition | None
    ) -> None:
        """Begin anew at the positions of one that is there, which stays until this one is confirmed.

        A client that comes back with its positions, and with a condition of its own for what it lacks, is
        served from exactly there; what it has and did not acknowledge stays as it was.
        """
        name = asked.name
        assert name is not None
        number = next(self._numbers)
        subscription = self._made(renewed_id(name, number), number, asked, session, session.principal)
        subscription.before = found
        subscription.resumed = positions = self._positions(found)
        phases = [(where, dict(since), judging) for where, since, judging in found.conditions]
        if condition is not None:
            own = asked.start if isinstance(asked.start, Mapping) else {}
            since = {pubend: max(own.get(pubend, at), at) for pubend, at in positions.items()}
            phases = [*phases, (asked.where, since, condition)][-PHASES_MAX:]
        subscription.conditions = phases
        subscription.matched = [judging for _, _, judging in phases]
        if found.before is not None:
            # It was never confirmed, so the one that it stands for holds all that is needed. Without this, a
            # client that comes back again and again while a pubend is away leaves a subscription each time.
            subscription.before, found.before = found.before, None
            self.end(found)
        self._add(subscription)
        request = SubscribeRequested(
            subscription=subscription.name,
            topic=asked.topic,
            condition=phases[0][2],
            order=asked.order,
            start={pubend: positions.get(pubend, EARLIEST) for pubend in subscription.pubends},
            changes=tuple((judging, since) for _, since, judging in phases[1:]),
        )
        try:
            self._feed(request)
        except UsageError:
            self._give_back(subscription)
            raise

    def _give_back(self, subscription: Subscription) -> None:
        """A named subscription cannot be kept: it ends, and the one that it stands for has the name again."""
        held, subscription.before = subscription.before, None
        self.end(subscription)
        if held is not None and held.asked.name is not None:
            self._named[held.asked.name] = held

    def _keep(self, subscription: Subscription) -> None:
        """All pubends have confirmed a named subscription: write it down, and then its client hears of it."""

        def kept(error: StoreError | None) -> None:
            if self._by_name.get(subscription.name) is not subscription:
                return
            if error is not None:
                if subscription.session is not None:
                    answer(subscription.session, subscription.asked.request, error)
                if not subscription.is_kept:
                    self._give_back(subscription)
                return
            subscription.is_kept = True
            self._unrestored.pop(subscription.asked.name or "", None)
            if subscription.before is not None:
                self.end(subscription.before)
                subscription.before = None
            self._resume(subscription)

        if not subscription.is_kept:
            self._put(subscription, kept)
        elif subscription.session is not None:
            self._resume(subscription)

    def _resume(self, subscription: Subscription) -> None:
        """Serve the client of a named subscription from what it acknowledged last, or wait for one."""
        reader, session, asked = subscription.reader, subscription.session, subscription.asked
        assert reader is not None, "it is confirmed"
        if session is None:
            self._delivery.report_slow(reader, away=True)
            return
        own = asked.start if isinstance(asked.start, Mapping) else {}
        assert asked.name is not None, "it has a name"
        positions = self._positions(subscription)
        if self._losses.moved(asked.name, positions):
            self._write_losses()
        for pubend, position in positions.items():
            own_start = min(own.get(pubend, position), self._reach(pubend))
            start, lost_from = max(position, own_start), None
            lost = self._losses.of(asked.name, pubend)
            if lost is not None and start < lost[1]:
                start, lost_from = lost[1], max(start, lost[0])
            # What it has from elsewhere it may acknowledge, though it is not delivered here.
            self._delivery.reached(reader, {pubend: start})
            self._tell(subscription, asked.request, pubend, start, lost_from)
        reader.number = subscription.number
        if subscription.is_holding:
            self._delivery.report_slow(reader, away=True)
            return
        reader.credit = UNBOUNDED if asked.credit_rows is None else asked.credit_rows
        reader.connection = session.connection
        self._delivery.report_slow(reader)

    def _positions(self, subscription: Subscription) -> dict[PubendId, Tick]:
        """Per pubend the tick below which a named subscription needs nothing any more.

        A pubend may have granted a later start than was asked for, because nothing that the subscription
        needs lies between: until it has acknowledged more, its position is the one it had.
        """
        positions: dict[PubendId, Tick] = dict(subscription.resumed)
        if subscription.reader is not None:
            for pubend, acked in self._delivery.positions(subscription.reader).items():
                if pubend not in positions or acked > subscription.starts.get(pubend, TICK_MIN):
                    positions[pubend] = acked
        return positions

    def _moved_positions(self) -> dict[str, dict[PubendId, Tick]]:
        moved, self._moved = self._moved, set()
        return {name: self._positions(self._named[name]) for name in moved if name in self._named}

    def _put(self, subscription: Subscription, then: Then) -> None:
        assert self._book is not None
        assert subscription.asked.name is not None
        positions = self._positions(subscription)
        conditions = subscription.conditions
        while len(conditions) > 1 and all(
            positions.get(pubend, TICK_MIN)
            >= conditions[1][1].get(pubend, positions.get(pubend, TICK_MIN) + 1)
            for pubend in subscription.pubends
        ):
            del conditions[0]
        record = NamedSubscription(
            name=subscription.asked.name,
            topic=subscription.asked.topic,
            condition=conditions[0][0],
            order=subscription.asked.order,
            positions=positions,
            changes=tuple((where, dict(since)) for where, since, _ in conditions[1:] if since),
            owner=None if subscription.principal.name == NOBODY else subscription.principal.name,
        )
        self._book.put(record, then)

    # Small parts.

    def _made(
        self, name: str, number: int, asked: Subscribe, session: Session | None, principal: Principal
    ) -> Subscription:
        pubends = self.network.pubends_of(asked.topic)
        return Subscription(SubscriptionId(name), number, asked, session, pubends, principal)

    def _add(self, subscription: Subscription) -> None:
        self._by_name[subscription.name] = subscription
        self._returning.add(subscription, subscription.asked.where)
        name, session = subscription.asked.name, subscription.session
        if name is not None:
            self._named[name] = subscription
        if session is not None:
            session.subscriptions[subscription.number] = subscription
        subscription.condition_bytes = len(subscription.asked.where)
        subscription.count(1)

    def _begin(
        self, subscription: Subscription, condition: Condition, start: Tick | Mapping[PubendId, Tick] | None
    ) -> None:
        """Ask the broker for it. Raises UsageError, and nothing has changed then."""
        subscription.matched = [condition]
        self._add(subscription)
        try:
            self._feed(
                SubscribeRequested(
                    subscription=subscription.name,
                    topic=subscription.asked.topic,
                    condition=condition,
                    order=subscription.asked.order,
                    start=start,
                )
            )
        except UsageError:
            self._forget(subscription)
            raise

    def _tell(
        self,
        subscription: Subscription,
        request: int,
        pubend: PubendId,
        start: Tick,
        lost_from: Tick | None = None,
    ) -> None:
        if subscription.session is None:
            return
        subscription.session.send(
            Confirmed(
                request=request,
                subscription=subscription.number,
                source=self._sources[pubend],
                pubends=len(subscription.pubends),
                pubend=pubend,
                schema=self.network.topics[subscription.asked.topic],
                start=start,
                lost_from=lost_from,
            )
        )

    def _forget(self, subscription: Subscription) -> None:
        self._returning.drop(subscription)
        if self._by_name.pop(subscription.name, None) is not None:
            subscription.count(-1)
            self._principals.left(subscription.principal)
        name = subscription.asked.name
        if name is not None and self._named.get(name) is subscription:
            del self._named[name]
        if subscription.session is not None:
            subscription.session.subscriptions.pop(subscription.number, None)
