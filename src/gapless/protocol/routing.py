"""Who wants what further down? Subscription tables, and advertisements towards every root.

Every broker tells the brokers of the next cell towards a root what is wanted at and below it: a set
of (topic, condition) pairs and, per edge, the epoch of the subscription set they speak for. A change
travels as a difference to the version that the neighbour acknowledged, or whole when it has none.
Unacknowledged advertisements are repeated. A cell's filter is the union of what its brokers said:
each of them speaks for the whole cell, and the one that speaks for newer epochs is right too.

Brokers of one cell pass on to each other what they hear from below, so that one that lost a link
still knows the filters of the cell behind it.

Implements docs/protocol.md, section 9.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from gapless.content.condition import Condition
from gapless.content.selection import Selection
from gapless.model.epochs import NEVER, Epochs
from gapless.model.ids import BrokerId, CellId, TopicId
from gapless.protocol.effects import Effect, SendMessage
from gapless.protocol.events import Now
from gapless.protocol.marks import mark, reached
from gapless.protocol.messages import AdvertisementAckMessage, AdvertisementMessage
from gapless.protocol.network import Network, Tree
from gapless.protocol.ostream import CellFilter

ADVERTISED_WHOLE = mark("advertised_whole", "an advertisement was sent as a whole set")
ADVERTISED_CHANGE = mark("advertised_change", "an advertisement was sent as a change")
ADVERTISED_AGAIN = mark("advertised_again", "an advertisement was repeated because no ack came")
ADVERTISEMENT_STALE = mark(
    "advertisement_stale", "an advertisement arrived that was older than what is known"
)
ADVERTISEMENT_BASELESS = mark(
    "advertisement_baseless", "a change arrived without its base: a whole set was asked for"
)
ADVERTISEMENT_SIDEWAYS = mark(
    "advertisement_sideways", "an advertisement was learned from a broker of the own cell"
)

Wants: TypeAlias = frozenset[tuple[TopicId, Condition]]

#: Changes kept so that a neighbour that is a little behind need not get a whole set.
CHANGES_MAX = 64


@dataclass(frozen=True, slots=True)
class Table:
    """What one broker below last advertised."""

    version: int
    wants: Wants
    epochs: Epochs


@dataclass(slots=True)
class _Upward:
    """What one broker of the next cell towards the root has acknowledged."""

    acked: int | None = None
    sent_ms: int | None = None


@dataclass(slots=True)
class _Root:
    """The subscriptions that flow towards one root through this broker."""

    tree: Tree
    mine: Table
    upward: dict[BrokerId, _Upward]
    below: dict[BrokerId, Table] = field(default_factory=dict)
    own: Wants = frozenset()
    changes: deque[tuple[int, Wants, Wants]] = field(default_factory=lambda: deque(maxlen=CHANGES_MAX))
    filters: dict[tuple[CellId, TopicId], CellFilter] = field(default_factory=dict)


class Routing:
    """The subscription tables of one broker, one per root."""

    def __init__(self, network: Network, broker: BrokerId, first_version: int) -> None:
        self._network = network
        self._broker = broker
        self._epochs = NEVER
        self._roots: dict[CellId, _Root] = {}
        cell = network.cell_of[broker]
        for root, tree in network.trees.items():
            above = network.cells[tree.parent[cell]] if cell != root else ()
            self._roots[root] = _Root(
                tree, Table(first_version, frozenset(), NEVER), {neighbour: _Upward() for neighbour in above}
            )

    def wanted_here(self, wants: Wants, epochs: Epochs) -> None:
        """The subscriptions of this edge have changed."""
        self._epochs = epochs
        for root, state in self._roots.items():
            topics = {
                p.topic for p in self._network.pubends.values() if self._network.cell_of[p.broker] == root
            }
            state.own = frozenset((topic, each) for topic, each in wants if topic in topics)
            self._recompute(state)

    def wants(self, root: CellId, cell: CellId, topic: TopicId) -> CellFilter:
        """What a downstream cell wants of a topic, as far as we know."""
        state = self._roots[root]
        found = state.filters.get((cell, topic))
        if found is None:
            tables = [state.below[b] for b in self._network.cells[cell] if b in state.below]
            epochs = NEVER
            for table in tables:
                epochs = epochs.join(table.epochs)
            accepts = Selection(each for t in tables for name, each in t.wants if name == topic)
            found = state.filters[(cell, topic)] = CellFilter(accepts, epochs)
        return found

    def epochs_known(self, root: CellId) -> Epochs:
        """The newest epoch of every edge that the filters towards it speak for."""
        return self._roots[root].mine.epochs

    def received(self, sender: BrokerId, message: AdvertisementMessage) -> list[Effect]:
        """A broker below, or of our own cell on behalf of one below, advertised."""
        state = self._roots[message.root]
        old = state.below.get(message.origin)
        effects: list[Effect] = []
        if old is not None and message.version <= old.version:
            reached(ADVERTISEMENT_STALE)
        elif message.base is None or (old is not None and message.base == old.version):
            base = frozenset() if message.base is None or old is None else old.wants
            wants = (base - message.removed) | message.added
            state.below[message.origin] = Table(message.version, wants, message.epochs)
            self._recompute(state)
            if sender == message.origin:
                effects += self._relayed(message)
            else:
                reached(ADVERTISEMENT_SIDEWAYS)
        else:
            reached(ADVERTISEMENT_BASELESS)
        if sender == message.origin:
            held = state.below.get(message.origin)
            version = held.version if held is not None else None
            ack = AdvertisementAckMessage(root=message.root, origin=message.origin, version=version)
            effects.append(SendMessage(to=sender, message=ack))
        return effects

    def acknowledged(self, sender: BrokerId, message: AdvertisementAckMessage) -> None:
        """A broker towards the root says which version it holds."""
        state = self._roots[message.root]
        upward = state.upward.get(sender)
        if upward is None or message.origin != self._broker:
            return
        if message.version is None or message.version > state.mine.version:
            upward.acked, upward.sent_ms = None, None
        elif upward.acked is None or message.version >= upward.acked:
            if upward.acked != message.version:
                upward.sent_ms = None
            upward.acked = message.version

    def link_up(self, neighbour: BrokerId) -> list[Effect]:
        """A neighbour may have forgotten everything: tell it all again."""
        effects: list[Effect] = []
        for root, state in self._roots.items():
            if neighbour in state.upward:
                state.upward[neighbour] = _Upward()
            if neighbour in self._network.siblings(self._broker):
                for origin, table in sorted(state.below.items()):
                    whole = _whole(root, origin, table)
                    effects.append(SendMessage(to=neighbour, message=whole))
        return effects

    def woken(self, up: frozenset[BrokerId], now: Now) -> list[Effect]:
        """Send what the reachable brokers towards each root have not acknowledged."""
        effects: list[Effect] = []
        for root, state in self._roots.items():
            for neighbour, upward in sorted(state.upward.items()):
                if neighbour not in up or upward.acked == state.mine.version:
                    continue
                if upward.sent_ms is not None:
                    if now.ms < upward.sent_ms + self._network.parameters.advertise_repeat_ms:
                        continue
                    reached(ADVERTISED_AGAIN)
                upward.sent_ms = now.ms
                effects.append(SendMessage(to=neighbour, message=self._advertisement(root, state, upward)))
        return effects

    def deadline_ms(self, up: frozenset[BrokerId]) -> int | None:
        """When `woken` wants to be called."""
        waiting = [
            upward.sent_ms + self._network.parameters.advertise_repeat_ms if upward.sent_ms is not None else 0
            for state in self._roots.values()
            for neighbour, upward in state.upward.items()
            if neighbour in up and upward.acked != state.mine.version
        ]
        return min(waiting, default=None)

    def _recompute(self, state: _Root) -> None:
        state.filters.clear()
        wants = state.own.union(*(table.wants for table in state.below.values()))
        epochs = self._epochs
        for table in state.below.values():
            epochs = epochs.join(table.epochs)
        old = state.mine
        if wants == old.wants and epochs == old.epochs:
            return
        state.mine = Table(old.version + 1, wants, epochs)
        state.changes.append((state.mine.version, wants - old.wants, old.wants - wants))
        for upward in state.upward.values():
            upward.sent_ms = None

    def _advertisement(self, root: CellId, state: _Root, upward: _Upward) -> AdvertisementMessage:
        mine = state.mine
        changes = [
            change for change in state.changes if upward.acked is not None and change[0] > upward.acked
        ]
        if upward.acked is None or len(changes) != mine.version - upward.acked:
            reached(ADVERTISED_WHOLE)
            return _whole(root, self._broker, mine)
        reached(ADVERTISED_CHANGE)
        touched: Wants = frozenset().union(*(plus | minus for _, plus, minus in changes))
        return AdvertisementMessage(
            root=root,
            origin=self._broker,
            version=mine.version,
            base=upward.acked,
            added=mine.wants & touched,
            removed=touched - mine.wants,
            epochs=mine.epochs,
        )

    def _relayed(self, message: AdvertisementMessage) -> list[Effect]:
        return [SendMessage(to=sibling, message=message) for sibling in self._network.siblings(self._broker)]


def _whole(root: CellId, origin: BrokerId, table: Table) -> AdvertisementMessage:
    return AdvertisementMessage(
        root=root,
        origin=origin,
        version=table.version,
        base=None,
        added=table.wants,
        removed=frozenset(),
        epochs=table.epochs,
    )
