"""Retention as the network file says it: what is kept can be had from the beginning, what is not is gone."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gapless.client import Client, Options, connect
from gapless.errors import GaplessError
from gapless.model.ticks import TICKS_PER_MS
from gapless.node.node import Node
from tests.integration.files import run, running

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float", note = "string"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
parameters = {ack_delay_ms = 1}
"""
EVENTS = 50


async def publish(client: Client, first: int, count: int, note: str = "") -> None:
    rows = [{"price": float(price), "note": note} for price in range(first, first + count)]
    await client.publish_batch("trades", rows)


async def acked_by_all(client: Client, node: Node) -> None:
    """Publish until the node has heard that everybody has what was published before."""
    [pubend] = node.report()["pubends"]  # type: ignore[misc]
    until = pubend["durable"]
    async with client.subscribe("trades") as trades:
        while pubend["acked"] < until:
            await client.publish("trades", {"price": -1.0, "note": ""})
            await anext(trades)
            [pubend] = node.report()["pubends"]  # type: ignore[misc]


async def all_kept(client: Client, count: int) -> list[float]:
    async with client.subscribe("trades", "price >= 0", start="earliest") as trades:
        return [(await anext(trades))["price"] for _ in range(count)]


@pytest.mark.parametrize("rule", ["forever", "1d", "100MB"])
def test_kept_events_can_be_read_from_the_beginning_after_a_restart(rule: str, tmp_path: Path) -> None:
    async def story() -> None:
        text = f'{NODE}retention.trades = "{rule}"\n'
        async with (
            running(text, tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            await publish(client, 0, EVENTS)
            await acked_by_all(client, network.nodes["n1"])
            assert await all_kept(client, EVENTS) == [float(price) for price in range(EVENTS)]
        async with (
            running(text, tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            assert await all_kept(client, EVENTS) == [float(price) for price in range(EVENTS)]

    run(story())


def test_by_default_acknowledged_events_are_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(NODE, tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            await publish(client, 0, EVENTS)
            await acked_by_all(client, network.nodes["n1"])
            async with client.subscribe("trades", "price >= 0", start="earliest") as trades:
                await publish(client, 1_000, 1)
                assert (await anext(trades))["price"] == 1_000.0

    run(story())


def test_events_are_deleted_when_their_retention_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(f'{NODE}retention.trades = "1h"\n', tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            node = network.nodes["n1"]
            await publish(client, 0, EVENTS)
            await acked_by_all(client, node)
            [before] = node.report()["pubends"]  # type: ignore[misc]
            assert before["released"] < before["last_tick"]
            assert before["retention"] == "3600s"
            # The clock of the node is what decides; here it is one hour and a minute later.
            node.storage.tick(node._host.now().clock + 3_660_000 * TICKS_PER_MS)
            await node.storage.idle()
            [after] = node.report()["pubends"]  # type: ignore[misc]
            assert after["released"] >= before["acked"]
            async with client.subscribe("trades", "price >= 0", start="earliest") as trades:
                await publish(client, 1_000, 1)
                assert (await anext(trades))["price"] == 1_000.0

    run(story())


def test_sealed_segments_are_archived_before_they_are_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        text = f'{NODE}retention.trades = "100kB"\narchive.trades = true\n'
        async with (
            running(text, tmp_path, "n1") as network,
            connect(network.address("n1")) as client,
        ):
            node = network.nodes["n1"]
            for first in range(0, 4_000, 100):
                await publish(client, first, 100, note="x" * 100)
                await acked_by_all(client, node)
                node.storage.tick(node._host.now().clock)
            await node.storage.idle()
            # What waits to be trimmed is trimmed now, and not in a second.
            await node.storage._trim()
            await node.storage.archivist.do(lambda: None)
            [pubend] = node.report()["pubends"]  # type: ignore[misc]
            # Less than what was published: the rest was let go of.
            assert pubend["log_bytes"] < 4_000 * 100
            assert pubend["released"] >= pubend["oldest_tick"] > 0

    run(story())
    table = pq.read_table(tmp_path / "data" / "n1" / "archive" / "trades")
    prices = [price for price in table.column("price").to_pylist() if price >= 0]
    assert prices == [float(price) for price in range(len(prices))]
    assert len(prices) >= 1_000


def test_on_a_disk_with_too_little_room_nothing_is_published(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(f'{NODE}limits.free_bytes_min = "1000000TB"\n', tmp_path, "n1") as network,
            connect(network.address("n1"), options=Options(retries_max=1)) as client,
        ):
            with pytest.raises(GaplessError, match=r"E182 E302 the disk of .* bytes free") as caught:
                await client.publish("trades", {"price": 1.0, "note": ""})
            assert caught.value.retry
            assert network.nodes["n1"].counters.events_refused == 2

    run(story())
