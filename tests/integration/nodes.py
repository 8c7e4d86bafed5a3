"""Real nodes on loopback, and a client that speaks the wire and nothing else."""

from __future__ import annotations

import asyncio
import socket
import tomllib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pyarrow as pa

from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.node.config import NodeConfig
from gapless.node.connection import Connection
from gapless.node.node import Node
from gapless.protocol.network import Network
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ClientMessage,
    ColumnsDelivery,
    Confirmed,
    NodeMessage,
    Publish,
    PublishReceipt,
    RowsDelivery,
    Subscribe,
)
from gapless.wire.address import Address
from gapless.wire.client_codec import NodeDecoder, encode_client
from gapless.wire.codec import schema_fingerprint
from gapless.wire.frames import FROM_DIALED_NODE, Frame
from gapless.wire.handshake import LINK_KINDS, Hello, LinkMessage, Role, Welcome, decode_link, encode_link

#: Nothing here takes this long; a test that waits for longer has found a bug.
PATIENCE_SECONDS = 30

TOPIC = TopicId("trades")
ONE_NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
"""
FIVE_NODES = """
cells = {p = ["p1"], b = ["b1", "b2"], s = ["s1"], t = ["s2"]}
links = ["p--b", "b--s", "b--t"]
edges = ["s1", "s2"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
"""


def free_addresses(names: Sequence[BrokerId]) -> dict[BrokerId, Address]:
    """An address for each broker at which nobody listens."""
    sockets = [socket.socket() for _ in names]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
    return {name: Address("127.0.0.1", port) for name, port in zip(names, ports, strict=True)}


class Cluster:
    """Some nodes in one process, each of which may be stopped and started."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.addresses = free_addresses(sorted(network.cell_of))
        self.nodes: dict[str, Node] = {}
        self._folder = folder

    @staticmethod
    @asynccontextmanager
    async def running(description: str, folder: Path) -> AsyncIterator[Cluster]:
        """All nodes of a network, started and in the end stopped."""
        cluster = Cluster(Network.parse(tomllib.loads(description)), folder)
        for name in cluster.addresses:
            await cluster.start(name)
        try:
            yield cluster
        finally:
            for name in list(cluster.nodes):
                await cluster.stop(name)

    async def start(self, name: str, *accept_loss: str) -> None:
        broker = BrokerId(name)
        config = NodeConfig(
            self.network, broker, self.addresses, self._folder / name, accept_loss=frozenset(accept_loss)
        )
        self.nodes[name] = await Node(config).__aenter__()

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).__aexit__(None, None, None)

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[WireClient]:
        """A client of one node."""
        async with AsyncExitStack() as stack:
            client = await WireClient.dial(self.addresses[BrokerId(name)], self.network)
            stack.callback(client.close)
            yield client


class WireClient:
    """Says what it is told to say, and keeps what it hears."""

    def __init__(self, connection: Connection, network: Network) -> None:
        self.connection = connection
        self.network = network
        self._decoder = NodeDecoder()
        self._heard: asyncio.Queue[NodeMessage | LinkMessage | str] = asyncio.Queue()
        #: Deliveries that came before a receipt that was waited for.
        self._early: deque[NodeMessage] = deque()
        self._catenation = 0
        connection.send(encode_link(Hello(role=Role.CLIENT, name="tester")))

    @staticmethod
    async def dial(address: Address, network: Network) -> WireClient:
        made: list[WireClient] = []

        def owner(connection: Connection) -> WireClient:
            made.append(WireClient(connection, network))
            return made[0]

        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Connection(FROM_DIALED_NODE, owner), address.host, address.port)
        welcome = await made[0].hear()
        assert isinstance(welcome, Welcome)
        return made[0]

    def received(self, frame: Frame) -> None:
        is_link = frame.kind in LINK_KINDS
        self._heard.put_nowait(decode_link(frame) if is_link else self._decoder.decode(frame))

    def settled(self) -> None:
        pass

    def drained(self) -> None:
        pass

    def lost(self, reason: str) -> None:
        self._heard.put_nowait(reason)

    def close(self) -> None:
        self.connection.abort("the test is over")

    def say(self, message: ClientMessage) -> None:
        self.connection.send(encode_client(message))

    async def hear(self) -> NodeMessage | LinkMessage | str:
        """The next thing that the node says; a plain text when the connection is gone."""
        return self._early.popleft() if self._early else await self._next()

    async def _next(self) -> NodeMessage | LinkMessage | str:
        return await asyncio.wait_for(self._heard.get(), PATIENCE_SECONDS)

    async def subscribe(self, where: str = "", **options: object) -> Confirmed:
        self.say(Subscribe(request=1, topic=TOPIC, where=where, **options))  # type: ignore[arg-type]
        confirmed = await self.hear()
        assert isinstance(confirmed, Confirmed), confirmed
        return confirmed

    def publish(
        self, prices: Sequence[float], *, publisher: str = "tester", first: int | None = None
    ) -> None:
        """Publish events with these prices; `first` repeats older numbers."""
        schema = self.network.topics[TOPIC]
        names = [f"event {price}" for price in prices]
        rows = pa.RecordBatch.from_arrays([pa.array(names), pa.array(list(prices))], schema=schema.arrow())
        if first is None:
            first, self._catenation = self._catenation, self._catenation + len(prices)
        self.say(
            Publish(
                topic=TOPIC,
                publisher=publisher,
                first_catenation=first,
                schema=schema_fingerprint(schema),
                rows=rows,
            )
        )

    async def receipt(self) -> PublishReceipt:
        """The next receipt. What is delivered before it is heard later."""
        while isinstance(heard := await self._next(), RowsDelivery | ColumnsDelivery):
            self._early.append(heard)
        assert isinstance(heard, PublishReceipt), heard
        return heard

    async def prices(self, count: int, *, acknowledge: bool = True) -> list[float]:
        """The prices of the next `count` events, in the order in which they came."""
        found: list[float] = []
        while len(found) < count:
            heard = await self.hear()
            if isinstance(heard, RowsDelivery):
                events = [heard.events[place] for _, place in heard.to]
                found += [float(str(event.values[1])) for event in events]
                subscription, stop = heard.to[0][0], max(event.tick for event in events) + 1
            elif isinstance(heard, ColumnsDelivery):
                found += heard.batch.columns.column("price").to_pylist()
                subscription, stop = next(iter(heard.to)), heard.batch.last + 1
            else:
                raise AssertionError(f"no delivery but {heard}")
            if acknowledge:
                positions = {PubendId("trades-1"): stop}
                self.say(Acknowledge(subscription=subscription, positions=positions))
        return found
