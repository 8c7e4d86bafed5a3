"""A network on IPv6: brokers link, clients publish and subscribe, bulk reads and HTTP work."""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gapless.client import connect
from gapless.client.bulk import open_bulk
from gapless.model.ids import BrokerId
from gapless.node.config import load_network
from gapless.node.node import Node
from gapless.wire.address import Address
from tests.integration.files import run
from tests.integration.test_http import get

NETWORK = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["s1"]
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
http = {p1 = "[::1]:0", s1 = "[::1]:0"}
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket(socket.AF_INET6) for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("::1", 0))
        return [each.getsockname()[1] for each in sockets]
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    finally:
        for each in sockets:
            each.close()


def test_a_network_on_ipv6_serves_clients_and_bulk_reads(tmp_path: Path) -> None:
    p1, s1 = free_ports(2)
    described = f'addresses = {{p1 = "[::1]:{p1}", s1 = "[::1]:{s1}"}}\n{NETWORK}'
    file = load_network(described, "network.toml")

    def read(address: str) -> list[float]:
        with open_bulk(address, "trades") as bulk:
            [past] = bulk.describe().values()
            rows = bulk.read(past.pubend, past.oldest, past.stop)
            return [price for batch in rows for price in batch.column("price").to_pylist()]

    async def story() -> None:
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(
                    Node(file.node(BrokerId(name), tmp_path / name, "gapless test"))
                )
                for name in ("p1", "s1")
            ]
            assert [node.address for node in nodes] == [Address("::1", p1), Address("::1", s1)]
            client = await stack.enter_async_context(connect(f"[::1]:{s1}"))
            trades = await stack.enter_async_context(client.subscribe("trades"))
            await client.publish("trades", {"price": 1.5})
            assert dict(await anext(trades)) == {"price": 1.5}
            assert await asyncio.to_thread(read, f"gapless://[::1]:{s1}") == [1.5]
            assert (await get(nodes[0], "/readyz"))[0] == 200

    run(story())
