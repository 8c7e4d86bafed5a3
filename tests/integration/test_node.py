"""Real nodes on loopback: what is published is delivered once, in order, through stops and starts."""

import asyncio
import socket
from pathlib import Path

import pytest

from gapless.protocol.sessions.messages import RequestRefused, Subscribe
from gapless.wire.frames import MAGIC
from gapless.wire.handshake import Refuse
from tests.integration.nodes import FIVE_NODES, ONE_NODE, PATIENCE_SECONDS, TOPIC, Cluster


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


def test_a_subscriber_gets_what_its_condition_accepts(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as client:
            await client.subscribe("price > 5")
            client.publish([1.0, 6.0, 7.0])
            receipt = await client.receipt()
            assert (receipt.first_catenation, receipt.last_catenation) == (0, 2)
            assert len(receipt.ticks()) == 3
            assert await client.prices(2) == [6.0, 7.0]

    run(story())


def test_what_is_published_twice_is_stored_once_also_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with cluster.client("n1") as client:
                client.publish([1.0, 2.0])
                await client.receipt()
                client.publish([1.0, 2.0], first=0)
                assert (await client.receipt()).runs == ()
            await cluster.stop("n1")
            await cluster.start("n1")
            async with cluster.client("n1") as client:
                await client.subscribe()
                # Receipts together name everything, also what was stored before in another batch.
                client.publish([1.0, 2.0, 3.0], first=0)
                receipts = [await client.receipt() for _ in range(2)]
                named = [(each.first_catenation, each.last_catenation, len(each.runs)) for each in receipts]
                assert named == [(0, 1, 0), (2, 2, 1)]
                assert await client.prices(1) == [3.0]

    run(story())


def test_a_router_may_stop_and_come_back_while_events_flow(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(FIVE_NODES, tmp_path) as cluster,
            cluster.client("p1") as publisher,
            cluster.client("s1") as low,
            cluster.client("s2") as high,
        ):
            await low.subscribe("price < 300")
            await high.subscribe("price >= 300")
            for price in range(600):
                publisher.publish([float(price)])
                if price == 200:
                    await cluster.stop("b1")
                if price == 400:
                    await cluster.start("b1")
                if price % 20 == 19:
                    await publisher.receipt()
            assert await low.prices(300) == [float(price) for price in range(300)]
            assert await high.prices(300) == [float(price) for price in range(300, 600)]

    run(story())


def test_a_subscriber_that_acknowledges_nothing_delays_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            cluster.client("n1") as publisher,
            cluster.client("n1") as deaf,
            cluster.client("n1") as good,
        ):
            await deaf.subscribe()
            await good.subscribe()
            for price in range(50):
                publisher.publish([float(price)] * 100)
            prices = await good.prices(5_000)
            assert prices == [float(price) for price in range(50) for _ in range(100)]
            assert await deaf.prices(5_000, acknowledge=False) == prices

    run(story())


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        MAGIC + b"\xff" * 60,
        bytes(100),
        MAGIC + b"\x01\x01" + b"\xff\xff\xff\xff" * 3,
    ],
)
def test_a_peer_that_sends_garbage_is_cut_off_and_others_are_served(garbage: bytes, tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as client:
            await client.subscribe()
            address = next(iter(cluster.addresses.values()))
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(garbage)
            await writer.drain()
            # The node says why, if anything, and hangs up.
            await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
            writer.close()
            client.publish([1.0])
            await client.receipt()
            assert await client.prices(1) == [1.0]

    run(story())


def test_a_mistake_in_a_condition_is_reported_to_its_client(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as client:
            client.say(Subscribe(request=7, topic=TOPIC, where="prise > 3"))
            refused = await client.hear()
            assert isinstance(refused, RequestRefused)
            assert (refused.request, refused.code) == (7, "E161")
            assert "price" in refused.message

    run(story())


def test_a_broker_of_another_network_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            from gapless.node.connection import Connection
            from gapless.wire.frames import FROM_DIALED_BROKER
            from gapless.wire.handshake import Hello, Role, decode_link, encode_link

            heard: asyncio.Future[object] = asyncio.get_running_loop().create_future()

            class Listener:
                def __init__(self, connection: Connection) -> None:
                    connection.send(encode_link(Hello(role=Role.BROKER, name="n2", network="else")))

                def received(self, frame) -> None:  # type: ignore[no-untyped-def]
                    heard.set_result(decode_link(frame))

                def settled(self) -> None:
                    pass

                def drained(self) -> None:
                    pass

                def lost(self, reason: str) -> None:
                    pass

            address = next(iter(cluster.addresses.values()))
            await asyncio.get_running_loop().create_connection(
                lambda: Connection(FROM_DIALED_BROKER, Listener), address.host, address.port
            )
            refuse = await asyncio.wait_for(heard, PATIENCE_SECONDS)
            assert isinstance(refuse, Refuse)
            assert refuse.code == "E217"

    run(story())


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    from gapless.errors import UsageError

    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            address = next(iter(cluster.addresses.values()))
            second = Cluster(cluster.network, tmp_path / "second")
            second.addresses = dict.fromkeys(second.addresses, address)
            with pytest.raises(UsageError, match="E183 cannot listen"):
                await second.start("n1")

    run(story())


def test_the_port_is_free_again_after_a_stop(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            address = next(iter(cluster.addresses.values()))
            await cluster.stop("n1")
            with socket.socket() as taken:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind((address.host, address.port))
            await cluster.start("n1")
            assert cluster.nodes["n1"].address == address

    run(story())
