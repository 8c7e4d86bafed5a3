"""How do connections come in, and what if too many do? One listening socket, and a bound for strangers.

A connection is a *stranger* until it has identified itself. There is a limit of strangers, and a smaller one
for those of one host; at the limit a new connection replaces the one that has been silent for longest. So a
flood of silent connections pushes out itself, and a peer that identifies itself gets in.

The handshake of TLS is part of that: a connection counts from the moment that it is accepted. When the system
has no descriptor left for another one, nothing is accepted for a moment; those who are connected notice
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Protocol

from gapless.errors import PeerError
from gapless.node.connection import Connection
from gapless.node.guard import Guard
from gapless.node.logs import event_log
from gapless.wire.address import Address

log = event_log("gapless.door")

#: How many connections the system holds for us while we are busy.
BACKLOG_MAX = 4_096
#: Maximum number of connections accepted in one turn of the loop; evicted ones are closed by the next.
ACCEPTS_MAX = 4
#: While there are as many strangers as may be, accepting pauses for so long after these: each takes a tenth
#: of a millisecond, and so does hanging up on another one.
CROWDED_SECONDS = 0.003
#: How long accepting pauses when descriptors run out.
PAUSE_SECONDS = 0.1
#: One host gets at most 1/HOST_SHARE of all strangers. Loopback is exempt: all local clients share it.
HOST_SHARE = 2
#: Errors of `accept` that are about this process or machine, not about the connection.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Bound(Protocol):
    """How many strangers there may be at this moment."""

    @property
    def strangers_max(self) -> int: ...


class Arrival:
    """An accepted connection that has not identified itself yet."""

    __slots__ = ("connection", "host", "taking")

    def __init__(self, host: str, connection: Connection) -> None:
        #: Where it comes from; empty for the loopback.
        self.host = host
        self.connection = connection
        #: What makes it a connection, with the handshake of TLS, while that is under way.
        self.taking: asyncio.Task[Any] | None = None


class Arrivals:
    """Accepted connections of one address that have not identified themselves yet."""

    def __init__(
        self, made: Callable[[Arrivals], Connection], bound: Bound, handshake_s: float, guard: Guard
    ) -> None:
        """`made` gives the connection for a socket; it calls `settled` when it is a stranger no more."""
        self._accept = guard.call(self._ready)
        self._made = made
        self._bound = bound
        self._handshake_s = handshake_s
        #: For new connections; None without TLS.
        self.tls: ssl.SSLContext | None = None
        self._sockets: list[socket.socket] = []
        self._loop = asyncio.get_running_loop()
        #: The oldest first.
        self._strangers: dict[Connection, Arrival] = {}
        self._of_host: dict[str, dict[Connection, Arrival]] = {}

    def __len__(self) -> int:
        return len(self._strangers)

    async def open(self, listen: Address) -> None:
        """Listen. Raises OSError when that is not possible."""
        found = await self._loop.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                made = socket.socket(family, kind, protocol)
                self._sockets.append(made)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.bind(address)
                made.listen(BACKLOG_MAX)
                made.setblocking(False)
        except OSError:
            self.shut()
            raise
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    @property
    def address(self) -> Address:
        """Where it listens, with the port that it really has."""
        assert self._sockets, "the node has not started"
        host, port = self._sockets[0].getsockname()[:2]
        return Address(host, port)

    def shut(self) -> None:
        """Stop accepting connections, and close those that have not been admitted."""
        for each in self._sockets:
            if each.fileno() >= 0:
                self._loop.remove_reader(each)
                each.close()
        for arrival in list(self._strangers.values()):
            self._hang_up(arrival, "node shutting down")

    def settled(self, connection: Connection) -> None:
        """The connection has identified itself, or is gone."""
        arrival = self._strangers.pop(connection, None)
        if arrival is not None and arrival.host:
            near = self._of_host[arrival.host]
            near.pop(connection, None)
            if not near:
                del self._of_host[arrival.host]

    def _ready(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(listening, error)
                    return
                # This one was gone before it was accepted; the next may be there.
                continue
            accepted.setblocking(False)
            self._arrived(accepted, address[0])
        if len(self._strangers) >= self._bound.strangers_max:
            self._loop.remove_reader(listening)
            self._loop.call_later(CROWDED_SECONDS, self._resume, listening)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        log.repeated(
            "accept_failed",
            by=error.errno,
            reason=error.strerror,
            way_out="accepting is paused briefly: raise the open-file limit, for example with `ulimit -n`",
        )
        self._loop.remove_reader(listening)
        self._loop.call_later(PAUSE_SECONDS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening)

    def _arrived(self, accepted: socket.socket, host: str) -> None:
        most = self._bound.strangers_max
        host = "" if ip_address(host.partition("%")[0]).is_loopback else host
        near = self._of_host.get(host, {})
        if len(self._strangers) >= most:
            self._evict(self._strangers)
        elif len(near) >= max(1, most // HOST_SHARE):
            self._evict(near)
        connection = self._made(self)
        arrival = Arrival(host, connection)
        self._strangers[connection] = arrival
        if host:
            self._of_host.setdefault(host, {})[connection] = arrival
        seconds = None if self.tls is None else self._handshake_s
        arrival.taking = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self.tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            ),
            name="arrival",
        )
        arrival.taking.add_done_callback(lambda done: self._taken(arrival, accepted, done))

    def _taken(self, arrival: Arrival, accepted: socket.socket, done: asyncio.Task[Any]) -> None:
        """The connection has begun; or it has not: it has no TLS, was too slow, is gone, or was evicted."""
        arrival.taking = None
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            return
        # Port scanners cause these all day. Nothing has changed in any case.
        tell = log.debug if isinstance(error, OSError | asyncio.CancelledError) else log.error
        tell("arrival_failed", host=arrival.host or "loopback", reason=repr(error))
        self.settled(arrival.connection)
        with contextlib.suppress(OSError):
            accepted.close()

    def _evict(self, strangers: dict[Connection, Arrival]) -> None:
        """Make room: the one that has been silent for longest goes."""
        arrival = next(iter(strangers.values()))
        error = PeerError("E219", "too many unidentified connections", retry=True)
        arrival.connection.refuse(error)
        self._hang_up(arrival, str(error))

    def _hang_up(self, arrival: Arrival, reason: str) -> None:
        if arrival.taking is not None:
            arrival.taking.cancel()
        arrival.connection.abort(reason)
        self.settled(arrival.connection)
