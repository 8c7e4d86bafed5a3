"""May this neighbour say this? What is checked of every message before any machine sees it.

A peer that breaks the protocol must hurt only itself: whatever it sends is either a message that its
place in the network allows, or a PeerError that closes its link and changes nothing.

Implements docs/protocol.md, section 4.
"""

from __future__ import annotations

from itertools import pairwise
from typing import assert_never

import numpy as np

from gapless.errors import PeerError
from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, CellId
from gapless.model.ticks import TICK_MAX, TICK_MIN
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    CellMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from gapless.protocol.network import Network


class Peers:
    """What the neighbours of one broker may send to it."""

    def __init__(self, network: Network, broker: BrokerId) -> None:
        self._network = network
        self._broker = broker
        self._cell = network.cell_of[broker]
        self._neighbours = frozenset(network.neighbours(broker))
        self._siblings = frozenset(network.siblings(broker))
        self._schemas = {
            pubend: network.topics[place.topic].arrow() for pubend, place in network.pubends.items()
        }

    def check(self, sender: BrokerId, message: Message) -> None:
        """Raise PeerError, naming the sender and its fault, unless it may send this message."""
        if sender not in self._neighbours:
            raise PeerError("E203", f"'{sender}' is no neighbour of '{self._broker}'")
        match message:
            case LinkStatusMessage():
                pass
            case SidewaysMessage():
                self._check_sideways(sender, message)
            case AdvertisementMessage() | AdvertisementAckMessage():
                self._check_advertisement(sender, message)
            case _:
                self._check_way(sender, message)
                self._check_content(sender, message)

    def _check_way(self, sender: BrokerId, message: CellMessage) -> None:
        if message.pubend not in self._network.pubends:
            raise PeerError("E204", f"'{sender}' speaks of '{message.pubend}', which is no pubend")
        tree = self._network.tree_of(message.pubend)
        cell = self._network.cell_of[sender]
        if isinstance(message, KnowledgeMessage | AckExpectedMessage | StartGrantMessage):
            if tree.parent.get(self._cell) != cell:
                raise PeerError("E201", f"'{sender}' sent knowledge of '{message.pubend}' from below")
        elif cell not in tree.children[self._cell] or not tree.edges[cell]:
            raise PeerError("E202", f"'{sender}' sent curiosity for '{message.pubend}' from above")

    def _check_content(self, sender: BrokerId, message: CellMessage) -> None:
        match message:
            case KnowledgeMessage(runs=runs, batch=batch):
                wrong = any(start >= stop for start, stop, _ in runs) or not _are_ticks(
                    message.final_before, *(tick for start, stop, _ in runs for tick in (start, stop))
                )
                wrong = wrong or (batch is not None and not self._fits(message, batch))
            case AckMessage(runs=acked):
                stops = [TICK_MIN, *(stop for stop, _ in acked)]
                wrong = any(later <= earlier for earlier, later in pairwise(stops)) or not _are_ticks(*stops)
            case NackMessage(ticks=ticks):
                wrong = not ticks or not _are_ticks(ticks.start, ticks.stop)
            case StartRequestMessage(edge=edge):
                wrong = edge not in self._edges_behind(sender, message) or not _are_ticks(message.wanted or 0)
            case StartGrantMessage(edge=edge):
                edges = self._network.tree_of(message.pubend).edges[self._cell]
                wrong = edge not in edges or not _are_ticks(message.start, message.until)
            case AckExpectedMessage(before=before):
                wrong = not _are_ticks(before)
            case _:
                assert_never(message)
        if wrong:
            raise PeerError(
                "E205", f"'{sender}' sent a {type(message).__name__} that makes no sense: {message}"
            )

    def _fits(self, message: KnowledgeMessage, batch: EventBatch) -> bool:
        """Whether the rows are of the topic's schema, in tick order, and inside the runs."""
        given, wanted = batch.columns.schema, self._schemas[message.pubend]
        if not len(batch) or given.names != wanted.names or given.types != wanted.types:
            return False
        spans = np.searchsorted(batch.ticks, [(start, stop) for start, stop, _ in message.runs])
        inside = int((spans[:, 1] - spans[:, 0]).sum()) if len(message.runs) else 0
        return inside == len(batch) and bool(np.all(batch.ticks[1:] > batch.ticks[:-1]))

    def _edges_behind(self, sender: BrokerId, message: StartRequestMessage) -> frozenset[BrokerId]:
        return self._network.tree_of(message.pubend).edges[self._network.cell_of[sender]]

    def _check_sideways(self, sender: BrokerId, message: SidewaysMessage) -> None:
        known = message.message.pubend in self._network.pubends
        adjacent = message.cell in self._network.adjacent[self._cell]
        # The answer to a nack would come back to us, and not to the broker that sent it sideways.
        nack = isinstance(message.message, NackMessage)
        if sender not in self._siblings or not known or not adjacent or nack:
            raise PeerError("E206", f"'{sender}' sent a message sideways that this broker cannot pass on")

    def _check_advertisement(
        self, sender: BrokerId, message: AdvertisementMessage | AdvertisementAckMessage
    ) -> None:
        tree = self._network.trees.get(message.root)
        cell = self._network.cell_of.get(message.origin)
        if tree is None or cell is None:
            raise PeerError("E207", f"'{sender}' sent an advertisement of or towards nobody we know")
        if isinstance(message, AdvertisementAckMessage):
            allowed = self._is_above(sender, message.root)
        else:
            allowed = cell in tree.children[self._cell] and (
                sender == message.origin or sender in self._siblings
            )
        if not allowed:
            raise PeerError("E207", f"'{sender}' may not advertise for '{message.origin}' here")
        for topic, condition in message.added if isinstance(message, AdvertisementMessage) else ():
            schema = self._network.topics.get(topic)
            misfit = f"there is no topic '{topic}'" if schema is None else condition.misfit(schema)
            if misfit is not None:
                raise PeerError("E208", f"'{sender}' advertised a condition that makes no sense: {misfit}")

    def _is_above(self, sender: BrokerId, root: CellId) -> bool:
        return self._network.trees[root].parent.get(self._cell) == self._network.cell_of[sender]


def _are_ticks(*ticks: int) -> bool:
    return all(TICK_MIN <= tick <= TICK_MAX for tick in ticks)
