"""Who may connect? Where a node listens, what each peer must present, and how many connections there may be.

Brokers and clients connect to the same port. A peer has a few seconds to identify itself, in one small frame;
until then nothing is done for it and it may use almost nothing. A peer that is refused hears why, with a
code, and is cut off; the others notice nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from dataclasses import replace

from gapless.errors import GaplessError, PeerError, UsageError
from gapless.node.arrivals import Arrivals
from gapless.node.config import Limits, NodeConfig
from gapless.node.connection import Connection, Owner
from gapless.node.counters import Counters
from gapless.node.descriptors import Descriptors
from gapless.node.guard import Guard
from gapless.node.links import BrokerConnections
from gapless.node.logs import event_log
from gapless.node.security import EVERYTHING, ClientCertificates, Rights, check_broker, subject_of
from gapless.node.sessions import Sessions
from gapless.wire.address import Address
from gapless.wire.frames import FROM_CHALLENGED, FROM_STRANGER, HELLO_BYTES_MAX, Frame
from gapless.wire.handshake import (
    NONCE_BYTES,
    Hello,
    Proof,
    Refuse,
    Role,
    Welcome,
    check_hello,
    decode_link,
    encode_link,
    network_fingerprint,
)
from gapless.wire.proof import Answering

log = event_log("gapless.door")

#: How long a peer has to identify itself, and before that, for the TLS handshake.
HELLO_SECONDS_MAX = 5.0
#: A peer that is silent for so long is asked by the system whether it is there, three times and no more.
KEEP_ALIVE_SECONDS = 30
#: The code with which clients are sent elsewhere.
STOPPING = "E188"


class Door:
    """Where brokers and clients come in."""

    def __init__(
        self,
        config: NodeConfig,
        links: BrokerConnections,
        sessions: Sessions,
        *,
        counters: Counters,
        guard: Guard,
        descriptors: Descriptors,
    ) -> None:
        self._guard = guard
        self._config = config
        self._links = links
        self._sessions = sessions
        self._counters = counters
        self._descriptors = descriptors
        self._fingerprint = network_fingerprint(config.network)
        self.strangers = Arrivals(self._accept, descriptors, HELLO_SECONDS_MAX, guard)

    async def open(self) -> None:
        """Listen. Raises UsageError when that is not possible."""
        config = self._config
        listen, tls = config.listen, config.tls
        self._descriptors.check()
        self.strangers.tls = None if tls is None else tls.server()
        try:
            await self.strangers.open(listen)
        except OSError as error:
            way_out = "choose an address of this machine"
            if error.errno == errno.EADDRINUSE:
                way_out = "stop what listens there, or choose another address"
            raise UsageError(
                "E183", f"cannot listen at {listen}: {error.strerror or error}: {way_out}"
            ) from error
        log.info(
            "descriptors",
            limit=self._descriptors.limit,
            clients_max=self.clients_max,
            strangers_max=self._descriptors.strangers_max,
        )
        if self.clients_max < config.limits.clients_max != Limits().clients_max:
            log.warning(
                "few_descriptors",
                clients_max=self.clients_max,
                wanted=config.limits.clients_max,
                way_out="the system lets this process open too few files for more clients: raise that limit "
                "(`ulimit -Hn`, LimitNOFILE= of systemd), or lower limits.clients_max",
            )
        if not listen.is_loopback and (tls is None or config.tokens is None):
            missing = " and ".join(
                name for name, configured in (("tls", tls), ("tokens", config.tokens)) if configured is None
            )
            log.warning(
                "open_door",
                listens=str(listen),
                missing=missing,
                way_out="anybody who reaches this address may publish and subscribe, or listen in: "
                "add these tables to the network file, or listen at 127.0.0.1",
            )

    @property
    def address(self) -> Address:
        """Where the node listens, with the port that it really has."""
        return self.strangers.address

    @property
    def clients_max(self) -> int:
        """How many clients may be connected: as many as are allowed, and as there are descriptors for."""
        return self._descriptors.clients_max(self._config.limits.clients_max)

    def shut(self) -> None:
        """Stop admitting connections."""
        self.strangers.shut()

    def renew(self, config: NodeConfig) -> None:
        """From now on, new connections need these tokens, certificates and secret."""
        self.strangers.tls = None if config.tls is None else config.tls.server()
        self._config = config

    def _accept(self, strangers: Arrivals) -> Connection:
        connection = Connection(
            FROM_STRANGER, lambda made: _Stranger(self, strangers, made), self._refused, guard=self._guard
        )
        connection.reader.allow(FROM_STRANGER, bytes_max=HELLO_BYTES_MAX)
        return connection

    def _refused(self, connection: Connection, error: GaplessError) -> None:
        self._counters.refused(error.code)
        host = connection.peer.rpartition(":")[0]
        log.repeated(
            "peer_refused",
            by=(host, error.code),
            # A peer that is sent elsewhere because the node stops has done nothing wrong.
            level=logging.INFO if error.code == STOPPING else logging.WARNING,
            peer=connection.peer,
            code=error.code,
            reason=error.message,
        )

    def introduced(self, connection: Connection, hello: Hello) -> Owner | Answering:
        """A peer has identified itself: returns who serves it, or what it still has to prove.

        Raises PeerError or UsageError when it may not come in.
        """
        connection.keep_alive(KEEP_ALIVE_SECONDS)
        check_hello(hello, self._fingerprint)
        if hello.role is Role.CLIENT:
            return self._client(connection, hello)
        self._check_broker(connection, hello)
        self._links.check_neighbour(hello.name)
        secret = self._config.secret
        if secret is None:
            return self.broker(connection, hello)
        answering = Answering(secret, hello, self._config.broker, secrets.token_bytes(NONCE_BYTES))
        connection.reader.allow(FROM_CHALLENGED, bytes_max=HELLO_BYTES_MAX)
        connection.send(encode_link(answering.challenge()))
        return answering

    def broker(self, connection: Connection, hello: Hello) -> Owner:
        """Somebody is the broker that it says it is, as far as this network asks for proof."""
        self._welcome(connection, hello, self._fingerprint)
        return self._links.welcome(connection, hello)

    def _client(self, connection: Connection, hello: Hello) -> Owner:
        rights = self._rights(connection, hello)
        # A client has no use for what brokers know each other by.
        self._welcome(connection, hello, network="")
        self._counters.clients_welcomed += 1
        log.debug("client_welcome", client=hello.name, peer=connection.peer, token=rights.name)
        return self._sessions.welcome(connection, hello, rights)

    def _welcome(self, connection: Connection, hello: Hello, network: str) -> None:
        welcome = Welcome(
            version=check_hello(hello, self._fingerprint),
            name=self._config.broker,
            network=network,
            software=self._config.software,
        )
        connection.send(encode_link(welcome))

    def _check_broker(self, connection: Connection, hello: Hello) -> None:
        if self._config.tls is not None:
            check_broker(connection.certificate, hello.name)

    def _rights(self, connection: Connection, hello: Hello) -> Rights:
        """The rights of a client. Raises UsageError when it has none."""
        config = self._config
        most = self.clients_max
        if len(self._sessions) >= most:
            wanted = config.limits.clients_max
            way_out = "limits.clients_max" if most == wanted else "the limit of open files (ulimit -n)"
            raise UsageError(
                "E197",
                f"this node already has {most} clients: connect to another edge, or raise {way_out}",
                retry=True,
            )
        required = config.tls is not None and config.tls.clients is ClientCertificates.REQUIRED
        # TLS has verified any certificate that was shown.
        if required and not connection.certificate:
            raise UsageError("E196", "this node requires a client certificate: show yours")
        rights = EVERYTHING if config.tokens is None else config.tokens.rights(hello.token)
        subject = subject_of(connection.certificate)
        rights = rights if subject is None else replace(rights, certificate=subject)
        self._sessions.principals.check_client(rights.principal)
        return rights


class _Stranger:
    """A connection whose peer has not identified itself yet."""

    def __init__(self, door: Door, strangers: Arrivals, connection: Connection) -> None:
        self._door = door
        self._strangers = strangers
        self._connection = connection
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(HELLO_SECONDS_MAX, self._too_late)
        #: What it has said, and what it has to prove, once it has said that it is a broker.
        self._claimed: tuple[Hello, Answering] | None = None

    def _too_late(self) -> None:
        missing = "HELLO" if self._claimed is None else "PROOF"
        error = PeerError("E218", f"no {missing} frame came within {HELLO_SECONDS_MAX:g} seconds")
        self._connection.refuse(error)

    def received(self, frame: Frame) -> None:
        try:
            owner = self._owner(frame)
        except UsageError as error:
            self._connection.refuse(error)
            return
        if owner is not None:
            self._forget()
            self._connection.hand_over(owner)

    def _owner(self, frame: Frame) -> Owner | None:
        """Who answers from now on; None when this one has more to say first."""
        message = decode_link(frame)
        if self._claimed is not None and isinstance(message, Proof):
            hello, answering = self._claimed
            answering.proved(message)
            return self._door.broker(self._connection, hello)
        if self._claimed is not None and isinstance(message, Refuse):
            raise PeerError("E222", f"'{self._claimed[0].name}' hung up: {message.code} {message.message}")
        if self._claimed is not None or not isinstance(message, Hello):
            raise PeerError("E213", f"a {frame.kind.name} frame before the handshake was done")
        found = self._door.introduced(self._connection, message)
        if isinstance(found, Answering):
            self._claimed = (message, found)
            return None
        return found

    def settled(self) -> None:
        """Nothing to do."""

    def drained(self) -> None:
        """Nothing to do."""

    def lost(self, reason: str) -> None:  # noqa: ARG002  # nobody knew it
        self._forget()

    def _forget(self) -> None:
        self._patience.cancel()
        self._strangers.settled(self._connection)
