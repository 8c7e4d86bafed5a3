"""Which of many subscriptions suffice? The maximal ones: those that no other covers.

A router passes on only the maximal subscriptions of those below it (XNET's XSearch). The forest keeps, for
each subscription that is covered, one that covers it: its parent. The roots are the maximal ones. Adding a
subscription reports which became maximal and which became covered; so does removing one, which may uncover
others.

Equal subscriptions are one node with a count. `covers` must be sure: where it answers UNKNOWN, both stay
roots, and a router passes on a little too much.

The amount of comparing is up to the subscribers, and may be large. So the work of a change is bounded. A
subscription for which no work is left is a root, even if it is covered, until `settle` has checked it. A
removed one stays a root until everything it covered has another place: in the meantime more is passed on than
necessary, never less.

Implements docs/content.md, sections 5 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from gapless.content.condition import Condition
from gapless.content.covering.boxes import Box, BoxSet, BoxTable, box_of
from gapless.content.covering.cover import COVER_WORK_MAX, surely_covers
from gapless.content.covering.work import UNBOUNDED, OutOfWorkError, Work
from gapless.content.rows import Positions
from gapless.content.terms import Term
from gapless.content.values import Key

#: Maximum number of children of a node examined while looking for the lowest node that covers a new one.
CHILDREN_ASKED_MAX = 16
#: Outlines say nothing about patterns, and little about long lists. So after this many roots neither cover a
#: new one nor are covered by it, the search ends: both stay roots, slightly too many.
MISSES_MAX = 32
#: The cost of an answer that compares patterns, in other answers.
ATOM_MISSES = 8
#: Maximum work for finding a place for one subscription, in units of about a microsecond.
PLACE_WORK_MAX = 4_000
#: The work of entering a conjunction of a root in the tables, removing it, or looking at a table; this many
#: entries of a table cost one unit more.
_ENTRY_WORK, _TABLE_WORK, _ENTRIES_PER_WORK = 10, 10, 500
#: Up to this many entries, arrays are not worth it.
FEW_ENTRIES = 64
#: Maximum number of numbered conjunctions of all roots.
_NODE_BITS = 20


@dataclass(frozen=True, slots=True)
class CoveringChange:
    """How a change affected the set of maximal subscriptions; in the order of discovery."""

    #: Maximal now, and not before.
    maximal: tuple[Condition, ...] = ()
    #: Maximal before, and not now: covered, or gone.
    covered: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.maximal or self.covered)


@dataclass(slots=True)
class _Node:
    """One subscription."""

    number: int
    condition: Condition
    boxes: list[Box]
    has_atoms: bool
    count: int = 1
    parent: _Node | None = None
    #: Ordered, to be deterministic.
    children: dict[int, _Node] = field(default_factory=dict)


class Forest:
    """A set of subscriptions whose maximal ones are always known.

    >>> from gapless.content.language import parse_condition
    >>> from gapless.model.schema import Schema
    >>> schema = Schema.parse("trades", {"sym": "string", "price": "float"})
    >>> narrow, wide = (parse_condition(f"price > {low}", schema) for low in (9, 3))
    >>> forest = Forest()
    >>> [str(each) for each in forest.add(narrow).maximal]
    ['price > 9.0']
    >>> change = forest.add(wide)
    >>> [str(each) for each in change.maximal], [str(each) for each in change.covered]
    (['price > 3.0'], ['price > 9.0'])
    >>> [str(each) for each in forest.remove(wide).maximal]
    ['price > 9.0']
    """

    __slots__ = ("_leaving", "_nodes", "_numbers", "_roots", "_waiting")

    def __init__(self) -> None:
        self._nodes: dict[Condition, _Node] = {}
        self._numbers = 0
        self._roots = _Roots()
        #: Removed roots whose children have no other place yet.
        self._leaving: dict[int, _Node] = {}
        #: Roots not yet compared with all others that they may cover, or be covered by.
        self._waiting: dict[int, _Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, condition: Condition) -> bool:
        return condition in self._nodes

    @property
    def maximal(self) -> list[Condition]:
        """The subscriptions that no other covers, oldest first."""
        return [node.condition for _, node in sorted(self._roots.nodes.items())]

    @property
    def maximal_count(self) -> int:
        """How many there are that no other covers."""
        return len(self._roots.nodes)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to do."""
        return not self._leaving and not self._waiting

    def is_maximal(self, condition: Condition) -> bool:
        """Whether a subscription is there, and no other covers it."""
        node = self._nodes.get(condition)
        return node is not None and node.parent is None

    def add(self, condition: Condition, work: Work | None = None) -> CoveringChange:
        """Add a subscription. `settle` does what exceeds the work."""
        node = self._nodes.get(condition)
        if node is not None:
            node.count += 1
            self._leaving.pop(node.number, None)
            return CoveringChange()
        has_atoms = any(term.atoms for term in condition.terms)
        node = _Node(self._numbers, condition, [box_of(term) for term in condition.terms], has_atoms)
        self._numbers += 1
        self._nodes[condition] = node
        result = _Result()
        self._place(node, work or Work(UNBOUNDED), result)
        return result.change()

    def remove(self, condition: Condition, work: Work | None = None) -> CoveringChange:
        """Remove an existing subscription. `settle` does what exceeds the work."""
        node = self._nodes[condition]
        assert node.count, f"{condition} was removed before"
        node.count -= 1
        if node.count:
            return CoveringChange()
        if node.parent is not None:
            del self._nodes[condition]
            # What it covered is covered by what covers it.
            del node.parent.children[node.number]
            for child in node.children.values():
                _hang(child, node.parent)
            return CoveringChange()
        self._waiting.pop(node.number, None)
        self._leaving[node.number] = node
        result = _Result()
        work = work or Work(UNBOUNDED)
        if not (work.is_done and node.children):
            self._leave(node, work, result)
        return result.change()

    def settle(self, work: Work) -> CoveringChange:
        """Continue unfinished work, at least a little."""
        result = _Result()
        while self._leaving or self._waiting:
            if self._leaving:
                self._leave(next(iter(self._leaving.values())), work, result)
            else:
                self._look_again(self._waiting.pop(next(iter(self._waiting))), work, result)
            if work.is_done:
                break
        return result.change()

    def check(self) -> None:
        """Raise if a root is covered by another one, or a child is not covered by its parent.

        Among more than MISSES_MAX roots with similar outlines, a covered one may go unnoticed.
        """
        for node in self._nodes.values():
            assert node.count or node.number in self._leaving, f"{node.condition} is still there"
            if node.parent is not None:
                is_covered = surely_covers(node.parent.condition, node.condition, Work(UNBOUNDED))
                assert is_covered, f"{node.parent.condition} / {node.condition}"
            elif self.is_settled:
                for other in self._roots.nodes.values():
                    covered = other is not node and _covers(other, node)
                    assert not covered, f"{other.condition} covers {node.condition}"

    def _leave(self, node: _Node, work: Work, result: _Result) -> None:
        """Place the children of a removed root, as far as the work allows; at least one."""
        while node.children:
            number = next(iter(node.children))
            child = node.children.pop(number)
            child.parent = None
            self._place(child, work, result)
            if node.number not in self._leaving or (work.is_done and node.children):
                return
        self._drop(node, result)

    def _drop(self, node: _Node, result: _Result) -> None:
        """A removed root has no children left."""
        del self._leaving[node.number], self._nodes[node.condition]
        self._roots.remove(node)
        result.left(node)

    def _place(self, node: _Node, work: Work, result: _Result) -> None:
        """Attach a node without a parent where it belongs, or make it a root."""
        mine = work.part(PLACE_WORK_MAX)
        before = mine.left
        parent = self._roots.covering(node, mine)
        if parent is not None:
            _hang(node, _lowest(parent, node, mine))
            work.left -= before - mine.left
            return
        is_cut = self._cover(node, mine, result)
        # Too much work for one is given up; what the remaining work did not suffice for is done later.
        is_cut = is_cut or (mine.left < 0 and before < PLACE_WORK_MAX)
        self._roots.add(node)
        result.entered(node)
        if is_cut:
            self._waiting[node.number] = node
        work.left -= before - mine.left + _ENTRY_WORK * (1 + len(node.boxes))

    def _look_again(self, node: _Node, work: Work, result: _Result) -> None:
        """The same for a root that was made one for lack of work. There is always work for this one."""
        mine = Work(PLACE_WORK_MAX)
        parent = self._roots.covering(node, mine)
        if parent is not None:
            self._roots.remove(node)
            result.left(node)
            _hang(node, _lowest(parent, node, mine))
        elif self._cover(node, mine, result):
            self._waiting[node.number] = node
        work.left -= PLACE_WORK_MAX - mine.left

    def _cover(self, node: _Node, work: Work, result: _Result) -> bool:
        """Attach the roots that a node covers below it; returns whether to continue later."""
        covered, is_cut = self._roots.covered_by(node, work)
        for root in covered:
            self._waiting.pop(root.number, None)
            if root.count:
                self._roots.remove(root)
                result.left(root)
                _hang(root, node)
                continue
            for child in root.children.values():
                _hang(child, node)
            root.children.clear()
            self._drop(root, result)
        return is_cut


