"""How does a program use a network? `connect`, and the client it returns.

```python
async with connect("gapless://edge-1:7400,edge-2:7400") as client:
    receipt = await client.publish("trades", {"sym": "IBM", "price": 121.5})
    async with client.subscribe("trades", where="price > 100", start="earliest") as trades:
        async for trade in trades:
            print(trade.tick, trade["sym"])
```

Whatever happens to the connection, each event is published once and delivered once. To publish many events,
do not await each one: call `await client.ready(topic)` now and then, and `await client.flush()` at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args

from gapless.client import views
from gapless.client.hold import Hold
from gapless.client.options import (
    DEFAULTS,
    AckMode,
    DeliveryMode,
    DeliveryOrder,
    GapMode,
    Options,
    StartAt,
)
from gapless.client.publisher import Publisher
from gapless.client.receipts import BatchReceipt, Publication
from gapless.client.session import ReconnectingSession
from gapless.client.steering import Steering
from gapless.client.subscription import Subscription
from gapless.client.tls import TlsOption, tls_context
from gapless.client.view import View
from gapless.client.views import ViewInfo
from gapless.content.language import TEXT_CHARACTERS_MAX
from gapless.errors import LinkError, ParameterError, UsageError, no_topic
from gapless.model.bounds import CREDIT_ROWS_MAX, NAME_CHARACTERS_MAX, TEXT_MAX
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.protocol.events import Order
from gapless.protocol.sessions.messages import (
    AskStatus,
    CreateTopic,
    ListTopics,
    ReleasePublisher,
    Start,
    StatusReport,
    Topics,
)
from gapless.protocol.sessions.subscriber import Interest
from gapless.views.registry import Definition
from gapless.wire.address import is_tls, parse_addresses
from gapless.wire.codec import column_texts
from gapless.wire.handshake import Hello, Role

if TYPE_CHECKING:
    from gapless.views.fluent import Table
    from gapless.views.relation import Relation

#: Tick 0.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The refusal of a node that takes no new topics.
NO_REPOSITORY = "E189"
_EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104  # what such a node says of itself


class Topic(NamedTuple):
    """A topic, as the node describes it."""

    schema: Schema
    pubends: tuple[PubendId, ...]
    #: The broker of each pubend, as far as the node says.
    brokers: Mapping[PubendId, BrokerId] = MappingProxyType({})

    @property
    def columns(self) -> dict[str, str]:
        """The type of each column: `{"price": "float", "note": "string?"}`."""
        return column_texts(self.schema)


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: TlsOption = None,
    name: str | None = None,
    options: Options = DEFAULTS,
) -> Client:
    """A client of the network at `address`; use it with `async with`.

    `address` is `gapless://host:7400`, or several hosts separated by commas: the client uses any of them, and
    tries the others when it loses one. `gapless+tls://host:7400` uses TLS; `tls` is then the CA file, or
    `TlsFiles` or an SSL context, which may include a client certificate; by default, the system's CAs are
    trusted. `name` is shown in the node's status.

    Raises UsageError if the address is malformed.
    """
    return Client(address, token=token, tls=tls, name=name, options=options)


class Client:
    """A connection to a network, re-established whenever it is lost. Made by `connect`."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: TlsOption = None,
        name: str | None = None,
        options: Options = DEFAULTS,
    ) -> None:
        self._addresses = parse_addresses(address)
        if token is not None and len(token) > TEXT_MAX:
            raise ParameterError("E191", f"a token has at most {TEXT_MAX} characters, got {len(token)}")
        #: Prefix of this client's publisher identities; unique.
        self._identity = uuid.uuid4().hex
        self._hello = Hello(
            role=Role.CLIENT, name=_checked_name(name or f"client-{self._identity[:8]}"), token=token
        )
        self._tls = tls_context(tls, wanted=is_tls(address))
        self._options = options
        self._session: ReconnectingSession | None = None
        self._steering: Steering | None = None
        self._ended = False
        self._publishers: dict[str, Publisher] = {}
        self._publishers_made = 0

    async def __aenter__(self) -> Self:
        if self._session is not None or self._ended:
            raise UsageError("E193", "a client can be entered only once: connect again")
        session = ReconnectingSession(self._addresses, self._hello, tls=self._tls, options=self._options)
        self._session, self._steering = session, Steering(session)
        try:
            await session.start()
            await session.learn_topics()
        except BaseException:
            self._ended = True
            await session.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._entered()
        try:
            if kind is None and session.error is None:
                await self._flush_all()
        finally:
            self._ended = True
            assert self._steering is not None
            await self._steering.stop()

    async def _flush_all(self) -> None:
        seconds = self._options.close_timeout_s
        try:
            async with asyncio.timeout(seconds):
                await self.flush()
        except TimeoutError:
            count = sum(publisher.outstanding for publisher in self._publishers_all())
            raise LinkError(
                "E406", f"{count} events have no receipt {seconds:g} seconds after leaving the client"
            ) from None

    # Topics.

    async def topics(self) -> dict[str, Topic]:
        """All topics this client may see, by name."""
        answer = await self._entered().learn_topics()
        places = answer.places
        return {
            schema.topic: Topic(schema, pubends, {each: places[each] for each in pubends if each in places})
            for schema, pubends in answer.topics
        }

    async def create_topic(self, name: str, columns: Mapping[str, str], *, retention: str = "") -> None:
        """Create a topic with columns such as `{"price": "float", "note": "string?"}`.

        `retention` says how long to keep events that everybody has: "7d", "10GB" or "forever"; by default, no
        longer than needed. Any node will do: the client finds one that takes topics. Creating the same topic
        again does nothing. Raises SchemaError, or the node's error.
        """
        steering, home = self._steered(), self._entered()
        schema = Schema.parse(TopicId(_checked_name(name)), columns)
        kept = _checked_text(retention)

        def asked(number: int) -> CreateTopic:
            return CreateTopic(
                request=number, topic=schema.topic, columns=column_texts(schema), retention=kept
            )

        try:
            await home.request(asked)
        except UsageError as refused:
            if refused.code != NO_REPOSITORY:
                raise
            topics = await home.learn_topics()
            _, session = await steering.nearest(topics.repositories)
            await session.request(asked)
        await self._known_at_home(schema.topic)

    async def _known_at_home(self, topic: TopicId) -> None:
        """Wait until our node knows a topic that was created elsewhere."""
        home, attempts = self._entered(), 0
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.connect_timeout_s
        while topic not in {schema.topic for schema, _ in (await home.learn_topics()).topics}:
            attempts += 1
            if loop.time() > until:
                raise LinkError(
                    "E407",
                    f"topic '{topic}' was created, but this node has not heard of it: see its status",
                    retry=True,
                )
            await asyncio.sleep(home.backoff_s(attempts))

    async def bulk(self, topic: str) -> tuple[Topic, dict[PubendId, str]]:
        """A topic, and the bulk-read address of each of its pubends: see `gapless.client.bulk`.

        Nodes start their bulk server on the first such request. Raises UsageError or LinkError.
        """
        found = await self._topic(topic)
        doors: dict[BrokerId, str] = {}
        for broker in set(found.brokers.values()):
            session = await self._session_at(broker)
            answer = await session.request(lambda number: ListTopics(request=number, bulk=True))
            assert isinstance(answer, Topics)
            if not answer.bulk:
                raise LinkError("E411", f"broker '{broker}' is too old for bulk reads: update it")
            doors[broker] = _reachable(answer.bulk, session.host)
        return found, {pubend: doors[broker] for pubend, broker in found.brokers.items()}

    async def ends(self, topic: str) -> dict[PubendId, Tick]:
        """Per pubend of a topic, one past its last durable event; 0 if it has none.

        Raises UsageError or LinkError.
        """
        found = await self._topic(topic)
        ends: dict[PubendId, Tick] = {}
        for broker in set(found.brokers.values()):
            ends |= (await (await self._session_at(broker)).learn_topics()).ends
        return {pubend: ends[pubend] for pubend in found.pubends if pubend in ends}

    async def _topic(self, name: str) -> Topic:
        topics = await self.topics()
        if name not in topics:
            raise no_topic(name, topics)
        return topics[name]

    async def _session_at(self, broker: BrokerId) -> ReconnectingSession:
        home = self._entered()
        return home if broker == home.node else (await self._steered().nearest([broker]))[1]

    async def status(self) -> dict[str, Any]:
        """The status of the node."""
        return await self._status_report()

    async def inquire(
        self, event: tuple[str, int] | None = None, subscription: str | None = None
    ) -> dict[str, Any]:
        """What the node knows about one event, by pubend and tick, and about one subscription."""
        named = None if event is None else (PubendId(_checked_name(event[0])), _checked_tick(event[1]))
        return await self._status_report(named, None if subscription is None else _checked_text(subscription))

    async def _status_report(
        self, event: tuple[PubendId, Tick] | None = None, subscription: str | None = None
    ) -> dict[str, Any]:
        answer = await self._entered().request(
            lambda number: AskStatus(request=number, event=event, subscription=subscription)
        )
        assert isinstance(answer, StatusReport)
        report = json.loads(answer.report)
        return report if isinstance(report, dict) else {"report": report}

    # Publishing.

    def publisher(
        self,
        topic: str,
        *,
        pubend: str | None = None,
        identity: str | None = None,
        first_catenation: int = 0,
    ) -> Publisher:
        """A separate publisher to a topic. Its events keep their order.

        It stays with the first pubend it sends to, and waits while that pubend is down. With an `identity`,
        the program numbers its events itself, across restarts: each number is stored once.
        """
        steering = self._steered()
        self._publishers_made += 1
        is_numbered = identity is not None
        identity = _checked_name(identity or f"{self._identity}-{self._publishers_made}")
        if identity in steering.publishers:
            raise UsageError("E195", f"this client already has a publisher '{identity}': use that one")
        if first_catenation < 0:
            raise ParameterError("E191", f"first_catenation must be at least 0, got {first_catenation}")
        return Publisher(
            steering,
            TopicId(_checked_name(topic)),
            identity,
            pubend=None if pubend is None else PubendId(_checked_name(pubend)),
            first_catenation=first_catenation,
            is_numbered=is_numbered,
        )

    async def release_publisher(self, identity: str) -> None:
        """Release an identity at this node: it will belong to the next principal that publishes under it.

        For operators, when the principal that owned it is gone. Raises UsageError without the right `admin`,
        or if the node does not know the identity.
        """
        name = _checked_name(identity)
        await self._entered().request(lambda number: ReleasePublisher(request=number, publisher=name))

    def publish(self, topic: str, event: Mapping[str, object]) -> Publication:
        """Queue one event. Await the result for its receipt (pubend, tick): then the event is durable."""
        publisher = self._publishers.get(topic)
        if publisher is None or self._ended:
            publisher = self.publisher_of(topic)
        return publisher.publish(event)

    async def publish_batch(self, topic: str, data: object) -> BatchReceipt:
        """Publish all rows of a batch. They are durable when this returns.

        `data` is an Arrow table or batch, a pandas or Polars data frame, a dict of lists, or a list of dicts.
        """
        return await self.publisher_of(topic).publish_batch(data)

    async def ready(self, topic: str) -> None:
        """Wait until there is room to publish more to a topic."""
        await self.publisher_of(topic).ready()

    async def flush(self) -> None:
        """Wait until everything published so far is durable. Raises a refusal that nobody has seen."""
        for publisher in self._publishers_all():
            await publisher.flush()

    def _publishers_all(self) -> list[Publisher]:
        return list(self._steered().publishers.values())

    def publisher_of(self, topic: str) -> Publisher:
        """The publisher that `publish` uses for a topic."""
        self._entered()
        publisher = self._publishers.get(topic)
        if publisher is None:
            publisher = self._publishers[topic] = self.publisher(topic)
        return publisher

    # Subscribing.

    def subscribe(
        self,
        topic: str,
        where: str = "",
        *,
        name: str | None = None,
        order: DeliveryOrder = "publisher",
        start: StartAt = "now",
        ack: AckMode = "auto",
        mode: DeliveryMode = "guaranteed",
        gaps: GapMode = "report",
        credit_rows: int | None = None,
    ) -> Subscription:
        """Every event of a topic that `where` accepts, once and in order; use it with `async with`.

        With a `name` the subscription is durable: the network keeps what it has not acknowledged while it is
        away. The name lives at one edge, so the client must have one address (E109).

        `start` is "now", "earliest", a time (UTC if it has no zone), a tick, the `positions` of an earlier
        subscription, or "stored": resume a name, and raise E142 if there is none.

        `ack="auto"` acknowledges an event when the next one is asked for, and the last one when the
        subscription is left without an error; "manual" waits for `await event.ack()`. `gaps="raise"` raises
        E410 if the network no longer keeps what was asked for; by default that is logged and added to
        `Subscription.gaps`. At most `credit_rows` rows are buffered, besides the chunk being taken.
        """
        interest = Interest(
            topic=TopicId(_checked_name(topic)),
            where=_checked_where(where),
            name=None if name is None else self._durable_name(name),
            order=Order(_chosen("order", order, get_args(DeliveryOrder))),
            start=_checked_start(start),
            mode=_chosen("mode", mode, get_args(DeliveryMode)),
            ack=_chosen("ack", ack, get_args(AckMode)),
            gaps=_chosen("gaps", gaps, get_args(GapMode)),
            credit_rows=_checked_credit(self._options.credit_rows if credit_rows is None else credit_rows),
        )
        return Subscription(self._entered(), interest)

    def hold(self, topic: str, name: str, start: Mapping[str, Tick], where: str = "") -> Hold:
        """Keep the events of a topic from `start` on, under a name, without delivery; use `async with`.

        For bulk readers: `Hold.acknowledge` moves the position. It is the durable subscription of that name:
        it resumes at the last acknowledged position, and keeps holding when you leave it.
        """
        return Hold(
            self._entered(),
            topic=TopicId(_checked_name(topic)),
            name=self._durable_name(name),
            start={PubendId(each): _checked_tick(tick) for each, tick in start.items()},
            where=_checked_where(where),
        )

    def _durable_name(self, name: str) -> str:
        """A name that lives where this client is connected. Raises UsageError E109 if that may change."""
        checked = _checked_name(name)
        if len(self._addresses) > 1:
            raise UsageError(
                "E109",
                f"subscription '{checked}' has a name, which lives at one edge: connect to that edge alone, "
                f"not to {len(self._addresses)} addresses",
            )
        return checked

    # Views.

    async def create_view(self, name: str, view: str | Relation | Table) -> Definition:
        """Create a view: an SQL text, or a table of `gapless.views.fluent`, over topics and other views.

        It is checked at once: raises ViewError with the place in the text, or UsageError E173 if there is
        another view of that name. Creating the same view again does nothing. The pipeline computes it; see
        `views()` for its status.
        """
        definition, _ = await views.create_view(self, name, view)
        return definition

    async def views(self) -> dict[str, ViewInfo]:
        """All views, by name, with their status."""
        return await views.list_views(self)

    async def drop_view(self, name: str) -> None:
        """Drop a view. Raises UsageError: E173 if there is none, E179 if other views use it."""
        await views.drop_view(self, name)

    def view(self, name: str, where: str = "") -> View:
        """A view as a live table of the rows that `where` accepts; use it with `async with`.

        Brokers evaluate a condition on columns that never change for a key; any other is evaluated here. Rows
        that brokers left out cannot be told from rows that are missing: right after a loss, such a table may
        show a row older than `as_of` says, until the next marker.
        """
        self._entered()
        return View(self, name, _checked_where(where))

    def _steered(self) -> Steering:
        self._entered()
        assert self._steering is not None
        return self._steering

    def _entered(self) -> ReconnectingSession:
        if self._session is None or self._ended:
            why = "it has been left" if self._ended else "use it with `async with`"
            raise UsageError("E193", f"the client is not connected: {why}")
        return self._session


