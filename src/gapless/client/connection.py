"""How does a program stay connected? One connection at a time, to whichever address answers.

A connection that breaks is made again, to the next address of the list, at once and then more slowly.
Publications without a receipt are sent again, subscriptions go on where they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from uuid import uuid4

import pyarrow as pa

from gapless.client.address import Address, parse_addresses
from gapless.client.publisher import Publication, Publisher, Stored
from gapless.client.refusals import error_of
from gapless.client.subscription import Subscription
from gapless.errors import GaplessError, LinkError, PeerError, UsageError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.protocol.events import Order
from gapless.wire.client_codec import NodeDecoder, encode_client
from gapless.wire.client_messages import (
    AskStatus,
    ClientMessage,
    ColumnsDelivery,
    Confirmed,
    Done,
    ListTopics,
    NodeMessage,
    PublishRefused,
    Receipt,
    RequestRefused,
    RowsDelivery,
    Start,
    StatusReport,
    Topics,
)
from gapless.wire.frames import FROM_DIALED_NODE, Frame, FrameReader
from gapless.wire.handshake import (
    LINK_KINDS,
    Hello,
    Ping,
    Pong,
    Refuse,
    Role,
    Welcome,
    check_welcome,
    decode_link,
    encode_link,
)

#: How long the first connection may take.
CONNECT_SECONDS_MAX = 10.0
#: The pause after all addresses were tried in vain doubles from the one to the other.
REDIAL_SECONDS_MIN, REDIAL_SECONDS_MAX = 0.02, 2.0


def connect(address: str, *, token: str | None = None, name: str | None = None) -> Client:
    """A client of the network that is found at `gapless://host:port[,host:port]`: use it with `async with`.

    Raises UsageError E190 for what is no address.
    """
    return Client(parse_addresses(address), token, name or f"client-{uuid4().hex[:8]}")


class Client:
    """One program's connection to a network."""

    def __init__(self, addresses: tuple[Address, ...], token: str | None, name: str) -> None:
        self._addresses = addresses
        self._token = token
        self.name = name
        self._link: _Link | None = None
        self._online = asyncio.Event()
        self._closed = False
        self._refusal: GaplessError | None = None
        self._runner: asyncio.Task[None] | None = None
        self._requests = 0
        self._answers: dict[int, asyncio.Future[NodeMessage]] = {}
        self._subscriptions: list[Subscription] = []
        self._publishers: dict[TopicId, Publisher] = {}
        self._schemas: dict[TopicId, Schema] = {}

    async def __aenter__(self) -> Client:
        self._runner = asyncio.get_running_loop().create_task(self._run())
        try:
            await asyncio.wait_for(self._online.wait(), CONNECT_SECONDS_MAX)
        except TimeoutError:
            await self._stop()
            listed = ", ".join(map(str, self._addresses))
            raise LinkError("E401", f"no node answers at {listed}: is one up?", retry=True) from None
        if self._refusal is not None:
            await self._stop()
            raise self._refusal
        await self._learn_topics()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for publisher in self._publishers.values():
                await publisher.settled()
        await self._stop()

    @property
    def topics(self) -> Mapping[str, Schema]:
        """The topics of the network, as they were when the client connected."""
        return {str(topic): schema for topic, schema in self._schemas.items()}

    async def publish(self, topic: str, event: Mapping[str, object]) -> Publication:
        """Publish one event; awaiting the result waits until it is durable and says where it is.

        `await client.publish(...)` waits only while too much is without a receipt.
        """
        publisher = self._publisher(topic)
        await publisher.room()
        return publisher.publish(event)

    async def publish_batch(self, topic: str, rows: pa.RecordBatch | pa.Table) -> list[Stored]:
        """Publish many rows of Arrow columns, and wait until all are durable."""
        publisher = self._publisher(topic)
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        stored: list[Stored] = []
        for batch in batches:
            await publisher.room()
            for done in publisher.publish_rows(batch):
                pubend, ticks = await done
                stored += [Stored(pubend, tick) for tick in ticks.tolist()]
        return stored

    def subscribe(
        self, topic: str, where: str = "", *, order: str = "publisher", start: Start = "now"
    ) -> Subscription:
        """Events of a topic that a condition accepts: use it with `async with`, then `async for`."""
        subscription = Subscription(TopicId(topic), where, Order(order), start, self._say)
        self._subscriptions.append(subscription)
        subscription.ask(self._next_request())
        return subscription

    async def status(self) -> dict[str, Any]:
        """What the node tells of itself."""
        answer = await self._asked(lambda request: AskStatus(request=request))
        assert isinstance(answer, StatusReport)
        report: dict[str, Any] = json.loads(answer.report)
        return report

    # Requests.

    async def _learn_topics(self) -> None:
        answer = await self._asked(lambda request: ListTopics(request=request))
        assert isinstance(answer, Topics)
        self._schemas = {schema.topic: schema for schema, _ in answer.topics}

    async def _asked(self, make: Any) -> NodeMessage:
        request = self._next_request()
        future = asyncio.get_running_loop().create_future()
        self._answers[request] = future
        self._say(make(request))
        try:
            answer: NodeMessage = await future
            return answer
        finally:
            del self._answers[request]

    def _next_request(self) -> int:
        self._requests += 1
        return self._requests

    def _publisher(self, topic: str) -> Publisher:
        name = TopicId(topic)
        found = self._publishers.get(name)
        if found is None:
            schema = self._schemas.get(name)
            if schema is None:
                known = ", ".join(self._schemas) or "none"
                raise UsageError("E141", f"there is no topic '{topic}': there is {known}")
            found = self._publishers[name] = Publisher(schema, f"{self.name}/{topic}", self._say)
        return found

    def _say(self, message: ClientMessage) -> None:
        if self._link is not None:
            self._link.send(message)

    # The connection.

    async def _run(self) -> None:
        """Stay connected until the client is closed."""
        wait, at = REDIAL_SECONDS_MIN, 0
        loop = asyncio.get_running_loop()
        while not self._closed:
            address = self._addresses[at % len(self._addresses)]
            at += 1
            lost = loop.create_future()
            with contextlib.suppress(OSError):
                await loop.create_connection(lambda lost=lost: _Link(self, lost), address.host, address.port)  # type: ignore[misc]
                if await lost:
                    wait = REDIAL_SECONDS_MIN
            if at % len(self._addresses) == 0:
                await asyncio.sleep(wait)
                wait = min(2 * wait, REDIAL_SECONDS_MAX)

    async def _stop(self) -> None:
        self._closed = True
        if self._link is not None:
            self._link.close()
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
        gone = LinkError("E402", "the client was closed")
        for publisher in self._publishers.values():
            publisher.fail(gone)
        for subscription in self._subscriptions:
            subscription.fail(gone)

    def hello(self) -> Hello:
        """What we say first."""
        return Hello(role=Role.CLIENT, name=self.name, token=self._token)

    def up(self, link: _Link) -> None:
        """A node has welcomed us: everything outstanding is sent again."""
        self._link = link
        self._online.set()
        for publisher in self._publishers.values():
            publisher.resend()
        for subscription in self._subscriptions:
            subscription.ask(self._next_request())

    def down(self, link: _Link) -> None:
        """A connection is gone."""
        if self._link is link:
            self._link = None
            for future in self._answers.values():
                if not future.done():
                    future.set_exception(LinkError("E403", "the connection broke", retry=True))

    def refused(self, refusal: Refuse) -> None:
        """The node does not want us."""
        error = error_of(refusal.code, refusal.message, retry=refusal.retry)
        if not self._online.is_set():
            self._refusal = error
            self._online.set()

    def heard(self, message: NodeMessage) -> None:
        """The node said something."""
        match message:
            case Receipt() | PublishRefused():
                publisher = self._publishers.get(TopicId(message.publisher.rpartition("/")[2]))
                if publisher is not None and isinstance(message, Receipt):
                    publisher.received(message)
                elif publisher is not None and isinstance(message, PublishRefused):
                    publisher.refused(message)
            case Confirmed():
                for subscription in self._subscriptions:
                    if subscription.request == message.request:
                        subscription.confirmed(message)
            case RowsDelivery() | ColumnsDelivery():
                for subscription in self._subscriptions:
                    if subscription.number is not None:
                        subscription.delivered(message)
            case RequestRefused():
                self._was_refused(message)
            case Done() | Topics() | StatusReport():
                future = self._answers.get(message.request)
                if future is not None and not future.done():
                    future.set_result(message)

    def _was_refused(self, message: RequestRefused) -> None:
        error = error_of(message.code, message.message, retry=message.retry)
        future = self._answers.get(message.request)
        if future is not None and not future.done():
            future.set_exception(error)
        for subscription in self._subscriptions:
            if subscription.request == message.request:
                subscription.fail(error)


