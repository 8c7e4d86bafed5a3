"""A node that does what a test tells it: stores, answers, delivers, forgets, refuses, drops, talks nonsense.

It keeps everything that clients say in `heard`, so that a test can wait for it. Unless a test switches that
off, it welcomes clients, lists its topics, stores what is published once and sends receipts, confirms
subscriptions and delivers what it has from their start on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from gapless.client import Client, Options, connect
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId, TopicId
from gapless.model.packed import as_columns
from gapless.model.schema import Schema
from gapless.protocol.sessions.messages import (
    AskStatus,
    ClientMessage,
    Confirmed,
    CreateTopic,
    Done,
    ListTopics,
    NodeMessage,
    Publish,
    PublishReceipt,
    PublishRefused,
    StatusReport,
    Subscribe,
    Topics,
    Unsubscribe,
)
from gapless.wire.client_codec import ClientDecoder, encode_node
from gapless.wire.delivery import SharedColumns, SharedRows
from gapless.wire.frames import FROM_CLIENT, FROM_STRANGER, FrameReader, Part
from gapless.wire.handshake import (
    LINK_KINDS,
    Hello,
    LinkMessage,
    Ping,
    Pong,
    Welcome,
    decode_link,
    encode_link,
)
from gapless.wire.rows import RowFormat
from tests.properties.wire_cases import tick_runs

#: A test that waits for longer has found a bug.
PATIENCE_SECONDS = 20
PUBEND = PubendId("trades-1")
TRADES = Schema.parse(TopicId("trades"), {"sym": "string", "price": "float", "note": "string?"})
#: Nothing waits for long in a test.
QUICK = Options(
    ack_s=0.001,
    ack_named_s=0.001,
    backoff_min_s=0.001,
    backoff_max_s=0.01,
    connect_timeout_s=5,
    close_timeout_s=5,
)

Heard = TypeVar("Heard")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE_SECONDS))


class Peer(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.reader = FrameReader(FROM_STRANGER)
        self.decoder = ClientDecoder(node.topics)
        self.transport: asyncio.Transport | None = None
        self.subscriptions: dict[int, Subscribe] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.node.peers.append(self)

    def connection_lost(self, _reason: Exception | None) -> None:
        self.node.heard.put_nowait((self, "lost"))

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        for frame in self.reader.feed(data):
            if self.transport.is_closing():
                # What comes after the end of a connection is heard by nobody.
                return
            message: ClientMessage | LinkMessage
            if frame.kind in LINK_KINDS:
                message = decode_link(frame)
                self.reader.allow(FROM_CLIENT)
            else:
                message = self.decoder.decode(frame)
            self.node.take(self, message)

    def send(self, message: NodeMessage) -> None:
        self.write(encode_node(message))

    def link(self, message: LinkMessage) -> None:
        self.write(encode_link(message))

    def write(self, parts: Sequence[Part]) -> None:
        assert self.transport is not None
        self.transport.writelines(list(parts))

    def drop(self) -> None:
        assert self.transport is not None
        self.transport.abort()

    def confirm(
        self, request: int, subscription: int, start: int, *, pubends: Sequence[PubendId] = (PUBEND,)
    ) -> None:
        for source, pubend in enumerate(pubends):
            self.send(
                Confirmed(
                    request=request,
                    subscription=subscription,
                    source=source,
                    pubends=len(pubends),
                    pubend=pubend,
                    schema=TRADES,
                    start=start,
                )
            )

    def deliver(
        self,
        subscription: int,
        ticks: Sequence[int],
        *,
        as_columns: bool = False,
        sources: Sequence[int] | None = None,
    ) -> None:
        """Events whose price is their tick."""
        batch = batch_of(ticks)
        numbers = [0] if sources is None else sorted(set(sources))
        source = None if sources is None else np.array([numbers.index(each) for each in sources])
        if as_columns:
            self.write(SharedColumns(batch, numbers, source).frame([(subscription, None)]))
        else:
            rows = np.arange(len(batch))
            shared = SharedRows(RowFormat(TRADES), batch, rows, numbers, source)
            self.write(shared.some([(subscription, row) for row in range(len(batch))]))


class FakeNode:
    """A node that obeys a test."""

    def __init__(self) -> None:
        self.topics: dict[TopicId, Schema] = {TRADES.topic: TRADES}
        self.peers: list[Peer] = []
        self.heard: asyncio.Queue[tuple[Peer, ClientMessage | LinkMessage | str]] = asyncio.Queue()
        self.seen: list[ClientMessage | LinkMessage | str] = []
        #: What was stored: tick and values by publisher and catenation number, and how often.
        self.stored: dict[tuple[str, int], tuple[int, tuple[object, ...]]] = {}
        self.publishes = 0
        self.tick = 1_000
        #: Called with every publish instead of sending its receipt.
        self.on_publish: Callable[[Peer, Publish], None] | None = None
        self.on_subscribe: Callable[[Peer, Subscribe], None] | None = None
        self.on_hello: Callable[[Peer, Hello], None] | None = None
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FakeNode:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            peer.drop()
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"gapless://127.0.0.1:{self.port}"

    @property
    def peer(self) -> Peer:
        """The newest connection."""
        return self.peers[-1]

    @property
    def prices(self) -> list[object]:
        """The prices of what is stored, by tick."""
        return [values[1] for _, values in sorted(self.stored.values(), key=lambda each: each[0])]

    async def hear(self, kind: type[Heard]) -> Heard:
        """The next message of this kind; others are passed over."""
        while True:
            _, message = await self.heard.get()
            self.seen.append(message)
            if isinstance(message, kind):
                return message

    def take(self, peer: Peer, message: ClientMessage | LinkMessage) -> None:  # noqa: PLR0912  # a table
        self.heard.put_nowait((peer, message))
        match message:
            case Hello() if self.on_hello is not None:
                self.on_hello(peer, message)
            case Hello():
                peer.link(Welcome(version=1, name="fake", network="f"))
            case Ping(number=number):
                peer.link(Pong(number=number))
            case ListTopics(request=request):
                listed = tuple((schema, (PUBEND,)) for schema in self.topics.values())
                peer.send(Topics(request=request, topics=listed))
            case CreateTopic(request=request, topic=topic, columns=columns):
                self.topics[topic] = Schema.parse(topic, columns)
                peer.send(Done(request=request))
            case AskStatus(request=request):
                peer.send(StatusReport(request=request, report='{"name": "fake"}'))
            case Publish() if self.on_publish is not None:
                self.on_publish(peer, message)
            case Publish():
                self.store(message)
                self.receipt(peer, message)
            case Subscribe() if self.on_subscribe is not None:
                self.on_subscribe(peer, message)
            case Subscribe(request=request, start=start):
                self.peers[-1].subscriptions[7] = message
                first = start if isinstance(start, int) else self.tick
                if isinstance(start, dict):
                    first = start.get(PUBEND, self.tick)
                peer.confirm(request, 7, first)
            case Unsubscribe(request=request):
                peer.send(Done(request=request))
            case _:
                pass

    def store(self, message: Publish) -> None:
        """Keep what is new of it."""
        assert message.rows is not None
        self.publishes += 1
        for at, row in enumerate(zip(*as_columns(message.rows).to_pydict().values(), strict=True)):
            key = (message.publisher, message.first_catenation + at)
            if key not in self.stored:
                self.stored[key] = (self.tick, row)
                self.tick += 1

    def receipt(self, peer: Peer, message: Publish) -> None:
        assert message.rows is not None
        first, count = message.first_catenation, message.rows.num_rows
        ticks = np.array([self.stored[message.publisher, first + at][0] for at in range(count)])
        peer.send(
            PublishReceipt(
                publisher=message.publisher,
                first_catenation=first,
                last_catenation=first + count - 1,
                pubend=PUBEND,
                runs=tick_runs(ticks),
            )
        )

    def refuse(
        self,
        peer: Peer,
        message: Publish,
        code: str = "E182",
        *,
        retry: bool = True,
        text: str = "the disk is full",
    ) -> None:
        assert message.rows is not None
        peer.send(
            PublishRefused(
                publisher=message.publisher,
                first_catenation=message.first_catenation,
                last_catenation=message.first_catenation + message.rows.num_rows - 1,
                code=code,
                message=text,
                retry=retry,
            )
        )


@asynccontextmanager
async def connected(options: Options = QUICK) -> AsyncIterator[tuple[FakeNode, Client]]:
    """A node and its client."""
    async with FakeNode() as node, connect(node.address, options=options) as client:
        yield node, client


def batch_of(ticks: Sequence[int]) -> EventBatch:
    columns = [pa.array([f"t{tick}" for tick in ticks]), pa.array([float(tick) for tick in ticks])]
    notes = pa.nulls(len(ticks), pa.string())
    rows = pa.RecordBatch.from_arrays([*columns, notes], schema=TRADES.arrow())
    return EventBatch(np.array(ticks, dtype=np.int64), rows)


def event(price: float, note: str | None = None) -> dict[str, object]:
    return {"sym": "IBM", "price": price, "note": note}
