"""TLS between brokers and for clients: who is let in, who is not, and in which words."""

import asyncio
import ssl
from pathlib import Path

import pytest

from gapless.client import Options, connect
from gapless.errors import GaplessError, NetworkDescriptionError
from gapless.model.ids import BrokerId
from gapless.node.config import load_network
from gapless.node.node import Node
from gapless.wire.frames import FROM_BROKER, FROM_STRANGER, FrameReader
from gapless.wire.handshake import Refuse, decode_link
from tests.integration.authority import Authority
from tests.integration.files import LOOPS, Loop, running
from tests.integration.files import run as run_story
from tests.integration.nodes import free_addresses

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
"""
PAIR = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["s1"]
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "p1"}
"""
TLS = """
[tls]
certificate = "{broker}.pem"
key = "{broker}.key"
authority = "ca.pem"
"""
#: A client that is refused for good is refused at once; one that is not shall not try for long.
SHORT = Options(connect_timeout_s=1.0, dial_timeout_s=5.0)


async def refusal(address: str, **arguments: object) -> str:
    """What a client is told that cannot connect."""
    with pytest.raises(GaplessError) as caught:
        async with connect(address, options=SHORT, **arguments):  # type: ignore[arg-type]
            pass
    return str(caught.value)


def place(address: str) -> str:
    return address.partition("://")[2]


