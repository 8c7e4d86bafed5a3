"""The client library against real nodes: published once, delivered once, through stops and starts."""

import asyncio
from pathlib import Path

from gapless.client import Options, connect
from tests.integration.nodes import FIVE_NODES, ONE_NODE, PATIENCE_SECONDS, Cluster

QUICK = Options(backoff_min_s=0.005, backoff_max_s=0.05)


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, PATIENCE_SECONDS))


def address_of(cluster: Cluster, *names: str) -> str:
    return "gapless://" + ",".join(
        f"{place.host}:{place.port}" for name, place in cluster.addresses.items() if name in names
    )


def trade(price: float) -> dict[str, object]:
    return {"name": f"event {price}", "price": price}


def test_published_events_are_delivered_to_those_who_want_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            connect(address_of(cluster, "n1"), options=QUICK) as client,
            client.subscribe("trades", "price >= 500") as dear,
        ):
            publications = [client.publish("trades", trade(float(price))) for price in range(1_000)]
            receipts = [await each for each in publications]
            got = []
            async for each in dear:
                got.append((each.pubend, each.tick, each["price"]))
                if len(got) == 500:
                    break
            assert got == [(*receipts[price], float(price)) for price in range(500, 1_000)]
            batch = await client.publish_batch("trades", {"name": ["a", "b"], "price": [1.0, 900.0]})
            events = aiter(dear)
            assert (await anext(events)).tick == batch.ticks[1]
            assert (await client.topics())["trades"].pubends == ("trades-1",)

    run(story())


def test_a_node_may_stop_and_come_back_while_a_program_publishes_and_subscribes(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            connect(address_of(cluster, "n1"), options=QUICK) as client,
            client.subscribe("trades", ack="auto") as trades,
        ):
            got: list[float] = []

            async def read(count: int) -> None:
                async for each in trades:
                    got.append(each["price"])
                    if len(got) == count:
                        break

            reading = asyncio.create_task(read(300))
            first = [client.publish("trades", trade(float(price))) for price in range(100)]
            await asyncio.gather(*[_awaited(each) for each in first])
            await cluster.stop("n1")
            second = [client.publish("trades", trade(float(price))) for price in range(100, 200)]
            await cluster.start("n1")
            third = [client.publish("trades", trade(float(price))) for price in range(200, 300)]
            ticks = [(await each).tick for each in [*second, *third]]
            await reading
            assert got == [float(price) for price in range(300)]
            assert ticks == sorted(set(ticks))

    run(story())


async def _awaited(publication) -> object:  # type: ignore[no-untyped-def]
    return await publication


def test_an_edge_may_stop_while_events_flow_and_another_takes_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(FIVE_NODES, tmp_path) as cluster,
            connect(address_of(cluster, "p1"), options=QUICK) as publisher,
            connect(address_of(cluster, "s1", "s2"), options=QUICK) as reader,
            reader.subscribe("trades", "price < 1000") as trades,
        ):
            for price in range(100):
                publisher.publish("trades", trade(float(price)))
            await publisher.flush()
            got = []
            async for each in trades:
                got.append(each["price"])
                if len(got) == 50:
                    # The client is at the first edge of its list.
                    await cluster.stop("s1")
                    for price in range(100, 200):
                        publisher.publish("trades", trade(float(price)))
                if len(got) == 200:
                    break
            assert got == [float(price) for price in range(200)]

    run(story())
