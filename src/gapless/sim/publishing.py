"""How does a simulated broker serve publishers? It hosts the edge session, as a node does.

Publishers come over connections that break at any byte. What came since the last turn is handed to the broker
together. What is known of publishers survives a crash as it does in a node: in the notes of the logs, and in
a database that is written before a log forgets its notes. The rest is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gapless.errors import UsageError, no_topic
from gapless.model.ids import PubendId, TopicId
from gapless.model.notes import PublisherPosition
from gapless.model.packed import as_columns
from gapless.model.ticks import Tick
from gapless.protocol.effects import AcceptPublish, RefusePublish
from gapless.protocol.sessions.edge_publishing import EdgePublishing, PublishAnswer
from gapless.protocol.sessions.identities import PublisherIdentities
from gapless.protocol.sessions.messages import Publish
from gapless.protocol.sessions.publishers import Publishers
from gapless.sim.connections import Side
from gapless.wire.client_codec import ClientDecoder, encode_node
from gapless.wire.frames import Frame, Kind
from gapless.wire.handshake import Ping, Pong, decode_link, encode_link

if TYPE_CHECKING:
    from gapless.sim.nodes import SimulatedNode
    from gapless.sim.world import World

#: How long a turn of a host may take, and how long it gathers trims before it writes its database.
TURN_US_MAX = 6_000
TRIM_US_MAX = 100_000
#: A database that could not be written is written again after this time.
AGAIN_US = 50_000


@dataclass(slots=True)
class PublisherDatabase:
    """What a node has written down of publishers. Outlives its crashes."""

    positions: dict[PubendId, dict[str, PublisherPosition]] = field(default_factory=dict)
    #: Per pubend: everything stored up to this tick is in `positions`.
    notes_until: dict[PubendId, Tick] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientRights:
    """A client that may do everything, under some principal."""

    principal: str

    def check_publish(self, topic: TopicId) -> None:
        """It may."""

    def may_see(self, topic: TopicId) -> bool:  # noqa: ARG002  # it may see every topic
        """It may."""
        return True

    def no_topic(self, topic: TopicId, topics: Iterable[TopicId]) -> UsageError:
        """See `gapless.node.security.Rights.no_topic`."""
        return no_topic(topic, topics)


@dataclass(slots=True, eq=False)
class PublisherPeer:
    """The broker's end of one connection of a publisher."""

    host: PublishingHost
    rights: ClientRights
    #: Where answers are written to; None when the connection is gone.
    side: Side | None = None

    def received(self, frame: Frame) -> None:
        """A frame has come."""
        if frame.kind is Kind.PING:
            self.host.when_awake(partial(self._answer_ping, frame))
        else:
            self.host.when_awake(partial(self.host.received, self, frame))

    def _answer_ping(self, frame: Frame) -> None:
        ping = decode_link(frame)
        if isinstance(ping, Ping) and self.side is not None:
            self.side.write(encode_link(Pong(number=ping.number)))

    def lost(self) -> None:
        """Nobody is there any more."""
        self.side = None


@dataclass(slots=True)
class _Taken:
    """What is on its way to the database."""

    forgotten: dict[PubendId, list[str]] = field(default_factory=dict)
    positions: dict[PubendId, list[PublisherPosition]] = field(default_factory=dict)
    until: dict[PubendId, Tick] = field(default_factory=dict)
    is_last: bool = True


