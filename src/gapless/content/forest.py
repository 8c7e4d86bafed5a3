"""Of many subscriptions, which say it all? The maximal ones: those that no other covers.

A router passes on only the maximal subscriptions of those below it (XNET's XSearch). The forest keeps,
for each subscription that is covered, one that covers it: its parent. The roots are the maximal ones.
Adding a subscription tells which became maximal and which became covered; so does removing one, when
what it covered comes to light again.

Equal subscriptions are one node with a count. `covers` must be sure: where it answers UNKNOWN, both stay
roots, and a router passes on a little too much.

Implements docs/content.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from gapless.content.condition import Condition
from gapless.content.cover import surely_covers
from gapless.content.hulls import Hull, HullSet, HullTable, hull_of
from gapless.content.terms import Term
from gapless.content.values import Key

#: While looking for the lowest node that covers a new one, so many children of a node are asked.
CHILDREN_ASKED_MAX = 16
#: Outlines say nothing of patterns, and little of long lists. So when so many roots have been asked in vain
#: whether they cover a new one, or are covered by it, no more are: both stay roots, a little too much.
MISSES_MAX = 32
#: An answer that has to compare patterns takes as long as so many others.
ATOM_MISSES = 8


@dataclass(frozen=True, slots=True)
class Change:
    """What a change did to the set of maximal subscriptions; in the order in which it was found."""

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
    hulls: list[Hull]
    has_atoms: bool
    count: int = 1
    parent: _Node | None = None
    #: Ordered, so that what happens does not depend on chance.
    children: dict[int, _Node] = field(default_factory=dict)


class Forest:
    """A set of subscriptions, of which the maximal ones are known at all times.

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

    __slots__ = ("_nodes", "_numbers", "_roots")

    def __init__(self) -> None:
        self._nodes: dict[Condition, _Node] = {}
        self._numbers = 0
        self._roots = _Roots()

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

    def is_maximal(self, condition: Condition) -> bool:
        """Whether a subscription is there, and no other covers it."""
        node = self._nodes.get(condition)
        return node is not None and node.parent is None

    def add(self, condition: Condition) -> Change:
        """One more subscription."""
        node = self._nodes.get(condition)
        if node is not None:
            node.count += 1
            return Change()
        has_atoms = any(term.atoms for term in condition.terms)
        node = _Node(self._numbers, condition, [hull_of(term) for term in condition.terms], has_atoms)
        self._numbers += 1
        self._nodes[condition] = node
        return self._place([node])

    def remove(self, condition: Condition) -> Change:
        """One subscription less. It must be there."""
        node = self._nodes[condition]
        node.count -= 1
        if node.count:
            return Change()
        del self._nodes[condition]
        children = list(node.children.values())
        if node.parent is not None:
            # What it covered is covered by what covers it.
            del node.parent.children[node.number]
            for child in children:
                _hang(child, node.parent)
            return Change()
        self._roots.remove(node)
        for child in children:
            child.parent = None
        change = self._place(children)
        return Change(change.maximal, (condition, *change.covered))

    def check(self) -> None:
        """Raise if a root is covered by another one, or a child is not covered by its parent.

        Among more than MISSES_MAX roots with like outlines, one may be covered and nobody knows.
        """
        for node in self._nodes.values():
            if node.parent is not None:
                assert _covers(node.parent, node), f"{node.parent.condition} / {node.condition}"
            for other in self._roots.nodes.values():
                if node.parent is None and other is not node:
                    assert not _covers(other, node), f"{other.condition} covers {node.condition}"

    def _place(self, nodes: Iterable[_Node]) -> Change:
        """Hang nodes without a parent where they belong; some become roots."""
        new: dict[int, _Node] = {}
        covered: dict[int, _Node] = {}
        for node in nodes:
            parent = self._roots.covering(node)
            if parent is not None:
                _hang(node, _lowest(parent, node))
                continue
            for root in self._roots.covered_by(node):
                self._roots.remove(root)
                _hang(root, node)
                if new.pop(root.number, None) is None:
                    covered[root.number] = root
            self._roots.add(node)
            new[node.number] = node
        return Change(
            tuple(node.condition for node in new.values()),
            tuple(node.condition for node in covered.values()),
        )


