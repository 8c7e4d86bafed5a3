"""How does a node host what clients publish? Frames go to the edge session, its steps to the broker.

What is known, new, refused or owed is decided by `EdgePublishing`. This is its host: it hands over what a
client has sent as soon as it has come, or once per turn of the event loop while several clients publish. It
sends the answers, and charges the time of a step to whoever published what it was about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Protocol

from gapless.errors import UsageError
from gapless.model.ids import BrokerId, PubendId
from gapless.model.ticks import Tick
from gapless.node.config import Limits
from gapless.node.documents import DocumentQuota
from gapless.node.guard import Guard
from gapless.node.security import Rights
from gapless.node.turn import NextTurn
from gapless.protocol.effects import AcceptPublish, RefusePublish
from gapless.protocol.events import Event
from gapless.protocol.network import Network
from gapless.protocol.sessions.edge_publishing import EdgePublishing, PendingPublish, PublishAnswer
from gapless.protocol.sessions.messages import NodeMessage, Publish
from gapless.protocol.sessions.publishers import Publishers

#: Steps that take less are charged to nobody.
CAUSED_SECONDS = 0.001
#: When several clients have published in one turn of the loop, what they publish is stored together, once a
#: turn, for this long. Otherwise it is stored as soon as it has come.
TOGETHER_SECONDS = 0.05
#: What a row and a byte of an event take at most, without conditions that cost much.
FAIR_ROW_SECONDS, FAIR_BYTE_SECONDS = 1e-4, 1e-8


class Speaker(Protocol):
    """Whoever gets the answers: a client, or what is left of it."""

    @property
    def rights(self) -> Rights:
        """What it may do."""

    def send(self, message: NodeMessage) -> None:
        """Say it; lost when nobody is there."""

    def caused(self, seconds: float, now: float) -> None:
        """A step for what it has published took so long, until this time of `perf_counter`."""


class Publishing:
    """All that clients of one node publish."""

    def __init__(
        self,
        network: Network,
        publishers: Mapping[PubendId, Publishers],
        feed: Callable[[Event], None],
        addresses: Mapping[BrokerId, str],
        guard: Guard | None = None,
        *,
        limits: Limits | None = None,
        clock: Callable[[], Tick] = lambda: 0,
    ) -> None:
        """`addresses` are where clients reach the other nodes; `guard` hears of mistakes of our own."""
        documents = DocumentQuota(Limits() if limits is None else limits)
        self.session: EdgePublishing[Speaker] = EdgePublishing(
            network, publishers, addresses, documents.check
        )
        self._next_turn = NextTurn(self._take_turn, guard)
        self._feed = feed
        self._clock = clock
        #: Whether something was stored at once in this turn of the loop, and until when nothing is.
        self._is_stored = False
        self._together_until = 0.0
        #: What the present step is about.
        self._in_step: list[PendingPublish[Speaker]] = []
        #: Begins to flush what was stored; set before anybody is let in.
        self.flush: Callable[[], None] = lambda: None

    def publish(self, client: Speaker, message: Publish) -> None:
        """A client publishes: answered now or when the rows are durable."""
        session = self.session
        while not session.has_room(message.nbytes):
            self._hand_over_some()
        _send(session.publish(client, message, self._clock()))
        if session.is_waiting:
            self._next_turn.ask()

    def settled(self) -> None:
        """All that came together from one client was published: store it at once if it is alone."""
        if self.session.is_waiting and not self._is_stored and perf_counter() >= self._together_until:
            self._store_some()
            self._is_stored = True

    def hand_over(self) -> None:
        """Give the broker everything that came."""
        while self.session.is_waiting:
            self._hand_over_some()

    def _take_turn(self) -> None:
        """Give the broker what came in this turn of the loop, or as much of it as a turn may take."""
        if self._is_stored:
            self._is_stored = False
            if not self.session.is_waiting:
                return
            self._together_until = perf_counter() + TOGETHER_SECONDS
        self._store_some()

    def _store_some(self) -> None:
        self._hand_over_some()
        self.flush()
        if self.session.is_waiting:
            self._next_turn.ask()

    def _hand_over_some(self) -> None:
        session = self.session
        for request in session.steps():
            self._in_step += session.requests(request.token)
            try:
                self._feed(request)
            except UsageError as error:
                _send(session.refused(request.token, error))

    def accepted(self, effect: AcceptPublish) -> None:
        """Rows are durable: the client hears of it."""
        self._in_step += self.session.requests(effect.token)
        _send(self.session.accepted(effect))

    def refused(self, effect: RefusePublish) -> None:
        """Rows were not stored: the client hears why."""
        _send(self.session.refused(effect.token, UsageError("E182", effect.reason, retry=True)))

    def stepped(self, seconds: float, now: float) -> None:
        """A step has taken so long, until now: whoever published what it was about has caused it."""
        in_step, self._in_step = self._in_step, []
        if seconds >= CAUSED_SECONDS:
            total = sum(request.nbytes for request in in_step) or 1
            for request in in_step:
                share = seconds * request.nbytes / total
                request.peer.caused(min(share, _fair_seconds(request)), now)


def _send(answers: Iterable[PublishAnswer[Speaker]]) -> None:
    for client, message in answers:
        client.send(message)


def _fair_seconds(request: PendingPublish[Speaker]) -> float:
    """How long a step for it may take: what it takes longer is the fault of others, who subscribe."""
    return request.cost_rows * FAIR_ROW_SECONDS + request.nbytes * FAIR_BYTE_SECONDS
