"""What passes between two brokers, and how is it kept from passing? A proxy that reads along.

A `Gate` stands before the broker that is dialled. It forwards bytes as they come and tells an observer of
every frame, with who sent it to whom. A gate that is *stalled* takes what comes and forwards nothing, as a
link does whose failure nobody has noticed yet; one that is *cut* closes what is open and lets nobody in, so
that what was stalled is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gapless.wire.frames import FROM_BROKER, FROM_DIALED_BROKER, FROM_STRANGER, Frame, FrameReader

#: Hears of every frame: who sent it, to whom, and the frame.
Observe = Callable[[str, str, Frame], None]


class Gate:
    """A way from one broker to another. Use it with `async with`."""

    def __init__(self, dialler: str, dialled: str, observe: Observe) -> None:
        self.dialler = dialler
        self.dialled = dialled
        self._observe = observe
        self._server: asyncio.Server | None = None
        self._target = ("", 0)
        self._pipes: set[_Pipe] = set()
        self._stalled = False
        self._is_cut = False

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Pipe(self, inward=True), "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    @property
    def address(self) -> str:
        """Where the dialler believes the other to be."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def aim(self, address: str) -> None:
        """Where the other really is."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))

    def stall(self) -> None:
        """Take everything, forward nothing."""
        self._stalled = True

    def cut(self) -> None:
        """Close what is open, and let nobody in."""
        self._is_cut = True
        for pipe in list(self._pipes):
            pipe.abort()

    def heal(self) -> None:
        """Forward again what comes from now on."""
        self._stalled = self._is_cut = False

    # What the pipes tell.

    def opened(self, pipe: _Pipe) -> None:
        """One side of a connection stands; for the side of the dialler, the other is dialled."""
        if self._is_cut:
            pipe.abort()
            return
        self._pipes.add(pipe)
        if pipe.inward:
            asyncio.get_running_loop().create_task(self._dial(pipe))

    def closed(self, pipe: _Pipe) -> None:
        """One side is gone, and with it the other."""
        self._pipes.discard(pipe)
        if pipe.other is not None:
            pipe.other.abort()

    async def _dial(self, pipe: _Pipe) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, outward = await loop.create_connection(lambda: _Pipe(self, inward=False), *self._target)
        except OSError:
            pipe.abort()
            return
        pipe.join(outward)

    def forwards(self, pipe: _Pipe, frames: list[Frame]) -> bool:
        """Frames have come from one side; says whether they may pass."""
        if self._stalled:
            return False
        ends = (self.dialler, self.dialled) if pipe.inward else (self.dialled, self.dialler)
        for frame in frames:
            self._observe(*ends, frame)
        return True


class _Pipe(asyncio.Protocol):
    """One side of a connection through a gate."""

    def __init__(self, gate: Gate, *, inward: bool) -> None:
        #: Whether it is the side of the broker that dials.
        self.inward = inward
        self.other: _Pipe | None = None
        self._gate = gate
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(FROM_BROKER | FROM_STRANGER if inward else FROM_DIALED_BROKER)
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._gate.opened(self)

    def join(self, other: _Pipe) -> None:
        """What comes here leaves there, and the reverse."""
        self.other, other.other = other, self
        if self._transport is None or self._transport.is_closing():
            other.abort()
            return
        for data in self._early:
            other.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if not self._gate.forwards(self, self._reader.feed(data)):
            return
        if self.other is None:
            self._early.append(data)
        else:
            self.other.write(data)

    def write(self, data: bytes) -> None:
        """Send what came from the other side."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # why makes no difference
        self._gate.closed(self)
