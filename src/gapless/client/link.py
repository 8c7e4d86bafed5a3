"""How does a client run one connection? Frames in, frames out, and pings to a silent node.

`is_writable` says when to make the next frames: what queued up while the socket was busy is written at once.
The connection is dropped if the node sends bytes that are not a frame, or nothing at all for too long.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Protocol, cast

from gapless.client.refusals import error_of
from gapless.client.tls import ALERT, hung_up, needs_tls, tls_error
from gapless.errors import GaplessError, LinkError, PeerError
from gapless.protocol.sessions.messages import NodeMessage
from gapless.wire.address import Address
from gapless.wire.client_codec import NodeDecoder
from gapless.wire.frames import FROM_DIALED_NODE, Frame, FrameReader, Kind, Part
from gapless.wire.handshake import (
    LINK_KINDS,
    Hello,
    Ping,
    Pong,
    Refuse,
    Welcome,
    check_welcome,
    decode_link,
    encode_link,
)

#: Bytes to read at once, except for the rest of a large frame.
READ_BYTES = 64 * 2**10


class Receiver(Protocol):
    """The user of a link."""

    def received(self, message: NodeMessage) -> None:
        """A message arrived. Raises PeerError if it breaks the protocol."""

    def writable(self) -> None:
        """The socket can take more."""


class Link(asyncio.BufferedProtocol):
    """One connection to a node."""

    def __init__(self, receiver: Receiver, hello: Hello, ping_s: float, *, is_tls: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._hello = hello
        self._reader = FrameReader(FROM_DIALED_NODE)
        self._decoder = NodeDecoder()
        #: The buffer to read into, and the one to use instead in the middle of a large frame.
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._room: memoryview | None = None
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._ping_s = ping_s
        self._is_tls = is_tls
        self._heard = True
        self._pings = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Why the link was dropped; None while it is up.
        self.error: GaplessError | None = None
        #: Whether the node ended it and said why, and whether it said not to come back.
        self.is_answered = False
        self.is_refused = False
        self.welcomed: asyncio.Future[Welcome] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_writable(self) -> bool:
        """Whether bytes written now are sent at once."""
        return not self._paused and self._transport is not None and not self._transport.is_closing()

    def write(self, parts: list[Part]) -> None:
        """Write frames. They are lost if the connection is."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def fail(self, error: GaplessError) -> None:
        """Drop the connection, and tell the node why if the node is to blame."""
        if self.error is None:
            self.error = error
            if isinstance(error, PeerError):
                self.write(encode_link(Refuse(code=error.code, message=error.message)))
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close after everything written has been sent."""
        if self._transport is not None:
            self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.writelines(encode_link(self._hello))
        self._timer = self._loop.call_later(self._ping_s, self._beat)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the reader knows better
        self._room = self._reader.room()
        return self._scratch if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        data = self._scratch[:nbytes]
        if not self.welcomed.done() and bytes(data[: len(ALERT)]) == ALERT:
            self.fail(needs_tls())
            return
        try:
            frames = self._reader.feed(data) if self._room is None else self._reader.filled(nbytes)
            self._room = None
            for frame in frames:
                self._take(frame)
                if self.error is not None:
                    return
        except PeerError as error:
            self.fail(error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._receiver.writable()

    def connection_lost(self, reason: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.error is None and isinstance(reason, ssl.SSLError):
            self.error = tls_error(reason)
        if self.error is None and not self.welcomed.done():
            self.error = hung_up(reason, is_tls=self._is_tls)
        if self.error is None:
            self.error = LinkError("E403", f"the connection was lost: {reason or 'closed'}", retry=True)
        if not self.welcomed.done():
            self.welcomed.set_exception(self.error)
            self.welcomed.exception()  # mark it as retrieved: perhaps nobody awaits it
        if not self.closed.done():
            self.closed.set_result(None)

    def _take(self, frame: Frame) -> None:
        if frame.kind not in LINK_KINDS:
            if not self.welcomed.done():
                raise PeerError("E213", f"a {frame.kind.name} frame arrived before WELCOME")
            self._receiver.received(self._decoder.decode(frame))
            return
        match decode_link(frame):
            case Welcome() as welcome:
                if self.welcomed.done():
                    raise PeerError("E213", "a second WELCOME frame arrived")
                check_welcome(welcome)
                self.welcomed.set_result(welcome)
            case Refuse(code=code, message=message, retry=retry):
                self.is_answered, self.is_refused = True, not retry
                self.error = error_of(code, message, retry=retry)
                self.fail(self.error)
            case Ping(number=number):
                self.write(encode_link(Pong(number=number)))
            case _:
                assert frame.kind is Kind.PONG, f"the reader let a {frame.kind.name} frame through"

    def _beat(self) -> None:
        if not self._heard and self._pings:
            seconds = 2 * self._ping_s
            self.fail(LinkError("E403", f"the node was silent for {seconds:g} seconds", retry=True))
            return
        self._pings = 0 if self._heard else self._pings + 1
        if self._pings:
            self.write(encode_link(Ping(number=self._pings)))
        self._heard = False
        self._timer = self._loop.call_later(self._ping_s, self._beat)


async def dial(
    address: Address,
    receiver: Receiver,
    hello: Hello,
    *,
    tls: ssl.SSLContext | None,
    ping_s: float,
    timeout_s: float,
) -> Link:
    """Dial an address. The node has welcomed us, unless the returned link has an `error`."""
    loop = asyncio.get_running_loop()
    link = Link(receiver, hello, ping_s, is_tls=tls is not None)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
            await asyncio.wait([link.welcomed])
    except TimeoutError:
        link.fail(LinkError("E401", f"no answer within {timeout_s:g} seconds", retry=True))
    except ssl.SSLError as error:
        link.fail(tls_error(error))
    except OSError as error:
        # The text of asyncio differs from that of uvloop; that of the system is the same everywhere.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        link.fail(LinkError("E401", reason, retry=True))
    except asyncio.CancelledError:
        link.fail(LinkError("E402", "dialling was cancelled"))
        raise
    return link
