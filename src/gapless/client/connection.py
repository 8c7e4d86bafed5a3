"""How does a program talk to a network? `connect`, and the client that it gives.

```python
async with connect("gapless://edge-1:7400,edge-2:7400") as client:
    receipt = await client.publish("trades", {"sym": "IBM", "price": 121.5})
    async with client.subscribe("trades", where="price > 100", start="earliest") as trades:
        async for trade in trades:
            print(trade.tick, trade["sym"])
```

Whatever happens to the connection in between, each event is published once and delivered once. To publish
many events, do not await each: keep the publications, call `await client.ready(topic)` now and then, and
await them at the end, or `client.flush()`.
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
from gapless.client.address import is_tls, parse_addresses
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
from gapless.client.session import Session
from gapless.client.steering import Steering
from gapless.client.subscription import Subscription, Wish
from gapless.client.tls import TlsWish, tls_context
from gapless.client.view import View
from gapless.client.views import ViewInfo
from gapless.content.language import TEXT_CHARACTERS_MAX
from gapless.errors import LinkError, ParameterError, UsageError
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.protocol.events import Order
from gapless.views.registry import Definition
from gapless.wire.client_codec import CREDIT_ROWS_MAX
from gapless.wire.client_messages import (
    AskStatus,
    CreateTopic,
    ListTopics,
    ReleasePublisher,
    Start,
    StatusReport,
    Topics,
)
from gapless.wire.codec import NAME_CHARACTERS_MAX, TEXT_MAX, column_texts
from gapless.wire.handshake import Hello, Role

if TYPE_CHECKING:
    from gapless.views.fluent import Table
    from gapless.views.relation import Relation

#: Where ticks are counted from.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The code of a node that takes no new topics.
NO_REPOSITORY = "E189"
_EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104  # what such a node says of itself


class Topic(NamedTuple):
    """A topic as the node tells of it."""

    schema: Schema
    pubends: tuple[PubendId, ...]
    #: The broker of each pubend, as far as the node tells.
    brokers: Mapping[PubendId, BrokerId] = MappingProxyType({})

    @property
    def columns(self) -> dict[str, str]:
        """By name, the type: `{"price": "float", "note": "string?"}`."""
        return column_texts(self.schema)


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: TlsWish = None,
    name: str | None = None,
    options: Options = DEFAULTS,
) -> Client:
    """A client of the network at `address`; use it with `async with`.

    `address` is `gapless://host:7400`, or several hosts with commas: any of them will do, and when one is
    lost the others are tried. `gapless+tls://host:7400` is the same over TLS; `tls` is then the file of the
    authority that made the nodes' certificates, `TlsFiles` or a context, which may have one of our own;
    without it, the authorities that the system trusts. `name` is for people who look at the node's status.

    Raises UsageError for an address that is none.
    """
    return Client(address, token=token, tls=tls, name=name, options=options)


class Client:
    """A connection to a network, which is made again whenever it is lost. Made by `connect`."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: TlsWish = None,
        name: str | None = None,
        options: Options = DEFAULTS,
    ) -> None:
        self._addresses = parse_addresses(address)
        if token is not None and len(token) > TEXT_MAX:
            raise ParameterError(
                "E191", f"a token of {len(token)} characters: at most {TEXT_MAX} can be sent"
            )
        #: Names what this client publishes; never used twice.
        self._identity = uuid.uuid4().hex
        self._hello = Hello(
            role=Role.CLIENT, name=_checked_name(name or f"client-{self._identity[:8]}"), token=token
        )
        self._tls = tls_context(tls, wanted=is_tls(address))
        self._options = options
        self._session: Session | None = None
        self._steering: Steering | None = None
        self._ended = False
        self._publishers: dict[str, Publisher] = {}
        self._publishers_made = 0

    async def __aenter__(self) -> Self:
        if self._session is not None or self._ended:
            raise UsageError("E193", "a client can be entered once: connect again")
        session = Session(self._addresses, self._hello, tls=self._tls, options=self._options)
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
                "E406", f"{count} events have no receipt {seconds:g} seconds after the client was left"
            ) from None

    # Topics.

    async def topics(self) -> dict[str, Topic]:
        """All topics that this client may see, by name."""
        answer = await self._entered().learn_topics()
        places = answer.places
        return {
            schema.topic: Topic(schema, pubends, {each: places[each] for each in pubends if each in places})
            for schema, pubends in answer.topics
        }

    async def create_topic(self, name: str, columns: Mapping[str, str], *, retention: str = "") -> None:
        """Create a topic with columns such as `{"price": "float", "note": "string?"}`.

        `retention` says how long events are kept that everybody has: "7d", "10GB" or "forever"; without it,
        no longer than needed. Any node will do: one that takes no topics names those that do. Creating the
        very same topic again is no error. Raises SchemaError, or the node's error.
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
            told = await home.learn_topics()
            _, session = await steering.nearest(told.repositories)
            await session.request(asked)
        await self._known_at_home(schema.topic)

    async def _known_at_home(self, topic: TopicId) -> None:
        """Wait until the node here has heard of a topic that was created elsewhere."""
        home, attempts = self._entered(), 0
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.connect_timeout_s
        while topic not in {schema.topic for schema, _ in (await home.learn_topics()).topics}:
            attempts += 1
            if loop.time() > until:
                raise LinkError(
                    "E407",
                    f"topic '{topic}' was created, and the node here has not heard of it: see its status",
                    retry=True,
                )
            await asyncio.sleep(home.backoff_s(attempts))

    async def bulk(self, topic: str) -> tuple[Topic, dict[PubendId, str]]:
        """A topic, and where the events of each of its pubends are read in bulk: see `gapless.client.bulk`.

        The nodes open that door when they are asked. Raises UsageError or LinkError.
        """
        home, steering = self._entered(), self._steered()
        found = (await self.topics()).get(topic)
        if found is None:
            raise UsageError("E141", f"there is no topic '{topic}' that this client may see")
        doors: dict[BrokerId, str] = {}
        for broker in set(found.brokers.values()):
            session = home if broker == home.node else (await steering.nearest([broker]))[1]
            answer = await session.request(lambda number: ListTopics(request=number, bulk=True))
            assert isinstance(answer, Topics)
            if not answer.bulk:
                raise LinkError("E411", f"broker '{broker}' is of a version without bulk reads: update it")
            doors[broker] = _reachable(answer.bulk, session.host)
        return found, {pubend: doors[broker] for pubend, broker in found.brokers.items()}

    async def ends(self, topic: str) -> dict[PubendId, Tick]:
        """Of each pubend of a topic, one past its last durable event now; 0 when it has none.

        Raises UsageError or LinkError.
        """
        home, steering = self._entered(), self._steered()
        found = (await self.topics()).get(topic)
        if found is None:
            raise UsageError("E141", f"there is no topic '{topic}' that this client may see")
        ends: dict[PubendId, Tick] = {}
        for broker in set(found.brokers.values()):
            session = home if broker == home.node else (await steering.nearest([broker]))[1]
            ends |= (await session.learn_topics()).ends
        return {pubend: ends[pubend] for pubend in found.pubends if pubend in ends}

    async def status(self) -> dict[str, Any]:
        """What the node tells of itself."""
        return await self._told()

    async def inquire(
        self, event: tuple[str, int] | None = None, subscription: str | None = None
    ) -> dict[str, Any]:
        """What the node knows of one event, by its pubend and tick, and of one subscription."""
        named = None if event is None else (PubendId(_checked_name(event[0])), _checked_tick(event[1]))
        return await self._told(named, None if subscription is None else _checked_text(subscription))

    async def _told(
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
        """A publisher of its own to a topic; its events keep their order.

        With an `identity`, the program numbers its events itself, across restarts: what was stored under
        that name and number is not stored again.
        """
        steering = self._steered()
        self._publishers_made += 1
        is_numbered = identity is not None
        identity = _checked_name(identity or f"{self._identity}-{self._publishers_made}")
        if identity in steering.publishers:
            raise UsageError("E195", f"there is a publisher '{identity}' already: use that one")
        if first_catenation < 0:
            raise ParameterError("E191", f"catenation numbers count from 0, got {first_catenation}")
        return Publisher(
            steering,
            TopicId(_checked_name(topic)),
            identity,
            pubend=None if pubend is None else PubendId(_checked_name(pubend)),
            first_catenation=first_catenation,
            is_numbered=is_numbered,
        )

    async def release_publisher(self, identity: str) -> None:
        """Let an identity belong to whoever publishes under it next, at the node of this connection.

        For operators, when the principal that it belonged to is no more. Raises UsageError without the right
        `admin`, and when no such publisher is known there.
        """
        name = _checked_name(identity)
        await self._entered().request(lambda number: ReleasePublisher(request=number, publisher=name))

    def publish(self, topic: str, event: Mapping[str, object]) -> Publication:
        """Queue one event. Await what this gives for its receipt (pubend, tick): then it is durable."""
        publisher = self._publishers.get(topic)
        if publisher is None or self._ended:
            publisher = self.publisher_of(topic)
        return publisher.publish(event)

    async def publish_batch(self, topic: str, data: object) -> BatchReceipt:
        """Publish all rows of a batch, and return their ticks when they are durable.

        `data` is an Arrow table or batch, a data frame of pandas or Polars, a dict of lists, or a list of
        dicts.
        """
        return await self.publisher_of(topic).publish_batch(data)

    async def ready(self, topic: str) -> None:
        """Return when there is room to publish more to a topic."""
        await self.publisher_of(topic).ready()

    async def flush(self) -> None:
        """Return when everything published so far is durable. Raises a refusal that nobody has awaited."""
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

        With a `name` the subscription is durable: what it has not acknowledged is kept for it while it is
        away. `start` is "now", "earliest", a time, a tick, or the `positions` of an earlier subscription; a
        time without a zone is in UTC.
        `ack="auto"` acknowledges an event when the next one is asked for, and the last when the
        subscription is left without an error; "manual" waits for `await event.ack()`. `gaps="raise"` makes
        it an error when the network no longer keeps what was asked for; otherwise it is logged and found in
        `Subscription.gaps`. At most `credit_rows` rows wait here, beside those that came together and are
        being taken.
        """
        wish = Wish(
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
        return Subscription(self._entered(), wish)

    def hold(self, topic: str, name: str, start: Mapping[str, Tick], where: str = "") -> Hold:
        """Keep the events of a topic from `start` on, under a name, without getting them; use `async with`.

        For whoever reads in bulk: `Hold.acknowledge` says how far it has come. It is the durable subscription
        of that name, and goes on where it was acknowledged last; leave it, and it holds on.
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

        It is checked at once: raises ViewError with the place in the text, or UsageError E173 when there is
        another view of that name. Creating the very same view again is no error. What computes it is the
        pipeline; `views()` tells what that says of it.
        """
        return await views.create_view(self, name, view)

    async def views(self) -> dict[str, ViewInfo]:
        """All views, by name, with what the pipeline says of them."""
        return await views.list_views(self)

    async def drop_view(self, name: str) -> None:
        """Drop a view. Raises UsageError: E173 when there is none, E179 when other views use it."""
        await views.drop_view(self, name)

    def view(self, name: str, where: str = "") -> View:
        """A view as a live table of the rows that `where` accepts; use it with `async with`.

        A condition on columns that never change for a key is evaluated by the brokers, any other one here.
        What brokers have left out cannot be told from what is missing: right after a loss such a table may
        show a row that is older than `as_of` says, until the next marker.
        """
        self._entered()
        return View(self, name, _checked_where(where))

    def _steered(self) -> Steering:
        self._entered()
        assert self._steering is not None
        return self._steering

    def _entered(self) -> Session:
        if self._session is None or self._ended:
            why = "it has been left" if self._ended else "use it with `async with`"
            raise UsageError("E193", f"the client is not connected: {why}")
        return self._session


def _reachable(door: str, host: str) -> str:
    """Where a door is for us: a node that listens everywhere is there where we have found it."""
    scheme, _, place = door.partition("://")
    told, _, port = place.rpartition(":")
    return f"{scheme}://{host if told in _EVERYWHERE else told}:{port}"


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise ParameterError("E191", f"a name has 1 to {NAME_CHARACTERS_MAX} characters, got {name!r:.80}")
    return _checked_text(name)


def _checked_text(text: str) -> str:
    # What cannot be sent would fail where nobody waits for it.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError("E191", f"half a surrogate pair is no character, got {text!r:.80}") from error
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
            "E191", f"ticks are microseconds since 1970, from {TICK_MIN} to below {TICK_MAX}"
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
    if start in ("now", "earliest"):
        found: Start = start
        return found
    raise ParameterError(
        "E191", f"start must be 'now', 'earliest', a time, a tick or positions, got {start!r}"
    )
