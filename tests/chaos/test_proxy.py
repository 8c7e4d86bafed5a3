"""The gates of the chaos suite do to connections what they say, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.proxy import Gate

PATIENCE_SECONDS = 30


@asynccontextmanager
async def echo() -> AsyncIterator[Gate]:
    """A gate before a server that sends back what it gets."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Gate("here--there") as gate:
        gate.aim(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield gate


@asynccontextmanager
async def dialled(gate: Gate) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await reader.readexactly(len(data))


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, PATIENCE_SECONDS))


def test_what_goes_in_comes_out() -> None:
    async def story() -> None:
        async with echo() as gate, dialled(gate) as (reader, writer):
            data = bytes(range(256)) * 4_096
            assert await said(reader, writer, data) == data
            assert gate.forwarded_bytes == 2 * len(data)

    run(story())


def test_a_cut_breaks_what_stands_and_nothing_else() -> None:
    async def story() -> None:
        async with echo() as gate:
            async with dialled(gate) as (reader, writer):
                assert await said(reader, writer, b"before") == b"before"
                gate.cut()
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
            async with dialled(gate) as (reader, writer):
                assert await said(reader, writer, b"after") == b"after"

    run(story())


def test_who_is_refused_may_come_back_at_the_same_port() -> None:
    async def story() -> None:
        async with echo() as gate:
            await gate.refuse()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", gate.port)
            await gate.accept()
            async with dialled(gate) as (reader, writer):
                assert await said(reader, writer, b"again") == b"again"

    run(story())


def test_what_is_swallowed_closes_nothing_and_comes_later() -> None:
    async def story() -> None:
        async with echo() as gate, dialled(gate) as (reader, writer):
            assert await said(reader, writer, b"before") == b"before"
            gate.swallow()
            writer.write(b"during")
            async with dialled(gate) as (fresh, _):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.2)
                assert not reader.at_eof()
                assert not fresh.at_eof()
                gate.forward()
                assert await reader.readexactly(6) == b"during"

    run(story())


def test_slow_is_late_but_whole() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with echo() as gate, dialled(gate) as (reader, writer):
            gate.delay_s = 0.1
            began = loop.time()
            assert await said(reader, writer, b"x" * 1_000) == b"x" * 1_000
            assert loop.time() - began >= 0.2, "once there and once back"
            gate.forward()
            gate.bytes_per_s = 10_000.0
            began = loop.time()
            assert await said(reader, writer, b"y" * 1_000) == b"y" * 1_000
            assert loop.time() - began >= 0.2, "0.1 s for 1,000 bytes, each way"

    run(story())


def test_a_server_that_is_not_there_is_seen_through_the_gate() -> None:
    async def story() -> None:
        async with Gate("here--nowhere") as gate:
            gate.aim("127.0.0.1:1")
            async with dialled(gate) as (reader, _):
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)

    run(story())