class _Link(asyncio.Protocol):
    """One connection to a node."""

    def __init__(self, client: Client, lost: asyncio.Future[bool]) -> None:
        self._client = client
        #: Set when the connection is gone: whether a node had welcomed us.
        self._lost = lost
        self._welcomed = False
        self._reader = FrameReader(FROM_DIALED_NODE)
        self._decoder = NodeDecoder()
        self._transport: asyncio.Transport | None = None

    def send(self, message: ClientMessage) -> None:
        if self._transport is not None:
            self._transport.writelines(encode_client(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.writelines(encode_link(self._client.hello()))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._received(frame)
        except PeerError:
            # Whatever answers there does not speak our language: try another address.
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the cause changes nothing
        self._transport = None
        self._client.down(self)
        if not self._lost.done():
            self._lost.set_result(self._welcomed)

    def _received(self, frame: Frame) -> None:
        if frame.kind not in LINK_KINDS:
            self._client.heard(self._decoder.decode(frame))
            return
        message = decode_link(frame)
        match message:
            case Welcome():
                check_welcome(message)
                self._welcomed = True
                self._client.up(self)
            case Refuse():
                self._client.refused(message)
                self.close()
            case Ping():
                if self._transport is not None:
                    self._transport.writelines(encode_link(Pong(number=message.number)))
            case _:
                pass
