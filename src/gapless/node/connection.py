"""How do bytes become frames, and frames bytes? One TCP connection, of a client or of a broker.

What is sent during one turn of the event loop goes out as one write: natural batching, without a timer.
Only single deliveries, of which a turn has one for each of thousands of connections, are written at once.
A peer that sends what is no frame hears why and is cut off. A peer that does not read is not waited for:
its owner looks at `backlog_bytes` and decides.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from gapless.errors import GaplessError, PeerError, UsageError
from gapless.node.guard import Guard
from gapless.wire.frames import Frame, FrameReader, Kind, Part
from gapless.wire.handshake import Refuse, encode_link

#: The transport says stop above this many unsent bytes, and go on below a quarter of it.
WRITE_BYTES_HIGH = 1 * 2**20


#: How much is read at once, unless it is the rest of a large frame.
READ_BYTES = 256 * 2**10


class _Scratch(threading.local):
    """What all connections of a thread read into, one after the other: what they keep, they copy."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_scratch = _Scratch()


class Owner(Protocol):
    """Who a connection belongs to."""

    def received(self, frame: Frame) -> None:
        """A frame has come. Raises PeerError to cut the peer off."""

    def settled(self) -> None:
        """All frames that came together have been handed over. Raises PeerError to cut the peer off."""

    def drained(self) -> None:
        """What was sent has left, or nearly all of it."""

    def lost(self, reason: str) -> None:
        """The connection is gone."""


class Connection(asyncio.BufferedProtocol):
    """One connection. `made` is called with it when it stands, and gives its owner."""

    def __init__(
        self,
        kinds: frozenset[Kind],
        made: Callable[[Connection], Owner],
        refused: Callable[[Connection, GaplessError], None] | None = None,
        *,
        guard: Guard | None = None,
    ) -> None:
        """`refused` hears of it when the peer is cut off, and why; `guard` of mistakes of our own."""
        self._guard = guard
        self.reader = FrameReader(kinds)
        self._made = made
        self._refused = refused
        self._owner: Owner | None = None
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[Part] = []
        self._out_bytes = 0
        self._flushing = False
        #: The socket, while what is written there is what the peer reads; less than 0 with TLS.
        self._file = -1
        self._reason = "closed by the peer"
        #: Whether the peer reads so slowly that much waits here; `backlog_bytes` tells how much.
        self.is_congested = False
        self.peer = ""
        #: Where bytes are being received, when that is the middle of a frame.
        self._room: memoryview | None = None

    @property
    def backlog_bytes(self) -> int:
        """What was sent and has not left this process."""
        buffered = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + buffered

    @property
    def is_open(self) -> bool:
        """Whether anything sent has a chance to arrive."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, parts: Sequence[Part]) -> None:
        """Send a frame, with what else is sent in this turn of the loop; lost if the connection is."""
        if self._transport is None:
            return
        self._out.extend(parts)
        self._out_bytes += sum(map(len, parts))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def send_one(self, frame: bytes) -> None:
        """Send a frame in one piece at once, if nothing waits before it: edges send very many of these.

        Each for a connection of its own, so that there is nothing to send it together with. One that is
        written and gone costs less than thousands that wait for the end of the turn.
        """
        transport = self._transport
        if transport is None:
            return
        if self._file >= 0 and not (
            self._flushing or transport.get_write_buffer_size() or transport.is_closing()
        ):
            try:
                sent = os.write(self._file, frame)
            except OSError:
                # There is no room, or nobody: the transport knows what to do.
                sent = 0
            if sent < len(frame):
                transport.write(frame[sent:])
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What the peer has shown of itself over TLS; None when it has shown nothing."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    def keep_alive(self, seconds: int) -> None:
        """Let the system find out, within a few times so many seconds, that the peer has vanished."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def refuse(self, error: GaplessError) -> None:
        """Tell the peer why, and close."""
        if self._refused is not None:
            self._refused(self, error)
        self.send(encode_link(Refuse(code=error.code, message=error.message, retry=error.retry)))
        self.close(str(error))

    def close(self, reason: str) -> None:
        """Send what is left, then close."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = reason
            self._flush()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once."""
        if self._transport is not None:
            self._reason = reason
            self._transport.abort()

    def _flush(self) -> None:
        self._flushing = False
        if self._out and self._transport is not None:
            parts, self._out, self._out_bytes = self._out, [], 0
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_BYTES_HIGH)
        found = transport.get_extra_info("socket")
        if found is not None and transport.get_extra_info("sslcontext") is None:
            self._file = found.fileno()
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        self._owner = self._made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the reader knows better
        """Where the next bytes are to be put."""
        self._room = self.reader.room()
        return _scratch.view if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        try:
            if self._room is None:
                frames = self.reader.feed(_scratch.view[:nbytes])
            else:
                self._room = None
                frames = self.reader.filled(nbytes)
            for frame in frames:
                if self._transport is None or self._transport.is_closing():
                    return
                assert self._owner is not None
                self._owner.received(frame)
            if frames and self._owner is not None:
                self._owner.settled()
        except PeerError as error:
            self.refuse(error)
        except Exception as mistake:  # noqa: BLE001  # see `_mistaken`
            self.refuse(UsageError("E181", "the node failed to answer this, and stops: its log says why"))
            self._mistaken(mistake)

    def _mistaken(self, mistake: Exception) -> None:
        """What was said could be read, and went wrong in the middle: nobody can say what it has left."""
        if self._guard is None:
            raise mistake
        self._guard.mistaken(mistake)

    def hand_over(self, owner: Owner) -> None:
        """Somebody else answers from now on."""
        self._owner = owner

    def pause_writing(self) -> None:
        """The transport holds too much."""
        self.is_congested = True

    def resume_writing(self) -> None:
        """The transport has sent enough."""
        self.is_congested = False
        assert self._owner is not None
        try:
            self._owner.drained()
        except Exception as mistake:  # noqa: BLE001  # see `_mistaken`
            self._mistaken(mistake)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._transport, self._file = None, -1
        self._out, self._out_bytes = [], 0
        if self._owner is not None:
            try:
                self._owner.lost(self._reason if exc is None else str(exc))
            except Exception as mistake:  # noqa: BLE001  # see `_mistaken`
                self._mistaken(mistake)
