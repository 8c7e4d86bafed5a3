"""Frames that are written at once, and what was sent before and after them."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from gapless.node.connection import QUIET_SECONDS, WRITE_BYTES_HIGH, Connection
from gapless.node.principals import Share
from gapless.wire.frames import FROM_STRANGER, Frame

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Recorder:
    """An owner that remembers what it heard."""

    def __init__(self) -> None:
        self.drains = 0
        self.gone = asyncio.Event()

    def received(self, frame: Frame) -> None:
        raise AssertionError(f"{frame} came")

    def settled(self) -> None:
        raise AssertionError("frames came")

    def drained(self) -> None:
        self.drains += 1

    def lost(self, reason: str) -> None:
        self.gone.set()


async def connected() -> tuple[Connection, Recorder, socket.socket]:
    """A connection, its owner, and the socket at the other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    near.setblocking(False)
    owner = Recorder()
    loop = asyncio.get_running_loop()
    _, connection = await loop.connect_accepted_socket(
        lambda: Connection(FROM_STRANGER, lambda _: owner), near
    )
    far.setblocking(False)
    return connection, owner, far


async def read(far: socket.socket, size: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < size:
        data += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(far, size - len(data)), 10)
    return data


@pytest.fixture(params=LOOPS, name="run")
def _run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(test)

    return run


def test_a_single_frame_is_written_at_once(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def test() -> None:
        connection, _, far = await connected()
        with far:
            connection.send_one(b"one")
            assert far.recv(100) == b"one"
            connection.close("done")

    run(test())


def test_after_a_quiet_while_frames_do_not_wait_for_the_end_of_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr("gapless.node.connection.perf_counter", lambda: now)

    async def test() -> None:
        nonlocal now
        connection, _, far = await connected()
        with far:
            connection.share = cast(Share, SimpleNamespace(is_shared=False, held_bytes=0))
            connection.send([b"alone"])
            with pytest.raises(BlockingIOError):
                far.recv(100)
            assert await read(far, 5) == b"alone", "nobody else makes turns long"
            connection.share = cast(Share, SimpleNamespace(is_shared=True, held_bytes=0))
            connection.send([b"first"])
            assert far.recv(100) == b"first", "nothing was written for long"
            now += QUIET_SECONDS
            connection.send([b"second, "])
            connection.send([b"third"])
            with pytest.raises(BlockingIOError):
                far.recv(100)
            assert await read(far, 13) == b"second, third", "written together when the turn is over"
            now += 2 * QUIET_SECONDS
            connection.send([b"fourth"])
            assert far.recv(100) == b"fourth"
            connection.close("done")

    # uvloop writes at the end of a turn, whenever it is asked to.
    asyncio.run(test())


def test_frames_arrive_in_the_order_in_which_they_were_sent(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def test() -> None:
        connection, _, far = await connected()
        with far:
            connection.send_one(b"a")
            connection.send([b"b", b"c"])
            connection.send_one(b"d")
            connection.send([b"e"])
            assert await read(far, 5) == b"abcde"
            connection.close("done")

    run(test())


def test_what_finds_no_room_waits_and_arrives_whole(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def test() -> None:
        connection, owner, far = await connected()
        with far:
            frames = [bytes([number % 251]) * 64_007 for number in range(400)]
            for frame in frames:
                connection.send_one(frame)
            await asyncio.sleep(0)
            assert connection.is_congested
            assert connection.backlog_bytes > WRITE_BYTES_HIGH
            whole = b"".join(frames)
            assert await read(far, len(whole)) == whole
            assert not connection.is_congested
            assert connection.backlog_bytes == 0
            assert owner.drains == 1
            connection.send_one(b"after")
            assert await read(far, 5) == b"after"
            connection.close("done")

    run(test())


def test_a_peer_that_has_gone_is_noticed(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def test() -> None:
        connection, owner, far = await connected()
        far.close()
        for _ in range(10):
            connection.send_one(b"anybody there")
        await asyncio.wait_for(owner.gone.wait(), 10)
        connection.send_one(b"nobody")
        assert not connection.is_open
        assert connection.backlog_bytes == 0

    run(test())


def test_nothing_is_written_once_it_is_closing(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def test() -> None:
        connection, owner, far = await connected()
        with far:
            connection.send_one(b"last")
            connection.abort("enough")
            connection.send_one(b"too late")
            await asyncio.wait_for(owner.gone.wait(), 10)
            assert b"late" not in far.recv(100)

    run(test())
