"""What does a node do for its clients? Takes what they publish, gives them what they subscribed to.

A session lasts as long as its connection. Its subscriptions last a little longer: what a client had not
acknowledged when the connection broke stays wanted for `PARKED_SECONDS`, so that a client that comes back,
here or at another edge, resumes where it was and nothing is gone meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from gapless.content.language import parse_condition
from gapless.content.rows import Positions
from gapless.errors import PeerError, UsageError
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.node.connection import Connection
from gapless.node.desk import Desk, Owed
from gapless.node.publishers import Publishers, note
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    BatchRecord,
    ConfirmSubscription,
    Deliver,
    RefusePublish,
)
from gapless.protocol.events import (
    DeliveryTaken,
    Event,
    PublishRequested,
    SubscribeRequested,
    SubscriberSlow,
    UnsubscribeRequested,
)
from gapless.protocol.network import Network
from gapless.wire.client_codec import ClientDecoder, encode_node
from gapless.wire.client_messages import (
    Acknowledge,
    AskStatus,
    ChangeFilter,
    ClientMessage,
    Confirmed,
    CreateTopic,
    Credit,
    Done,
    ListTopics,
    NodeMessage,
    Publish,
    PublishRefused,
    Receipt,
    RequestRefused,
    StatusReport,
    Subscribe,
    Topics,
    Unsubscribe,
    tick_runs,
)
from gapless.wire.delivery import COLUMNS_ROWS_MIN, SharedColumns, SharedRows
from gapless.wire.frames import FROM_CLIENT, Frame
from gapless.wire.handshake import LINK_KINDS, Hello, Ping, Pong, decode_link, encode_link
from gapless.wire.rows import RowFormat

log = logging.getLogger("gapless.sessions")

#: How long the subscriptions of a lost connection are kept as they are.
PARKED_SECONDS = 30.0
#: A subscription with so many unacknowledged rows, or a connection with so many unsent bytes, is slow.
OWED_ROWS_MAX = 50_000
BACKLOG_BYTES_MAX = 16 * 2**20
#: A parked subscription is reported slow once it is owed more rows than this.
PARKED_ROWS_MAX = 8


@dataclass(slots=True, eq=False)
class _Subscription:
    """One subscription of a session."""

    name: SubscriptionId
    number: int
    request: int
    topic: TopicId
    guaranteed: bool
    #: None when the client is gone and the subscription is parked.
    session: Session | None
    owed: Owed = field(default_factory=Owed)
    slot: int | None = None


@dataclass(slots=True)
class _Request:
    """Rows that a client published and that are on their way to the disk."""

    session: Session
    pubend: PubendId
    publisher: str
    first: int
    last: int


class Sessions:
    """All clients of one node."""

    def __init__(
        self,
        network: Network,
        publishers: Mapping[PubendId, Publishers],
        feed: Callable[[Event], None],
        status: Callable[[], str],
    ) -> None:
        self.network = network
        self._publishers = publishers
        self._feed = feed
        self._status = status
        self._loop = asyncio.get_running_loop()
        self._desk = Desk()
        self._decoder = ClientDecoder(network.topics)
        #: The number that names each pubend in deliveries, and how its rows are written.
        self._sources = {pubend: at for at, pubend in enumerate(sorted(network.pubends))}
        self._forms = {topic: RowFormat(schema) for topic, schema in network.topics.items()}
        self._subscriptions: dict[SubscriptionId, _Subscription] = {}
        self._by_slot: dict[int, _Subscription] = {}
        self._requests: dict[int, _Request] = {}
        self._tokens = count()
        self._numbers = count(1)
        self._sessions: set[Session] = set()
        #: What goes into the log beside the rows that are being published.
        self._note = b""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def subscriptions(self) -> int:
        """How many subscriptions there are, parked ones included."""
        return len(self._subscriptions)

    def welcome(self, connection: Connection, hello: Hello) -> Session:
        """A client has come."""
        connection.reader.allow(FROM_CLIENT)
        session = Session(self, connection, hello.name)
        self._sessions.add(session)
        return session

    def close(self, reason: str) -> None:
        """Hang up on all clients."""
        for session in list(self._sessions):
            session.connection.close(reason)

    # What clients say.

    def received(self, session: Session, frame: Frame) -> None:
        """A frame came from a client. Raises PeerError when it makes no sense."""
        if frame.kind in LINK_KINDS:
            message = decode_link(frame)
            if isinstance(message, Ping):
                session.connection.send(encode_link(Pong(number=message.number)))
            return
        request = self._decoder.decode(frame)
        if isinstance(request, Publish):
            self._publish(session, request)
            return
        try:
            self._answer(session, request)
        except UsageError as error:
            number = getattr(request, "request", None)
            if number is None:
                raise PeerError("E224", f"{error.code} {error.message}") from error
            refusal = RequestRefused(
                request=number, code=error.code, message=error.message, retry=error.retry
            )
            session.send(refusal)

    def _answer(self, session: Session, request: ClientMessage) -> None:
        match request:
            case Subscribe():
                self._subscribe(session, request)
            case Unsubscribe():
                self._end(session.named(request.subscription))
                session.send(Done(request=request.request))
            case Acknowledge():
                subscription = session.named(request.subscription)
                self._taken(self._desk.acknowledged(subscription.owed, request.positions))
            case ListTopics():
                topics = tuple(
                    (schema, self.network.pubends_of(topic)) for topic, schema in self.network.topics.items()
                )
                session.send(Topics(request=request.request, topics=topics))
            case AskStatus():
                session.send(StatusReport(request=request.request, report=self._status()))
            case Credit():
                # Not obeyed: what bounds a subscription here is what it has not acknowledged.
                pass
            case ChangeFilter() | CreateTopic():
                raise UsageError("E181", f"{type(request).__name__} is not offered by this node")
            case Publish():
                raise AssertionError("publishing is answered elsewhere")

    def _publish(self, session: Session, message: Publish) -> None:
        rows_count = 0 if message.rows is None else message.rows.num_rows
        last = message.first_catenation + max(rows_count, 1) - 1
        try:
            pubend = self._pubend_for(message)
            publishers = self._publishers[pubend]
            schema = self.network.topics[message.topic]
            if message.rows is None:
                raise UsageError("E111", f"the rows are not of the schema of topic '{message.topic}'")
            awaited = publishers.awaited(message.publisher, message.first_catenation)
            if awaited is not None:
                # What comes later would make the refused events pass for known ones.
                raise UsageError("E182", f"event {awaited} was refused and has to come first", retry=True)
            known = publishers.fresh(message.publisher, message.first_catenation, rows_count)
            if known == rows_count:
                self._repeat(session, message, pubend, last)
                return
            rows = schema.checked(message.rows.slice(known))
            token = next(self._tokens)
            first = message.first_catenation + known
            self._requests[token] = _Request(session, pubend, message.publisher, first, last)
            publishers.accept(message.publisher, last)
            # The step that stores the rows asks for their note before it is over.
            self._note = note(message.publisher, last)
            try:
                self._feed(PublishRequested(pubend=pubend, token=token, rows=rows))
            except UsageError as error:
                if error.retry:
                    publishers.failed(message.publisher, first)
                del self._requests[token]
                raise
        except UsageError as error:
            session.send(
                PublishRefused(
                    publisher=message.publisher,
                    first_catenation=message.first_catenation,
                    last_catenation=last,
                    code=error.code,
                    message=error.message,
                    retry=error.retry,
                )
            )

    def _pubend_for(self, message: Publish) -> PubendId:
        if message.topic not in self.network.topics:
            known = ", ".join(self.network.topics) or "none"
            raise UsageError("E141", f"there is no topic '{message.topic}': there is {known}")
        if message.pubend is not None:
            if message.pubend in self._publishers:
                return message.pubend
            raise UsageError("E143", f"pubend '{message.pubend}' does not live at this node")
        here = [pubend for pubend in self.network.pubends_of(message.topic) if pubend in self._publishers]
        if not here:
            brokers = sorted(
                {self.network.pubends[each].broker for each in self.network.pubends_of(message.topic)}
            )
            raise UsageError(
                "E143", f"topic '{message.topic}' is not published here: connect to {', '.join(brokers)}"
            )
        return here[0]

    def _repeat(self, session: Session, message: Publish, pubend: PubendId, last: int) -> None:
        """Everything was accepted before: a receipt, now or when it is durable."""
        if self._publishers[pubend].is_stored(message.publisher, last):
            session.send(
                Receipt(
                    publisher=message.publisher,
                    first_catenation=message.first_catenation,
                    last_catenation=last,
                    pubend=pubend,
                    runs=(),
                )
            )
            return
        for request in self._requests.values():
            if request.publisher == message.publisher:
                request.session = session

    def note_of(self, effect: AppendRecord) -> bytes:
        """What is kept in the log beside a record."""
        return self._note if isinstance(effect.record, BatchRecord) else b""

    def accepted(self, effect: AcceptPublish) -> None:
        """Rows are durable: the client hears of it."""
        request = self._requests.pop(effect.token)
        self._publishers[request.pubend].stored(request.publisher, request.last, int(effect.ticks[-1]))
        request.session.send(
            Receipt(
                publisher=request.publisher,
                first_catenation=request.first,
                last_catenation=request.last,
                pubend=effect.pubend,
                runs=tick_runs(effect.ticks),
            )
        )

    def refused(self, effect: RefusePublish) -> None:
        """Rows were not stored: the client hears why."""
        request = self._requests.pop(effect.token)
        self._publishers[request.pubend].failed(request.publisher, request.first)
        request.session.send(
            PublishRefused(
                publisher=request.publisher,
                first_catenation=request.first,
                last_catenation=request.last,
                code="E182",
                message=effect.reason,
                retry=True,
            )
        )

    # Subscriptions.

    def _subscribe(self, session: Session, request: Subscribe) -> None:
        schema = self.network.topics.get(request.topic)
        if schema is None:
            known = ", ".join(self.network.topics) or "none"
            raise UsageError("E141", f"there is no topic '{request.topic}': there is {known}")
        condition = parse_condition(request.where, schema)
        number = next(self._numbers)
        name = SubscriptionId(f"{session.name}#{number}")
        subscription = _Subscription(
            name, number, request.request, request.topic, request.mode == "guaranteed", session
        )
        self._subscriptions[name] = subscription
        session.subscriptions[number] = subscription
        try:
            self._feed(
                SubscribeRequested(
                    subscription=name,
                    topic=request.topic,
                    condition=condition,
                    order=request.order,
                    start=_start(request),
                )
            )
        except UsageError:
            self._forget(subscription)
            raise

    def confirmed(self, effect: ConfirmSubscription) -> None:
        """A subscription is gapless from a tick on: the client hears of it."""
        subscription = self._subscriptions.get(effect.subscription)
        if subscription is None:
            return
        subscription.slot = effect.slot
        self._by_slot[effect.slot] = subscription
        if subscription.session is None:
            return
        subscription.session.send(
            Confirmed(
                request=subscription.request,
                subscription=subscription.number,
                source=self._sources[effect.pubend],
                pubends=len(self.network.pubends_of(subscription.topic)),
                pubend=effect.pubend,
                schema=self.network.topics[subscription.topic],
                start=effect.start,
            )
        )

    def deliver(self, effect: Deliver) -> None:
        """Rows for subscribers: each row is written once, whoever gets it."""
        order = np.argsort(effect.slots, kind="stable")
        slots, starts = np.unique(effect.slots[order], return_index=True)
        shares = np.split(effect.rows[order], starts[1:])
        writer = _Writer(self._forms, effect, self._sources)
        holding = [
            subscription
            for slot, rows in zip(slots.tolist(), shares, strict=True)
            if (subscription := self._hand(slot, rows, effect, writer)) is not None
        ]
        if self._desk.handed(effect.serial, len(holding)):
            self._feed(DeliveryTaken(serial=effect.serial))
            return
        for subscription in holding:
            if self._is_slow(subscription):
                self._report_slow(subscription)

    def _hand(self, slot: int, rows: Positions, effect: Deliver, writer: _Writer) -> _Subscription | None:
        """Send one subscription its rows; gives it when it will acknowledge them."""
        subscription = self._by_slot.get(slot)
        if subscription is None:
            return None
        if subscription.session is not None:
            writer.write(subscription.session.connection, subscription.number, subscription.topic, rows)
        if not subscription.guaranteed:
            return None
        self._desk.owe(subscription.owed, effect.serial, len(rows), _stops(effect, rows))
        return subscription

    def _is_slow(self, subscription: _Subscription) -> bool:
        if subscription.session is None:
            return subscription.owed.rows > PARKED_ROWS_MAX
        backlog = subscription.session.connection.backlog_bytes
        return subscription.owed.rows > OWED_ROWS_MAX or backlog > BACKLOG_BYTES_MAX

    def _report_slow(self, subscription: _Subscription) -> None:
        self._feed(
            SubscriberSlow(subscription=subscription.name, positions=dict(subscription.owed.acknowledged))
        )
        self._taken(self._desk.released(subscription.owed))

    def _taken(self, serials: list[int]) -> None:
        for serial in serials:
            self._feed(DeliveryTaken(serial=serial))

    def _end(self, subscription: _Subscription) -> None:
        """A subscription is over."""
        if subscription.name in self._subscriptions:
            serials = self._desk.released(subscription.owed)
            self._forget(subscription)
            self._feed(UnsubscribeRequested(subscription=subscription.name))
            self._taken(serials)

    def _forget(self, subscription: _Subscription) -> None:
        self._subscriptions.pop(subscription.name, None)
        if subscription.slot is not None:
            self._by_slot.pop(subscription.slot, None)
        if subscription.session is not None:
            subscription.session.subscriptions.pop(subscription.number, None)

    def lost(self, session: Session, reason: str) -> None:
        """A client is gone; what it had not acknowledged stays wanted for a while."""
        self._sessions.discard(session)
        log.info("client %s is gone: %s", session.name, reason)
        for subscription in list(session.subscriptions.values()):
            subscription.session = None
            self._loop.call_later(PARKED_SECONDS, self._end, subscription)
        session.subscriptions.clear()


class Session:
    """One connected client."""

    def __init__(self, sessions: Sessions, connection: Connection, name: str) -> None:
        self._sessions = sessions
        self.connection = connection
        self.name = name
        self.subscriptions: dict[int, _Subscription] = {}

    def send(self, message: NodeMessage) -> None:
        """Send to the client; lost when it is gone."""
        self.connection.send(encode_node(message))

    def named(self, number: int) -> _Subscription:
        """A subscription of this client. Raises UsageError when there is none of that number."""
        found = self.subscriptions.get(number)
        if found is None:
            raise UsageError("E142", f"this client has no subscription {number}")
        return found

    def received(self, frame: Frame) -> None:
        """A frame has come."""
        self._sessions.received(self, frame)

    def drained(self) -> None:
        """Slow clients catch up by acknowledging; nothing waits for this."""

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self._sessions.lost(self, reason)


class _Writer:
    """The rows of one delivery, encoded when first needed."""

    __slots__ = ("_columns", "_effect", "_forms", "_numbers", "_rows")

    def __init__(
        self, forms: Mapping[TopicId, RowFormat], effect: Deliver, sources: Mapping[PubendId, int]
    ) -> None:
        self._forms = forms
        self._effect = effect
        self._numbers = [sources[pubend] for pubend in effect.pubends]
        self._rows: SharedRows | None = None
        self._columns: SharedColumns | None = None

    def write(self, connection: Connection, number: int, topic: TopicId, rows: Positions) -> None:
        effect = self._effect
        if len(rows) < COLUMNS_ROWS_MIN:
            if self._rows is None:
                self._rows = SharedRows(
                    self._forms[topic], effect.batch, effect.rows, self._numbers, effect.source
                )
            if len(rows) == 1:
                connection.send([self._rows.one(number, int(rows[0]))])
            else:
                connection.send(self._rows.some([(number, row) for row in rows.tolist()]))
        elif len(rows) == len(effect.batch):
            if self._columns is None:
                self._columns = SharedColumns(effect.batch, self._numbers, effect.source)
            connection.send(self._columns.frame([(number, None)]))
        else:
            source = None if effect.source is None else effect.source[rows]
            columns = effect.batch.columns.take(rows)
            part = SharedColumns(EventBatch(effect.batch.ticks[rows], columns), self._numbers, source)
            connection.send(part.frame([(number, None)]))


def _start(request: Subscribe) -> Tick | None:
    match request.start:
        case "now":
            return None
        case "earliest":
            return TICK_MIN + 1
        case int():
            return request.start
        case positions:
            # One start for all pubends: what a client has already, it drops.
            return min(positions.values(), default=None)


def _stops(effect: Deliver, rows: Positions) -> dict[PubendId, Tick]:
    """Per pubend one past the last tick of some rows, which ascend."""
    if effect.source is None:
        return {effect.pubends[0]: int(effect.batch.ticks[rows[-1]]) + 1}
    stops: dict[PubendId, Tick] = {}
    sources = effect.source[rows]
    for at in np.unique(sources).tolist():
        last = rows[np.flatnonzero(sources == at)[-1]]
        stops[effect.pubends[at]] = int(effect.batch.ticks[last]) + 1
    return stops
