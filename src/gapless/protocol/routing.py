"""Who wants what further down? Subscription tables, and advertisements towards every root.

Every broker tells the brokers of the next cell towards a root what is wanted at and below it: a set
of (topic, condition) pairs and, per edge, the epoch of the subscription set they speak for. It leaves
out what another condition of the set covers. When one is cancelled, what it had covered takes its
place, in the same advertisement.

A change travels as a difference to the version that the neighbour acknowledged, or whole when it has
none. While an advertisement waits for its answer, further changes gather and travel together; one that
is not acknowledged is repeated; a large one travels in parts, one at a time, and counts when all of
them are there. A cell's filter is the union of what its brokers said: each of them speaks for the
whole cell, and the one that speaks for newer epochs is right too.

Brokers of one cell pass on to each other what they hear from below, so that one that lost a link
still knows the filters of the cell behind it.

Everything here is counted and changed in place: a change costs what it changes, however many
subscriptions there are. Measured by benchmarks/subscribing.py.

Implements docs/protocol.md, section 9.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

from gapless.content.condition import Condition
from gapless.content.cost import placing_cost
from gapless.content.covering.forest import CoveringChange, Forest
from gapless.content.covering.work import Work
from gapless.content.selection import Selection
from gapless.content.size import size_of
from gapless.errors import PeerError, SupersededError
from gapless.model.epochs import NEVER, Epochs, incarnation_of
from gapless.model.ids import BrokerId, CellId, TopicId
from gapless.protocol.effects import Effect, SendMessage
from gapless.protocol.events import Now
from gapless.protocol.marks import mark, reached
from gapless.protocol.messages import AdvertisementAckMessage, AdvertisementMessage, Want, in_order
from gapless.protocol.network import Network, Tree
from gapless.protocol.ostream import CellFilter

ADVERTISED_WHOLE = mark("advertised_whole", "an advertisement was sent as a whole set")
ADVERTISED_CHANGE = mark("advertised_change", "an advertisement was sent as a change")
ADVERTISED_AGAIN = mark("advertised_again", "an advertisement was repeated because no ack came")
ADVERTISED_COVERED = mark("advertised_covered", "a condition was not advertised: another covers it")
ADVERTISED_UNCOVERED = mark("advertised_uncovered", "a condition was advertised: what covered it is gone")
ADVERTISED_SETTLED = mark(
    "advertised_settled", "conditions were compared later, because it was too much work at once"
)
ADVERTISED_IN_PARTS = mark("advertised_in_parts", "an advertisement was sent in parts")
ADVERTISED_FROM_THE_START = mark(
    "advertised_from_the_start", "all parts were sent and some were missing: all are sent again"
)
ADVERTISEMENT_STALE = mark(
    "advertisement_stale", "an advertisement arrived that was older than what is known"
)
ADVERTISEMENT_BASELESS = mark(
    "advertisement_baseless", "a change arrived without its base: a whole set was asked for"
)
ADVERTISEMENT_SIDEWAYS = mark(
    "advertisement_sideways", "an advertisement was learned from a broker of the own cell"
)
ADVERTISEMENT_DROPPED = mark(
    "advertisement_dropped", "parts of an advertisement were dropped because a newer one came"
)

#: Minimum number of changes kept, so that a neighbour that is slightly behind need not get a whole set,
#: counting one for each version and each condition; at most as many as there are conditions to advertise.
CHANGES_MAX = 64
#: Approximate maximum size of a part of an advertisement in bytes, so that it fits into a frame.
PART_BYTES_MAX = 2**20
#: To take in a part of an advertisement is about so much work at most, unless it has one condition only.
PART_WORK_MAX = 20_000
#: When more conditions than this are removed at once, and fewer stay, recounting is cheaper.
REBUILT_MIN = 1_024
#: Interval in milliseconds at which conditions left over for lack of work are compared.
SETTLE_MS = 50
#: So many conditions of one broker below are kept; a broker that advertises more is cut off.
WANTS_MAX = 2**20


@dataclass(slots=True)
class _Staged:
    """What came so far of an advertisement that comes in parts."""

    version: int
    base: int | None
    #: What is added counts already: it does no harm to know of it early.
    added: dict[Want, None] = field(default_factory=dict)
    removed: dict[Want, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Table:
    """What one broker below last advertised, and what it is about to."""

    #: None until a whole set has come.
    version: int | None = None
    wants: dict[Want, None] = field(default_factory=dict)
    epochs: Epochs = NEVER
    #: By the broker that sends it: the origin itself, or one of our cell.
    staged: dict[BrokerId, _Staged] = field(default_factory=dict)

    def all(self) -> Iterator[Want]:
        """Everything that counts, as often as it does."""
        yield from self.wants
        for staged in self.staged.values():
            yield from staged.added


@dataclass(slots=True)
class _Transfer:
    """An advertisement that is on its way to a neighbour."""

    root: CellId
    origin: BrokerId
    version: int
    base: int | None
    epochs: Epochs
    #: What each part adds and removes; there is at least one.
    parts: Sequence[tuple[Set[Want], Set[Want]]]
    #: The part that waits to be acknowledged.
    at: int = 0

    def messages(self) -> Iterator[AdvertisementMessage]:
        """All parts from the one on that waits."""
        total = None
        if len(self.parts) > 1:
            total = sum(len(added) + len(removed) for added, removed in self.parts)
        for part, (added, removed) in enumerate(islice(self.parts, self.at, None), self.at):
            yield AdvertisementMessage(
                root=self.root,
                origin=self.origin,
                version=self.version,
                base=self.base,
                added=added,
                removed=removed,
                epochs=self.epochs,
                part=part,
                total=total,
            )


@dataclass(slots=True)
class _Upward:
    """What one broker of the next cell towards the root has acknowledged, and what is on its way to it."""

    acked: int | None = None
    #: When the last part was sent; None when the next one is to be sent now.
    sent_ms: int | None = None
    transfer: _Transfer | None = None


@dataclass(slots=True)
class _Root:
    """The subscriptions that flow towards one root through this broker."""

    tree: Tree
    upward: dict[BrokerId, _Upward]
    #: What is left to be done in this step to compare conditions. All roots share it.
    work: Work
    #: The version of what was last advertised, and the epochs that it spoke for.
    version: int
    told: Epochs = NEVER
    #: The epochs that all that is wanted now speaks for.
    epochs: Epochs = NEVER
    #: The topics that have a pubend at the root.
    topics: frozenset[TopicId] = frozenset()
    #: What is wanted here and advertised by the brokers below, counted. The maximal ones are advertised.
    forests: dict[TopicId, Forest] = field(default_factory=dict)
    #: Where what is to be advertised differs from `version`: whether it was advertised then.
    touched: dict[Want, bool] = field(default_factory=dict)
    #: The last versions, each with the conditions that it touched; and how much that is.
    changes: deque[tuple[int, tuple[Want, ...]]] = field(default_factory=deque)
    changes_size: int = 0
    #: The topics whose forests have something left to do.
    unsettled: dict[TopicId, None] = field(default_factory=dict)
    below: dict[BrokerId, _Table] = field(default_factory=dict)
    filters: dict[CellId, dict[TopicId, CellFilter]] = field(default_factory=dict)

    @property
    def is_changed(self) -> bool:
        """Whether there is something to tell that no version has."""
        return bool(self.touched) or self.epochs != self.told

    def enter(self, want: Want) -> None:
        """Somebody more wants this."""
        if not self.upward:
            return  # nobody is to be told
        topic, condition = want
        forest = self.forests.get(topic)
        if forest is None:
            forest = self.forests[topic] = Forest()
        change = forest.add(condition, self.work)
        if not change and not forest.is_maximal(condition):
            reached(ADVERTISED_COVERED)
        self._touch(topic, change)

    def leave(self, want: Want) -> None:
        """Somebody less wants this."""
        if not self.upward:
            return
        topic, condition = want
        change = self.forests[topic].remove(condition, self.work)
        if change.maximal:
            reached(ADVERTISED_UNCOVERED)
        self._touch(topic, change)

    def settle(self) -> None:
        """Do some of what was left undone, at least a little."""
        for topic in list(self.unsettled):
            reached(ADVERTISED_SETTLED)
            self._touch(topic, self.forests[topic].settle(self.work))
            if self.work.is_done:
                break

    def seal(self) -> None:
        """Make what is wanted now a version that can be advertised."""
        if not self.is_changed:
            return
        self.version += 1
        self.told = self.epochs
        self.changes.append((self.version, tuple(self.touched)))
        self.changes_size += 1 + len(self.touched)
        self.touched.clear()
        bound = max(CHANGES_MAX, sum(forest.maximal_count for forest in self.forests.values()))
        while self.changes_size > bound:
            self.changes_size -= 1 + len(self.changes.popleft()[1])

    def advertised(self) -> Iterator[Want]:
        """All that is to be advertised."""
        for topic, forest in sorted(self.forests.items()):
            for condition in forest.maximal:
                yield topic, condition

    def since(self, version: int) -> tuple[list[Want], list[Want]] | None:
        """What was added and removed since a version; None when that is too long ago to know."""
        if version != self.version and (not self.changes or self.changes[0][0] > version + 1):
            return None
        touched = {want: None for at, wants in self.changes if at > version for want in wants}
        added: list[Want] = []
        removed: list[Want] = []
        for topic, condition in touched:
            forest = self.forests.get(topic)
            wanted = forest is not None and forest.is_maximal(condition)
            (added if wanted else removed).append((topic, condition))
        return added, removed

    def toggle(self, want: Want, *, was: bool) -> None:
        """Something is to be advertised that was not, or the other way round."""
        # What has changed twice is as it was.
        if self.touched.pop(want, None) is None:
            self.touched[want] = was

    def _touch(self, topic: TopicId, change: CoveringChange) -> None:
        for was, conditions in ((False, change.maximal), (True, change.covered)):
            for condition in conditions:
                self.toggle((topic, condition), was=was)
        forest = self.forests[topic]
        if not forest.is_settled:
            self.unsettled[topic] = None
        else:
            self.unsettled.pop(topic, None)
            if not len(forest):
                del self.forests[topic]


class Routing:
    """The subscription tables of one broker, one per root."""

    def __init__(self, network: Network, broker: BrokerId, first_version: int) -> None:
        self._network = network
        self._broker = broker
        self._first_version = first_version
        self._epochs = NEVER
        #: The subscriptions of this edge, counted.
        self._own: dict[TopicId, Counter[Condition]] = {}
        self._roots: dict[CellId, _Root] = {}
        #: What is left to be done in this step to compare conditions, and when some was last done later.
        self._work = Work(network.parameters.compare_work_max)
        self._settled_ms = 0
        #: Which root goes on first.
        self._turn = 0
        self.extend(network)

    def extend(self, network: Network) -> None:
        """The network has grown: there may be new roots, and roots that offer more topics."""
        self._network = network
        cell = network.cell_of[self._broker]
        offered: dict[CellId, set[TopicId]] = {}
        for place in network.pubends.values():
            offered.setdefault(network.cell_of[place.broker], set()).add(place.topic)
        for root, tree in network.trees.items():
            state = self._roots.get(root)
            if state is None:
                above = network.cells[tree.parent[cell]] if cell != root else ()
                upward = {neighbour: _Upward() for neighbour in above}
                state = self._roots[root] = _Root(tree, upward, self._work, self._first_version)
                state.epochs = self._epochs
            for topic in sorted(offered[root] - state.topics):
                for condition in self._own.get(topic, ()):
                    state.enter((topic, condition))
            state.topics = frozenset(offered[root])

    def wanted_here(self, begun: Iterable[Want], ended: Iterable[Want], epochs: Epochs) -> None:
        """The subscriptions of this edge have changed."""
        self._work.left = self._network.parameters.compare_work_max
        self._epochs = epochs
        for topic, condition in begun:
            own = self._own.setdefault(topic, Counter())
            own[condition] += 1
            if own[condition] == 1:
                for state in self._offering(topic):
                    state.enter((topic, condition))
        # What begins is there before what ends is gone, so that little comes to light for a moment only.
        for topic, condition in ended:
            own = self._own[topic]
            own[condition] -= 1
            if not own[condition]:
                del own[condition]
                for state in self._offering(topic):
                    state.leave((topic, condition))
        for state in self._roots.values():
            self._join_epochs(state)

    def wants(self, root: CellId, cell: CellId, topic: TopicId) -> CellFilter:
        """What a downstream cell wants of a topic, as far as we know now."""
        state = self._roots[root]
        found = state.filters.setdefault(cell, {}).get(topic)
        if found is None:
            found = state.filters[cell][topic] = CellFilter(epochs=self._cell_epochs(state, cell))
        return found

    def epochs_known(self, root: CellId) -> Epochs:
        """The newest epoch of every edge that the filters towards it speak for."""
        return self._roots[root].epochs

    def received(self, sender: BrokerId, message: AdvertisementMessage) -> list[Effect]:
        """A broker below, or of our own cell on behalf of one below, advertised.

        Raises PeerError, before anything changes, when it wants more than anybody may want.
        """
        self._work.left = self._network.parameters.compare_work_max
        state = self._roots[message.root]
        table = state.below.setdefault(message.origin, _Table())
        effects: list[Effect] = []
        if table.version is not None and message.version <= table.version:
            reached(ADVERTISEMENT_STALE)
        elif message.base is None or message.base == table.version:
            if self._take(state, table, sender, message):
                if sender == message.origin:
                    effects += [
                        SendMessage(to=sibling, message=message)
                        for sibling in self._network.siblings(self._broker)
                    ]
                else:
                    reached(ADVERTISEMENT_SIDEWAYS)
        else:
            reached(ADVERTISEMENT_BASELESS)
        if sender == message.origin:
            held = table.staged.get(sender)
            is_part = held is not None and (held.version, held.base) == (message.version, message.base)
            staged = (message.version, message.part) if is_part else None
            ack = AdvertisementAckMessage(
                root=message.root, origin=message.origin, version=table.version, staged=staged
            )
            effects.append(SendMessage(to=sender, message=ack))
        return effects

    def acknowledged(self, sender: BrokerId, message: AdvertisementAckMessage) -> None:
        """A broker towards the root says which version it holds, and which part of the next it has.

        Raises SupersededError when that is a version of a later life.
        """
        state = self._roots[message.root]
        upward = state.upward.get(sender)
        if upward is None or message.origin != self._broker:
            return
        if message.version is not None and message.version > state.version:
            # Epochs of this life would be taken for those of another one: silence for data.
            seen, ours = incarnation_of(message.version), incarnation_of(self._first_version)
            raise SupersededError(self._broker, ours, seen)
        transfer = upward.transfer
        if message.staged is not None:
            if transfer is not None and message.staged == (transfer.version, transfer.at):
                transfer.at += 1
                upward.sent_ms = None
                if transfer.at == len(transfer.parts):
                    reached(ADVERTISED_FROM_THE_START)
                    transfer.at = 0
        elif message.version is None:
            state.upward[sender] = _Upward()
        elif upward.acked != message.version:
            # An older version is believed, too: it may have forgotten the newer one. If that is old news, it
            # says so when it gets the difference.
            upward.acked, upward.sent_ms, upward.transfer = message.version, None, None

    def link_up(self, neighbour: BrokerId) -> list[Effect]:
        """A neighbour may have forgotten everything: tell it all again."""
        effects: list[Effect] = []
        for root, state in self._roots.items():
            if neighbour in state.upward:
                state.upward[neighbour] = _Upward()
            if neighbour in self._network.siblings(self._broker):
                for origin, table in sorted(state.below.items()):
                    if table.version is not None:
                        parts = self._parts(table.wants, ())
                        whole = _Transfer(root, origin, table.version, None, table.epochs, parts)
                        effects += [SendMessage(to=neighbour, message=part) for part in whole.messages()]
        return effects

    def woken(self, up: frozenset[BrokerId], now: Now) -> list[Effect]:
        """Send what the reachable brokers towards each root have not acknowledged."""
        effects: list[Effect] = []
        if self._is_unsettled and now.ms >= self._settled_ms + SETTLE_MS:
            self._settled_ms, self._work.left = now.ms, self._network.parameters.compare_work_max
            self._settle()
        for root, state in self._roots.items():
            for neighbour, upward in sorted(state.upward.items()):
                if neighbour in up and self._is_due(state, upward, now):
                    upward.sent_ms = now.ms
                    if upward.transfer is None:
                        upward.transfer = self._transfer(root, state, upward.acked)
                    effects.append(SendMessage(to=neighbour, message=next(upward.transfer.messages())))
        return effects

    def deadline_ms(self, up: frozenset[BrokerId]) -> int | None:
        """When `woken` wants to be called."""
        waiting = [
            upward.sent_ms + self._network.parameters.advertise_repeat_ms if upward.sent_ms is not None else 0
            for state in self._roots.values()
            for neighbour, upward in state.upward.items()
            if neighbour in up and (upward.acked != state.version or state.is_changed)
        ]
        if self._is_unsettled:
            waiting.append(self._settled_ms + SETTLE_MS)
        return min(waiting, default=None)

    @property
    def _is_unsettled(self) -> bool:
        return any(state.unsettled for state in self._roots.values())

    def _settle(self) -> None:
        """Let the roots that have something left to do go on with it, in turn."""
        unsettled = [state for state in self._roots.values() if state.unsettled]
        self._turn += 1
        first = self._turn % len(unsettled)
        for state in unsettled[first:] + unsettled[:first]:
            state.settle()
            if self._work.is_done:
                break

    # ---- what is heard from below ----

    def _take(self, state: _Root, table: _Table, sender: BrokerId, message: AdvertisementMessage) -> bool:
        """Take in an advertisement that can be applied, or a part of it; says whether it was news."""
        named = len(message.added) + len(message.removed)
        staged = table.staged.get(sender)
        if staged is not None and (staged.version, staged.base) != (message.version, message.base):
            if message.version < staged.version:
                reached(ADVERTISEMENT_STALE)
                return False
            staged = None
        if (len(staged.added) if staged is not None else 0) + len(message.added) > WANTS_MAX:
            raise PeerError("E208", f"'{sender}' advertised more than {WANTS_MAX} conditions")
        if staged is None:
            self._drop(state, table, sender, message.origin)
            staged = table.staged[sender] = _Staged(message.version, message.base)
        before = len(staged.added) + len(staged.removed)
        for want in message.added:
            if want not in staged.added:
                staged.added[want] = None
                self._enter(state, message.origin, want)
        staged.removed.update(dict.fromkeys(message.removed))
        now = len(staged.added) + len(staged.removed)
        # Of one version only what belongs to it can come: when all of it was named, it is complete.
        if now == (named if message.total is None else message.total):
            self._complete(state, table, staged, message)
            return True
        return now > before

    def _complete(self, state: _Root, table: _Table, staged: _Staged, message: AdvertisementMessage) -> None:
        """All parts are there: now what was removed goes, and the epochs are those of the whole."""
        origin = message.origin
        gone: Collection[Want]
        if staged.base is None:
            gone, table.wants = table.wants, staged.added
        else:
            # What was there before is counted twice now.
            gone = [want for want in staged.added if want in table.wants]
            gone += [want for want in staged.removed if want in table.wants and want not in staged.added]
            for want in staged.removed:
                table.wants.pop(want, None)
            table.wants.update(staged.added)
        table.version, table.epochs = message.version, message.epochs
        for sender, each in list(table.staged.items()):
            if each is staged:
                del table.staged[sender]
            elif each.base is not None or each.version <= message.version:
                # It is older, or its base is gone.
                self._drop(state, table, sender, origin)
        cell = self._network.cell_of[origin]
        if len(gone) > REBUILT_MIN and len(gone) > len(table.wants):
            self._rebuild(state, cell)
        else:
            for want in gone:
                self._leave(state, origin, want)
        self._join_epochs(state)
        epochs = self._cell_epochs(state, cell)
        for found in state.filters.get(cell, {}).values():
            found.epochs = epochs

    def _rebuild(self, state: _Root, cell: CellId) -> None:
        """Recount what is wanted: after the restart of an edge most of it is gone."""
        before = dict.fromkeys(state.advertised())
        state.forests, state.unsettled = {}, {}
        topics = sorted(state.topics.intersection(self._own))
        tables = [table for _, table in sorted(state.below.items())]
        for want in (
            *((topic, condition) for topic in topics for condition in self._own[topic]),
            *(want for table in tables for want in table.all()),
        ):
            if state.upward:
                forest = state.forests.setdefault(want[0], Forest())
                forest.add(want[1], self._work)
                if not forest.is_settled:
                    state.unsettled[want[0]] = None
        after = dict.fromkeys(state.advertised())
        for was, wants, others in ((True, before, after), (False, after, before)):
            for want in wants:
                if want not in others:
                    state.toggle(want, was=was)
        for found in state.filters.get(cell, {}).values():
            found.accepts = Selection()
        for broker in self._network.cells[cell]:
            if broker in state.below:
                for topic, condition in state.below[broker].all():
                    self.wants(state.tree.root, cell, topic).accepts.add(condition)

    def _drop(self, state: _Root, table: _Table, sender: BrokerId, origin: BrokerId) -> None:
        """Parts that will not be completed any more never were."""
        staged = table.staged.pop(sender, None)
        if staged is not None:
            reached(ADVERTISEMENT_DROPPED)
            for want in staged.added:
                self._leave(state, origin, want)

    def _enter(self, state: _Root, origin: BrokerId, want: Want) -> None:
        topic, condition = want
        cell = self._network.cell_of[origin]
        self.wants(state.tree.root, cell, topic).accepts.add(condition)
        state.enter(want)

    def _leave(self, state: _Root, origin: BrokerId, want: Want) -> None:
        topic, condition = want
        state.filters[self._network.cell_of[origin]][topic].accepts.remove(condition)
        state.leave(want)

    # ---- what is told further up ----

    def _offering(self, topic: TopicId) -> list[_Root]:
        return [state for state in self._roots.values() if topic in state.topics]

    def _join_epochs(self, state: _Root) -> None:
        epochs = self._epochs
        for table in state.below.values():
            epochs = epochs.join(table.epochs)
        state.epochs = epochs

    def _cell_epochs(self, state: _Root, cell: CellId) -> Epochs:
        epochs = NEVER
        for broker in self._network.cells[cell]:
            if broker in state.below:
                epochs = epochs.join(state.below[broker].epochs)
        return epochs

    def _is_due(self, state: _Root, upward: _Upward, now: Now) -> bool:
        """Whether something is to be sent now; forgets an advertisement that has a newer one."""
        if upward.acked == state.version and not state.is_changed:
            return False
        if upward.sent_ms is not None:
            # The changes since then travel together with each other, when this one has been answered.
            if now.ms < upward.sent_ms + self._network.parameters.advertise_repeat_ms:
                return False
            reached(ADVERTISED_AGAIN)
            transfer = upward.transfer
            if (
                transfer is not None
                and transfer.at == 0
                and (state.is_changed or transfer.version != state.version)
            ):
                upward.transfer = None
        return True

    def _transfer(self, root: CellId, state: _Root, acked: int | None) -> _Transfer:
        state.seal()
        change = None if acked is None else state.since(acked)
        if change is None:
            reached(ADVERTISED_WHOLE)
            acked, change = None, (list(state.advertised()), [])
        else:
            reached(ADVERTISED_CHANGE)
        parts = self._parts(*change)
        if len(parts) > 1:
            reached(ADVERTISED_IN_PARTS)
        return _Transfer(root, self._broker, state.version, acked, state.told, parts)

    def _parts(self, added: Iterable[Want], removed: Iterable[Want]) -> list[tuple[Set[Want], Set[Want]]]:
        """Cut an advertisement into parts of bounded size."""
        most = self._network.parameters.message_conditions_max
        parts: list[tuple[Set[Want], Set[Want]]] = []
        here: tuple[list[Want], list[Want]] = ([], [])
        size = count = work = 0
        for side, wants in enumerate((added, removed)):
            for want in wants:
                more, effort = size_of(want[1]), placing_cost(want[1])
                is_full = size + more > PART_BYTES_MAX or work + effort > PART_WORK_MAX
                if count == most or (count and is_full):
                    parts.append((in_order(here[0]), in_order(here[1])))
                    here, size, count, work = ([], []), 0, 0, 0
                here[side].append(want)
                size, count, work = size + more, count + 1, work + effort
        if count or not parts:
            parts.append((in_order(here[0]), in_order(here[1])))
        return parts
