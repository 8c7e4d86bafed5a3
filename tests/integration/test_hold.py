"""A hold keeps the log for whoever reads in bulk: nothing is delivered, nothing is let go of too early."""

import asyncio
from pathlib import Path

import pytest

from gapless.client import Client, connect
from gapless.client.sync import SyncHold
from gapless.client.sync import connect as connect_sync
from gapless.errors import UsageError
from gapless.node.node import Node
from tests.integration.files import run, running

NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
parameters = {ack_delay_ms = 1}
"""
FAR = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["s1"]
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
parameters = {ack_delay_ms = 1}
"""


async def publish(client: Client, *prices: float) -> int:
    """Publish, and give one past the last tick."""
    receipt = await client.publish_batch("trades", {"price": list(prices)})
    return int(receipt.ticks[-1]) + 1


def released(node: Node) -> int:
    [pubend] = node.report()["pubends"]  # type: ignore[misc]
    return int(pubend["released"])


async def releases(client: Client, node: Node, tick: int) -> None:
    """Publish until everything below the tick is released."""
    async with client.subscribe("trades") as trades:
        while released(node) < tick:
            await publish(client, -1.0)
            await anext(trades)


async def settles(client: Client, node: Node) -> None:
    """Publish until what is published now is acknowledged by everybody who gets it."""
    async with client.subscribe("trades") as trades:
        for _ in range(20):
            await publish(client, -1.0)
            await anext(trades)
    await node.storage.idle()


@pytest.mark.parametrize(("text", "edge", "home"), [(NODE, "n1", "n1"), (FAR, "s1", "p1")])
def test_what_is_held_stays_until_it_is_acknowledged(text: str, edge: str, home: str, tmp_path: Path) -> None:
    names = tuple(dict.fromkeys((home, edge)))

    async def story() -> None:
        async with (
            running(text, tmp_path, *names) as network,
            connect(network.address(edge)) as client,
            connect(network.address(home)) as publisher,
        ):
            node = network.nodes[home]
            start = await publish(publisher, 0.0)
            async with client.hold("trades", "spark", {"trades-1": start}) as hold:
                first = await publish(publisher, 1.0, 2.0)
                second = await publish(publisher, 3.0)
                await settles(client, node)
                # What nobody needed before it began may go; the first event that is held may not.
                assert released(node) <= first - 2
                hold.acknowledge({"trades-1": first})
                await releases(client, node, first)
                await settles(client, node)
                assert released(node) <= second - 1, "the next event that is held"
                [listed] = [
                    each
                    for each in network.nodes[edge].report()["subscriptions"]["list"]  # type: ignore[index]
                    if each["name"] == "spark"
                ]
                assert listed["mode"] == "holding"
                assert listed["positions"] == {"trades-1": first}
                hold.acknowledge({"trades-1": second})
                # Going back is nothing.
                hold.acknowledge({"trades-1": start})
            await releases(client, node, second)

    run(story())


def test_a_hold_survives_its_client_and_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            start = await publish(client, 0.0)
            async with client.hold("trades", "spark", {"trades-1": start}):
                held = await publish(client, 1.0) - 1
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            node = network.nodes["n1"]
            second = await publish(client, 2.0)
            await settles(client, node)
            assert released(node) <= held
            # Whoever comes with that name goes on with it, wherever it would have begun by itself.
            async with client.hold("trades", "spark", {"trades-1": second}) as hold:
                await settles(client, node)
                assert released(node) <= held
                hold.acknowledge({"trades-1": second})
                await releases(client, node, second)
                await hold.forget()
            await releases(client, node, await publish(client, 3.0))

    run(story())


def test_a_name_is_held_by_one_client(tmp_path: Path) -> None:
    def hold_twice(address: str) -> None:
        def acknowledge_until_refused(hold: SyncHold) -> None:
            while True:
                hold.acknowledge({"trades-1": 1})

        with (
            connect_sync(address) as one,
            connect_sync(address) as other,
            one.hold("trades", "spark", {}) as first,
            other.hold("trades", "spark", {}) as second,
        ):
            with pytest.raises(UsageError, match=r"^E137 another client subscribed as 'spark'"):
                acknowledge_until_refused(first)
            with pytest.raises(UsageError, match="E137"):
                first.forget()
            second.acknowledge({"trades-1": 1})
            second.forget()
            second.forget()

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            await asyncio.to_thread(hold_twice, network.address("n1"))

    run(story())


def test_a_hold_is_not_shown_as_a_subscriber_that_lags(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            start = await publish(client, 1.0)
            async with client.hold("trades", "job", {"trades-1": start}):
                await publish(client, 2.0)
                await settles(client, network.nodes["n1"])
                report = (await client.status())["subscriptions"]
                assert [each["state"] for each in report["list"] if each["name"] == "job"] == ["holding"]
                assert report["lagging"] == 0

    run(story())
