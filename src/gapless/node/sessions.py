"""What does a node do for its clients? It reads their requests, and the responsible part answers.

- `publishing` takes what they publish
- `subscriptions` knows who wants what
- `delivery` hands out rows and hears what was taken
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

from gapless.errors import GaplessError, PeerError, StoreError, UsageError
from gapless.model.budget import CLIENT_FRAME_BYTES_MAX
from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MAX, Tick
from gapless.node.catalog import Catalog, NotStoredYetError
from gapless.node.config import Limits
from gapless.node.connection import Connection
from gapless.node.delivery import Delivery, Feed
from gapless.node.guard import Guard
from gapless.node.logs import event_log
from gapless.node.losses import Losses
from gapless.node.principals import Principal, Principals
from gapless.node.publishing import Publishing
from gapless.node.reading import NotReadYetError
from gapless.node.security import EVERYTHING, Rights, Tokens, TokenStanding, standing
from gapless.node.subscriptions import Subscriptions
from gapless.protocol.network import Network
from gapless.protocol.sessions.messages import (
    Acknowledge,
    AskStatus,
    ChangeFilter,
    ClientMessage,
    CreateTopic,
    Credit,
    Done,
    ListTopics,
    NodeMessage,
    Publish,
    ReleasePublisher,
    RequestRefused,
    StatusReport,
    Subscribe,
    Unsubscribe,
)
from gapless.protocol.sessions.publishers import Publishers
from gapless.protocol.sessions.subscriptions import ClientSubscriptions, EdgeSubscription
from gapless.store.recovery import RecoveryDatabase
from gapless.wire.client_codec import ClientDecoder, encode_node
from gapless.wire.frames import FROM_CLIENT, Frame
from gapless.wire.handshake import LINK_KINDS, Hello, Ping, Pong, decode_link, encode_link
from gapless.wire.rows import RowFormat

if TYPE_CHECKING:
    from gapless.node.bulk_reads.opening import BulkReads
    from gapless.node.inquiry import Inquiry

log = event_log("gapless.sessions")

#: Maximum number of requests of one connection that wait for the disk, or for a door to open.
REQUESTS_MAX = 1_024
#: Beyond SWEPT_MAX clients, a sweep checks congested ones only, and every SWEEPS_BETWEEN-th checks all.
SWEPT_MAX = 1_000
SWEEPS_BETWEEN = 4


class Sessions:
    """All clients of one node."""

    def __init__(
        self,
        network: Network,
        publishers: Mapping[PubendId, Publishers],
        feed: Feed,
        status: Callable[[], str],
        catalog: Catalog,
        *,
        database: RecoveryDatabase | None = None,
        losses: Losses | None = None,
        guard: Guard | None = None,
        principals: Principals | None = None,
        reach: Callable[[PubendId], Tick] = lambda _: TICK_MAX,
        is_gone: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], Tick] = lambda: 0,
    ) -> None:
        """`guard` is told of our own bugs; `reach` and `is_gone` are for subscriptions: see there.

        `clock` is the wall clock.
        """
        self.network = network
        #: Who has how much of this node.
        self.principals = Principals(Limits()) if principals is None else principals
        self._status = status
        self._catalog = catalog
        #: What reads the frames of a client, by the topics that it may publish to.
        self._decoders: dict[tuple[str, ...], ClientDecoder] = {}
        #: The number that names each pubend in deliveries, and how its rows are written.
        self._sources = sources = {pubend: at for at, pubend in enumerate(sorted(network.pubends))}
        self._forms = forms = {topic: RowFormat(schema) for topic, schema in network.topics.items()}
        self.publishing = Publishing(
            network,
            publishers,
            feed,
            catalog.addresses,
            guard,
            limits=self.principals.limits,
            clock=clock,
        )
        self.delivery = Delivery(forms, sources, feed, network.parameters.deliveries_waiting_max, guard)
        self.subscriptions = Subscriptions(
            network,
            self.delivery,
            sources,
            feed,
            principals=self.principals,
            database=database,
            losses=losses,
            guard=guard,
            reach=reach,
            is_gone=is_gone,
        )
        #: Who answers questions about single events; set before anybody is let in.
        self.inquiry: Inquiry | None = None
        #: Writes down what is known of publishers; set before anybody is let in.
        self.remember: Callable[[], object] = lambda: None
        #: The door for bulk reads; set before anybody is let in.
        self.bulk: BulkReads | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._sessions: set[Session] = set()
        self._sweeps = 0
        #: Set while no client is connected.
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._sessions)

    def clients(self) -> list[Session]:
        """All connected clients."""
        return list(self._sessions)

    def welcome(self, connection: Connection, hello: Hello, rights: Rights = EVERYTHING) -> Session:
        """A client has come that may do so much."""
        connection.reader.allow(FROM_CLIENT, bytes_max=CLIENT_FRAME_BYTES_MAX)
        principal = self.principals.of(rights.principal)
        principal.clients += 1
        connection.share = principal.share
        session = Session(self, connection, hello.name, rights, principal)
        self._sessions.add(session)
        self._empty.clear()
        return session

    async def gone(self) -> None:
        """Return when no client is connected."""
        await self._empty.wait()

    def extend(self, network: Network) -> None:
        """The network has grown to this.

        Readers of a topic that got another pubend are disconnected: a client that comes back resumes where it
        was, and gets the new pubend too.
        """
        fresh = sorted(set(network.pubends) - set(self._sources))
        wider = {network.pubends[each].topic for each in fresh} & set(self.network.topics)
        self._sources.update((pubend, len(self._sources) + at) for at, pubend in enumerate(fresh))
        for topic, schema in network.topics.items():
            if topic not in self._forms:
                self._forms[topic] = RowFormat(schema)
        self.network = self.publishing.session.network = self.subscriptions.network = network
        self._decoders.clear()
        for session in list(self._sessions):
            if any(each.asked.topic in wider for each in session.subscriptions.values()):
                session.connection.close("a topic got another pubend")

    def stop(self) -> None:
        """Stop accepting published events; those in flight are answered."""
        self.publishing.session.is_stopping = True
        self.publishing.hand_over()

    def renew(self, tokens: Tokens | None) -> None:
        """The tokens changed: clients with lost or changed rights are disconnected."""
        for session in list(self._sessions):
            match standing(tokens, session.rights):
                case TokenStanding.GONE:
                    text = "the token was removed from this network: ask for another one"
                    session.connection.refuse(UsageError("E185", text))
                case TokenStanding.CHANGED:
                    text = "the rights of the token have changed: connect again"
                    session.connection.refuse(UsageError("E188", text, retry=True))

    def close(self, reason: GaplessError) -> None:
        """Hang up on all clients, and tell them why."""
        for session in list(self._sessions):
            session.connection.refuse(reason)

    def received(self, session: Session, frame: Frame) -> None:
        """A frame came from a client. Raises PeerError when it makes no sense."""
        if frame.kind in LINK_KINDS:
            message = decode_link(frame)
            if isinstance(message, Ping):
                session.connection.answer(encode_link(Pong(number=message.number)))
            elif isinstance(message, Hello):
                raise PeerError("E213", "a second HELLO frame came")
            return
        request = self._decoded(session, frame)
        if isinstance(request, Publish):
            self.publishing.publish(session, request)
            return
        try:
            self._answer(session, request)
        except NotReadYetError as unread:
            connection = session.connection
            connection.hold()
            self.subscriptions.reading.read(session.principal, session, unread, connection.go_on)
        except NotStoredYetError:
            assert isinstance(request, CreateTopic)
            session.connection.hold()
            limits = self.principals.limits
            self._catalog.store(request, session.principal.name, limits, session.stored)
        except (UsageError, StoreError) as error:
            number = getattr(request, "request", None)
            if number is None:
                raise PeerError("E224", f"{error.code} {error.message}") from error
            session.send(_refusal(number, error))

    def _decoder(self, rights: Rights) -> ClientDecoder:
        """Rows of a topic that a client may not publish to are not read, as if there were no such topic."""
        topics = {topic: each for topic, each in self.network.topics.items() if rights.may_publish(topic)}
        made = self._decoders[rights.publish] = ClientDecoder(topics)
        return made

    def _decoded(self, session: Session, frame: Frame) -> ClientMessage:
        try:
            rights = session.rights
            return (self._decoders.get(rights.publish) or self._decoder(rights)).decode(frame)
        except PeerError:
            raise
        except Exception as error:
            # Reading changes nothing: this client is cut off, and all others are served on.
            log.error("request_failed", client=session.name, code="E215", reason=repr(error))
            raise PeerError("E215", f"a {frame.kind.name} frame cannot be read here") from error

    def _answer(self, session: Session, request: ClientMessage) -> None:
        match request:
            case Acknowledge() | Credit():
                self._advance(session, request)
            case Subscribe():
                session.rights.check_subscribe(request.topic)
                self.subscriptions.subscribe(session, request)
            case Unsubscribe():
                found = session.named(request.subscription)
                self.subscriptions.leave(found, request.request, forget=request.forget)
            case ListTopics(bulk=True):
                self._tell_bulk(session, request)
            case ListTopics():
                session.send(self._catalog.topics_for(request.request, session.rights.may_see))
            case CreateTopic():
                session.rights.check_admin("create topics")
                self._create(session, request)
                session.send(Done(request=request.request))
            case AskStatus():
                session.rights.check_admin("see the status")
                self._tell_status(session, request)
            case ChangeFilter():
                self.subscriptions.change(session, request)
            case ReleasePublisher():
                session.rights.check_admin("release publishers")
                self.publishing.session.release(request.publisher)
                self.remember()
                session.send(Done(request=request.request))
            case Publish():
                raise AssertionError("publishing is answered elsewhere")

    def _advance(self, session: Session, said: Acknowledge | Credit) -> None:
        """A client has come further with a subscription, unless that is over and it has not heard so yet."""
        found = session.subscriptions.find(said.subscription)
        if found is None:
            return
        if isinstance(said, Acknowledge):
            self.subscriptions.acknowledged(found, said.positions)
        elif found.reader is not None:
            self.delivery.perform(self.delivery.session.granted(found.reader, said.rows))

    def _create(self, session: Session, asked: CreateTopic) -> None:
        """Create a topic, unless that was done while the request waited."""
        outcome, session.outcome = session.outcome, None
        if outcome is None:
            self._catalog.create(asked, session.principal.name, self.principals.limits)
        elif outcome[0] is not None:
            try:
                raise outcome[0]
            finally:
                # The error and this stack frame refer to each other.
                del outcome

    def _tell_bulk(self, session: Session, asked: ListTopics) -> None:
        """Answer when the door for bulk reads is open."""

        session.begin_request()

        async def answer() -> None:
            assert self.bulk is not None, "a node that serves has such a door"
            try:
                address = await self.bulk.opened()
            except UsageError as error:
                session.send(_refusal(asked.request, error))
                return
            except Exception as error:  # noqa: BLE001  # the client that asked gets the error
                log.error("request_failed", client=session.name, code="E181", reason=repr(error))
                failed = UsageError("E181", "internal error; see the log of the node")
                session.send(_refusal(asked.request, failed))
                return
            finally:
                session.end_request()
            topics = self._catalog.topics_for(asked.request, session.rights.may_see)
            session.send(replace(topics, bulk=address))

        task = asyncio.get_running_loop().create_task(answer(), name="bulk address")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _tell_status(self, session: Session, asked: AskStatus) -> None:
        def reply(report: str) -> None:
            session.send(StatusReport(request=asked.request, report=report))

        if asked.event is None and asked.subscription is None:
            reply(self._status())
            return
        assert self.inquiry is not None, "a node that serves answers questions"
        self.inquiry.answer(asked, reply, lambda error: session.send(_refusal(asked.request, error)))

    def lost(self, session: Session, reason: str) -> None:
        """A client is gone; what it had not acknowledged stays wanted for a while."""
        self._sessions.discard(session)
        if not self._sessions:
            self._empty.set()
        log.debug("client_gone", client=session.name, reason=reason)
        self.subscriptions.left(session)
        session.principal.clients -= 1
        self.principals.left(session.principal)
        self.delivery.drained(session.connection)

    def sweep(self) -> None:
        """Cut off the clients of a principal that reads too little, those with the most unread bytes first.

        Called once a second. Of very many clients, those that are not congested are looked at less often.
        """
        behind: dict[Principal, list[tuple[int, Session]]] = {}
        self._sweeps += 1
        everybody = len(self._sessions) < SWEPT_MAX or self._sweeps % SWEEPS_BETWEEN == 0
        for session in self._sessions:
            if everybody or session.connection.is_congested:
                unread = session.connection.backlog_bytes
                behind.setdefault(session.principal, []).append((unread, session))
        backlog_max = self.principals.limits.principal_backlog_bytes_max
        for principal, clients in behind.items():
            total = sum(unread for unread, _ in clients)
            clients.sort(key=itemgetter(0))
            while total > backlog_max:
                unread, session = clients.pop()
                total -= unread
                reason = f"{principal.name} has left more than {backlog_max:,} bytes unread: read faster"
                session.connection.cut(UsageError("E107", reason, retry=True))


def _refusal(request: int, error: GaplessError) -> RequestRefused:
    return RequestRefused(request=request, code=error.code, message=error.message, retry=error.retry)


class Session:
    """One connected client."""

    def __init__(
        self, sessions: Sessions, connection: Connection, name: str, rights: Rights, principal: Principal
    ) -> None:
        self._sessions = sessions
        self.connection = connection
        self.name = name
        #: What its token allows.
        self.rights = rights
        #: Who it is, with all that it has here.
        self.principal = principal
        #: Requests that are carried out and not answered: at most `REQUESTS_MAX`.
        self.requests = 0
        #: What became of the topic that it wants to create, once that is decided and until it is told.
        self.outcome: tuple[UsageError | StoreError | None] | None = None
        self.subscriptions = ClientSubscriptions()

    @property
    def outlet(self) -> Connection:
        """Where its deliveries go."""
        return self.connection

    def send(self, message: NodeMessage) -> None:
        """Send to the client; lost when it is gone."""
        self.connection.answer(encode_node(message))

    def caused(self, seconds: float, now: float) -> None:
        """A step for what it has published took so long, until this time of `perf_counter`."""
        self.principal.share.caused(seconds, now)

    def stored(self, error: UsageError | StoreError | None) -> None:
        """The topic that it wants to create is on the disk, or could not be created: its request goes on."""
        self.outcome = (error,)
        self.connection.go_on()

    def begin_request(self) -> None:
        """A request takes a while. Raises UsageError when too many do so already."""
        if self.requests >= REQUESTS_MAX:
            raise UsageError(
                "E108",
                f"{self.requests} requests of this client are already waiting: retry later",
                retry=True,
            )
        self.requests += 1

    def end_request(self) -> None:
        """One of them is answered."""
        self.requests -= 1

    def named(self, number: int) -> EdgeSubscription:
        """A subscription of this client. Raises UsageError when there is none of that number any more."""
        found = self.subscriptions.find(number)
        if found is None:
            raise UsageError("E142", f"this client no longer has subscription {number}: its name was taken")
        return found

    def received(self, frame: Frame) -> None:
        """A frame has come."""
        self._sessions.received(self, frame)

    def settled(self) -> None:
        """All frames that came together were carried out, and what was published with them can be stored."""
        self._sessions.publishing.settled()

    def drained(self) -> None:
        """The client reads: there may be more for it."""
        self._sessions.delivery.drained(self.connection)

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self._sessions.lost(self, reason)
