"""The client library against real nodes: publish, subscribe, and a node that goes away in between."""

import asyncio
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gapless.client import Client, Options, connect
from gapless.client.publisher import Publisher
from gapless.client.rows import PIECE_ROWS_MAX
from gapless.errors import ContentError, LinkError, SchemaError, UsageError
from gapless.model.bounds import ROWS_MAX
from gapless.protocol.sessions.edge_publishing import TOGETHER_ROWS_MAX
from gapless.protocol.sessions.messages import PublishReceipt
from tests.integration.nodes import FIVE_NODES, ONE_NODE, PATIENCE_SECONDS, Cluster

#: More than a node stores together, and more than the client sends in a frame.
MANY_ROWS = TOGETHER_ROWS_MAX + 5_000


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


def client_of(cluster: Cluster, *names: str) -> Client:
    listed = ",".join(str(cluster.addresses[name]) for name in names)  # type: ignore[index]
    return connect(f"gapless://{listed}")


async def prices(subscription, count: int) -> list[object]:  # type: ignore[no-untyped-def]
    return [(await anext(subscription))["price"] for _ in range(count)]


def test_a_published_event_has_a_tick_and_is_delivered(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as client:
            assert list(await client.topics()) == ["trades"]
            async with client.subscribe("trades", "price > 5") as trades:
                publications = [
                    client.publish("trades", {"name": "x", "price": float(price)}) for price in range(10)
                ]
                places = [await publication for publication in publications]
                ticks = [place.tick for place in places]
                assert ticks == sorted(set(ticks))  # type: ignore[type-var]
                first = await anext(trades)
                assert dict(first) == {"name": "x", "price": 6.0}
                assert (first.pubend, first.tick) == places[6]
                assert await prices(trades, 3) == [7.0, 8.0, 9.0]
            assert (await client.status())["broker"] == "n1"

    run(story())


def test_columns_are_published_as_they_are(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            client_of(cluster, "n1") as client,
            client.subscribe("trades") as trades,
        ):
            table = pa.table({"name": ["a"] * 25_000, "price": [float(at) for at in range(25_000)]})
            stored = await client.publish_batch("trades", table)
            assert len(stored.ticks) == 25_000
            assert await prices(trades, 25_000) == table.column("price").to_pylist()

    run(story())


@pytest.mark.parametrize(
    ("frame_rows_max", "cut"), [(PIECE_ROWS_MAX, MANY_ROWS // 2), (ROWS_MAX, TOGETHER_ROWS_MAX)]
)
def test_a_batch_with_several_receipts_is_in_order_and_one_result_for_its_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame_rows_max: int, cut: int
) -> None:
    """Whether the client cuts it into several frames, or sends one that the node stores in pieces."""
    heard: list[tuple[int, int]] = []
    settle = Publisher.receipt

    def receipt(publisher: Publisher, message: PublishReceipt) -> None:
        heard.append((message.first_catenation, message.last_catenation))
        settle(publisher, message)

    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            client_of(cluster, "n1") as client,
            client.subscribe("trades") as trades,
        ):
            table = pa.table({"name": ["a"] * MANY_ROWS, "price": np.arange(MANY_ROWS, dtype=np.float64)})
            stored = await client.publish_batch("trades", table)
            assert heard == [(0, cut - 1), (cut, MANY_ROWS - 1)]
            assert len(stored) == len(stored.ticks) == MANY_ROWS
            assert (np.diff(stored.ticks) > 0).all()
            assert await prices(trades, MANY_ROWS) == table.column("price").to_pylist()

    monkeypatch.setattr(Publisher, "receipt", receipt)
    monkeypatch.setattr("gapless.client.rows.PIECE_ROWS_MAX", frame_rows_max)
    run(story())


def test_a_publisher_outlives_its_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as publisher:
            publications = []
            for price in range(300):
                publications.append(publisher.publish("trades", {"name": "x", "price": float(price)}))
                if price % 10 == 9:
                    await asyncio.sleep(0)
                if price == 150:
                    await cluster.stop("n1")
                    await cluster.start("n1")
            places = [await publication for publication in publications]
            # Of what was stored before the restart, the node may know no more than that it has it.
            ticks = [place.tick for place in places if place.tick is not None]
            assert ticks == sorted(set(ticks))
            assert len(ticks) >= 100

    run(story())


def test_a_subscriber_continues_at_another_edge(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(FIVE_NODES, tmp_path) as cluster,
            client_of(cluster, "p1") as publisher,
            client_of(cluster, "s1", "s2") as subscriber,
            subscriber.subscribe("trades") as trades,
        ):
            for price in range(100):
                await publisher.publish("trades", {"name": "x", "price": float(price)})
            assert await prices(trades, 50) == [float(price) for price in range(50)]
            for client in list(cluster.nodes["s1"].sessions._sessions):
                client.connection.abort("the cable was pulled")
            for price in range(100, 200):
                await publisher.publish("trades", {"name": "x", "price": float(price)})
            assert await prices(trades, 150) == [float(price) for price in range(50, 200)]

    run(story())


def test_mistakes_are_errors_of_our_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, client_of(cluster, "n1") as client:
            with pytest.raises(ContentError, match="E161"):
                async with client.subscribe("trades", "prise > 3"):
                    pass
            with pytest.raises(UsageError, match="E141"):
                await client.publish("news", {})
            with pytest.raises(SchemaError, match="E111"):
                await client.publish("trades", {"name": "x", "prise": 3.0})
            with pytest.raises(SchemaError, match="E113"):
                await client.publish("trades", {"name": None, "price": 3.0})
            with pytest.raises(SchemaError, match="E114"):
                await client.publish("trades", {"name": "x", "price": "much"})

    run(story())


def test_an_address_without_a_node_says_so() -> None:
    async def story() -> None:
        with pytest.raises(LinkError, match="E401 no node answers"):
            async with connect("gapless://127.0.0.1:1", options=Options(connect_timeout_s=0.2)):
                pass

    run(story())
    with pytest.raises(UsageError, match="E190"):
        connect("http://localhost:7400")
