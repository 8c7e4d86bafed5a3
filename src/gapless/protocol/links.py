"""Which broker of a cell gets the next message? Link bundles, sideways routing and link status.

A pubend's knowledge for a downstream cell goes to one of the cell's brokers, chosen by hashing the
pubend onto those that can be reached; a broker that says it reaches all cells further down is
preferred. When none can be reached, the message goes sideways to a broker of the own cell that
says it has a link. Upstream, messages go to the broker that last sent for that pubend, else to all
of its cell. Link status is sent on every change and from time to time, and doubles as a heartbeat.

Implements docs/protocol.md, section 5.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from gapless.model.ids import BrokerId, CellId, PubendId
from gapless.protocol.effects import Effect, SendMessage
from gapless.protocol.events import Now
from gapless.protocol.marks import mark, reached
from gapless.protocol.messages import CellMessage, LinkStatusMessage, SidewaysMessage
from gapless.protocol.network import Network

SIDEWAYS_SENT = mark("sideways_sent", "a message for another cell went to a broker of the own cell")
SIDEWAYS_PASSED = mark("sideways_passed", "a message from a broker of the own cell was passed on")
AVOIDED_PARTIAL = mark("avoided_partial", "a broker was avoided because it had lost a link further down")
SENT_TO_ALL = mark(
    "sent_to_all", "an upstream message went to all brokers of the cell: the last sender is unknown"
)
NO_ROUTE = mark("no_route", "a message was dropped because no link leads to its cell")
NEIGHBOUR_SILENT = mark("neighbour_silent", "a neighbour said nothing for so long that it was taken for dead")


@dataclass(slots=True)
class Links:
    """The links of one broker, and the way to each neighbouring cell."""

    network: Network
    broker: BrokerId
    #: Neighbours whose link the host says is up, with when they were last heard.
    heard_ms: dict[BrokerId, int] = field(default_factory=dict)
    #: Neighbours that are up but have been silent for too long.
    silent: set[BrokerId] = field(default_factory=set)
    #: What each neighbour last said it reaches.
    reaches: dict[BrokerId, frozenset[CellId]] = field(default_factory=dict)
    status_at_ms: int = 0

    def up(self, neighbour: BrokerId, now: Now) -> None:
        """The host says the link works."""
        self.heard_ms[neighbour] = now.ms
        self.silent.discard(neighbour)
        self.reaches.pop(neighbour, None)
        self.status_at_ms = now.ms

    def down(self, neighbour: BrokerId, now: Now) -> None:
        """The host says the link is gone."""
        self.heard_ms.pop(neighbour, None)
        self.silent.discard(neighbour)
        self.reaches.pop(neighbour, None)
        self.status_at_ms = now.ms

    def heard(self, neighbour: BrokerId, now: Now) -> None:
        """Something arrived: the neighbour lives."""
        if neighbour in self.heard_ms:
            self.heard_ms[neighbour] = now.ms
            if neighbour in self.silent:
                self.silent.discard(neighbour)
                self.status_at_ms = now.ms

    def status(self, neighbour: BrokerId, message: LinkStatusMessage) -> None:
        """A neighbour said which cells it reaches."""
        self.reaches[neighbour] = message.reaches

    def woken(self, now: Now) -> list[Effect]:
        """Send the link status when it is time, and notice neighbours that fell silent."""
        limit = now.ms - self.network.parameters.link_silent_ms
        for neighbour, at_ms in self.heard_ms.items():
            if at_ms < limit and neighbour not in self.silent:
                reached(NEIGHBOUR_SILENT)
                self.silent.add(neighbour)
                self.status_at_ms = now.ms
        if now.ms < self.status_at_ms:
            return []
        self.status_at_ms = now.ms + self.network.parameters.link_status_ms
        cell = self.network.cell_of[self.broker]
        near = [c for c in self.network.adjacent[cell] if self._live(c)]
        message = LinkStatusMessage(reaches=frozenset(near), topics=self.network.created_digest)
        return [SendMessage(to=neighbour, message=message) for neighbour in sorted(self.heard_ms)]

    def deadline_ms(self) -> int:
        """When `woken` wants to be called."""
        return self.status_at_ms

    def is_up(self, neighbour: BrokerId) -> bool:
        """Whether messages to the neighbour are likely to arrive."""
        return neighbour in self.heard_ms and neighbour not in self.silent

    def all_up(self) -> frozenset[BrokerId]:
        """The neighbours that messages are likely to reach."""
        return frozenset(self.heard_ms.keys() - self.silent) if self.heard_ms else _NOBODY

    def route(self, pubend: PubendId, cell: CellId, further: tuple[CellId, ...]) -> BrokerId | None:
        """The broker of a downstream cell that best reaches the cells `further` down; None for no link."""
        live = self._live(cell)
        whole = [b for b in live if self._reaches_all(b, further)]
        if whole and len(whole) < len(live):
            reached(AVOIDED_PARTIAL)
        candidates = whole or live
        return _hashed(pubend, candidates) if candidates else None

    def send_down(
        self, pubend: PubendId, cell: CellId, further: tuple[CellId, ...], message: CellMessage
    ) -> list[Effect]:
        """Towards a downstream cell, on the pubend's route."""
        route = self.route(pubend, cell, further)
        if route is not None:
            return [SendMessage(to=route, message=message)]
        return self._sideways(pubend, cell, message)

    def send_up(
        self,
        pubend: PubendId,
        cell: CellId,
        last_sender: BrokerId | None,
        message: CellMessage,
        *,
        sideways: bool = True,
    ) -> list[Effect]:
        """Towards an upstream cell: to the broker that last sent for the pubend, else to all.

        A nack must not go sideways: its answer would come back to the wrong broker.
        """
        if last_sender is not None and self.is_up(last_sender):
            return [SendMessage(to=last_sender, message=message)]
        live = self._live(cell)
        if len(live) > 1:
            reached(SENT_TO_ALL)
        if live or not sideways:
            return [SendMessage(to=broker, message=message) for broker in live]
        return self._sideways(pubend, cell, message)

    def pass_on(self, pubend: PubendId, sideways: SidewaysMessage) -> list[Effect]:
        """A broker of our cell asks us to pass a message on; never sideways again."""
        live = self._live(sideways.cell)
        if not live:
            reached(NO_ROUTE)
            return []
        reached(SIDEWAYS_PASSED)
        return [SendMessage(to=_hashed(pubend, live), message=sideways.message)]

    def _sideways(self, pubend: PubendId, cell: CellId, message: CellMessage) -> list[Effect]:
        able = [
            b
            for b in self.network.siblings(self.broker)
            if self.is_up(b) and cell in self.reaches.get(b, frozenset())
        ]
        if not able:
            reached(NO_ROUTE)
            return []
        reached(SIDEWAYS_SENT)
        wrapped = SidewaysMessage(cell=cell, message=message)
        return [SendMessage(to=_hashed(pubend, able), message=wrapped)]

    def _live(self, cell: CellId) -> list[BrokerId]:
        return [broker for broker in self.network.cells[cell] if self.is_up(broker)]

    def _reaches_all(self, broker: BrokerId, further: tuple[CellId, ...]) -> bool:
        known = self.reaches.get(broker)
        # Before its first status a neighbour is taken at its best: that is right most of the time.
        return known is None or all(cell in known for cell in further)


_NOBODY: frozenset[BrokerId] = frozenset()


def _hashed(pubend: PubendId, candidates: list[BrokerId]) -> BrokerId:
    return candidates[zlib.crc32(pubend.encode()) % len(candidates)]
