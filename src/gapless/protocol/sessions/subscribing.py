"""Who has subscribed at this edge, and what becomes of it when the client is gone?

A subscription lasts a little longer than its connection: what a client had not acknowledged when that broke
stays wanted for a while, so that a client that comes back, here or at another edge, resumes where it was and
nothing is gone meanwhile.

A subscription with a name lasts until it is forgotten. A client that comes with its name goes on where it was
acknowledged last; whoever had it before is told. It is restored when the node starts, before anything is
acknowledged upwards, and confirmed to its client only when the disk has it.

Who may subscribe to what, and reading conditions, is left to the host.

Implements docs/protocol.md, section 15.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count

from gapless.content.condition import Condition
from gapless.errors import StoreError, UsageError
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.edge import PHASES_MAX
from gapless.protocol.effects import ConfirmChange, ConfirmSubscription
from gapless.protocol.events import (
    Event,
    FilterChangeRequested,
    SubscribeRequested,
    UnsubscribeRequested,
)
from gapless.protocol.sessions.delivering import Deliveries
from gapless.protocol.sessions.losses import LossBook
from gapless.protocol.sessions.messages import Subscribe
from gapless.protocol.sessions.readers import UNBOUNDED, TellBroker
from gapless.protocol.sessions.returning import Returning
from gapless.protocol.sessions.subscriptions import (
    ConditionChange,
    Confirm,
    DropName,
    EdgeClient,
    EdgeSubscription,
    EndLater,
    Finish,
    Forgetting,
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
    claimed_logs,
    does_roam,
    named_id,
    record_of,
    renewed_id,
    resumption,
    start_of,
    unnamed_id,
)

#: A node keeps no more named subscriptions than this; another one is refused (E135).
NAMED_MAX = 100_000


class EdgeSubscribing:
    """All subscriptions of one edge."""

    def __init__(
        self,
        deliveries: Deliveries,
        losses: LossBook,
        pubends_of: Callable[[TopicId], tuple[PubendId, ...]],
        reach: Callable[[PubendId], Tick],
        *,
        has_folder: bool,
    ) -> None:
        """`pubends_of` gives the pubends of a topic, `reach` the tick below which anybody may have read one.

        Without a folder there are no named subscriptions.
        """
        self._deliveries = deliveries
        self._losses = losses
        self._pubends_of = pubends_of
        self._reach = reach
        self._has_folder = has_folder
        self._returning = Returning(self.positions)
        self._by_id: dict[SubscriptionId, EdgeSubscription] = {}
        #: The named ones, by the name that clients use.
        self._named: dict[str, EdgeSubscription] = {}
        #: Names whose positions have moved since they were last written.
        self._moved: set[str] = set()
        #: Names that are being forgotten: no client can have them before that is done or refused.
        self._forgetting: dict[str, Forgetting] = {}
        #: Names on the disk that could not be restored, with their owners.
        self.unrestored: dict[str, str] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._by_id)

    def held(self) -> Collection[EdgeSubscription]:
        """All of them, parked ones included."""
        return self._by_id.values()

    def found(self, name: str) -> EdgeSubscription | None:
        """A subscription by the name that a client gave it, or by the one that the broker knows."""
        return self._named.get(name) or self._by_id.get(SubscriptionId(name))

    def named(self, name: str) -> EdgeSubscription | None:
        """A subscription by the name that a client gave it."""
        return self._named.get(name)

    def is_current(self, subscription: EdgeSubscription) -> bool:
        """Whether it has neither ended nor been replaced."""
        return self._by_id.get(subscription.name) is subscription

    # Coming and going.

    def subscribe(
        self, client: EdgeClient, owner: SubscriptionOwner, asked: Subscribe, condition: Condition
    ) -> list[SubscriptionEffect]:
        """A client subscribes, and may. Raises UsageError, and nothing has changed then.

        When the broker refuses it, `undo` has to be called.
        """
        name = asked.name
        found = None if name is None else self._named.get(name)
        is_known = found is not None or name in self.unrestored
        if name in self._forgetting:
            raise UsageError("E140", f"subscription '{name}' is being forgotten: try again", retry=True)
        check_asked(asked, has_folder=self._has_folder, is_known=is_known)
        if found is not None:
            return self._go_on(found, client, owner, asked, condition)
        number = next(self._numbers)
        if name is None:
            made = self._made(unnamed_id(client.name, number), number, asked, client, owner)
        else:
            if len(self._named) >= NAMED_MAX:
                raise UsageError(
                    "E135", f"this node keeps {NAMED_MAX:,} named subscriptions: forget some first"
                )
            made = self._made(named_id(name), number, asked, client, owner)
            made.conditions = [(asked.where, {}, condition)]
            start = start_of(asked)
            made.unbegun = {p: start.get(p) if isinstance(start, Mapping) else start for p in made.pubends}
        made.matched = [condition]
        self._add(made)
        event = SubscribeRequested(
            subscription=made.name,
            topic=asked.topic,
            condition=condition,
            order=asked.order,
            start=start_of(asked),
            logs=claimed_logs(asked, made.pubends),
            roams=does_roam(asked),
        )
        return [TellBroker(event=event)]

    def adjust(self, asked: Subscribe, condition: Condition) -> list[SubscriptionEffect]:
        """A client comes back to a name with another condition: that changes first, before it is served.

        What it has not acknowledged is judged by the old condition, as when a client changes its mind.
        """
        found = None if asked.name is None else self._named.get(asked.name)
        if (
            found is None
            or asked.name in self._forgetting
            or found.conditions[-1][2] == condition
            or self._is_anew(found, asked)
        ):
            return []
        return self.change(found, ConditionChange(None, asked.where, None), condition)

    def _is_anew(self, found: EdgeSubscription, asked: Subscribe) -> bool:
        """Whether a name must begin anew if it has another condition now."""
        return isinstance(asked.start, Mapping) or found.pubends != self._pubends_of(asked.topic)

    def undo(self, event: Event) -> list[SubscriptionEffect]:
        """The broker has refused a request of a client: nothing has changed."""
        effects: list[SubscriptionEffect] = []
        if isinstance(event, SubscribeRequested):
            subscription = self._by_id[event.subscription]
            held, subscription.before = subscription.before, None
            effects += self._forget(subscription)
            self._give_back(held)
        elif isinstance(event, FilterChangeRequested):
            subscription = self._by_id[event.subscription]
            change = subscription.changing.pop()
            subscription.charge(subscription.condition_bytes - len(change.where), subscription.matched[:-1])
            if subscription.conditions:
                del subscription.conditions[-1]
        return effects

    def confirmed(self, effect: ConfirmSubscription) -> list[SubscriptionEffect]:
        """A subscription is gapless from a tick on: the client hears of it."""
        subscription = self._by_id.get(effect.subscription)
        if subscription is None:
            return []
        if effect.pubend in subscription.starts and effect.lost_from is None:
            # Another pubend has begun another log; of this one nothing has changed.
            return []
        has_begun = effect.pubend in subscription.starts or (
            subscription.is_restored and effect.pubend in subscription.resumed
        )
        subscription.starts[effect.pubend] = effect.start
        subscription.logs[effect.pubend] = (effect.log, effect.began)
        effects = self._look_for_loss(subscription, effect)
        if subscription.reader is None:
            subscription.reader = subscription.new_reader(effect.slot)
        effects += self._deliveries.enter(subscription.reader, {effect.pubend: effect.start})
        if subscription.asked.name is None:
            start = self._returning.start(subscription, effect)
            effects += self._confirm(
                subscription, subscription.asked.request, effect.pubend, start, effect.lost_from
            )
        elif subscription.is_confirmed:
            if not (subscription.is_kept and has_begun):
                effects += self._keep(subscription)
            else:
                effects += self._end_before(subscription)
                if subscription.client is not None and not subscription.writes:
                    effects += self._resume(subscription)
        return effects

    def _keep(self, subscription: EdgeSubscription) -> list[SubscriptionEffect]:
        """Write down where a name begins: only then its client hears of a pubend that has confirmed it.

        Otherwise it would begin elsewhere after a crash.
        """
        subscription.writes += 1
        effects: list[SubscriptionEffect] = [self._write(subscription, Purpose.KEEP)]
        reader = subscription.reader
        if reader is not None and reader.outlet is not None:
            # It is served already. Events of this pubend must not come before the client hears of it.
            reader.outlet = None
            effects += self._deliveries.report_slow(reader, away=True)
        return effects

    def leave(
        self, subscription: EdgeSubscription, request: int, *, forget: bool
    ) -> list[SubscriptionEffect]:
        """The client is done with it for now, or for ever."""
        client, name = subscription.client, subscription.asked.name
        assert client is not None, "nobody is there to leave"
        if name is not None and forget:
            forgetting = self._forgetting.setdefault(name, Forgetting())
            forgetting.requests += 1
            return [DropName(name=name, client=client, request=request, writes=forgetting.writes)]
        if name is None:
            effects = self.end(subscription)
        else:
            client.subscriptions.pop(subscription.number, None)
            effects = self.park(subscription)
        return [*effects, Finish(client=client, request=request)]

    def dropped(self, drop: DropName, error: StoreError | None) -> list[SubscriptionEffect]:
        """The disk has forgotten a name, and it ends; or the disk has refused, and all is as it was.

        A name that ended before the disk forgets it would come back after a crash, and nobody would have kept
        for it what came in between.
        """
        forgetting = self._forgetting[drop.name]
        if error is None and drop.writes != forgetting.writes:
            # It was written once more meanwhile.
            return [replace(drop, writes=forgetting.writes)]
        forgetting.requests -= 1
        if not forgetting.requests:
            del self._forgetting[drop.name]
        effects: list[SubscriptionEffect] = []
        if error is None:
            found = self._named.get(drop.name)
            effects += [] if found is None else self.end(found)
            if self._losses.forget(drop.name):
                effects.append(WriteLosses())
        return [*effects, Finish(client=drop.client, request=drop.request, error=error)]

    def end(self, subscription: EdgeSubscription) -> list[SubscriptionEffect]:
        """A subscription is over."""
        effects: list[SubscriptionEffect] = []
        if self.is_current(subscription):
            effects += self._forget(subscription)
            effects.append(TellBroker(event=UnsubscribeRequested(subscription=subscription.name)))
            if subscription.reader is not None:
                effects += self._deliveries.leave(subscription.reader)
        if subscription.before is not None:
            effects += self.end(subscription.before)
            subscription.before = None
        return effects

    def lost(self, client: EdgeClient, subscription: EdgeSubscription) -> list[SubscriptionEffect]:
        """A client is gone, and with it this subscription, unless it has ended or has another client."""
        if subscription.client is client and self.is_current(subscription):
            return self.park(subscription)
        return []

    def park(self, subscription: EdgeSubscription) -> list[SubscriptionEffect]:
        """The client is gone: nothing is sent, and what it lacks stays wanted, for a while or for ever."""
        subscription.client = None
        reader, is_named = subscription.reader, subscription.asked.name is not None
        if reader is None:
            return [] if is_named else self.end(subscription)
        if not reader.guaranteed:
            return self.end(subscription)
        reader.outlet = None
        effects: list[SubscriptionEffect] = [*self._deliveries.report_slow(reader, away=True)]
        return effects if is_named else [*effects, EndLater(subscription=subscription)]

    # What clients say.

    def acknowledged(
        self, subscription: EdgeSubscription, positions: Mapping[PubendId, Tick]
    ) -> list[SubscriptionEffect]:
        """A client needs nothing below these ticks: as far as delivered, or as it could have read."""
        reader = subscription.reader
        if reader is None:
            return []
        if subscription.is_holding:
            could = {p: min(positions[p], self._reach(p)) for p in subscription.pubends if p in positions}
            self._deliveries.reached(reader, could)
        effects: list[SubscriptionEffect] = [*self._deliveries.acknowledged(reader, positions)]
        if subscription.is_holding:
            # It was handed nothing: that it has moved is all that the broker hears of it.
            effects += self._deliveries.report_slow(reader, away=True)
        return effects + self._has_moved(subscription)

    def _has_moved(self, subscription: EdgeSubscription) -> list[SubscriptionEffect]:
        """Have the disk know where a named subscription is now."""
        if not subscription.is_kept or subscription.asked.name is None:
            return []
        self._moved.add(subscription.asked.name)
        return [WritePositions()]

    def change(
        self, subscription: EdgeSubscription, change: ConditionChange, condition: Condition
    ) -> list[SubscriptionEffect]:
        """A client wants other events. When the broker refuses it, `undo` has to be called."""
        subscription.changing.append(change)
        subscription.newest_where, subscription.newest_since = change.where, change.since
        matched = [*subscription.matched, condition]
        subscription.charge(subscription.condition_bytes + len(change.where), matched)
        if subscription.asked.name is not None:
            subscription.conditions.append((change.where, change.since, condition))
        return [TellBroker(event=FilterChangeRequested(subscription=subscription.name, condition=condition))]

    def changes(self, event: FilterChangeRequested) -> None:
        """The broker has taken the request for a change."""
        subscription = self._by_id[event.subscription]
        self._returning.add(subscription, subscription.newest_where, subscription.newest_since)
        # The edge has no more phases than this, so what came before them is over.
        del subscription.conditions[:-PHASES_MAX]

    def changed(self, effect: ConfirmChange) -> list[SubscriptionEffect]:
        """Another condition decides from a tick on: the client hears of it."""
        subscription = self._by_id.get(effect.subscription)
        if subscription is None:
            return []
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
        confirm = None
        if change is not None and change.request is not None and change.client is not None:
            confirm = Confirm(
                client=change.client,
                request=change.request,
                subscription=subscription,
                pubend=effect.pubend,
                start=effect.since,
            )
        if subscription.asked.name is not None:
            return [self._write(subscription, Purpose.CHANGE, confirm)] if subscription.is_kept else []
        return [] if confirm is None or confirm.client is not subscription.client else [confirm]

    # Those with a name.

    def restore(
        self, records: Iterable[tuple[NamedSubscription, Subscribe, SubscriptionOwner, list[Judging]]]
    ) -> list[SubscribeRequested]:
        """Go on with named subscriptions of an earlier life; gives what to tell the broker, all at once."""
        requests: list[SubscribeRequested] = []
        for record, asked, owner, phases in records:
            subscription = self._made(named_id(record.name), 0, asked, None, owner)
            subscription.conditions = phases
            subscription.unbegun = {pubend: record.positions.get(pubend) for pubend in record.awaited}
            begun = {p: at for p, at in record.positions.items() if p not in subscription.unbegun}
            subscription.resumed = begun
            subscription.is_kept = subscription.is_restored = True
            subscription.matched = [condition for _, _, condition in phases]
            self._add(subscription)
            self._losses.restored(record.name, [p for p in begun if p in subscription.pubends])
            logs = {pubend: self._losses.logs.get(pubend, "") for pubend in begun}
            requests.append(resumption(subscription, begun, logs))
        return requests

    def _look_for_loss(
        self, subscription: EdgeSubscription, effect: ConfirmSubscription
    ) -> list[SubscriptionEffect]:
        """The pubend begins another log, or later than it was asked to: is something gone?"""
        name, pubend = subscription.asked.name, effect.pubend
        effects: list[SubscriptionEffect] = []
        if name is not None:
            position = subscription.resumed.get(pubend) if subscription.is_restored else None
            if self._losses.confirmed(name, position, effect):
                effects.append(WriteLosses())
        if effect.lost_from is not None:
            # Until its client has acknowledged more, it is there, and has to be told of the gap.
            subscription.resumed = {**subscription.resumed, pubend: effect.lost_from}
            subscription.bases[pubend] = effect.start
        return effects

    def _go_on(
        self,
        found: EdgeSubscription,
        client: EdgeClient,
        owner: SubscriptionOwner,
        asked: Subscribe,
        condition: Condition,
    ) -> list[SubscriptionEffect]:
        """A client comes with a name that is there."""
        last = found.conditions[-1][2]
        is_wider = found.pubends != self._pubends_of(asked.topic)
        if is_wider or (last != condition and isinstance(asked.start, Mapping)):
            effects = self._take_over(found, None, found.asked)
            return effects + self._replace(
                found, client, owner, asked, None if last == condition else condition
            )
        effects = self._take_over(found, client, asked)
        if found.owner is not owner:
            effects += self._adopt(found, owner)
        if found.is_kept and found.is_confirmed and not found.writes:
            effects += self._resume(found)
        return effects

    def _adopt(self, subscription: EdgeSubscription, owner: SubscriptionOwner) -> list[SubscriptionEffect]:
        """A subscription whose owner is gone belongs to somebody else now."""
        former = subscription.owner
        subscription.count(-1)
        subscription.owner = owner
        subscription.count(1)
        effects: list[SubscriptionEffect] = [ReleaseOwner(owner=former)]
        if subscription.is_kept:
            effects.append(self._write(subscription, Purpose.ADOPT))
        return effects

    def _take_over(
        self, found: EdgeSubscription, client: EdgeClient | None, asked: Subscribe
    ) -> list[SubscriptionEffect]:
        """Another client has the name now: whoever had it is told."""
        effects: list[SubscriptionEffect] = []
        if found.client is not None:
            found.client.subscriptions.end(found.number)
            told = f"another client subscribed as '{asked.name}': one client has a name at a time"
            effects.append(
                Finish(client=found.client, request=found.asked.request, error=UsageError("E137", told))
            )
            found.client = None
            if found.reader is not None:
                found.reader.outlet = None
                effects += self._deliveries.report_slow(found.reader, away=True)
        found.asked = asked
        found.number = next(self._numbers)
        if client is not None:
            found.client = client
            client.subscriptions[found.number] = found
        return effects

    def _replace(
        self,
        found: EdgeSubscription,
        client: EdgeClient,
        owner: SubscriptionOwner,
        asked: Subscribe,
        condition: Condition | None,
    ) -> list[SubscriptionEffect]:
        """Begin anew at the positions of one that is there, which stays until this one is confirmed.

        A client that comes back with its positions, and with a condition of its own for what it lacks, is
        served from exactly there; what it has and did not acknowledge stays as it was.
        """
        name = asked.name
        assert name is not None
        number = next(self._numbers)
        subscription = self._made(renewed_id(name, number), number, asked, client, owner)
        subscription.before = found
        subscription.resumed = positions = self.positions(found)
        subscription.unbegun = {p: at for p, at in found.unbegun.items() if p in found.awaited}
        phases = [(where, dict(since), judging) for where, since, judging in found.conditions]
        if condition is not None:
            own = asked.start if isinstance(asked.start, Mapping) else {}
            since = {pubend: max(own.get(pubend, at), at) for pubend, at in positions.items()}
            phases = [*phases, (asked.where, since, condition)][-PHASES_MAX:]
        subscription.conditions = phases
        subscription.matched = [judging for _, _, judging in phases]
        effects: list[SubscriptionEffect] = []
        if found.before is not None:
            # It was never confirmed, so the one that it stands for holds all that is needed. Without this, a
            # client that comes back again and again while a pubend is away leaves a subscription each time.
            subscription.before, found.before = found.before, None
            effects += self.end(found)
        self._add(subscription)
        known = self._losses.logs
        logs = {p: found.logs[p][0] if p in found.logs else known.get(p, "") for p in positions}
        return [*effects, TellBroker(event=resumption(subscription, positions, logs))]

    def _give_back(self, held: EdgeSubscription | None) -> None:
        """A named subscription cannot be kept: the one that it stands for has the name again."""
        if held is not None and held.asked.name is not None:
            self._named[held.asked.name] = held

    def _write(
        self, subscription: EdgeSubscription, purpose: Purpose, confirm: Confirm | None = None
    ) -> WriteName:
        record = record_of(subscription, self._kept_positions(subscription))
        if record.name in self._forgetting:
            self._forgetting[record.name].writes += 1
        return WriteName(subscription=subscription, record=record, purpose=purpose, confirm=confirm)

    def written(self, write: WriteName, error: StoreError | None) -> list[SubscriptionEffect]:
        """The disk has a named subscription as it is now, or has refused it."""
        subscription = write.subscription
        if write.purpose is Purpose.ADOPT or not self.is_current(subscription):
            return []
        if write.purpose is Purpose.CHANGE:
            if error is not None:
                # The change is made and cannot be taken back: its client hears of it when the disk has it.
                return [WriteNameLater(write=write)]
            confirm = write.confirm
            return [] if confirm is None or confirm.client is not subscription.client else [confirm]
        if error is not None:
            return (
                [WriteNameLater(write=write)] if subscription.is_kept else self._not_kept(subscription, error)
            )
        subscription.is_kept = True
        subscription.writes -= 1
        self.unrestored.pop(subscription.asked.name or "", None)
        if subscription.writes:
            # Another pubend has confirmed it meanwhile.
            return []
        return self._end_before(subscription) + self._resume(subscription)

    def _end_before(self, subscription: EdgeSubscription) -> list[SubscriptionEffect]:
        """End the one that it stands for, unless that holds what a pubend has not confirmed to this one."""
        if subscription.before is None or subscription.awaited:
            return []
        before, subscription.before = subscription.before, None
        return self.end(before)

    def write_again(self, write: WriteName) -> list[SubscriptionEffect]:
        """The time has come to write a change that the disk refused."""
        if not self.is_current(write.subscription):
            return []
        return [self._write(write.subscription, write.purpose, write.confirm)]

    def _not_kept(self, subscription: EdgeSubscription, error: StoreError) -> list[SubscriptionEffect]:
        effects: list[SubscriptionEffect] = []
        if subscription.client is not None:
            request = subscription.asked.request
            effects.append(Finish(client=subscription.client, request=request, error=error))
        held, subscription.before = subscription.before, None
        effects += self.end(subscription)
        self._give_back(held)
        return effects

    def _resume(self, subscription: EdgeSubscription) -> list[SubscriptionEffect]:
        """Serve the client of a named subscription from what it acknowledged last, or wait for one."""
        reader, client, asked = subscription.reader, subscription.client, subscription.asked
        assert reader is not None, "it is confirmed"
        if client is None:
            return [*self._deliveries.report_slow(reader, away=True)]
        own = asked.start if isinstance(asked.start, Mapping) else {}
        assert asked.name is not None, "it has a name"
        positions = self.positions(subscription)
        effects: list[SubscriptionEffect] = []
        if self._losses.moved(asked.name, positions):
            effects.append(WriteLosses())
        for pubend, position in positions.items():
            if pubend not in subscription.starts:
                continue
            own_start = min(own.get(pubend, position), self._reach(pubend))
            start = max(position, own_start)
            start, lost_from = self._losses.untold(asked.name, pubend, start, subscription.logs[pubend][1])
            # What it has from elsewhere it may acknowledge, though it is not delivered here.
            self._deliveries.reached(reader, {pubend: start})
            effects += self._confirm(subscription, asked.request, pubend, start, lost_from)
        is_new = reader.number != subscription.number
        reader.number = subscription.number
        if subscription.is_holding:
            return [*effects, *self._deliveries.report_slow(reader, away=True)]
        if is_new:
            # Otherwise another pubend has come, and it has the credit that it had.
            reader.credit = UNBOUNDED if asked.credit_rows is None else asked.credit_rows
        reader.outlet = client.outlet
        return [*effects, *self._deliveries.report_slow(reader)]

    def positions(self, subscription: EdgeSubscription) -> dict[PubendId, Tick]:
        """Per pubend the tick below which a named subscription needs nothing any more.

        A pubend may have granted a later start than was asked for, because nothing that the subscription
        needs lies between: until it has acknowledged more, its position is the one it had.
        """
        positions: dict[PubendId, Tick] = dict(subscription.resumed)
        if subscription.reader is not None:
            for pubend, acked in self._deliveries.positions(subscription.reader).items():
                if pubend not in positions or acked > subscription.starts.get(pubend, TICK_MIN):
                    positions[pubend] = acked
        return positions

    def moved(self, again: Iterable[str] = ()) -> dict[str, dict[PubendId, Tick]]:
        """The positions of the names that have moved since this was last asked, and of some besides."""
        moved, self._moved = self._moved.union(again), set()
        return {name: self._kept_positions(self._named[name]) for name in moved if name in self._named}

    def _kept_positions(self, subscription: EdgeSubscription) -> dict[PubendId, Tick]:
        """Its positions, and where it asked to begin at pubends that have not confirmed it yet."""
        asked = subscription.unbegun.items()
        wanted = {pubend: at for pubend, at in asked if at is not None and pubend in subscription.awaited}
        return wanted | self.positions(subscription)

    # Small parts.

    def _made(
        self,
        name: SubscriptionId,
        number: int,
        asked: Subscribe,
        client: EdgeClient | None,
        owner: SubscriptionOwner,
    ) -> EdgeSubscription:
        return EdgeSubscription(name, number, asked, client, self._pubends_of(asked.topic), owner)

    def _add(self, subscription: EdgeSubscription) -> None:
        self._by_id[subscription.name] = subscription
        self._returning.add(subscription, subscription.asked.where)
        name, client = subscription.asked.name, subscription.client
        if name is not None:
            self._named[name] = subscription
        if client is not None:
            client.subscriptions[subscription.number] = subscription
        subscription.condition_bytes = len(subscription.asked.where)
        subscription.count(1)

    def _confirm(
        self,
        subscription: EdgeSubscription,
        request: int,
        pubend: PubendId,
        start: Tick,
        lost_from: Tick | None = None,
    ) -> list[SubscriptionEffect]:
        client = subscription.client
        if client is None:
            return []
        return [
            Confirm(
                client=client,
                request=request,
                subscription=subscription,
                pubend=pubend,
                start=start,
                lost_from=lost_from,
            )
        ]

    def _forget(self, subscription: EdgeSubscription) -> list[SubscriptionEffect]:
        effects: list[SubscriptionEffect] = []
        self._returning.drop(subscription)
        if self._by_id.pop(subscription.name, None) is not None:
            subscription.count(-1)
            effects.append(ReleaseOwner(owner=subscription.owner))
        name = subscription.asked.name
        if name is not None and self._named.get(name) is subscription:
            del self._named[name]
        if subscription.client is not None:
            subscription.client.subscriptions.pop(subscription.number, None)
        return effects