@pytest.mark.parametrize("loop", LOOPS)
def test_events_cross_tls_from_a_client_over_two_brokers_to_a_client(loop: Loop, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("p1")
    authority.issue("s1")

    async def story() -> None:
        async with (
            running(PAIR + TLS, tmp_path, "p1", "s1") as network,
            connect(network.address("p1"), tls=authority.path) as publisher,
            connect(network.address("s1"), tls=authority.context()) as subscriber,
            subscriber.subscribe("trades") as trades,
        ):
            assert network.address("p1").startswith("gapless+tls://localhost:")
            for price in range(2_000):
                publisher.publish("trades", {"price": float(price)})
            await publisher.flush()
            assert [(await anext(trades))["price"] for _ in range(2_000)] == [float(p) for p in range(2_000)]

    run_story(story(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_errors_are_one_line(loop: Loop, tmp_path: Path) -> None:
    issuer = Authority(tmp_path)
    issuer.issue("n1")
    other = Authority(tmp_path / "other", "other")

    async def story() -> None:
        async with running(NODE + TLS, tmp_path, "n1") as network:
            address = network.address("n1")
            assert await refusal(address, tls=other.path) == (
                "E404 the node's certificate is not accepted: its CA is not trusted: "
                f"pass the CA file as tls= or --ca (at {place(address)})"
            )
            plain = await refusal(network.address("n1", scheme="gapless://"))
            assert "the node " in plain
            assert plain.endswith(("connect with gapless+tls://", f"gapless+tls:// (at {place(address)})"))
        issuer.issue("n1", hosts=())
        async with running(NODE + TLS, tmp_path, "n1") as network:
            told = await refusal(network.address("n1"), tls=issuer.path)
            assert told.startswith("E404 the node's certificate is not accepted: Hostname mismatch")
            assert "connect to a name that it lists" in told
        async with running(NODE, tmp_path, "n1") as network:
            told = await refusal(network.address("n1", scheme="gapless+tls://"), tls=issuer.path)
            assert told.startswith("E404 the node does not speak TLS: connect with gapless://")

    run_story(story(), loop)


def test_a_certificate_that_expired_is_noticed_by_clients(tmp_path: Path) -> None:
    """A node does not start with one; it may expire while the node runs."""
    import ssl

    from gapless.node.connection import Connection
    from gapless.wire.frames import FROM_STRANGER

    authority = Authority(tmp_path)
    path = authority.issue("n1", days=-1)

    async def story() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path, path.with_suffix(".key"))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(FROM_STRANGER, lambda _: None),  # type: ignore[arg-type, return-value]
            "127.0.0.1",
            0,
            ssl=context,
        )
        port = server.sockets[0].getsockname()[1]
        told = await refusal(f"gapless+tls://localhost:{port}", tls=authority.path)
        assert told.startswith(
            "E404 the node's certificate is not accepted: certificate has expired: renew it"
        )
        server.close()

    run_story(story())


def test_a_node_does_not_start_with_files_that_its_neighbours_would_refuse(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def story(reason: str) -> None:
        with pytest.raises(NetworkDescriptionError, match=reason):
            async with running(NODE + TLS, tmp_path, "n1"):
                pass

    run_story(story(r"E132 tls.certificate: there is no file .*n1\.pem"))
    authority.issue("n1", days=-1)
    run_story(story(r"E132 tls.certificate: .*n1\.pem is not accepted by .*ca\.pem: certificate has expired"))
    Authority(tmp_path / "other", "other").issue("n1")
    for suffix in (".pem", ".key"):
        (tmp_path / f"n1{suffix}").write_bytes((tmp_path / "other" / f"n1{suffix}").read_bytes())
    run_story(story("E132 .* is not accepted by .*: it is by another authority"))
    authority.issue("n2", hosts=())
    for suffix in (".pem", ".key"):
        (tmp_path / f"n1{suffix}").write_bytes((tmp_path / f"n2{suffix}").read_bytes())
    run_story(story("E132 .* is of 'n2', not of broker 'n1'"))
    authority.issue("n1")
    (tmp_path / "n1.key").write_bytes((tmp_path / "n2.key").read_bytes())
    run_story(story("E132 tls: .* cannot be used: key values mismatch"))


def test_a_broker_with_the_certificate_of_another_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("p1")
    authority.issue("s1")

    async def story() -> None:
        from gapless.node.connection import Connection
        from gapless.wire.frames import FROM_DIALED_BROKER
        from gapless.wire.handshake import Hello, Role, decode_link, encode_link

        async with (
            running(PAIR + TLS, tmp_path, "p1", "s1") as network,
            connect(network.address("s1"), tls=authority.path) as client,
            # It is confirmed by p1, so the link stands.
            client.subscribe("trades"),
        ):
            p1 = network.nodes["p1"]
            heard: asyncio.Queue[object] = asyncio.Queue()

            class Impostor:
                def __init__(self, connection: Connection) -> None:
                    hello = Hello(role=Role.BROKER, name="s1", network=p1._door._fingerprint)
                    connection.send(encode_link(hello))

                def received(self, frame) -> None:  # type: ignore[no-untyped-def]
                    heard.put_nowait(decode_link(frame))

                def settled(self) -> None:
                    pass

                def drained(self) -> None:
                    pass

                def lost(self, reason: str) -> None:
                    heard.put_nowait(reason)

            for certificate, reason in [
                (None, "broker 's1' shows no certificate"),
                (authority.issue("mallory"), "'mallory', not of broker 's1'"),
            ]:
                context = authority.context(certificate)
                context.check_hostname = False
                await asyncio.get_running_loop().create_connection(
                    lambda: Connection(FROM_DIALED_BROKER, Impostor),
                    "127.0.0.1",
                    p1.address.port,
                    ssl=context,
                )
                told = await heard.get()
                assert getattr(told, "code", None) == "E225"
                assert reason in told.message  # type: ignore[attr-defined]
                await heard.get()
            # The true neighbour is connected all the while.
            assert [link.up for link in p1.links.figures()] == [True]
            assert p1.counters.refusals["E225"] == 2

    run_story(story())


def test_a_node_does_not_send_hello_to_a_peer_with_another_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("p1")
    path = authority.issue("mallory")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, path.with_suffix(".key"))
    addresses = free_addresses([BrokerId("p1"), BrokerId("s1")])
    listed = ", ".join(f'{name} = "{address}"' for name, address in addresses.items())
    file = load_network(f"addresses = {{{listed}}}\n{PAIR}{TLS}", "network.toml", tmp_path)

    async def story() -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.put_nowait(await reader.read(2**16))
            writer.close()

        there = addresses[BrokerId("s1")]
        server = await asyncio.start_server(answer, there.host, there.port, ssl=context)
        async with Node(file.node(BrokerId("p1"), tmp_path / "data", "gapless test")) as node:
            [frame] = FrameReader(FROM_STRANGER | FROM_BROKER).feed(await heard.get())
            server.close()
            assert [link.up for link in node.links.figures()] == [False]
        message = decode_link(frame)
        assert isinstance(message, Refuse), "no HELLO came first"
        assert (message.code, "'mallory', not of broker 's1'" in message.message) == ("E225", True)

    run_story(story())


def test_a_node_asks_clients_for_certificates_when_it_is_told_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("n1")
    own = authority.issue("alice")
    foreign = Authority(tmp_path / "other", "other").issue("alice")

    async def story() -> None:
        async with running(NODE + TLS + 'clients = "required"\n', tmp_path, "n1") as network:
            address = network.address("n1")
            async with connect(address, tls=authority.context(own)) as client:
                assert "trades" in await client.topics()
            assert (await refusal(address, tls=authority.path)).startswith(
                "E196 this node requires a client certificate"
            )
            # The node hangs up within the handshake of TLS; whether its reason arrives depends on the loop.
            assert "certificate" in await refusal(address, tls=authority.context(foreign))

    run_story(story())
