"""A repository without its disk, an edge without its folder, a pubend that is away: no loss is silent."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from gapless.cli import up
from gapless.client import Client
from gapless.client.subscription import Subscription
from gapless.errors import LinkError, SupersededError
from gapless.model.epochs import LIFE_STEP
from gapless.model.ids import BrokerId
from gapless.node.config import NodeConfig
from gapless.protocol.sessions.gaps import Gap
from tests.integration.nodes import Cluster
from tests.integration.test_folder import client_of, desk, publish, run

CHAIN = """
cells = {p = ["p1"], b = ["b1"], s = ["s1"]}
links = ["p--b", "b--s"]
edges = ["s1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
"""
TWO_PUBENDS = """
cells = {p = ["p1"], q = ["q1"], s = ["s1"]}
links = ["p--s", "q--s"]
edges = ["s1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
pubends.trades-2 = {topic = "trades", broker = "q1"}
"""


async def lose_folder(cluster: Cluster, folder: Path, name: str) -> None:
    """A node comes back with an empty disk."""
    await cluster.stop(name)
    shutil.rmtree(folder / name)
    await cluster.start(name)


def test_a_repository_without_its_disk_is_a_gap_for_a_connected_subscriber(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(CHAIN, tmp_path) as cluster,
            client_of(cluster, "s1") as client,
            client.subscribe("trades") as trades,
        ):
            async with client_of(cluster, "p1") as publisher:
                [first] = await publish(publisher, 1)
            assert (await anext(trades))["price"] == 1
            await lose_folder(cluster, tmp_path, "p1")
            # What is published before the edge has a start in the new log belongs to the gap.
            async with client_of(cluster, "p1") as publisher:
                tick = await published_until_taken(publisher, trades)
            [(pubend, start, stop)] = trades.gaps
            assert pubend == "trades-1"
            assert first < start < stop <= tick

    run(story())


def test_a_subscriber_may_have_the_loss_of_a_log_raised(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(CHAIN, tmp_path) as cluster,
            client_of(cluster, "s1") as client,
            client.subscribe("trades", gaps="raise") as trades,
        ):
            await lose_folder(cluster, tmp_path, "p1")
            with pytest.raises(LinkError, match="E410 pubend 'trades-1' began another log and has lost"):
                await anext(trades)

    run(story())


def test_receipted_events_that_went_with_the_disk_are_a_gap_for_a_named_subscriber(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with Cluster.running(CHAIN, tmp_path) as cluster:
            async with client_of(cluster, "p1") as publisher:
                async with (
                    client_of(cluster, "s1") as client,
                    client.subscribe("trades", "price >= 0", name="desk"),
                ):
                    pass
                await cluster.stop("s1")
                lost = await publish(publisher, 1, 2)
            await lose_folder(cluster, tmp_path, "p1")
            await cluster.start("s1")
            async with client_of(cluster, "p1") as publisher:
                # The gap is told to a client that has no memory of its own, once it has come.
                got, ((pubend, start, stop),) = await told(cluster, publisher)
            assert got == [3]
            assert pubend == "trades-1"
            assert start <= lost[0]
            assert lost[-1] < stop

    async def told(cluster: Cluster, publisher: Client) -> tuple[list[float], list[Gap]]:
        async with client_of(cluster, "s1") as client, client.subscribe("trades", "price >= 0", name="desk"):
            pass
        await publish(publisher, 3)
        return await desk(cluster, 1)

    run(story())


def test_a_pubend_that_is_away_does_not_keep_the_others_from_being_served(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(TWO_PUBENDS, tmp_path) as cluster:
            await cluster.stop("q1")
            async with (
                client_of(cluster, "p1") as publisher,
                client_of(cluster, "s1") as client,
                client.subscribe("trades") as trades,
            ):
                assert trades.awaited == ("trades-2",)
                await publish(publisher, 1)
                assert (await anext(trades))["price"] == 1
                await cluster.start("q1")
                async with client_of(cluster, "q1") as other:
                    await published_until_taken(other, trades)
                assert trades.awaited == ()
                assert trades.gaps == []

    run(story())


async def published_until_taken(publisher: Client, trades: Subscription) -> int:
    """Publish at a pubend that has just come until something arrives; gives its tick."""
    arrived = asyncio.ensure_future(anext(trades))
    while not arrived.done():
        await publish(publisher, 7)
        await asyncio.wait([arrived], timeout=0.05)
    assert arrived.result()["price"] == 7
    return arrived.result().tick


def test_a_named_subscription_is_served_after_a_restart_although_a_pubend_is_away(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(TWO_PUBENDS, tmp_path) as cluster, client_of(cluster, "p1") as publisher:
            await publish(publisher, 1)
            await desk_is_made(cluster)
            await cluster.stop("q1")
            await cluster.stop("s1")
            await cluster.start("s1")
            await publish(publisher, 2)
            assert await desk(cluster, 1) == ([2], [])

    async def desk_is_made(cluster: Cluster) -> None:
        async with client_of(cluster, "s1") as client, client.subscribe("trades", "price >= 0", name="desk"):
            pass

    run(story())


def test_a_node_that_has_fallen_behind_is_started_again_above_that(monkeypatch: pytest.MonkeyPatch) -> None:
    lives: list[int] = []

    async def serve(config: NodeConfig, _: object) -> None:
        lives.append(config.incarnation_min)
        if len(lives) == 1:
            raise SupersededError("s1", 16, 48)

    monkeypatch.setattr(up, "_serve_once", serve)
    config = NodeConfig(network=None, broker=BrokerId("s1"), addresses={}, folder=None)  # type: ignore[arg-type]
    asyncio.run(up._serve(config, None))
    assert lives == [0, 48 + LIFE_STEP]
