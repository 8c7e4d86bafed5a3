"""A disk without any room: reading goes on, room is made, nodes start, and nobody has to help afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gapless.client import Client, Options, connect
from gapless.errors import StoreError, UsageError
from gapless.model.ids import BrokerId
from gapless.node import node as node_module
from gapless.node.config import Limits, NodeConfig
from gapless.node.node import Node
from gapless.protocol.network import Network
from tests.chaos.disk import SmallDisk
from tests.integration.nodes import PATIENCE_SECONDS, free_addresses

NETWORK = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
parameters = {ack_delay_ms = 1}
"""
EVENTS = 200
SEGMENT_BYTES = 2**16
#: More than the reserve of a node: while the disk is full nothing is published.
MUCH_BYTES = 8 * 2**20
HASTY = Options(retries_max=0)


def run(story: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE_SECONDS))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of 24 MB at `tmp_path`/disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "_segment_bytes", lambda _: SEGMENT_BYTES)


@asynccontextmanager
async def running(folder: Path, free_bytes_min: int = 2**20) -> AsyncIterator[tuple[Node, Client]]:
    network = Network.parse(tomllib.loads(NETWORK))
    addresses = free_addresses([BrokerId("n1")])
    limits = Limits(free_bytes_min=free_bytes_min)
    config = NodeConfig(network, BrokerId("n1"), addresses, folder / "disk" / "n1", limits=limits)
    async with Node(config) as node, connect(f"gapless://{node.address}", options=HASTY) as client:
        yield node, client


async def publish(client: Client, *prices: int) -> None:
    for price in prices:
        await client.publish("trades", {"name": "x" * 10_000, "price": float(price)})


async def comes(client: Client, is_so: Callable[[], bool]) -> None:
    """Ask the node for its status until something is so."""
    while not is_so():
        await client.status()


def log_bytes(node: Node) -> int:
    return int(node.report()["pubends"][0]["log_bytes"])  # type: ignore[index]


def no_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    assert [r.getMessage() for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR] == []


def test_room_is_made_on_a_full_disk(
    disk: SmallDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with (
            running(tmp_path) as (node, client),
            client.subscribe("trades", name="desk", ack="manual") as trades,
        ):
            await publish(client, *range(EVENTS))
            reserve = tmp_path / "disk" / "n1" / "reserve"
            await comes(client, reserve.exists)
            disk.fill()
            with pytest.raises(UsageError, match="E302"):
                await publish(client, -1)
            for price in range(EVENTS):
                event = await anext(trades)
                assert event["price"] == price
                await event.ack()
            await comes(client, lambda: log_bytes(node) < 4 * SEGMENT_BYTES)
            await comes(client, lambda: not node.report()["disk"]["is_full"])  # type: ignore[index]
            # Without anybody's help there is room again.
            await publish(client, 1_000)
            assert (await anext(trades))["price"] == 1_000
            disk.free()
            await comes(client, reserve.exists)

    run(story())
    no_tracebacks(caplog)


def test_a_node_on_a_full_disk_is_not_ready(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "disk").mkdir()
        # No disk has that much room.
        async with running(tmp_path, 2**62) as (node, client):
            await comes(client, lambda: node.waiting_for() == ["room on its disk"])
            assert node.report()["ready"] is False

    run(story())


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_node_starts_on_a_full_disk_and_serves_readers(
    is_orderly: bool, disk: SmallDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with running(tmp_path, MUCH_BYTES) as (_, client):
            async with client.subscribe("trades", name="desk", ack="manual"):
                await publish(client, *range(EVENTS))
            await comes(client, (tmp_path / "disk" / "n1" / "reserve").exists)
            if not is_orderly:
                disk.fill()
        disk.fill()
        for _ in range(2):
            async with running(tmp_path, MUCH_BYTES) as (node, client):
                await comes(client, lambda node=node: node.report()["disk"]["is_full"])  # type: ignore[index]
                with pytest.raises(UsageError, match="E302"):
                    await publish(client, -1)
                async with client.subscribe("trades", name="desk", ack="manual") as trades:
                    for price in range(10):
                        assert (await anext(trades))["price"] == price
        async with running(tmp_path, MUCH_BYTES) as (node, client):
            disk.free()
            await comes(client, lambda: not node.report()["disk"]["is_full"])  # type: ignore[index]
            await publish(client, 1_000)

    run(story())
    no_tracebacks(caplog)


def test_a_name_that_a_full_disk_cannot_forget_keeps_its_place(disk: SmallDisk, tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, MUCH_BYTES) as (node, client):
            async with client.subscribe("trades", name="desk", ack="manual") as trades:
                await publish(client, *range(3))
                await comes(client, (tmp_path / "disk" / "n1" / "reserve").exists)
                disk.fill()
                with pytest.raises(StoreError, match="E302"):
                    await trades.forget()
                with pytest.raises(UsageError, match="E193 the subscription has ended, and 'desk' is kept"):
                    await trades.forget()
            async with client.subscribe("trades", name="desk", start="stored", ack="manual") as trades:
                assert [(await anext(trades))["price"] for _ in range(3)] == [0, 1, 2]
            disk.free()
            await comes(client, lambda: not node.report()["disk"]["is_full"])  # type: ignore[index]
            await publish(client, 3)
        async with running(tmp_path, MUCH_BYTES) as (_, client):
            async with client.subscribe("trades", name="desk", start="stored", ack="manual") as trades:
                assert [(await anext(trades))["price"] for _ in range(4)] == [0, 1, 2, 3]
                assert trades.gaps == []
                await trades.forget()
            with pytest.raises(UsageError, match="E142"):
                await client.subscribe("trades", name="desk", start="stored").__aenter__()

    run(story())
