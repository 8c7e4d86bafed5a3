"""How does a broker stay connected with its neighbours? One connection each, dialled by the lesser name.

A link that breaks is dialled again, at once and then more and more slowly. The machines are told only
that a link is up or down: whatever was on its way may be lost, and heals. A neighbour that does not read
fast enough loses messages rather than filling our memory, which heals the same way.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gapless.errors import PeerError
from gapless.model.ids import BrokerId
from gapless.node.config import NodeConfig
from gapless.node.connection import Connection
from gapless.node.guard import Guard
from gapless.node.logs import event_log
from gapless.node.quarantine import Quarantine
from gapless.node.security import check_broker, trouble
from gapless.protocol.effects import SendMessage
from gapless.protocol.events import Event, LinkDown, LinkUp, MessageReceived
from gapless.protocol.messages import KnowledgeMessage, Message
from gapless.protocol.network import Network
from gapless.wire.broker_codec import BrokerDecoder, BrokerEncoder
from gapless.wire.frames import (
    FROM_BROKER,
    FROM_CHALLENGER,
    FROM_DIALED_BROKER,
    HELLO_BYTES_MAX,
    Frame,
)
from gapless.wire.handshake import (
    LINK_KINDS,
    NONCE_BYTES,
    Challenge,
    Hello,
    Ping,
    Pong,
    Refuse,
    Role,
    Welcome,
    check_welcome,
    decode_link,
    encode_link,
    network_fingerprint,
)
from gapless.wire.proof import Dialling

log = event_log("gapless.links")

#: A neighbour that has not read so much loses what comes next.
BACKLOG_BYTES_MAX = 32 * 2**20
#: A neighbour has so long for the handshake of TLS, and then as long for ours.
DIAL_SECONDS_MAX = 5.0
#: How long to wait before dialling again: at first, and at most.
REDIAL_SECONDS_MIN, REDIAL_SECONDS_MAX = 0.05, 2.0
#: A link is asked whether it is alive so often, and given up when it has not answered by the next time.
PING_SECONDS = 1.0
#: A neighbour that is silent for so long is taken for dead.
SILENT_SECONDS_MAX = 4.0


@dataclass(slots=True)
class _Neighbour:
    """What is known of one neighbour."""

    name: BrokerId
    connection: Connection | None = None
    #: When it was last heard of, by the loop's clock.
    heard: float = 0.0
    #: Since when the link has been as it is, up or down.
    since: float = 0.0
    #: How often the link came up.
    ups: int = 0
    #: Messages that it did not get because it did not read.
    dropped: int = 0
    #: The number and time of the last ping, and how long the last pong took.
    ping: tuple[int, float] = (0, 0.0)
    #: Knowledge that came with the frames that are being read, and was not handed over yet.
    knowledge: list[KnowledgeMessage] = field(default_factory=list)
    round_trip_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """How the link to one neighbour is doing."""

    broker: BrokerId
    up: bool
    #: For how long it has been up, or down.
    seconds: float
    ups: int
    round_trip_ms: float | None
    #: What was sent and has not left this process.
    backlog_bytes: int
    dropped: int


class BrokerConnections:
    """The connections to all neighbours of one broker."""

    def __init__(
        self, config: NodeConfig, feed: Callable[[Event], None], guard: Guard, quarantine: Quarantine
    ) -> None:
        network, broker = config.network, config.broker
        self._guard = guard
        self._quarantine = quarantine
        self._config = config
        self._broker = broker
        self._feed = feed
        self._tls = None if config.tls is None else config.tls.dialling()
        self._fingerprint = network_fingerprint(network)
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._neighbours = {name: _Neighbour(name, since=now) for name in network.neighbours(broker)}
        self._encoder = BrokerEncoder()
        self._decoder = BrokerDecoder.of(network)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def extend(self, network: Network) -> None:
        """The network has grown to this: what neighbours say of the new topics can be read from now on."""
        self._decoder = BrokerDecoder.of(network)

    def start(self) -> None:
        """Dial those whose name comes after ours; the others dial us."""
        for neighbour in self._neighbours.values():
            if self._broker < neighbour.name:
                self._tasks.append(self._guard.task(self._dial(neighbour), f"link to {neighbour.name}"))
        self._tasks.append(self._guard.task(self._watch(), "watch of the links"))

    def troubles(self) -> list[str]:
        """The tasks that have ended before their time."""
        return [] if self._stopping else [f"task {each.get_name()}" for each in self._tasks if each.done()]

    async def stop(self) -> None:
        """Stop dialling, and close all links."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            # What ended one of them early was told then.
            await asyncio.wait([task])
        for neighbour in self._neighbours.values():
            if neighbour.connection is not None:
                neighbour.connection.close("this broker stops")

    def send(self, effect: SendMessage) -> None:
        """Send to a neighbour, if it is there and reads."""
        neighbour = self._neighbours[effect.to]
        connection = neighbour.connection
        if connection is None:
            return
        if connection.backlog_bytes > BACKLOG_BYTES_MAX:
            neighbour.dropped += 1
            return
        connection.send(self._encoder.encode(effect.message))

    def up(self) -> list[BrokerId]:
        """The neighbours that are connected."""
        return [name for name, each in self._neighbours.items() if each.connection is not None]

    @property
    def dropped(self) -> int:
        """Messages that were dropped because a neighbour did not read."""
        return sum(each.dropped for each in self._neighbours.values())

    def figures(self) -> list[LinkFigures]:
        """How all links are doing."""
        now = self._loop.time()
        return [
            LinkFigures(
                broker=name,
                up=each.connection is not None,
                seconds=max(0.0, now - each.since),
                ups=each.ups,
                round_trip_ms=each.round_trip_ms,
                backlog_bytes=0 if each.connection is None else each.connection.backlog_bytes,
                dropped=each.dropped,
            )
            for name, each in self._neighbours.items()
        ]

    def renew(self, config: NodeConfig) -> None:
        """Links that come up from now on use these certificates and this secret."""
        self._tls = None if config.tls is None else config.tls.dialling()
        self._config = config

    def check_neighbour(self, name: str) -> _Neighbour:
        """The neighbour of that name. Raises PeerError when there is none."""
        neighbour = self._neighbours.get(BrokerId(name))
        if neighbour is None:
            raise PeerError("E221", f"'{name}' is not a neighbour of '{self._broker}'")
        return neighbour

    def welcome(self, connection: Connection, hello: Hello) -> _Link:
        """A broker has dialled us and proved its identity. Raises PeerError when it is not a neighbour."""
        neighbour = self.check_neighbour(hello.name)
        connection.reader.allow(FROM_BROKER)
        link = _Link(self, neighbour, connection)
        self._connected(neighbour, connection)
        return link

    def _connected(self, neighbour: _Neighbour, connection: Connection) -> None:
        if neighbour.connection is not None:
            # The other side came back before we saw that it was gone.
            old, neighbour.connection = neighbour.connection, None
            neighbour.knowledge.clear()
            old.abort("the neighbour connected again")
            self._feed(LinkDown(neighbour=neighbour.name))
        neighbour.connection = connection
        neighbour.heard = neighbour.since = self._loop.time()
        neighbour.ups += 1
        log.info("link_up", neighbour=neighbour.name, peer=connection.peer)
        self._feed(LinkUp(neighbour=neighbour.name))

    def lost(self, neighbour: _Neighbour, connection: Connection, reason: str) -> None:
        """A connection is gone."""
        if neighbour.connection is connection:
            neighbour.connection = None
            neighbour.knowledge.clear()
            neighbour.since, neighbour.round_trip_ms = self._loop.time(), None
            tell = log.info if self._stopping else log.warning
            tell("link_down", neighbour=neighbour.name, reason=reason)
            self._feed(LinkDown(neighbour=neighbour.name))

    def received(self, neighbour: _Neighbour, frame: Frame) -> None:
        """A frame came from a neighbour."""
        neighbour.heard = self._loop.time()
        if frame.kind in LINK_KINDS:
            message = decode_link(frame)
            if isinstance(message, Ping) and neighbour.connection is not None:
                neighbour.connection.send(encode_link(Pong(number=message.number)))
            elif isinstance(message, Pong) and message.number == neighbour.ping[0]:
                neighbour.round_trip_ms = (time.perf_counter() - neighbour.ping[1]) * 1_000
            elif isinstance(message, Hello):
                raise PeerError("E213", f"a second HELLO frame came from '{neighbour.name}'")
            elif isinstance(message, Refuse):
                raise PeerError("E222", f"'{neighbour.name}' hung up: {message.code} {message.message}")
            return
        decoded = self._decoded(neighbour, frame)
        if isinstance(decoded, KnowledgeMessage):
            neighbour.knowledge.append(decoded)
        elif decoded is not None:
            self.settled(neighbour)
            self._feed(MessageReceived(sender=neighbour.name, message=decoded))
        # What is not known here yet cannot be understood: it will be asked for when it is.

    def _decoded(self, neighbour: _Neighbour, frame: Frame) -> Message | None:
        try:
            message = self._decoder.decode(frame)
        except PeerError:
            raise
        except Exception as error:
            # Reading changes nothing: this link is closed, and all others are served on.
            log.error("request_failed", neighbour=neighbour.name, code="E215", reason=repr(error))
            raise PeerError("E215", f"a {frame.kind.name} frame cannot be read here") from error
        if isinstance(message, KnowledgeMessage) and message.batch is not None:
            # A neighbour of an earlier version may have events that are too large to be passed on.
            batch = self._quarantine.without(message.pubend, message.batch)
            return message if batch is message.batch else replace(message, batch=batch)
        return message

    def settled(self, neighbour: _Neighbour) -> None:
        """Hand over all knowledge that came together, as one: a step for each message would cost more."""
        if neighbour.knowledge:
            first, *also = neighbour.knowledge
            neighbour.knowledge.clear()
            self._feed(MessageReceived(sender=neighbour.name, message=first, also=tuple(also)))

    async def _dial(self, neighbour: _Neighbour) -> None:
        """Keep one link up for ever."""
        wait = REDIAL_SECONDS_MIN
        while True:
            address = self._config.addresses[neighbour.name]
            gone = self._loop.create_future()
            try:
                await self._loop.create_connection(
                    lambda gone=gone: Connection(
                        FROM_DIALED_BROKER,
                        lambda connection: _Dialled(self, neighbour, connection, gone),
                        guard=self._guard,
                    ),
                    address.host,
                    address.port,
                    ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else DIAL_SECONDS_MAX,
                )
                if await gone:
                    wait = REDIAL_SECONDS_MIN
            except OSError as error:
                reason = trouble(error)
                log.repeated(
                    "link_failed",
                    by=(neighbour.name, reason),
                    # Nodes are started one after the other: that one is not there yet is as it should be.
                    level=logging.INFO if isinstance(error, ConnectionRefusedError) else logging.WARNING,
                    neighbour=neighbour.name,
                    address=str(address),
                    reason=reason,
                )
            await asyncio.sleep(wait)
            wait = min(wait * 2, REDIAL_SECONDS_MAX)

    async def _watch(self) -> None:
        """Ask now and then whether the neighbours are alive; hang up on those that are not."""
        number = 0
        while True:
            await asyncio.sleep(PING_SECONDS)
            number += 1
            for neighbour in self._neighbours.values():
                connection = neighbour.connection
                if connection is None:
                    continue
                if self._loop.time() - neighbour.heard > SILENT_SECONDS_MAX:
                    connection.abort(f"silent for {SILENT_SECONDS_MAX:.0f} s")
                else:
                    neighbour.ping = (number, time.perf_counter())
                    connection.send(encode_link(Ping(number=number)))

    def dialling(self, neighbour: _Neighbour) -> tuple[Hello, Dialling]:
        """What we say when we dial, and what both sides have to prove."""
        secret = self._config.secret
        hello = Hello(
            role=Role.BROKER,
            name=self._broker,
            network=self._fingerprint,
            software=self._config.software,
            nonce=b"" if secret is None else secrets.token_bytes(NONCE_BYTES),
        )
        return hello, Dialling(secret, hello, neighbour.name)

    def check_certificate(self, connection: Connection, neighbour: _Neighbour) -> None:
        """Whether the certificate that was shown is the neighbour's. Raises PeerError."""
        if self._tls is not None:
            check_broker(connection.certificate, neighbour.name)

    def check(self, welcome: Welcome, neighbour: _Neighbour) -> None:
        """Whether the right broker answered. Raises PeerError."""
        check_welcome(welcome, self._fingerprint)
        if welcome.name != neighbour.name:
            raise PeerError("E223", f"'{welcome.name}' answers at the address of '{neighbour.name}'")


