"""May this neighbour say this? What is checked of every message before any machine sees it.

A peer that breaks the protocol must hurt only itself: whatever it sends is either a message that its
place in the network allows, or a PeerError that closes its link and changes nothing.

Implements docs/protocol.md, sections 4 and 12.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import assert_never

import numpy as np

from gapless.errors import PeerError
from gapless.model.batch import EventBatch
from gapless.model.epochs import EPOCH_NONE, LIVES_MAX, clock_at, lives_max
from gapless.model.ids import BrokerId, CellId
from gapless.model.logs import UNNAMED
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick
from gapless.protocol.creations import MESSAGE_CREATIONS_MAX, is_pubend_name, is_topic_name
from gapless.protocol.lives import life_beyond
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    CellMessage,
    KnowledgeMessage,
    LinkStatusMessage,
    LogKnownMessage,
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
    TopicsMessage,
    in_order,
)
from gapless.protocol.network import Network, is_name


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

    def check(self, sender: BrokerId, message: Message, clock: Tick) -> bool:
        """Whether the message can be understood: False when it speaks of a topic that is not known here yet.

        `clock` is the wall clock. Raises PeerError, naming the sender and its fault, unless it may send this.
        """
        if sender not in self._neighbours:
            raise PeerError("E203", f"'{sender}' is not a neighbour of '{self._broker}'")
        match message:
            case LinkStatusMessage():
                self._check_status(sender, message)
                return True
            case TopicsMessage():
                self._check_topics(sender, message)
                return True
            case SidewaysMessage():
                self._check_sideways(sender, message)
                if message.message.pubend not in self._network.pubends:
                    return False
                self._check_inside(sender, message)
                self._check_lives(sender, message.message, clock)
                return True
            case AdvertisementMessage() | AdvertisementAckMessage():
                is_understood = self._check_advertisement(sender, message)
                self._check_lives(sender, message, clock)
                return is_understood
            case _:
                if message.pubend not in self._network.pubends:
                    return False
                self._check_way(sender, message)
                self._check_content(sender, message)
                self._check_lives(sender, message, clock)
                return True

    def _check_lives(
        self,
        sender: BrokerId,
        message: CellMessage | AdvertisementMessage | AdvertisementAckMessage,
        clock: Tick,
    ) -> None:
        beyond = life_beyond(message, self._network, lives_max(clock))
        if beyond is not None:
            broker, life = beyond
            raise PeerError(
                "E204",
                f"'{sender}' tells of life {life} of '{broker}', as if that had begun in {_year(life)}: the "
                f"clock of '{broker}' was wrong then, or that of this machine is wrong now",
            )

    def _check_topics(self, sender: BrokerId, message: TopicsMessage) -> None:
        wrong = not 0 < len(message.creations) <= MESSAGE_CREATIONS_MAX
        for each in message.creations:
            named = is_topic_name(each.topic) and is_pubend_name(each.pubend) and is_name(each.broker)
            wrong = wrong or not named or not _are_ticks(each.made)
        if wrong:
            raise PeerError("E209", f"'{sender}' tells of topics that cannot be")

    def _check_way(self, sender: BrokerId, message: CellMessage) -> None:
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
                edges = self._edges_behind(sender, message)
                wrong = wrong or any(edge not in edges for _, stamp in acked for edge, _ in stamp.items())
            case NackMessage(ticks=ticks):
                wrong = not ticks or not _are_ticks(ticks.start, ticks.stop)
            case StartRequestMessage(edge=edge):
                wrong = edge not in self._edges_behind(sender, message)
                wrong = wrong or not _are_ticks(message.wanted or 0, message.beyond)
            case LogKnownMessage():
                wrong = not _are_ticks(message.known, message.events)
            case StartGrantMessage(edge=edge):
                edges = self._network.tree_of(message.pubend).edges[self._cell]
                wrong = edge not in edges or not _are_ticks(message.start, message.until)
            case AckExpectedMessage(before=before):
                wrong = not _are_ticks(before)
            case _:
                assert_never(message)
        log = (
            message.log
            if isinstance(
                message, LogKnownMessage | StartGrantMessage | KnowledgeMessage | AckExpectedMessage
            )
            else UNNAMED
        )
        if wrong or log.life < 0 or not _are_ticks(log.floor, log.events, log.began):
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

    def _edges_behind(self, sender: BrokerId, message: CellMessage) -> frozenset[BrokerId]:
        return self._network.tree_of(message.pubend).edges[self._network.cell_of[sender]]

    def _check_sideways(self, sender: BrokerId, message: SidewaysMessage) -> None:
        adjacent = message.cell in self._network.adjacent[self._cell]
        # The answer to a nack would come back to us, and not to the broker that sent it sideways.
        nack = isinstance(message.message, NackMessage)
        if sender not in self._siblings or not adjacent or nack:
            raise PeerError("E206", f"'{sender}' sent a message sideways that this broker cannot pass on")

    def _check_inside(self, sender: BrokerId, message: SidewaysMessage) -> None:
        """Whether what is to be passed on may go from our cell to that one: else it would cut us off."""
        inner, cell = message.message, message.cell
        tree = self._network.tree_of(inner.pubend)
        if isinstance(inner, KnowledgeMessage | AckExpectedMessage | StartGrantMessage):
            fits = cell in tree.children[self._cell] and bool(tree.edges[cell])
        else:
            fits = tree.parent.get(self._cell) == cell
        if fits and isinstance(inner, StartGrantMessage):
            fits = inner.edge in tree.edges[cell]
        if not fits:
            raise PeerError(
                "E206",
                f"'{sender}' sent a {type(inner).__name__} of '{inner.pubend}' sideways for cell '{cell}', "
                "where it does not belong",
            )
        self._check_content(sender, inner)

    def _check_status(self, sender: BrokerId, message: LinkStatusMessage) -> None:
        near = self._network.adjacent[self._network.cell_of[sender]]
        if not message.reaches <= frozenset(near):
            raise PeerError("E205", f"'{sender}' claims to reach cells that it has no links to")

    def _check_advertisement(
        self, sender: BrokerId, message: AdvertisementMessage | AdvertisementAckMessage
    ) -> bool:
        tree = self._network.trees.get(message.root)
        cell = self._network.cell_of.get(message.origin)
        if cell is None or message.root not in self._network.cells:
            raise PeerError("E207", f"'{sender}' sent an advertisement of or towards nobody we know")
        if tree is None:
            return False
        if isinstance(message, AdvertisementAckMessage):
            allowed = self._is_above(sender, message.root) and message.origin == self._broker
        else:
            allowed = cell in tree.children[self._cell] and (
                sender == message.origin or sender in self._siblings
            )
            # It speaks for the edges behind its origin, and for nobody else.
            stamp = message.epochs
            allowed = allowed and stamp.default == EPOCH_NONE
            allowed = allowed and all(edge in tree.edges[cell] for edge, _ in stamp.items())
        if not allowed:
            raise PeerError("E207", f"'{sender}' may not advertise for '{message.origin}' here")
        for topic, condition in message.added if isinstance(message, AdvertisementMessage) else ():
            schema = self._network.topics.get(topic)
            if schema is None:
                return False
            misfit = condition.misfit(schema)
            # A topic that was created twice has other columns at whoever heard of the other one first.
            if misfit is not None and topic not in self._network.created_topics:
                raise PeerError("E208", f"'{sender}' advertised a condition that makes no sense: {misfit}")
        return True

    def fitting(self, message: AdvertisementMessage) -> AdvertisementMessage:
        """The same without the conditions that do not fit: they are for another topic of the same name."""
        if not self._network.created_topics:
            return message
        topics = self._network.topics
        fit = in_order(each for each in message.added if each[1].misfit(topics[each[0]]) is None)
        return message if len(fit) == len(message.added) else replace(message, added=fit)

    def _is_above(self, sender: BrokerId, root: CellId) -> bool:
        return self._network.trees[root].parent.get(self._cell) == self._network.cell_of[sender]


def _year(life: int) -> int:
    """The year in which a life began, by its number.

    >>> _year(0), _year(2**38)
    (2024, 2160)
    """
    return datetime.fromtimestamp(clock_at(min(life, LIVES_MAX)) // 1_000_000, tz=UTC).year


def _are_ticks(*ticks: int) -> bool:
    return all(TICK_MIN <= tick <= TICK_MAX for tick in ticks)
