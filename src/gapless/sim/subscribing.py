"""How does a simulated broker serve subscribers? It hosts the edge session, as a node does.

Clients come over connections that break at any byte, and may read slowly. What has a name is on the disk of
the node, and survives a crash as it was last written; everything else is lost with the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from gapless.content.condition import Condition
from gapless.content.language import parse_condition
from gapless.errors import UsageError
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import TICK_MIN, TICKS_PER_MS, Tick
from gapless.protocol.effects import ConfirmChange, ConfirmSubscription, Deliver, TellHorizon
from gapless.protocol.events import FilterChangeRequested, SubscribeRequested, SubscriptionsRestored
from gapless.protocol.figures import AHEAD_MS_MAX
from gapless.protocol.sessions.delivering import Deliveries
from gapless.protocol.sessions.losses import LossBook, Lost, with_life
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ChangeFilter,
    ClientMessage,
    Confirmed,
    Credit,
    Done,
    Horizon,
    NodeMessage,
    RequestRefused,
    Subscribe,
    Unsubscribe,
)
from gapless.protocol.sessions.readers import (
    LookLater,
    Parcel,
    Reader,
    SendHorizon,
    SendRow,
    SendRows,
    TellBroker,
    WorkLater,
)
from gapless.protocol.sessions.subscribing import EdgeSubscribing
from gapless.protocol.sessions.subscriptions import (
    ClientSubscriptions,
    ConditionChange,
    Confirm,
    DropName,
    EdgeSubscription,
    EndLater,
    Finish,
    NamedSubscription,
    ReleaseOwner,
    SubscriptionEffect,
    WriteLosses,
    WriteName,
    WriteNameLater,
    WritePositions,
)
from gapless.sim.checkers import Violation
from gapless.sim.connections import Side
from gapless.wire.client_codec import ClientDecoder, encode_node
from gapless.wire.delivery import COLUMNS_ROWS_MIN, SharedColumns, SharedRows
from gapless.wire.frames import Frame
from gapless.wire.rows import RowFormat

if TYPE_CHECKING:
    from gapless.sim.nodes import SimulatedNode
    from gapless.sim.world import World

#: How long the subscriptions of a lost connection are kept.
PARKED_US = 1_500_000
#: How long acknowledgements are gathered, positions stay unwritten, and a turn takes, at most.
LOOK_US_MAX, POSITIONS_US_MAX, TURN_US_MAX = 30_000, 300_000, 1_000
#: A connection with so many pieces under way is congested, and one with many more is flooded.
CONGESTED_PIECES, FLOODED_PIECES = 8, 24
DRAINED_US = 2_000
#: What the disk refused is written again after this time.
AGAIN_US = 50_000


@dataclass(slots=True)
class Everybody:
    """Whose all subscriptions are."""

    name: str = "everybody"
    subscriptions: int = 0
    names: int = 0
    condition_bytes: int = 0

    def match(self, matched: tuple[TopicId, Condition], sign: int) -> None:
        """Nobody counts what conditions cost here."""


@dataclass(slots=True)
class SubscriberDatabase:
    """What a node has written down of named subscriptions."""

    records: dict[str, NamedSubscription] = field(default_factory=dict)
    #: What they have lost, and the logs that their positions are in.
    lost: Lost = field(default_factory=dict)
    logs: dict[PubendId, str] = field(default_factory=dict)
    #: The lives that began from the folder; and in which of them each pubend was last heard.
    lives: tuple[int, ...] = ()
    heard: dict[PubendId, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SubscriberPeer:
    """The broker's end of one connection of a subscriber."""

    host: SubscribingHost
    name: str
    side: Side | None = None
    subscriptions: ClientSubscriptions = field(default_factory=ClientSubscriptions)

    @property
    def outlet(self) -> SubscriberPeer:
        """Where its deliveries go."""
        return self

    @property
    def is_open(self) -> bool:
        """Whether anything written has a chance to arrive."""
        return self.side is not None

    @property
    def pieces(self) -> int:
        """How much is under way to the client."""
        return 0 if self.side is None else len(self.side.connection.client.coming)

    @property
    def is_congested(self) -> bool:
        """Whether much is under way."""
        return self.pieces > CONGESTED_PIECES

    @property
    def is_flooded(self) -> bool:
        """Whether far too much is under way."""
        return self.pieces > FLOODED_PIECES

    def send(self, message: NodeMessage) -> None:
        """Write a message; lost when the connection is."""
        if self.side is not None:
            self.side.write(encode_node(message))

    def received(self, frame: Frame) -> None:
        """A frame has come."""
        self.host.when_awake(partial(self.host.received, self, frame))

    def lost(self) -> None:
        """Nobody is there any more."""
        self.side = None
        self.host.when_awake(partial(self.host.lost, self))