def _reachable(door: str, host: str) -> str:
    """The bulk-read address as we reach it: a node that listens on all interfaces is where we found it."""
    scheme, _, place = door.partition("://")
    named, _, port = place.rpartition(":")
    return f"{scheme}://{host if named in _EVERYWHERE else named}:{port}"


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise ParameterError("E191", f"a name has 1 to {NAME_CHARACTERS_MAX} characters, got {name!r:.80}")
    return _checked_text(name)


def _checked_text(text: str) -> str:
    # Text that cannot be encoded would fail later, where nobody is waiting.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError("E191", f"unpaired surrogate in {text!r:.80}") from error
    return text


def _checked_where(where: Any) -> str:
    if not isinstance(where, str) or len(where) > TEXT_CHARACTERS_MAX:
        raise ParameterError(
            "E191", f"a condition is a text of at most {TEXT_CHARACTERS_MAX} characters, got {where!r:.80}"
        )
    return _checked_text(where)


def _chosen(option: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise ParameterError("E191", f"{option} must be {' or '.join(map(repr, allowed))}, got {value!r}")
    return value


def _checked_credit(rows: Any) -> int:
    if not isinstance(rows, int) or not 1 <= rows <= CREDIT_ROWS_MAX:
        raise ParameterError("E191", f"credit_rows must be from 1 to {CREDIT_ROWS_MAX}, got {rows!r}")
    return rows


def _checked_tick(tick: int) -> Tick:
    if not TICK_MIN <= tick < TICK_MAX:
        raise ParameterError(
            "E191", f"a tick, in microseconds since 1970, is from {TICK_MIN} to {TICK_MAX - 1}"
        )
    return tick


def _checked_start(start: Any) -> Start:
    if isinstance(start, int) and not isinstance(start, bool):
        return _checked_tick(start)
    if isinstance(start, datetime):
        time = start if start.tzinfo is not None else start.replace(tzinfo=UTC)
        return (time - _EPOCH) // timedelta(microseconds=1)
    if isinstance(start, Mapping):
        with contextlib.suppress(TypeError, ValueError):
            return {
                PubendId(_checked_name(str(each))): _checked_tick(int(tick)) for each, tick in start.items()
            }
    if start in ("now", "earliest", "stored"):
        found: Start = start
        return found
    raise ParameterError(
        "E191", f"start must be 'now', 'earliest', 'stored', a time, a tick or positions, got {start!r}"
    )
