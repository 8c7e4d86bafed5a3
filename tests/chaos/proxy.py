"""What can go wrong on a cable? A TCP proxy between two brokers, or between a client and a broker.

A gate forwards what comes to it until it is told to do worse: cut every connection, refuse new ones, swallow
everything without closing anything (a pulled cable), delay, or limit the bytes per second.
Everything else (loss, repetition, reordering inside a connection) cannot happen to TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

#: So much is read at once; a gate that is slow stops reading, as a slow network would.
CHUNK_BYTES = 64 * 1024
#: So many chunks may be under way in one direction of one connection.
CHUNKS_MAX = 64


class Gate:
    """A listening port in front of another one. Use it with `async with`."""

    def __init__(self, name: str) -> None:
        #: Who talks to whom through it, such as `b1--s1`.
        self.name = name
        self.target: tuple[str, int] | None = None
        #: Seconds that every byte is late, and bytes per second and direction; None: as fast as it goes.
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.WriteTransport] = set()
        self._server: asyncio.Server | None = None
        # Keeps the port for us while nobody listens there.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]
        self.forwarded_bytes = 0

    @property
    def address(self) -> str:
        """Where to connect: `host:port`."""
        return f"127.0.0.1:{self.port}"

    def aim(self, address: str) -> None:
        """Say what is behind the gate."""
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))

    async def __aenter__(self) -> Gate:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        self.cut()
        self._held.close()
        if self._pipes:
            await asyncio.wait(self._pipes)

    # What goes wrong, and how it is mended.

    def cut(self) -> None:
        """Break every connection; new ones may be made."""
        for transport in list(self._transports):
            transport.abort()
        for pipe in self._pipes:
            pipe.cancel()

    async def refuse(self) -> None:
        """Nobody listens here any more. Connections that stand are not touched."""
        if self._server is not None:
            server, self._server = self._server, None
            server.close()

    async def accept(self) -> None:
        """Listen again."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)

    def swallow(self) -> None:
        """Forward nothing and close nothing: whoever is behind seems to be silent."""
        self._open.clear()

    def forward(self) -> None:
        """Forward again, beginning with what was swallowed; as fast as it goes."""
        self._open.set()
        self.delay_s, self.bytes_per_s = 0.0, None

    async def heal(self) -> None:
        """Everything is as it was at first."""
        self.forward()
        await self.accept()

    # How bytes get through.

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        self._transports.add(writer.transport)
        far: asyncio.StreamWriter | None = None
        try:
            assert self.target is not None, f"gate {self.name} has no target"
            await self._open.wait()
            far_reader, far = await asyncio.open_connection(*self.target, limit=CHUNK_BYTES)
            self._transports.add(far.transport)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pump(reader, far))
                ways.create_task(self._pump(far_reader, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # whatever it was, the connection ends, on both sides
        finally:
            for each in (writer, far):
                if each is not None:
                    self._transports.discard(each.transport)
                    each.transport.abort()
            self._pipes.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: read ahead a little, and write each chunk when it is due."""
        loop = asyncio.get_running_loop()
        waiting: deque[tuple[float, bytes]] = deque()
        came, went = asyncio.Event(), asyncio.Event()

        async def write() -> None:
            while True:
                while not waiting:
                    came.clear()
                    await came.wait()
                due, data = waiting[0]
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                if self.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                await self._open.wait()
                writer.write(data)
                await writer.drain()
                self.forwarded_bytes += len(data)
                waiting.popleft()
                went.set()

        writing = asyncio.create_task(write())
        try:
            while data := await reader.read(CHUNK_BYTES):
                waiting.append((loop.time() + self.delay_s, data))
                came.set()
                while len(waiting) >= CHUNKS_MAX:
                    went.clear()
                    await _either(went.wait(), writing)
                await self._open.wait()
            while waiting:
                went.clear()
                await _either(went.wait(), writing)
            await self._open.wait()
            raise ConnectionResetError("closed by the peer")
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await writing


async def _either(wanted: Coroutine[Any, Any, object], task: asyncio.Task[None]) -> None:
    """Wait for something that a task will bring about, unless the task fails. Raises its error."""
    waiting = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        waiting.cancel()