class _Roots:
    """The roots, and where to look for those that cover a node or are covered by it.

    A conjunction that restricts a term to one value can only be implied by one that does so, too. So
    there is a table for each such (term, value), where few are found, and one for all others.
    """

    __slots__ = ("_all", "_by_point", "_entries", "_nothing", "_owners", "_pointless", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[int, _Node] = {}
        #: The root that asks for nothing, if that is one.
        self._nothing: _Node | None = None
        #: Every conjunction of every root is an entry of the tables.
        self._entries: dict[int, list[int]] = {}
        self._owners: dict[int, _Node] = {}
        self._all = HullTable()
        self._pointless = HullTable()
        self._by_point: dict[tuple[Term, Key], HullSet] = {}

    def add(self, node: _Node) -> None:
        self.nodes[node.number] = node
        if not node.hulls:
            self._nothing = node
        # Numbers are unique among all conjunctions: no node has this many.
        entries = [(node.number << 20) + at for at in range(len(node.hulls))]
        self._entries[node.number] = entries
        for entry, hull in zip(entries, node.hulls, strict=True):
            self._owners[entry] = node
            self._all.add(entry, hull)
            if not hull.points:
                self._pointless.add(entry, hull)
            for point in hull.points:
                found = self._by_point.get(point)
                if found is None:
                    found = self._by_point[point] = HullSet()
                found.add(entry, hull)

    def remove(self, node: _Node) -> None:
        del self.nodes[node.number]
        if self._nothing is node:
            self._nothing = None
        for entry, hull in zip(self._entries.pop(node.number), node.hulls, strict=True):
            del self._owners[entry]
            self._all.remove(entry, hull)
            if not hull.points:
                self._pointless.remove(entry, hull)
            for point in hull.points:
                table = self._by_point[point]
                table.remove(entry, hull)
                if not len(table):
                    del self._by_point[point]

    def covering(self, node: _Node) -> _Node | None:
        """The oldest root that covers a node."""
        if not node.hulls:
            # It asks for nothing, which is covered by anything.
            return min(self.nodes.values(), key=lambda root: root.number, default=None)
        # Some conjunction of whoever covers it must cover its first one.
        hull = node.hulls[0]
        tables: list[HullTable | HullSet] = [
            self._pointless,
            *(self._by_point[point] for point in hull.points if point in self._by_point),
        ]
        found = {self._owners[entry].number for table in tables for entry in table.around(hull)}
        misses = 0
        for each in sorted(found):
            if _covers(self.nodes[each], node):
                return self.nodes[each]
            misses += ATOM_MISSES if node.has_atoms and self.nodes[each].has_atoms else 1
            if misses >= MISSES_MAX:
                break
        return None

    def covered_by(self, node: _Node) -> list[_Node]:
        """The roots that a node covers."""
        found: set[int] = set()
        for hull in node.hulls:
            tables = [self._by_point.get(point) for point in hull.points]
            smallest: HullTable | HullSet = self._all
            for table in tables:
                if table is None or len(table) < len(smallest):
                    smallest = table if table is not None else _NO_HULLS
            found.update(self._owners[entry].number for entry in smallest.inside(hull))
        if self._nothing is not None:
            # It asks for nothing, is covered by anything, and has no conjunction to be found by.
            found.add(self._nothing.number)
        covered: list[_Node] = []
        misses = 0
        for each in sorted(found):
            if _covers(node, self.nodes[each]):
                covered.append(self.nodes[each])
                continue
            misses += ATOM_MISSES if node.has_atoms and self.nodes[each].has_atoms else 1
            if misses >= MISSES_MAX:
                break
        return covered


_NO_HULLS = HullTable()


def _covers(wide: _Node, narrow: _Node) -> bool:
    return surely_covers(wide.condition, narrow.condition)


def _may_cover(wide: _Node, narrow: _Node) -> bool:
    """Whether the outlines of two nodes allow it; that is a small part of the question, and cheap to ask."""
    return all(any(other.holds(hull) for other in wide.hulls) for hull in narrow.hulls)


def _hang(node: _Node, parent: _Node) -> None:
    node.parent = parent
    parent.children[node.number] = node


def _lowest(parent: _Node, node: _Node) -> _Node:
    """Below a node that covers another, one as deep as possible that covers it, too."""
    while True:
        asked = islice(reversed(parent.children.values()), CHILDREN_ASKED_MAX)
        below = next((child for child in asked if _may_cover(child, node) and _covers(child, node)), None)
        if below is None:
            return parent
        parent = below