class SubscribingHost:
    """What one life of a broker does for subscribers."""

    def __init__(self, world: World, node: SimulatedNode) -> None:
        assert node.broker is not None
        self._world = world
        self._node = node
        self._life = node.lives
        network = node.broker.network
        self._deliveries = Deliveries(network.parameters.deliveries_waiting_max)
        kept = node.names
        kept.lives = with_life(kept.lives, node.incarnation)
        self._losses = LossBook(deepcopy(kept.lost), kept.logs, kept.lives, kept.heard)
        self.session = EdgeSubscribing(
            self._deliveries, self._losses, self._pubends_of, self._reach, has_folder=True
        )
        self._owner = Everybody()
        self._is_working = self._is_writing = False
        #: When the disk will have written all that it was asked to: it writes in order.
        self._written_at_us = 0
        #: The number that names each pubend in deliveries.
        self._sources: dict[PubendId, int] = {}
        #: Effects of a step are being carried out: what the broker is to hear waits until that is done.
        self._in_step = False

    def _pubends_of(self, topic: TopicId) -> tuple[PubendId, ...]:
        assert self._node.broker is not None
        return self._node.broker.network.pubends_of(topic)

    def _reach(self, pubend: PubendId) -> Tick:  # noqa: ARG002
        return self._world.clock(self._node.name) + AHEAD_MS_MAX * TICKS_PER_MS

    def _source(self, pubend: PubendId) -> int:
        return self._sources.setdefault(pubend, len(self._sources))

    def restore(self) -> None:
        """Go on with the named subscriptions on the disk."""
        assert self._node.broker is not None
        found = []
        for record in self._node.names.records.values():
            schema = self._node.broker.network.topics[record.topic]
            wheres = [(record.condition, {}), *((where, dict(since)) for where, since in record.changes)]
            phases = [(where, since, parse_condition(where, schema)) for where, since in wheres]
            asked = Subscribe(
                request=0, topic=record.topic, where=wheres[-1][0], name=record.name, order=record.order
            )
            found.append((record, asked, self._owner, phases))
        requests = self.session.restore(found)
        if requests:
            self._world.feed(self._node.name, SubscriptionsRestored(requests=tuple(requests)))

    def welcome(self, name: str) -> SubscriberPeer:
        """Somebody connects."""
        return SubscriberPeer(self, name)

    def when_awake(self, action: partial[None]) -> None:
        """Do something as soon as the broker does anything, unless it has crashed by then."""
        node = self._node
        if node.broker is None or node.lives != self._life:
            return
        if node.stalled:
            node.inbox.append(partial(self.when_awake, action))
        else:
            action()

    def _later(self, delay_us: int, action: partial[None]) -> None:
        self._world.after(delay_us, partial(self.when_awake, action))

    # ---- what comes ----------------------------------------------------------------------------------

    def received(self, peer: SubscriberPeer, frame: Frame) -> None:
        """A subscriber has said something."""
        assert self._node.broker is not None
        message = ClientDecoder(self._node.broker.network.topics).decode(frame)
        try:
            self._answer(peer, message)
        except UsageError as error:
            if not isinstance(message, Subscribe | ChangeFilter):
                raise
            refused = RequestRefused(
                request=message.request, code=error.code, message=error.message, retry=error.retry
            )
            peer.send(refused)

    def _answer(self, peer: SubscriberPeer, message: ClientMessage) -> None:
        session = self.session
        match message:
            case Subscribe():
                self._subscribe(peer, message)
            case Acknowledge():
                found = peer.subscriptions.get(message.subscription)
                if found is not None:
                    self.perform(session.acknowledged(found, message.positions))
            case Credit():
                found = peer.subscriptions.get(message.subscription)
                if found is not None and found.reader is not None:
                    self.perform(self._deliveries.granted(found.reader, message.rows))
            case ChangeFilter():
                found = peer.subscriptions[message.subscription]
                condition = self._condition(found.asked.topic, message.where)
                change = ConditionChange(message.request, message.where, peer)
                self.perform(session.change(found, change, condition))
            case Unsubscribe():
                found = peer.subscriptions[message.subscription]
                self.perform(session.leave(found, message.request, forget=message.forget))
            case _:
                raise AssertionError(f"a subscriber sent {message}")
        self._deliveries.check()

    def _condition(self, topic: TopicId, where: str) -> Condition:
        assert self._node.broker is not None
        return parse_condition(where, self._node.broker.network.topics[topic])

    def _subscribe(self, peer: SubscriberPeer, asked: Subscribe) -> None:
        assert self._node.broker is not None
        if asked.topic not in self._node.broker.network.topics:
            raise UsageError("E141", f"there is no topic '{asked.topic}'", retry=True)
        condition = self._condition(asked.topic, asked.where)
        self.perform(self.session.adjust(asked, condition))
        self.perform(self.session.subscribe(peer, self._owner, asked, condition))

    def lost(self, peer: SubscriberPeer) -> None:
        """A connection is gone."""
        gone = list(peer.subscriptions.values())
        peer.subscriptions.clear()
        self.perform(self._deliveries.drained(peer))
        for subscription in gone:
            self.perform(self.session.lost(peer, subscription))

    # ---- what the broker says ------------------------------------------------------------------------

    def heard(self, effect: ConfirmSubscription | ConfirmChange | Deliver | TellHorizon) -> None:
        """Hand on what the broker wants subscribers to have."""
        self._in_step = True
        match effect:
            case ConfirmSubscription():
                self.perform(self.session.confirmed(effect))
            case ConfirmChange():
                self.perform(self.session.changed(effect))
            case Deliver():
                self.perform(self._deliveries.deliver(effect))
            case TellHorizon():
                self.perform(self._deliveries.horizon(effect.pubend, effect.before, effect.lagging))
        self._in_step = False
        self._deliveries.check()

    # ---- effects -------------------------------------------------------------------------------------

    def perform(self, effects: Iterable[SubscriptionEffect]) -> None:
        """Do what the session asks for."""
        for effect in effects:
            match effect:
                case TellBroker():
                    self._tell(effect)
                case SendRow(parcel=parcel, to=to):
                    for reader, row in to:
                        self._send(parcel, reader, [row])
                case SendRows(parcel=parcel, reader=reader, rows=rows):
                    self._send(parcel, reader, rows.tolist())
                case SendHorizon(reader=reader, before=before):
                    cast(SubscriberPeer, reader.outlet).send(
                        Horizon(subscription=reader.number, before=before)
                    )
                case Confirm():
                    self._confirm(effect)
                case Finish(client=client, request=request, error=error):
                    refused = (
                        None
                        if error is None
                        else RequestRefused(
                            request=request, code=error.code, message=error.message, retry=error.retry
                        )
                    )
                    cast(SubscriberPeer, client).send(refused or Done(request=request))
                case LookLater() | WorkLater() | EndLater() | ReleaseOwner():
                    self._put_off(effect)
                case WriteName() | WriteNameLater() | DropName() | WritePositions() | WriteLosses():
                    self._use_disk(effect)

    def _put_off(self, effect: LookLater | WorkLater | EndLater | ReleaseOwner) -> None:
        random = self._world.random
        match effect:
            case LookLater():
                self._later(random.randint(1, LOOK_US_MAX), partial(self._look))
            case WorkLater() if not self._is_working:
                self._is_working = True
                self._later(random.randint(0, TURN_US_MAX), partial(self._work))
            case EndLater(subscription=subscription):
                self._later(PARKED_US, partial(self._end, subscription))
            case _:
                pass

    def _tell(self, effect: TellBroker) -> None:
        if self._in_step:
            self._later(0, partial(self._tell, effect))
            return
        if self._node.lives != self._life:
            # It has begun anew while this was being done.
            return
        event, reader = effect.event, effect.reader
        is_request = isinstance(event, SubscribeRequested | FilterChangeRequested)
        try:
            self._world.feed(self._node.name, event)
        except Violation as found:
            if not (is_request and isinstance(found.__cause__, UsageError)):
                raise
            self.perform(self.session.undo(event))
            raise found.__cause__ from None
        if isinstance(event, FilterChangeRequested):
            self.session.changes(event)
            changing = self.session.found(event.subscription)
            assert changing is not None
            for observer in self._world.observers:
                observer.change_heard(self.holder(changing.number))
        if reader is not None:
            self._deliveries.told(reader)

    def _send(self, parcel: Parcel, reader: Reader, rows: list[int]) -> None:
        peer, delivery = cast(SubscriberPeer, reader.outlet), parcel.delivery
        if peer.side is None:
            return
        numbers = [self._source(pubend) for pubend in delivery.pubends]
        if len(rows) >= COLUMNS_ROWS_MIN:
            source = None if delivery.source is None else delivery.source[rows]
            some = EventBatch(delivery.batch.ticks[rows], delivery.batch.columns.take(rows))
            peer.side.write(SharedColumns(some, numbers, source).frame([(reader.number, None)]))
        else:
            shared = cast(SharedRows | None, parcel.encoded)
            if shared is None:
                assert self._node.broker is not None
                form = RowFormat(self._node.broker.network.topics[reader.topic])
                wanted = np.asarray(rows, dtype=np.int64) if delivery.laggard else delivery.rows
                shared = SharedRows(form, delivery.batch, wanted, numbers, delivery.source)
                if not delivery.laggard:
                    parcel.encoded = shared
            peer.side.write(shared.some([(reader.number, row) for row in rows]))
        if peer.is_congested:
            self._later(DRAINED_US, partial(self._drained, peer))

    def _drained(self, peer: SubscriberPeer) -> None:
        if peer.is_congested:
            self._later(DRAINED_US, partial(self._drained, peer))
        else:
            self.perform(self._deliveries.drained(peer))

    def _confirm(self, effect: Confirm) -> None:
        assert self._node.broker is not None
        subscription = effect.subscription
        log, began = subscription.logs.get(effect.pubend, ("", TICK_MIN))
        cast(SubscriberPeer, effect.client).send(
            Confirmed(
                request=effect.request,
                subscription=subscription.number,
                source=self._source(effect.pubend),
                pubends=len(subscription.pubends),
                pubend=effect.pubend,
                schema=self._node.broker.network.topics[subscription.asked.topic],
                start=effect.start,
                lost_from=effect.lost_from,
                log=log,
                began=began,
                awaited=subscription.awaited,
            )
        )

    def _look(self) -> None:
        self.perform(self._deliveries.look())

    def _work(self) -> None:
        self._is_working = False
        for _ in range(self._world.random.randint(1, 10)):
            if self._deliveries.has_work:
                self.perform(self._deliveries.work())
        if self._deliveries.has_work:
            self._put_off(WorkLater())

    def _end(self, subscription: EdgeSubscription) -> None:
        if self.session.is_current(subscription):
            for observer in self._world.observers:
                observer.let_go(self.holder(subscription.number))
        self.perform(self.session.end(subscription))

    def holder(self, number: int) -> str:
        """What one subscription of this life is called."""
        return f"{self._node.name}/{self._life}/{number}"

    def crashed(self) -> None:
        """Everything that has no name is lost."""
        for subscription in self.session.held():
            if subscription.asked.name is None:
                for observer in self._world.observers:
                    observer.let_go(self.holder(subscription.number))

    # ---- the disk ------------------------------------------------------------------------------------

    def _use_disk(self, effect: WriteName | WriteNameLater | DropName | WritePositions | WriteLosses) -> None:
        match effect:
            case WriteName():
                self._in_order(partial(self._write, effect))
            case WriteNameLater(write=write):
                self._later(AGAIN_US, partial(self._write_again, write))
            case DropName():
                self._in_order(partial(self._drop, effect))
            case WritePositions() if not self._is_writing:
                self._is_writing = True
                delay_us = self._world.random.randint(1, POSITIONS_US_MAX)
                self._later(delay_us, partial(self._write_positions))
            case WriteLosses():
                self._in_order(partial(self._write_losses))
            case _:
                pass

    def _in_order(self, write: partial[None]) -> None:
        """Have the disk write something, after what it was asked to write before."""
        pace, now_us = self._world.pace, self._world.time_us
        delay_us = self._world.random.randint(pace.flush_us_min, pace.flush_us_max)
        self._written_at_us = max(self._written_at_us, now_us + delay_us)
        self._later(self._written_at_us - now_us, write)

    def _write_losses(self) -> None:
        self._losses.settle()
        self._node.names.lost = deepcopy(self._losses.lost)
        self._node.names.logs = dict(self._losses.logs)
        self._node.names.heard = dict(self._losses.heard)

    def _write(self, write: WriteName) -> None:
        self._node.names.records[write.record.name] = write.record
        self.perform(self.session.written(write, None))

    def _write_again(self, write: WriteName) -> None:
        self.perform(self.session.write_again(write))

    def _drop(self, effect: DropName) -> None:
        self._node.names.records.pop(effect.name, None)
        self.perform(self.session.dropped(effect, None))

    def _write_positions(self) -> None:
        self._is_writing = False
        self._in_order(partial(self._write_moved, self.session.moved()))

    def _write_moved(self, moved: Mapping[str, Mapping[PubendId, Tick]]) -> None:
        for name, positions in moved.items():
            record = self._node.names.records.get(name)
            if record is not None:
                self._node.names.records[name] = replace(record, positions=dict(positions))
