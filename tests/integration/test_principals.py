"""Who a client is decides what it owns: certificates, and clients over TLS that do not read."""

import asyncio
from pathlib import Path

import pytest

from gapless.client import connect
from gapless.errors import UsageError
from gapless.node.connection import ANSWERS_BYTES_MAX
from gapless.protocol.sessions.messages import PublishReceipt, RequestRefused, Unsubscribe
from gapless.wire.handshake import Ping, Pong, encode_link
from tests.hostile.raw import frame, hello
from tests.integration.authority import Authority
from tests.integration.files import LOOPS, Loop, run, running
from tests.integration.nodes import ONE_NODE, Cluster

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
[tls]
certificate = "{broker}.pem"
key = "{broker}.key"
authority = "ca.pem"
"""


def test_a_name_is_refused_to_other_certificates_and_to_none(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("n1")
    ann, bob = authority.context(authority.issue("ann")), authority.context(authority.issue("bob"))

    async def story() -> None:
        for _ in range(2):
            async with running(NODE, tmp_path, "n1") as network:
                address = network.address("n1")
                async with (
                    connect(address, tls=ann) as owner,
                    owner.subscribe("trades", name="desk") as trades,
                ):
                    for other in (bob, authority.context()):
                        async with connect(address, tls=other) as client:
                            with pytest.raises(UsageError, match="E105"):
                                await client.subscribe("trades", name="desk").__aenter__()
                            with pytest.raises(UsageError, match="E105"):
                                await client.hold("trades", "desk", {}).__aenter__()
                    await owner.publish("trades", {"price": 1.0})
                    assert (await anext(trades))["price"] == 1.0

    run(story())


def test_pongs_receipts_and_refusals_count_as_answers_and_deliveries_do_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as client:
            [session] = cluster.nodes["n1"].sessions.clients()
            connection = session.connection

            async def answered() -> int:
                """How many bytes of answers were sent until a ping is answered, without its pong."""
                before = connection._answers_after
                client.connection.send(encode_link(Ping(number=1)))
                while not isinstance(await client.hear(), Pong):
                    pass
                return connection._answers_after - before - pong

            pong = 0
            pong = await answered()
            assert pong > 0
            client.publish([1.0])
            assert isinstance(await client.hear(), PublishReceipt)
            receipt = connection._answers_after - pong
            assert receipt > 0
            await client.subscribe(start="earliest")
            assert await client.prices(1) == [1.0]
            before = connection._answers_after
            async with cluster.client("n1") as other:
                other.publish([2.0], publisher="other")
                assert await client.prices(1) == [2.0]
            assert connection._answers_after == before
            client.say(Unsubscribe(request=9, subscription=999))
            assert isinstance(await client.hear(), RequestRefused)
            assert connection._answers_after > before

    run(story())


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_read_from_a_tls_client_that_does_not_read(loop: Loop, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("n1")
    wide = {f"{'column' * 40}{at}": "int" for at in range(200)}
    requests = 2_000

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            node = network.nodes["n1"]
            async with connect(network.address("n1"), tls=authority.path) as client:
                await client.create_topic("wide", wide)
            reader, writer = await asyncio.open_connection(
                "localhost", node.address.port, ssl=authority.context(), limit=2**16
            )
            writer.write(hello())
            assert await heard(reader)
            writer.write(b"".join(frame("LIST_TOPICS", [at, False]) for at in range(requests)))
            [session] = node.sessions.clients()
            while session.connection._unread is None:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0)
            # An answer is about 50 kB, and one more than fits may be on its way.
            assert session.connection.backlog_bytes < 2 * ANSWERS_BYTES_MAX
            for at in range(requests):
                assert _number(await heard(reader)) == at
            writer.close()

    run(story(), loop)


async def heard(reader: asyncio.StreamReader) -> bytes:
    """What follows the header of the next frame."""
    header = await reader.readexactly(16)
    return await reader.readexactly(int.from_bytes(header[4:8], "little"))


def _number(body: bytes) -> int:
    """The first field of a head: a MessagePack integer after the byte of an array."""
    first = body[1]
    return first if first < 0x80 else int.from_bytes(body[2 : 3 + (first - 0xCC)], "big")
