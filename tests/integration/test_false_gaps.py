"""A subscriber that comes back reports the events that are gone, and never those that it did not want."""

import asyncio
from pathlib import Path

import pytest

from gapless.client import Client, Options, connect
from gapless.errors import LinkError
from gapless.model.ids import BrokerId, PubendId
from tests.integration.nodes import PATIENCE_SECONDS, Cluster

ONE_NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
parameters = {ack_delay_ms = 1, horizon_ms = 1}
"""
TWO_EDGES = """
cells = {p = ["p1"], s = ["s1"], t = ["s2"]}
links = ["p--s", "p--t"]
edges = ["s1", "s2"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
parameters = {ack_delay_ms = 1, horizon_ms = 1}
"""
QUICK = Options(backoff_min_s=0.005, backoff_max_s=0.05, ack_s=0.01)


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


def client_of(cluster: Cluster, *names: str) -> Client:
    listed = ",".join(str(cluster.addresses[BrokerId(name)]) for name in names)
    return connect(f"gapless://{listed}", name="reader", options=QUICK)


async def publish(client: Client, price: float) -> int:
    receipt = await client.publish("trades", {"name": "x", "price": price})
    assert receipt.tick is not None
    return receipt.tick


async def release_unwanted_events(cluster: Cluster, home: str, client: Client) -> None:
    """Publish events that the subscriber does not want, until some of them are no longer kept."""
    start = await publish(client, 1.0)
    while int(cluster.nodes[home].report()["pubends"][0]["released"]) <= start:  # type: ignore[index]
        await publish(client, 1.0)


@pytest.mark.parametrize(("network", "home", "edge"), [(ONE_NODE, "n1", "n1"), (TWO_EDGES, "p1", "s1")])
def test_a_subscriber_that_comes_back_reports_no_gap_for_events_it_did_not_want(
    tmp_path: Path, network: str, home: str, edge: str
) -> None:
    async def story() -> None:
        async with (
            Cluster.running(network, tmp_path) as cluster,
            client_of(cluster, home) as publisher,
            client_of(cluster, edge) as client,
            client.subscribe("trades", "price >= 100", gaps="raise") as trades,
        ):
            await publish(publisher, 100.0)
            assert (await anext(trades))["price"] == 100.0
            reading = asyncio.create_task(anext(trades))
            await release_unwanted_events(cluster, home, publisher)
            for _ in range(2):
                [session] = [each for each in cluster.nodes[edge].sessions.clients() if each.subscriptions]
                session.connection.abort("the cable was pulled")
                # Answered when the client has come back and has asked for its subscription again.
                await client.topics()
            await publish(publisher, 101.0)
            assert (await reading)["price"] == 101.0
            assert trades.gaps == []

    run(story())


def test_a_subscriber_with_another_condition_is_told_of_what_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            client_of(cluster, "n1") as client,
            client.subscribe("trades", "price >= 100") as trades,
        ):
            await publish(client, 100.0)
            assert (await anext(trades))["price"] == 100.0
            positions = dict(trades.positions)
            reading = asyncio.create_task(anext(trades))
            await release_unwanted_events(cluster, "n1", client)
            # The same client, topic and start, but the events that are gone are those that it wants.
            with pytest.raises(LinkError, match="E410"):
                async with client.subscribe("trades", "price < 100", start=positions, gaps="raise"):
                    pass
            async with client.subscribe("trades", "price >= 100", start=positions, gaps="raise") as again:
                await publish(client, 101.0)
                assert [(await anext(again))["price"], (await reading)["price"]] == [101.0, 101.0]

    run(story())


def test_a_subscriber_that_roams_reports_no_gap_for_events_it_did_not_want(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(TWO_EDGES, tmp_path) as cluster,
            client_of(cluster, "p1") as publisher,
            client_of(cluster, "s1", "s2") as client,
            client.subscribe("trades", "price >= 100", gaps="raise") as trades,
        ):
            await publish(publisher, 100.0)
            assert (await anext(trades))["price"] == 100.0
            reading = asyncio.create_task(anext(trades))
            await release_unwanted_events(cluster, "p1", publisher)
            last = await publish(publisher, 1.0)
            # Nothing for it is published: its node tells it how far it is.
            while trades.positions[PubendId("trades-1")] <= last:
                await publisher.topics()
            await cluster.stop("s1")
            await publish(publisher, 101.0)
            assert (await reading)["price"] == 101.0
            assert trades.gaps == []

    run(story())
