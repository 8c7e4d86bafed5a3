"""Publishing through any node: the client finds the repository by itself, and nothing is stored twice."""

import asyncio
from pathlib import Path

import pytest

from gapless.client import Client, Options, connect
from gapless.errors import UsageError
from tests.integration.files import running
from tests.integration.nodes import FIVE_NODES, PATIENCE_SECONDS, Cluster

TWO_REPOSITORIES = """
cells = {p = ["p1"], q = ["q1"], s = ["s1"]}
links = ["p--s", "q--s"]
edges = ["s1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
pubends.trades-2 = {topic = "trades", broker = "q1"}
"""
BONDS = {"name": "string", "yield": "float?"}


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


def client_of(cluster: Cluster, *names: str) -> Client:
    listed = ",".join(str(cluster.addresses[name]) for name in names)  # type: ignore[index]
    return connect(f"gapless://{listed}")


def event(price: float) -> dict[str, object]:
    return {"name": "x", "price": float(price)}


def test_an_edge_is_as_good_a_place_to_publish_as_a_repository(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(FIVE_NODES, tmp_path) as cluster,
            client_of(cluster, "s1") as client,
            client.subscribe("trades", "price >= 3") as trades,
        ):
            receipts = [await client.publish("trades", event(price)) for price in range(5)]
            assert {receipt.pubend for receipt in receipts} == {"trades-1"}
            assert len(await client.publish_batch("trades", {"name": ["y"], "price": [7.0]})) == 1
            assert [(await anext(trades))["price"] for _ in range(3)] == [3.0, 4.0, 7.0]
            # The repository has one connection for publishing, the edge has one for everything else.
            clients = [len(cluster.nodes[name].sessions) for name in ("p1", "s1", "b1")]
            assert clients == [1, 1, 0]

    run(story())


def test_a_repository_that_restarts_gets_everything_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(FIVE_NODES, tmp_path) as cluster,
            client_of(cluster, "s1") as client,
            client.subscribe("trades") as trades,
        ):
            publications = []
            for price in range(300):
                publications.append(client.publish("trades", event(price)))
                if price % 10 == 9:
                    await asyncio.sleep(0)
                if price == 150:
                    await cluster.stop("p1")
                    await cluster.start("p1")
            await client.flush()
            assert [(await anext(trades))["price"] for _ in range(300)] == [float(at) for at in range(300)]

    run(story())


def test_a_publisher_with_events_under_way_waits_for_its_repository(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster,
            client_of(cluster, "s1") as reader,
            reader.subscribe("trades") as trades,
            client_of(cluster, "p1", "q1") as client,
        ):
            first = await client.publish("trades", event(1))
            assert first.pubend == "trades-1"
            held = client.publish("trades", event(2))
            await asyncio.sleep(0)  # it is on its way
            await cluster.stop("p1")
            # The client is at home at q1 now, and the event still belongs to p1.
            assert (await client.status())["broker"] == "q1"
            await cluster.start("p1")
            assert (await held).pubend == "trades-1"
            last = await client.publisher("trades", pubend="trades-2").publish(event(3))
            assert last.pubend == "trades-2"
            got = [await anext(trades) for _ in range(3)]
            assert sorted((each.pubend, each["price"]) for each in got) == [
                ("trades-1", 1.0),
                ("trades-1", 2.0),
                ("trades-2", 3.0),
            ]

    run(story())


def test_a_new_publisher_uses_a_repository_that_is_up(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster, client_of(cluster, "s1") as client:
            first = await client.publish("trades", event(1))
            gone, left = ("p1", "trades-2") if first.pubend == "trades-1" else ("q1", "trades-1")
            unused = client.publisher("trades", pubend=None)
            await cluster.stop(gone)
            waiting = client.publish("trades", event(2))
            assert (await client.publisher("trades").publish(event(3))).pubend == left
            assert (await unused.publish(event(4))).pubend == left
            assert not waiting.done(), "its order is kept at the pubend that has the first event"
            await cluster.start(gone)
            assert (await waiting).pubend == first.pubend

    run(story())


def test_a_full_repository_is_reported_with_its_own_code(tmp_path: Path) -> None:
    brief = Options(connect_timeout_s=0.05, give_up_s=0.05, backoff_min_s=0.001, backoff_max_s=0.01)

    async def story() -> None:
        async with (
            running(
                f"{TWO_REPOSITORIES}\n[limits]\nprincipal_clients_max = 1", tmp_path, "p1", "q1", "s1"
            ) as network,
            connect(network.address("p1")),
            connect(network.address("q1")),
            connect(network.address("s1"), options=brief) as client,
        ):
            with pytest.raises(UsageError, match=r"^E106 anonymous has 1 connections .*end some") as told:
                await client.publish("trades", event(1))
            assert told.value.retry
            with pytest.raises(UsageError, match=r"^E106 anonymous has 1 connections"):
                async with connect(network.address("s1"), options=brief):
                    pass

    run(story())


def test_numbers_of_the_program_always_go_to_the_same_pubend(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster:
            for home in ("q1", "s1", "p1"):
                async with client_of(cluster, home) as client:
                    publisher = client.publisher("trades", identity="till-7", first_catenation=0)
                    place = await publisher.publish(event(1))
                    assert place.pubend == "trades-1"
            async with client_of(cluster, "q1") as client:
                named = client.publisher("trades", pubend="trades-2")
                assert (await named.publish(event(2))).pubend == "trades-2"

    run(story())


def test_any_node_creates_a_topic(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(FIVE_NODES, tmp_path) as cluster, client_of(cluster, "s2") as client:
            await client.create_topic("bonds", BONDS, retention="7d")
            assert (await client.topics())["bonds"].pubends == ("bonds-p1",)
            async with client.subscribe("bonds") as bonds:
                await client.publish("bonds", {"name": "a"})
                assert (await anext(bonds))["name"] == "a"
            with pytest.raises(UsageError, match="E187"):
                await client.create_topic("bonds", {"name": "int"})

    run(story())


def test_the_second_pubend_of_a_topic_reaches_those_who_have_subscribed(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster:
            # Two repositories that do not hear of each other for the time being create one topic.
            await cluster.stop("s1")
            for name in ("p1", "q1"):
                async with client_of(cluster, name) as client:
                    await client.create_topic("bonds", BONDS)
            await cluster.start("s1")
            async with client_of(cluster, "s1") as reader:
                while len((await reader.topics()).get("bonds", ((), ()))[1]) < 2:
                    pass
                async with reader.subscribe("bonds", order="total") as bonds:
                    for name in ("p1", "q1"):
                        async with client_of(cluster, name) as client:
                            await client.publish("bonds", {"name": name})
                    assert sorted([(await anext(bonds))["name"] for _ in range(2)]) == ["p1", "q1"]

    run(story())


def test_a_publisher_never_overtakes_itself_through_another_repository(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster,
            client_of(cluster, "s1") as reader,
            reader.subscribe("trades", name="desk") as trades,
            client_of(cluster, "p1", "q1") as client,
        ):
            await cluster.stop("s1")  # so that the first event is stored and not delivered yet
            assert (await client.publish("trades", event(1))).pubend == "trades-1"
            await cluster.stop("p1")
            later = [client.publish("trades", event(price)) for price in (2, 3)]
            # Home is at the other repository now, which would take both events.
            assert (await client.status())["broker"] == "q1"
            await cluster.start("s1")
            await cluster.start("p1")
            assert [(await each).pubend for each in later] == ["trades-1", "trades-1"]
            assert [(await anext(trades))["price"] for _ in range(3)] == [1.0, 2.0, 3.0]

    run(story())
