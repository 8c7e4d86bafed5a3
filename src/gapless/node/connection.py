"""How do bytes become frames, and frames bytes? One TCP connection, of a client or of a broker.

What is sent during one turn of the event loop goes out as one write: natural batching, without a timer. The
first frame after a few milliseconds of quiet is written at once, as the turn may be long, and so are single
deliveries, of which a turn has one for each of thousands of connections. A peer that sends an invalid frame
is told why and disconnected. A peer that does not read is not waited for: its owner looks at `backlog_bytes`
and decides.

A client is read from as long as it reads its answers. While more than `ANSWERS_BYTES_MAX` of them are unread,
nothing is read from it, and after `UNREAD_SECONDS_MAX` without reading a byte it is disconnected. Deliveries
do not count: they have a pace of their own. What comes in one read is carried out as long as the principal
has a share of the turn, and the rest of it later, in order; so is what comes behind a request that its owner
cannot carry out yet.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, cast

from gapless.errors import GaplessError, PeerError, UsageError
from gapless.node.guard import Guard
from gapless.wire.frames import Frame, FrameReader, Kind, Part
from gapless.wire.handshake import Refuse, encode_link

if TYPE_CHECKING:
    from gapless.node.principals import Share

#: The transport says stop above this many unsent bytes, and go on below a quarter of it.
WRITE_BYTES_HIGH = 1 * 2**20
#: A connection with so many unsent bytes does not read.
BACKLOG_BYTES_MAX = 4 * 2**20

#: Maximum number of bytes of answers that wait to be read by a client; above, it is not heard.
ANSWERS_BYTES_MAX = 1 * 2**20
#: A client that is not heard is cut off when it has read nothing for so long.
UNREAD_SECONDS_MAX = 30.0
#: How often a client that is not heard is looked at.
UNREAD_LOOK_SECONDS = 0.25

#: A frame is written with the others of its turn. While several principals are active, the turn may be a long
#: one: then the first frame after this long without any is written at once.
QUIET_SECONDS = 0.005

#: How much is read at once, unless it is the rest of a large frame.
READ_BYTES = 256 * 2**10


#: A frame from this size on takes a while to be read and written: so long for each byte.
LARGE_BYTES, BYTE_SECONDS = 16 * 2**10, 4e-9
#: What a frame takes up beside its bytes.
FRAME_OBJECT_BYTES = 500


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
        self._flushed_at = 0.0
        #: The socket, while what is written there is what the peer reads; less than 0 with TLS.
        self._file = -1
        self._reason = "closed by the peer"
        #: Whether the peer reads so slowly that much waits here; `backlog_bytes` tells how much.
        self.is_congested = False
        self.peer = ""
        #: Where bytes are being received, when that is the middle of a frame.
        self._room: memoryview | None = None
        #: Of a client: what its principal has of the event loop. None for a broker, and before the handshake.
        self.share: Share | None = None
        #: Frames that came and wait for their turn, or until the client reads, or until the owner has made up
        #: its mind about the first of them. At most those of one read.
        self._put_off: Sequence[Frame] = ()
        self._is_held = False
        #: Bytes that were sent on this connection, ever.
        self._sent_bytes = 0
        #: Bytes of answers: those sent before and those sent after `_answers_mark`, a number of sent bytes.
        self._answers_before = 0
        self._answers_after = 0
        self._answers_mark = 0
        #: While the client is not heard: since when it has read nothing, and how many bytes had left then.
        self._unread: tuple[float, int] | None = None
        self._looking: asyncio.Handle | None = None
        #: What of this connection is counted in `share.held_bytes`.
        self._held_bytes = 0

    @property
    def backlog_bytes(self) -> int:
        """What was sent and has not left this process."""
        buffered = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + buffered

    @property
    def is_flooded(self) -> bool:
        """Whether so much waits here that nothing more may be delivered."""
        return self.backlog_bytes > BACKLOG_BYTES_MAX

    @property
    def is_open(self) -> bool:
        """Whether anything sent has a chance to arrive."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, parts: Sequence[Part]) -> None:
        """Send a frame, now or together with the others of this turn; lost if the connection is."""
        if self._transport is None:
            return
        self._out.extend(parts)
        size = sum(map(len, parts))
        self._out_bytes += size
        self._sent_bytes += size
        if self._out_bytes > WRITE_BYTES_HIGH:
            # The transport tells whether the peer reads, and whoever sends in this turn must know it.
            self._flush()
        else:
            self._flush_soon()

    def answer(self, parts: Sequence[Part]) -> None:
        """Send a frame that the peer has asked for: it is not heard while too many of these wait."""
        before = self._sent_bytes
        self.send(parts)
        self._answers_after += self._sent_bytes - before

    def send_one(self, frame: bytes) -> None:
        """Send a frame in one piece at once, if nothing waits before it: edges send very many of these.

        Each for a connection of its own, so that there is nothing to send it together with. One that is
        written and gone costs less than thousands that wait for the end of the turn.
        """
        transport = self._transport
        if transport is None:
            return
        self._sent_bytes += len(frame)
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
        self._flush_soon()

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What the peer has shown of itself over TLS; None when it has shown nothing."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    def keep_alive(self, seconds: int) -> None:
        """Let the system detect a vanished peer within a few times this many seconds."""
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

    def cut(self, error: GaplessError) -> None:
        """Close at once, because of the peer. It does not read, so it is not told."""
        if self._refused is not None:
            self._refused(self, error)
        self._release()
        self.abort(str(error))

    def abort(self, reason: str) -> None:
        """Close at once."""
        if self._transport is not None:
            self._reason = reason
            self._transport.abort()

    def _flush_soon(self) -> None:
        if self._flushing:
            return
        if self.share is not None and self.share.is_shared:
            now = perf_counter()
            if now - self._flushed_at > QUIET_SECONDS:
                self._flushed_at = now
                self._flush()
                return
        self._flushing = True
        self._loop.call_soon(self._flush)

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
        except PeerError as error:
            self.refuse(error)
            return
        if self._put_off:
            # Little can come after reading was paused: what was read already, and only with TLS.
            self._put_off = [*self._put_off, *frames]
        else:
            self._hand_on(frames)
        self._count_held()

    def _hand_on(self, frames: Sequence[Frame]) -> None:
        """Let the owner have frames, as long as it is its turn; the rest is put off."""
        before = perf_counter()
        if self.share is not None:
            self.share.heard(before)
        try:
            for at, frame in enumerate(frames):
                if self._transport is None or self._transport.is_closing():
                    return
                share = self.share
                if share is not None and (share.is_used_up or self._is_unread()):
                    self._put_off = frames[at:]
                    self._transport.pause_reading()
                    self._wait(share)
                    break
                assert self._owner is not None
                self._owner.received(frame)
                if share is not None:
                    now = perf_counter()
                    took_s = share.used(now - before)
                    if share.is_shared and frame.parts and len(frame.parts[0]) > LARGE_BYTES:
                        # What it took to read it, and will take to write it, counts as well.
                        took_s += sum(map(len, frame.parts)) * BYTE_SECONDS
                    share.spent(took_s, now)
                    before = now
                if self._is_held:
                    self._put_off = frames[at:]
                    self._transport.pause_reading()
                    break
            if frames and self._owner is not None:
                self._owner.settled()
        except PeerError as error:
            self.refuse(error)
        except Exception as mistake:  # noqa: BLE001  # see `_mistaken`
            self.refuse(UsageError("E181", "internal error; the node stops, see its log"))
            self._mistaken(mistake)

    def _mistaken(self, mistake: Exception) -> None:
        """A valid request failed halfway: nobody can say what state it has left."""
        if self._guard is None:
            raise mistake
        self._guard.mistaken(mistake)

    def hold(self) -> None:
        """The frame that is being handed over has to wait: it is handed over again after `go_on`."""
        self._is_held = True

    def go_on(self) -> None:
        """The first frame that waits may be handed over again, when it is the principal's turn."""
        assert self._is_held, "nothing was held"
        self._is_held = False
        if self._transport is None or self._transport.is_closing():
            return
        if self.share is None:
            self._loop.call_soon(self._go_on)
        else:
            self.share.wait(self._go_on)

    def _go_on(self) -> None:
        """It is the turn of the frames that were put off."""
        frames, self._put_off = self._put_off, ()
        self._hand_on(frames)
        self._count_held()
        self._read_on()

    def _read_on(self) -> None:
        if self._transport is not None and not self._put_off and not self._transport.is_closing():
            self._transport.resume_reading()

    def _wait(self, share: Share) -> None:
        """Go on when it is the principal's turn, or when the peer has read enough."""
        if not self._is_unread():
            share.wait(self._go_on)
            return
        if self._unread is None:
            self._unread = (self._loop.time(), self._sent_bytes - self.backlog_bytes)
            # What is sent in this turn has not been written yet: perhaps the system takes it.
            self._looking = self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Has a client that is not heard begun to read?"""
        if self._looking is not None:
            self._looking.cancel()
        if self._unread is None or self._transport is None or self._transport.is_closing():
            return
        if not self._is_unread():
            self._unread = None
            self._go_on()
            return
        since, before = self._unread
        now, left = self._loop.time(), self._sent_bytes - self.backlog_bytes
        if left > before:
            self._unread = (now, left)
        elif now - since >= UNREAD_SECONDS_MAX:
            self.cut(UsageError("E107", f"its answers were not read for {UNREAD_SECONDS_MAX:g} seconds"))
            return
        self._looking = self._loop.call_later(UNREAD_LOOK_SECONDS, self._look)

    def _is_unread(self) -> bool:
        """Whether more answers wait than may. They are counted in two parts, and a part is over when it left.

        So what has left is forgotten without a note for each answer, and deliveries between do not count.
        """
        if self._answers_before + self._answers_after <= ANSWERS_BYTES_MAX:
            return False
        backlog = self.backlog_bytes
        if self._sent_bytes - backlog >= self._answers_mark:
            self._answers_before, self._answers_after = self._answers_after, 0
            self._answers_mark = self._sent_bytes
        return backlog > ANSWERS_BYTES_MAX and self._answers_before + self._answers_after > ANSWERS_BYTES_MAX

    def _release(self) -> None:
        """Let go of what came and is not carried out."""
        self._put_off = ()
        if self.share is not None:
            self.share.held_bytes -= self._held_bytes
            self._held_bytes = 0

    def _count_held(self) -> None:
        """Count what the principal has sent and is not carried out, as part of what it may take up."""
        share = self.share
        if share is None or not self.is_open:
            return
        held = self.reader.pending_bytes + _memory_of(self._put_off)
        if held != self._held_bytes:
            share.held_bytes += held - self._held_bytes
            self._held_bytes = held
            if held and share.held_bytes > share.held_bytes_max:
                told = f"its principal holds {share.held_bytes:,} bytes that wait or are unfinished frames"
                self.cut(UsageError("E107", told))

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
            if self._unread is not None:
                self._look()
        except Exception as mistake:  # noqa: BLE001  # see `_mistaken`
            self._mistaken(mistake)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._transport, self._file = None, -1
        self._out, self._out_bytes = [], 0
        self._unread = None
        self._release()
        if self._owner is not None:
            try:
                self._owner.lost(self._reason if exc is None else str(exc))
            except Exception as mistake:  # noqa: BLE001  # see `_mistaken`
                self._mistaken(mistake)
            # The two refer to each other. As a cycle they would stay in memory until a full garbage
            # collection, and there is hardly ever one.
            self._owner = None


def _memory_of(frames: Sequence[Frame]) -> int:
    """About how much memory the frames of one read take up; small ones keep all of it alive."""
    if len(frames) == 1:
        return len(frames[0].head) + sum(map(len, frames[0].parts))
    return READ_BYTES + FRAME_OBJECT_BYTES * len(frames) if frames else 0