class PublishingHost:
    """What one life of a broker does for publishers."""

    def __init__(self, world: World, node: SimulatedNode, *, identities_max: int) -> None:
        assert node.broker is not None
        self._world = world
        self._node = node
        self._life = node.lives
        self._identities = PublisherIdentities(publishers_max=identities_max)
        self._publishers: dict[PubendId, Publishers] = {}
        for pubend in sorted(node.logs):
            self.host(pubend)
        self._identities.sort()
        self._session: EdgePublishing[PublisherPeer] = EdgePublishing(
            node.broker.network, self._publishers, {}
        )
        self._decoder = ClientDecoder(node.broker.network.topics)
        self._turn_is_due = False
        #: The ids of the rows of each request that is not answered yet.
        self._ids: dict[int, list[int]] = {}
        #: Trims that wait for the database.
        self._trims: dict[PubendId, Tick] = {}
        self._is_writing = False

    def host(self, pubend: PubendId) -> None:
        """A pubend lives here, perhaps for the first time."""
        if pubend not in self._publishers:
            database = self._node.database
            positions = database.positions.get(pubend, {}).values()
            until = database.notes_until.get(pubend, 0)
            log = self._node.logs[pubend]
            self._publishers[pubend] = Publishers.recover(pubend, log, positions, until, self._identities)

    def welcome(self, principal: str) -> PublisherPeer:
        """Somebody connects."""
        return PublisherPeer(self, ClientRights(principal))

    def when_awake(self, action: partial[None]) -> None:
        """Do something as soon as the broker does anything, unless it has crashed by then."""
        node = self._node
        if node.broker is None or node.lives != self._life:
            return
        if node.stalled:
            node.inbox.append(partial(self.when_awake, action))
        else:
            action()

    def _later(self, delay_us: int, action: partial[None]) -> None:
        self._world.after(delay_us, partial(self.when_awake, action))

    # ---- what comes ----------------------------------------------------------------------------------

    def received(self, peer: PublisherPeer, frame: Frame) -> None:
        """A publisher has sent something."""
        assert self._node.broker is not None
        session, network = self._session, self._node.broker.network
        if session.network is not network:
            session.network = network
            self._decoder = ClientDecoder(network.topics)
        message = self._decoder.decode(frame)
        assert isinstance(message, Publish), f"a publisher sent {message}"
        self._send(session.publish(peer, message, self._world.clock(self._node.name)))
        session.check()
        self._ask_turn()

    def _ask_turn(self) -> None:
        if self._session.is_waiting and not self._turn_is_due:
            self._turn_is_due = True
            self._later(self._world.random.randint(0, TURN_US_MAX), partial(self._take_turn))

    def _take_turn(self) -> None:
        self._turn_is_due = False
        for request in self._session.steps():
            self._ids[request.token] = as_columns(request.rows).column("id").to_pylist()
            self._world.feed(self._node.name, request)
        self._session.check()
        self._ask_turn()

    def answer(self, effect: AcceptPublish | RefusePublish) -> None:
        """The broker has stored a request, or never will."""
        ids = self._ids.pop(effect.token)
        if isinstance(effect, AcceptPublish):
            for observer in self._world.observers:
                observer.accepted(effect.pubend, ids, list(effect.ticks))
            self._send(self._session.accepted(effect))
        else:
            self._send(self._session.refused(effect.token, UsageError("E182", effect.reason, retry=True)))

    def _send(self, answers: list[PublishAnswer[PublisherPeer]]) -> None:
        for peer, message in answers:
            if peer.side is not None:
                peer.side.write(encode_node(message))

    # ---- what is written down ------------------------------------------------------------------------

    def trim(self, pubend: PubendId, before: Tick) -> None:
        """A log may drop events and their notes, once the database knows what the notes say."""
        self._trims[pubend] = max(before, self._trims.get(pubend, before))
        if not self._is_writing:
            self._is_writing = True
            self._later(self._world.random.randint(1, TRIM_US_MAX), partial(self._write))

    def _write(self) -> None:
        # What comes in from now on waits for the next time: this one may not cover its notes.
        trims, self._trims = self._trims, {}
        self._take(trims)

    def _take(self, trims: dict[PubendId, Tick]) -> None:
        taken = _Taken()
        for pubend, publishers in self._publishers.items():
            most = self._world.random.choice((1, 1_000))
            taken.is_last &= publishers.unwritten <= most
            taken.forgotten[pubend], taken.positions[pubend] = publishers.take(most)
            taken.until[pubend] = publishers.known_tick
        delay_us = self._world.random.randint(self._world.pace.flush_us_min, self._world.pace.flush_us_max)
        self._later(delay_us, partial(self._commit, taken, trims))

    def _commit(self, taken: _Taken, trims: dict[PubendId, Tick]) -> None:
        if self._node.disk_full:
            for pubend, positions in taken.positions.items():
                self._publishers[pubend].put_back(taken.forgotten[pubend], positions)
            self._later(AGAIN_US, partial(self._take, trims))
            return
        database = self._node.database
        for pubend, positions in taken.positions.items():
            written = database.positions.setdefault(pubend, {})
            for name in taken.forgotten[pubend]:
                written.pop(name, None)
            written.update({each.publisher: each for each in positions})
        if not taken.is_last:
            self._take(trims)
            return
        database.notes_until.update(taken.until)
        for pubend, before in trims.items():
            self._node.logs[pubend].trim(before)
        self._is_writing = False
        if self._trims:
            self._is_writing = True
            self._later(self._world.random.randint(1, TRIM_US_MAX), partial(self._write))
