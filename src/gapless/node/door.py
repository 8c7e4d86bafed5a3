"""Who may come in? The door of a node: where it listens, who has to show what, and how many there may be.

Brokers and clients come to the same port. Whoever connects has a few seconds to say who it is, in one small
frame; until then nothing is done for it and it may take up next to nothing. Whoever may not come in hears
why, with a code, and is cut off; the others notice nothing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from gapless.errors import GaplessError, PeerError, UsageError
from gapless.node.config import NodeConfig
from gapless.node.connection import Connection, Owner
from gapless.node.counters import Counters
from gapless.node.guard import Guard
from gapless.node.links import Links
from gapless.node.logs import event_log
from gapless.node.security import EVERYTHING, ClientCertificates, Rights, check_broker, subject_of
from gapless.node.sessions import Sessions
from gapless.wire.address import Address
from gapless.wire.frames import FROM_STRANGER, HELLO_BYTES_MAX, Frame
from gapless.wire.handshake import (
    Hello,
    Role,
    Welcome,
    check_hello,
    decode_link,
    encode_link,
    network_fingerprint,
)

log = event_log("gapless.door")

#: Whoever connects has so long to say who it is, and before that as long for the handshake of TLS.
HELLO_SECONDS_MAX = 5.0
#: A peer that is silent for so long is asked by the system whether it is there, three times and no more.
KEEP_ALIVE_SECONDS = 30
#: How many may be connected without having said who they are.
STRANGERS_MAX = 4_096
#: The code with which clients are sent elsewhere.
STOPPING = "E188"
#: How many connections the system holds for us while we are busy.
BACKLOG_MAX = 4_096


class Door:
    """Where brokers and clients come in."""

    def __init__(
        self, config: NodeConfig, links: Links, sessions: Sessions, counters: Counters, guard: Guard
    ) -> None:
        self._guard = guard
        self._config = config
        self._links = links
        self._sessions = sessions
        self._counters = counters
        self._fingerprint = network_fingerprint(config.network)
        self._server: asyncio.Server | None = None
        self.strangers: set[Connection] = set()

    async def open(self) -> None:
        """Listen. Raises UsageError when that is not possible."""
        config, loop = self._config, asyncio.get_running_loop()
        listen, tls = config.listen, config.tls
        context = None if tls is None else tls.server()
        seconds = None if tls is None else HELLO_SECONDS_MAX
        try:
            self._server = await loop.create_server(
                self._accept,
                listen.host,
                listen.port,
                backlog=BACKLOG_MAX,
                ssl=context,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except OSError as error:
            raise UsageError("E183", f"cannot listen at {listen}: {error.strerror or error}") from error
        if not listen.is_loopback and (tls is None or config.tokens is None):
            missing = " and ".join(
                name for name, told in (("tls", tls), ("tokens", config.tokens)) if told is None
            )
            log.warning(
                "open_door",
                listens=str(listen),
                missing=missing,
                way_out="whoever reaches this address may publish and subscribe, or listen in: "
                "add these tables to the network file, or listen at 127.0.0.1",
            )

    @property
    def address(self) -> Address:
        """Where the node listens, with the port that it really has."""
        assert self._server is not None, "the node has not started"
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    def shut(self) -> None:
        """Let nobody in any more."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.strangers):
            connection.abort("this node stops")

    def _accept(self) -> Connection:
        connection = Connection(
            FROM_STRANGER, lambda made: _Stranger(self, made), self._refused, guard=self._guard
        )
        connection.reader.allow(FROM_STRANGER, bytes_max=HELLO_BYTES_MAX)
        return connection

    def _refused(self, connection: Connection, error: GaplessError) -> None:
        self._counters.refused(error.code)
        host = connection.peer.rpartition(":")[0]
        log.repeated(
            "peer_refused",
            by=(host, error.code),
            # Whoever is sent elsewhere because the node stops has done nothing wrong.
            level=logging.INFO if error.code == STOPPING else logging.WARNING,
            peer=connection.peer,
            code=error.code,
            reason=error.message,
        )

    def introduced(self, connection: Connection, hello: Hello) -> Owner:
        """Somebody said who it is. Raises PeerError or UsageError when it may not come in."""
        connection.keep_alive(KEEP_ALIVE_SECONDS)
        version = check_hello(hello, self._fingerprint)
        is_broker = hello.role is Role.BROKER
        if is_broker:
            self._check_broker(connection, hello)
        rights = EVERYTHING if is_broker else self._rights(connection, hello)
        welcome = Welcome(
            version=version,
            name=self._config.broker,
            network=self._fingerprint,
            software=self._config.software,
        )
        connection.send(encode_link(welcome))
        if is_broker:
            return self._links.welcome(connection, hello)
        self._counters.clients_welcomed += 1
        log.debug("client_welcome", client=hello.name, peer=connection.peer, token=rights.name)
        return self._sessions.welcome(connection, hello, rights)

    def _check_broker(self, connection: Connection, hello: Hello) -> None:
        if self._config.tls is not None:
            check_broker(connection.certificate, hello.name)

    def _rights(self, connection: Connection, hello: Hello) -> Rights:
        """What a client may do. Raises UsageError when that is nothing."""
        config = self._config
        if len(self._sessions) >= config.limits.clients_max:
            raise UsageError(
                "E197",
                f"this node has {config.limits.clients_max} clients already: go to another edge, or raise "
                "limits.clients_max",
                retry=True,
            )
        required = config.tls is not None and config.tls.clients is ClientCertificates.REQUIRED
        # One that was shown is of the authority: TLS itself has seen to that.
        if required and not connection.certificate:
            raise UsageError("E196", "this node takes only clients with a certificate: show yours")
        rights = EVERYTHING if config.tokens is None else config.tokens.rights(hello.token)
        subject = subject_of(connection.certificate)
        rights = rights if subject is None else replace(rights, certificate=subject)
        self._sessions.principals.check_client(rights.principal)
        return rights


class _Stranger:
    """A connection whose other side has not said who it is."""

    def __init__(self, door: Door, connection: Connection) -> None:
        self._door = door
        self._connection = connection
        door.strangers.add(connection)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(HELLO_SECONDS_MAX, self._too_late)
        if len(door.strangers) > STRANGERS_MAX:
            error = PeerError("E219", "too many connections that did not say who they are", retry=True)
            loop.call_soon(connection.refuse, error)

    def _too_late(self) -> None:
        error = PeerError("E218", f"no HELLO frame came within {HELLO_SECONDS_MAX:g} seconds")
        self._connection.refuse(error)

    def received(self, frame: Frame) -> None:
        hello = decode_link(frame)
        if not isinstance(hello, Hello):
            raise PeerError("E213", f"a {frame.kind.name} frame before the handshake was done")
        try:
            owner = self._door.introduced(self._connection, hello)
        except UsageError as error:
            self._connection.refuse(error)
            return
        self._forget()
        self._connection.hand_over(owner)

    def settled(self) -> None:
        """Nobody waits for that."""

    def drained(self) -> None:
        """Nobody waits for that."""

    def lost(self, reason: str) -> None:  # noqa: ARG002  # nobody knew it
        self._forget()

    def _forget(self) -> None:
        self._patience.cancel()
        self._door.strangers.discard(self._connection)
