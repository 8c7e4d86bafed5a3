"""Which of very many patterns does each document of a batch match?

`PatternIndex` keeps patterns under numbers that the caller chooses (slots) and matches whole batches of
documents against all of them. The work is divided:

    graph.py    the shared parts of all patterns; changes one pattern at a time, without a rebuild
    shapes.py   the distinct elements of a batch
    levels.py   the conditions that they meet, with array operations

`benchmarks/content_xml.py` measures it. `evaluate.py` is the slow, obvious answer that it must agree with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from gapless.content.xml.document import parse_root
from gapless.content.xml.index.blocks import Blocks, Integers, NumberColumn, spread
from gapless.content.xml.index.graph import PatternGraph
from gapless.content.xml.index.levels import decide
from gapless.content.xml.index.shapes import Shapes
from gapless.content.xml.pattern import Pattern
from gapless.errors import ContentError

__all__ = ["PatternIndex"]

#: Maximum number of distinct elements matched together, which bounds memory.
SHAPES_MAX = 8_192
#: Slots are sorted by marking them if at least one in this many is present.
DENSITY = 32
#: Below this, group and slot fit into one number.
_KEYS_MAX = 1 << 62
_NONE = -1


class PatternIndex:
    """Patterns by slot, matched together.

    >>> from gapless.content.xml import parse_pattern
    >>> index = PatternIndex()
    >>> index.add(7, parse_pattern("//b[@p > 5]"))
    >>> index.add(8, parse_pattern("/a/c"))
    >>> rows, slots = index.match(["<a><b p='9'/><c/></a>", None, "<a><c/></a>", "<a>"])
    >>> list(zip(rows.tolist(), slots.tolist()))
    [(0, 7), (0, 8), (2, 8)]
    >>> index.refused
    1
    """

    def __init__(self) -> None:
        self._graph = PatternGraph()
        #: Slot to condition of the document node, and to its place among the slots of that condition.
        self._slots: dict[int, tuple[int, int]] = {}
        #: Condition to the list of its slots, as numbers in `_names`.
        self._block_of = NumberColumn(_NONE)
        self._blocks = Blocks()
        #: Slots may be any number, blocks hold small ones.
        self._names = NumberColumn(0, dtype=np.int64)
        self._numbers: dict[int, int] = {}
        self._free_numbers: list[int] = []
        #: Number of unreadable documents since the index was made.
        self.refused = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, slot: object) -> bool:
        return slot in self._slots

    def add(self, slot: int, pattern: Pattern) -> None:
        """Match `pattern` from now on and report it as `slot`, replacing the slot's previous pattern."""
        condition = self._graph.acquire_pattern(pattern)
        if slot in self._slots:
            self.remove(slot)
        number = self._free_numbers.pop() if self._free_numbers else len(self._numbers)
        self._numbers[slot] = number
        self._names.reach(number)
        self._names.view[number] = slot
        self._block_of.reach(condition)
        block = self._block_of.view[condition]
        if block == _NONE:
            block = self._block_of.view[condition] = self._blocks.create()
        self._slots[slot] = (condition, self._blocks.append(block, number))

    def remove(self, slot: int) -> None:
        """Forget a slot. Raises KeyError when it has no pattern."""
        condition, place = self._slots.pop(slot)
        number = self._numbers.pop(slot)
        block = self._block_of.view[condition]
        moved = self._blocks.remove(block, place)
        if moved != number:
            self._slots[self._names.view[moved]] = (condition, place)
        if not self._blocks.lengths.view[block]:
            self._blocks.release(block)
            self._block_of.view[condition] = _NONE
        self._free_numbers.append(number)
        self._graph.release(condition)

    def match(
        self,
        documents: pa.Array | pa.ChunkedArray | Sequence[bytes | str | None],
        count: Callable[[int], None] | None = None,
    ) -> tuple[Integers, Integers]:
        """All (row, slot) pairs of documents and the patterns that they match: two arrays, sorted.

        A null matches nothing; nor does an unreadable document, which is counted in `refused`. `count` is
        told how many pairs there will be, before there are arrays of that length; it may raise.
        """
        refused = self.refused
        try:
            parts = [self._match_shapes(*each, count) for each in self._cut(_plain(documents))]
        except Exception:
            self.refused = refused
            raise
        if len(parts) == 1:
            return parts[0]
        empty = [np.empty(0, dtype=np.int64)]
        return np.concatenate([rows for rows, _ in parts] or empty), np.concatenate(
            [slots for _, slots in parts] or empty
        )

    def _cut(self, documents: Iterable[bytes | str | None]) -> Iterator[tuple[Shapes, list[int], list[int]]]:
        """The batch in pieces of bounded size: shapes, rows, and the root shape of each row."""
        shapes, rows, roots = Shapes(self._graph), list[int](), list[int]()
        for row, document in enumerate(documents):
            if document is None:
                continue
            try:
                root = parse_root(document)
            except ContentError:
                self.refused += 1
                continue
            roots.append(shapes.add(root))
            rows.append(row)
            if len(shapes.labels) >= SHAPES_MAX:
                yield shapes, rows, roots
                shapes, rows, roots = Shapes(self._graph), [], []
        if rows:
            yield shapes, rows, roots

    def _match_shapes(
        self, shapes: Shapes, rows: list[int], roots: list[int], count: Callable[[int], None] | None
    ) -> tuple[Integers, Integers]:
        distinct, which = np.unique(np.array(roots, dtype=np.int64), return_inverse=True)
        at, conditions = decide(self._graph, shapes, distinct)
        blocks = self._block_of.array[conditions].astype(np.int64)
        if count is not None:
            of_shape = np.bincount(at, self._blocks.lengths.array[blocks], minlength=len(distinct))
            count(int(of_shape[which].sum()))
        position, numbers = self._blocks.read(blocks)
        at, slots = at[position], self._names.array[numbers].astype(np.int64)
        slots = _sorted_within(at, slots)
        counts = np.bincount(at, minlength=len(distinct))
        row_of = np.array(rows, dtype=np.int64)
        if np.array_equal(which, np.arange(len(distinct))):
            # All documents are different, as in most batches: the pairs are already in order.
            return np.repeat(row_of, counts), slots
        starts = np.cumsum(counts) - counts
        row_at, source = spread(starts[which], counts[which])
        return row_of[row_at], slots[source]

    def statistics(self) -> dict[str, int]:
        """How much is shared: patterns, distinct ones, conditions of elements, bytes of arrays."""
        return {
            "patterns": len(self._slots),
            "distinct": int((self._block_of.array != _NONE).sum()),
            "conditions": self._graph.condition_count,
            "array_bytes": self._graph.nbytes
            + self._blocks.nbytes
            + self._names.nbytes
            + self._block_of.nbytes,
        }


def _sorted_within(groups: Integers, slots: Integers) -> Integers:
    """The slots ordered by group and then by themselves."""
    if not len(slots):
        return slots
    low = int(slots.min())
    span, count = int(slots.max()) - low + 1, int(groups.max()) + 1
    if span * count < DENSITY * len(slots):
        # Enough that marking them and finding the marks is cheaper than sorting.
        marks = np.zeros((count, span), dtype=np.bool_)
        marks.ravel()[groups * span + (slots - low)] = True
        return np.concatenate([np.flatnonzero(line) for line in marks]) + low
    bits = span.bit_length()
    if count << bits < _KEYS_MAX:
        # One number for both sorts several times faster than two keys.
        return (np.sort((groups << bits) | (slots - low)) & ((1 << bits) - 1)) + low
    return slots[np.lexsort((slots, groups))]


def _plain(
    documents: pa.Array | pa.ChunkedArray | Sequence[bytes | str | None],
) -> Iterable[bytes | str | None]:
    if isinstance(documents, pa.Array | pa.ChunkedArray):
        values: list[bytes | str | None] = documents.to_pylist()
        return values
    return documents
