"""Peers that send garbage, half frames, huge lengths, or nothing are cut off, and nobody else notices."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gapless.client import Options, connect
from gapless.errors import GaplessError
from gapless.node import descriptors as descriptors_module
from gapless.node import door as door_module
from gapless.node.logs import REPEATS
from gapless.node.node import Node
from gapless.wire.frames import FROM_DIALED_NODE, MAGIC, FrameReader, Kind
from gapless.wire.handshake import Hello, Refuse, Role, decode_link, encode_link
from tests.integration.files import run, running
from tests.integration.nodes import PATIENCE_SECONDS

NODE = """
cells = {all = ["n1"]}
topics.trades = {price = "float"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
"""
HELLO = b"".join(encode_link(Hello(role=Role.CLIENT, name="mallory")))
TOO_OLD = b"".join(encode_link(Hello(role=Role.CLIENT, name="old", version_min=200, version_max=201)))
#: A header that announces four gigabytes.
HUGE = MAGIC + bytes([1, Kind.PUBLISH.value]) + b"\xf8\xff\xff\xff" + b"\x10\0\0\0" + bytes(4)


@asynccontextmanager
async def traffic(address: str) -> AsyncIterator[None]:
    """Events flow while the block runs, and after it: none is missing, and no connection was lost."""
    async with connect(address, name="honest") as client, client.subscribe("trades") as trades:
        sent = 0
        over = asyncio.Event()

        async def publish() -> None:
            nonlocal sent
            while not over.is_set():
                await client.publish("trades", {"price": float(sent)})
                sent += 1

        publishing = asyncio.create_task(publish())
        for price in range(20):
            assert (await anext(trades))["price"] == price
        yield
        over.set()
        await publishing
        assert [(await anext(trades))["price"] for _ in range(20, sent)] == list(range(20, sent))


async def answer(node: Node, *parts: bytes, pause: float = 0.0) -> list[str]:
    """Send bytes, wait until the node hangs up, and give the codes with which it did."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.address.port)
    heard = b""
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause)
            if part == HELLO and not heard:
                heard += await reader.read(1)  # the welcome
        heard += await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    finally:
        writer.close()
    frames = FrameReader(FROM_DIALED_NODE).feed(heard)
    return [told.code for frame in frames if isinstance(told := decode_link(frame), Refuse)]


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ((b"GET / HTTP/1.1\r\n\r\n",), "E210"),
        ((bytes(range(256)) * 40,), "E210"),
        ((MAGIC + b"\x07\x01" + bytes(12),), "E211"),
        ((HUGE,), "E213"),
        ((HELLO, HUGE), "E212"),
        ((HELLO, b"\xff" * 1_000), "E210"),
        ((HELLO, HELLO), "E213"),
        ((HELLO + HELLO,), "E213"),
        ((TOO_OLD,), "E211"),
        # Half a frame, and then nothing.
        ((HELLO[:20],), "E218"),
        # Byte for byte, and never an end.
        (tuple(HELLO[at : at + 1] for at in range(30)), "E218"),
        ((), "E218"),
    ],
)
def test_a_hostile_peer_is_cut_off_and_others_are_served(
    parts: tuple[bytes, ...], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "HELLO_SECONDS_MAX", 0.3)

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            node = network.nodes["n1"]
            async with traffic(network.address("n1")):
                answers = await asyncio.gather(*(answer(node, *parts, pause=0.001) for _ in range(10)))
                assert answers == [[code]] * 10
            assert node.counters.refusals == {code: 10}
            assert not node._door.strangers
            # The honest client was welcomed once, and never had to come again.
            hostile = 10 if parts and parts[0].startswith(HELLO) else 0
            assert node.counters.clients_welcomed == 1 + hostile

    run(story())


def test_a_thousand_times_the_same_garbage_is_one_line_and_a_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        REPEATS.sweep(all_of_them=True)
        async with running(NODE, tmp_path, "n1") as network:
            node = network.nodes["n1"]
            for _ in range(20):
                await asyncio.gather(*(answer(node, b"garbage" * 10) for _ in range(50)))
            assert node.counters.refusals == {"E210": 1_000}

    with caplog.at_level(logging.INFO):
        run(story())
    lines = [record for record in caplog.records if record.getMessage() == "peer_refused"]
    assert len(lines) <= 4
    told = [getattr(line, "gapless_fields", {}) for line in lines]
    assert sum(fields.get("repeated", 1) for fields in told) == 1_000
    assert {fields["code"] for fields in told} == {"E210"}


def test_the_number_of_clients_is_bounded(tmp_path: Path) -> None:
    async def story() -> None:
        patient = Options(connect_timeout_s=PATIENCE_SECONDS)
        async with running(f"{NODE}limits.clients_max = 2\n", tmp_path, "n1") as network:
            address = network.address("n1")
            async with connect(address):
                async with connect(address):
                    with pytest.raises(GaplessError, match="E197 this node already has 2 clients"):
                        await connect(address, options=Options(connect_timeout_s=0.1)).__aenter__()
                # It is a refusal for the time being: who waits gets the place of who leaves.
                async with connect(address, options=patient) as late:
                    assert "trades" in await late.topics()

    run(story())


def test_the_oldest_unidentified_connection_is_closed_for_an_identified_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors_module, "STRANGERS_MAX", 5)

    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network:
            node = network.nodes["n1"]
            waiting = [await asyncio.open_connection("127.0.0.1", node.address.port) for _ in range(5)]
            async with connect(network.address("n1")) as client:
                assert "trades" in await client.topics()
                heard = await asyncio.wait_for(waiting[0][0].read(), PATIENCE_SECONDS)
                [frame] = FrameReader(FROM_DIALED_NODE).feed(heard)
                told = decode_link(frame)
                assert isinstance(told, Refuse)
                assert (told.code, told.retry) == ("E219", True)
                assert len(node._door.strangers) == 4
            for _, writer in waiting:
                writer.close()

    run(story())


def test_the_system_looks_after_clients_that_vanish_without_a_word(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(NODE, tmp_path, "n1") as network, connect(network.address("n1")):
            [session] = network.nodes["n1"].sessions.clients()
            assert session.connection._transport is not None
            found = session.connection._transport.get_extra_info("socket")
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == door_module.KEEP_ALIVE_SECONDS

    run(story())
