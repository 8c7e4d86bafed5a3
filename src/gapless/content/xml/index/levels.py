"""Which conditions do the shapes of a batch meet? Decided from the leaves up, one height at a time.

Everything that is known about a shape is a set of facts: one that is always true, those about its values, and
those that its children hand up ("a child meets condition 7", "something below meets condition 9"). For all
shapes of one height at once:

1. the facts of the children are put together, sorted, and duplicates dropped;
2. each (fact, label) wakes the variants that wait there, and those that wait there for any label;
3. variants with more facts to check look them up in the sorted facts of their shape;
4. the conditions that are met become facts for the parents, and facts about "something below" go on.

Each step is a few array operations over all pairs of the height, so the cost depends on the pairs and not on
the number of patterns. For very few pairs, array operations are mostly overhead, and a document may have 256
heights: so where a height has only a few shapes, results of equal shapes are looked up. At the end the root
shapes hand their facts to the document node.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gapless.content.xml.index.blocks import GOLDEN, Integers, spread
from gapless.content.xml.index.graph import ALWAYS, DOCUMENT, PatternGraph
from gapless.content.xml.index.shapes import Shapes

__all__ = ["decide"]

_NONE = -1
#: Levels with at most this many shapes, children and facts each are decided shape by shape.
FEW_SHAPES, FEW_FACTS = 4, 64
#: From this height on, documents tend to repeat themselves; below, array operations decide several new shapes
#: faster.
DEEP = 16


def decide(graph: PatternGraph, shapes: Shapes, roots: Integers) -> tuple[Integers, Integers]:
    """The conditions of the document node that are met by documents with these root shapes.

    `roots` has no duplicates. Returns positions in it, in no order, and conditions.
    """
    handed = _Handed(len(shapes.labels))
    heights = np.array(shapes.heights, dtype=np.int64)
    labels = np.array(shapes.labels, dtype=np.int64)
    # A stable sort keeps a shape's position, so that a level is a slice of this order.
    order = np.argsort(heights, kind="stable")
    ends = np.cumsum(np.bincount(heights)).tolist()
    bits = max(1, graph.fact_count.bit_length())
    few = _Few(graph, shapes, handed, bits)
    start = 0
    for height, end in enumerate(ends):
        level = order[start:end]
        start = end
        if len(level) <= FEW_SHAPES and few.decide(level.tolist(), FEW_SHAPES if height >= DEEP else 1):
            continue
        keys = _learned(shapes, handed, level, bits)
        level_labels = labels[level]
        at, conditions = _met(graph, keys, level_labels, bits, any_label=True)
        told = _told(graph, keys, at, conditions, bits)
        handed.write(level, np.bincount(told >> bits, minlength=len(level)), told & ((1 << bits) - 1))
    # The roots are distinct and what each of them tells is sorted, so this is sorted as well.
    at, facts = handed.read(roots)
    labels = np.full(len(roots), DOCUMENT, dtype=np.int64)
    return _met(graph, at << bits | facts, labels, bits, any_label=False)


class _Few:
    """Levels of a few shapes, as in a deep document: often alike, and each kind is decided once."""

    __slots__ = ("_bits", "_graph", "_handed", "_known", "_shapes", "_told")

    def __init__(self, graph: PatternGraph, shapes: Shapes, handed: _Handed, bits: int) -> None:
        self._graph = graph
        self._shapes = shapes
        self._handed = handed
        self._bits = bits
        #: What an element of some label reports after learning some facts.
        self._known: dict[tuple[int, frozenset[int]], tuple[frozenset[int], Integers]] = {}
        #: What the shapes decided here report.
        self._told: dict[int, frozenset[int]] = {}

    def decide(self, level: list[int], new_max: int) -> bool:
        """Decide a level; False, and nothing is done, when it has too many facts, or shapes of a new kind."""
        kinds: list[tuple[int, frozenset[int]]] = []
        for shape in level:
            facts = self._learned(shape)
            if facts is None:
                return False
            kinds.append((self._shapes.labels[shape], facts))
        if sum(kind not in self._known for kind in kinds) > new_max:
            return False
        for shape, kind in zip(level, kinds, strict=True):
            known = self._known.get(kind)
            if known is None:
                known = self._known[kind] = self._decided(*kind)
            self._told[shape], told = known
            self._handed.write_one(shape, told)
        return True

    def _learned(self, shape: int) -> frozenset[int] | None:
        """The facts that a shape knows; None when these, or its children, are too many."""
        children = self._shapes.children[shape]
        facts = self._shapes.facts[shape]
        if len(children) > FEW_SHAPES or len(facts) > FEW_FACTS:
            return None
        if not children:
            return frozenset((ALWAYS, *facts))
        learned = set(facts)
        for child in children:
            told = self._told.get(child)
            if told is None:
                if self._handed.length(child) > FEW_FACTS:
                    return None
                told = self._told[child] = frozenset(self._handed.read(np.array([child]))[1].tolist())
            learned |= told
        return frozenset(learned) if len(learned) <= FEW_FACTS else None

    def _decided(self, label: int, facts: frozenset[int]) -> tuple[frozenset[int], Integers]:
        keys = np.array(sorted(facts), dtype=np.int64)
        labels = np.array([label], dtype=np.int64)
        at, conditions = _met(self._graph, keys, labels, self._bits, any_label=True)
        told = _told(self._graph, keys, at, conditions, self._bits)
        return frozenset(told.tolist()), told


class _Handed:
    """The facts that each shape hands to its parents, in one growing array."""

    __slots__ = ("_facts", "_lengths", "_starts", "_used")

    def __init__(self, shapes: int) -> None:
        self._starts = np.zeros(shapes, dtype=np.int64)
        self._lengths = np.zeros(shapes, dtype=np.int64)
        self._facts = np.empty(1 << 12, dtype=np.int64)
        self._used = 0

    def write_one(self, shape: int, facts: Integers) -> None:
        self._reserve(len(facts))
        self._facts[self._used : self._used + len(facts)] = facts
        self._starts[shape] = self._used
        self._lengths[shape] = len(facts)
        self._used += len(facts)

    def length(self, shape: int) -> int:
        return int(self._lengths[shape])

    def write(self, shapes: Integers, lengths: Integers, facts: Integers) -> None:
        self._reserve(len(facts))
        stop = self._used + len(facts)
        self._facts[self._used : stop] = facts
        self._starts[shapes] = self._used + np.cumsum(lengths) - lengths
        self._lengths[shapes] = lengths
        self._used = stop

    def _reserve(self, count: int) -> None:
        stop = self._used + count
        if stop > len(self._facts):
            grown = np.empty(max(stop, 2 * len(self._facts)), dtype=np.int64)
            grown[: self._used] = self._facts[: self._used]
            self._facts = grown

    def read(self, shapes: Integers) -> tuple[Integers, Integers]:
        at, source = spread(self._starts[shapes], self._lengths[shapes])
        return at, self._facts[source]


def _unique(keys: Integers) -> Integers:
    """Sorted and distinct. np.unique does the same with more overhead."""
    if len(keys) < 2:
        return keys
    keys = np.sort(keys)
    keep = np.empty(len(keys), dtype=np.bool_)
    keep[0] = True
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    return keys[keep]


def _learned(shapes: Shapes, handed: _Handed, level: Integers, bits: int) -> Integers:
    """What the shapes of a level know: `position in level << bits | fact`, sorted."""
    parts: list[Integers] = []
    edges: list[int] = []
    parents: list[int] = []
    values: list[int] = []
    for position, shape in enumerate(level.tolist()):
        children = shapes.children[shape]
        if children:
            edges += children
            parents += [position] * len(children)
        if shapes.facts[shape]:
            high = position << bits
            values += [high | fact for fact in shapes.facts[shape]]
    if not edges:
        parts.append(np.arange(len(level), dtype=np.int64) << bits | ALWAYS)
    else:
        at, facts = handed.read(np.array(edges, dtype=np.int64))
        parts.append(np.array(parents, dtype=np.int64)[at] << bits | facts)
    if values:
        parts.append(np.array(values, dtype=np.int64))
    return _unique(np.concatenate(parts))


def _met(
    graph: PatternGraph, keys: Integers, labels: Integers, bits: int, *, any_label: bool
) -> tuple[Integers, Integers]:
    """The conditions that shapes with these facts meet: positions in the level, and conditions."""
    positions = keys >> bits
    facts = keys & ((1 << bits) - 1)
    at, variants = graph.woken(facts, labels[positions], or_any=any_label)
    where, variants = _checked(graph, keys, positions[at], variants, bits)
    conditions = graph.condition_of.array[variants].astype(np.int64)
    if graph.several:
        met = _unique(where << 32 | conditions)
        where, conditions = met >> 32, met & 0xFFFFFFFF
    return where, conditions


def _checked(
    graph: PatternGraph, keys: Integers, where: Integers, variants: Integers, bits: int
) -> tuple[Integers, Integers]:
    """Drop the variants for which another fact is missing, or present although it must not be."""
    blocks = graph.checks_of.array[variants]
    doubtful = np.flatnonzero(blocks != _NONE)
    if not len(doubtful):
        return where, variants
    at, wanted = graph.checks.read(blocks[doubtful].astype(np.int64))
    absent = wanted < 0
    looked_for = where[doubtful][at] << bits | np.where(absent, ~wanted, wanted)
    wrong = _among(keys, looked_for) == absent
    keep = np.ones(len(variants), dtype=np.bool_)
    keep[doubtful[at[wrong]]] = False
    return where[keep], variants[keep]


def _among(keys: Integers, wanted: Integers) -> npt.NDArray[np.bool_]:
    """Which of the wanted numbers are among the sorted keys.

    An unordered search costs about 90 ns per number, so a table of bytes first rules out most absent ones: in
    3 ns, and with at worst one false alarm in eight.
    """
    bits = max(6, (8 * len(keys)).bit_length())
    table = np.zeros(1 << bits, dtype=np.bool_)
    table[_hashed(keys, bits)] = True
    among = table[_hashed(wanted, bits)]
    likely = np.flatnonzero(among)
    at = np.searchsorted(keys, wanted[likely])
    at[at == len(keys)] = 0
    among[likely] = keys[at] == wanted[likely]
    return among


def _hashed(keys: Integers, bits: int) -> npt.NDArray[np.uint64]:
    return (keys.view(np.uint64) * np.uint64(GOLDEN)) >> np.uint64(64 - bits)


def _told(graph: PatternGraph, keys: Integers, where: Integers, conditions: Integers, bits: int) -> Integers:
    """What the shapes of a level tell their parents: `position in level << bits | fact`, sorted."""
    rising = graph.rises.array[keys & ((1 << bits) - 1)] != 0
    parts = [keys[rising]]
    for column in (graph.child_fact, graph.below_fact):
        facts = column.array[conditions].astype(np.int64)
        there = facts != _NONE
        parts.append(where[there] << bits | facts[there])
    return _unique(np.concatenate(parts))