class _Link:
    """A connection to a neighbour that both sides have agreed on."""

    def __init__(self, links: BrokerConnections, neighbour: _Neighbour, connection: Connection) -> None:
        self._links = links
        self._neighbour = neighbour
        self._connection = connection

    def received(self, frame: Frame) -> None:
        self._links.received(self._neighbour, frame)

    def settled(self) -> None:
        self._links.settled(self._neighbour)

    def drained(self) -> None:
        """Nothing to do."""

    def lost(self, reason: str) -> None:
        self._links.lost(self._neighbour, self._connection, reason)


class _Dialled:
    """A connection that we dialled, until the neighbour has welcomed us and after."""

    def __init__(
        self,
        links: BrokerConnections,
        neighbour: _Neighbour,
        connection: Connection,
        gone: asyncio.Future[bool],
    ) -> None:
        self._links = links
        self._neighbour = neighbour
        self._connection = connection
        #: Set when the connection is gone: whether it ever stood.
        self._gone = gone
        self._welcomed = False
        self._patience: asyncio.TimerHandle | None = None
        hello, self._dialling = links.dialling(neighbour)
        if hello.nonce:
            # Before it has proved who it is, nothing else may come, and nothing large.
            connection.reader.allow(FROM_CHALLENGER, bytes_max=HELLO_BYTES_MAX)
        try:
            links.check_certificate(connection, neighbour)
        except PeerError as error:
            self._failed(error)
            connection.refuse(error)
            return
        self._patience = asyncio.get_running_loop().call_later(DIAL_SECONDS_MAX, self._too_late)
        connection.send(encode_link(hello))

    def _too_late(self) -> None:
        error = PeerError(
            "E218", f"'{self._neighbour.name}' did not answer a HELLO frame in time", retry=True
        )
        self._failed(error)
        self._connection.refuse(error)

    def _failed(self, error: PeerError) -> None:
        name = self._neighbour.name
        log.repeated("link_failed", by=(name, error.code), neighbour=name, reason=str(error))

    def received(self, frame: Frame) -> None:
        if self._welcomed:
            self._links.received(self._neighbour, frame)
            return
        try:
            self._answered(frame)
        except PeerError as error:
            self._failed(error)
            raise

    def _answered(self, frame: Frame) -> None:
        """A frame of the handshake. Raises PeerError."""
        message = decode_link(frame) if frame.kind in LINK_KINDS else None
        match message:
            case Refuse():
                log.repeated(
                    "link_refused",
                    by=(self._neighbour.name, message.code),
                    neighbour=self._neighbour.name,
                    code=message.code,
                    reason=message.message,
                )
                self._connection.close(f"{message.code} {message.message}")
            case Challenge():
                proof = self._dialling.challenged(message)
                self._connection.reader.allow(FROM_DIALED_BROKER)
                self._connection.send(encode_link(proof))
            case Welcome():
                self._dialling.welcomed(message)
                self._links.check(message, self._neighbour)
                self._welcomed = True
                self._be_patient()
                self._links._connected(self._neighbour, self._connection)
            case _:
                raise PeerError("E213", f"a {frame.kind.name} frame before the handshake was done")

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def settled(self) -> None:
        self._links.settled(self._neighbour)

    def drained(self) -> None:
        """Nothing to do."""

    def lost(self, reason: str) -> None:
        self._be_patient()
        self._links.lost(self._neighbour, self._connection, reason)
        if not self._gone.done():
            self._gone.set_result(self._welcomed)