class _Result:
    """What became maximal and what no longer is, during a change."""

    __slots__ = ("_covered", "_new")

    def __init__(self) -> None:
        self._new: dict[int, _Node] = {}
        self._covered: dict[int, _Node] = {}

    def entered(self, node: _Node) -> None:
        """It is a root now."""
        if self._covered.pop(node.number, None) is None:
            self._new[node.number] = node

    def left(self, node: _Node) -> None:
        """It is no longer a root."""
        if self._new.pop(node.number, None) is None:
            self._covered[node.number] = node

    def change(self) -> CoveringChange:
        """All of it."""
        return CoveringChange(
            tuple(node.condition for node in self._new.values()),
            tuple(node.condition for node in self._covered.values()),
        )


class _Roots:
    """The roots, and where to look for those that cover a node or are covered by it.

    A conjunction that restricts a term to one value can only be implied by one that does so, too. So
    there is a table for each such (term, value), where few are found, and one for all others.
    """

    __slots__ = ("_all", "_by_point", "_nothing", "_pointless", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[int, _Node] = {}
        #: The root that accepts nothing, if there is one.
        self._nothing: _Node | None = None
        #: Every conjunction of every root is an entry of the tables.
        self._all = BoxTable()
        self._pointless = BoxTable()
        self._by_point: dict[tuple[Term, Key], BoxSet] = {}

    def add(self, node: _Node) -> None:
        self.nodes[node.number] = node
        if not node.boxes:
            self._nothing = node
        for entry, box in enumerate(node.boxes, node.number << _NODE_BITS):
            self._all.add(entry, box)
            if not box.points:
                self._pointless.add(entry, box)
            for point in box.points:
                found = self._by_point.get(point)
                if found is None:
                    found = self._by_point[point] = BoxSet()
                found.add(entry, box)

    def remove(self, node: _Node) -> None:
        del self.nodes[node.number]
        if self._nothing is node:
            self._nothing = None
        for entry, box in enumerate(node.boxes, node.number << _NODE_BITS):
            self._all.remove(entry, box)
            if not box.points:
                self._pointless.remove(entry, box)
            for point in box.points:
                table = self._by_point[point]
                table.remove(entry, box)
                if not len(table):
                    del self._by_point[point]

    def covering(self, node: _Node, work: Work) -> _Node | None:
        """The oldest other root that covers a node, and stays; None also when that takes too much work."""
        if not node.boxes:
            # It accepts nothing, so anything covers it.
            others = (root for root in self.nodes.values() if root is not node and root.count)
            return min(others, key=lambda root: root.number, default=None)
        # Some conjunction of a covering root must cover its first one.
        box = node.boxes[0]
        tables: list[BoxTable | BoxSet] = [
            self._pointless,
            *(self._by_point[point] for point in box.points if point in self._by_point),
        ]
        try:
            found = [_looked(table, box, work).around(box) for table in tables]
            misses = 0
            for each in _owners(found, MISSES_MAX + 1):
                root = self.nodes[each]
                if root is node or not root.count:
                    continue
                if _covers(root, node, work):
                    return root
                misses += ATOM_MISSES if node.has_atoms and root.has_atoms else 1
                if misses >= MISSES_MAX:
                    break
        except OutOfWorkError:
            pass
        return None

    def covered_by(self, node: _Node, work: Work) -> tuple[list[_Node], bool]:
        """The roots that a node covers, and whether there may be more that the work did not suffice for.

        If none was found with all that work, it is not worth looking for more.
        """
        covered: list[_Node] = []
        try:
            found: list[Positions] = []
            for box in node.boxes:
                smallest: BoxTable | BoxSet = self._all
                for table in [self._by_point.get(point) for point in box.points]:
                    if table is None or len(table) < len(smallest):
                        smallest = table if table is not None else _NO_BOXES
                found.append(_looked(smallest, box, work).inside(box))
            if self._nothing is not None:
                # It accepts nothing, is covered by anything, and has no conjunction to be found by.
                found.append(np.asarray([self._nothing.number << _NODE_BITS]))
            misses = 0
            for each in _owners(found):
                root = self.nodes[each]
                if root is node:
                    continue
                if _covers(node, root, work):
                    work.spend(_ENTRY_WORK * (1 + len(root.boxes)))
                    covered.append(root)
                    continue
                misses += ATOM_MISSES if node.has_atoms and root.has_atoms else 1
                if misses >= MISSES_MAX:
                    break
        except OutOfWorkError:
            return covered, bool(covered)
        return covered, False


_NO_BOXES = BoxTable()


def _looked(table: BoxTable | BoxSet, box: Box, work: Work) -> BoxTable | BoxSet:
    """The table, when there is work enough to look at it."""
    work.spend(_TABLE_WORK + len(table) * (1 + len(box.spans)) // _ENTRIES_PER_WORK)
    return table


def _owners(found: list[Positions], most: int | None = None) -> list[int]:
    """The nodes of entries, oldest first; only the oldest of very many."""
    if sum(map(len, found)) <= FEW_ENTRIES:
        return sorted({entry >> _NODE_BITS for each in found for entry in each.tolist()})[:most]
    numbers = np.concatenate(found) >> _NODE_BITS
    if most is not None and len(numbers) > 2**12:
        # A node has many entries, so there may be fewer nodes.
        numbers = np.partition(numbers, 2**12)[: 2**12]
    oldest: list[int] = np.unique(numbers)[:most].tolist()
    return oldest


def _covers(wide: _Node, narrow: _Node, work: Work | None = None) -> bool:
    """Whether it certainly does; one answer may take part of the work, all of them together all of it."""
    if work is None:
        return surely_covers(wide.condition, narrow.condition)
    mine = work.part(COVER_WORK_MAX)
    before = mine.left
    found = surely_covers(wide.condition, narrow.condition, mine)
    work.spend(1 + before - mine.left)
    return found


def _may_cover(wide: _Node, narrow: _Node, work: Work) -> bool:
    """Whether the outlines of two nodes allow it: a necessary condition that is cheap to check."""
    work.spend(1 + len(wide.boxes) * len(narrow.boxes) // 2)
    return all(any(other.holds(box) for other in wide.boxes) for box in narrow.boxes)


def _hang(node: _Node, parent: _Node) -> None:
    node.parent = parent
    parent.children[node.number] = node


def _lowest(parent: _Node, node: _Node, work: Work) -> _Node:
    """The deepest node, below one that covers another, that covers it, too."""
    try:
        while True:
            asked = islice(reversed(parent.children.values()), CHILDREN_ASKED_MAX)
            below = (each for each in asked if _may_cover(each, node, work) and _covers(each, node, work))
            found = next(below, None)
            if found is None:
                return parent
            parent = found
    except OutOfWorkError:
        return parent
