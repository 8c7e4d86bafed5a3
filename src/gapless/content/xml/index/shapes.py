"""What do the documents of a batch have in common?

Elements that no pattern can tell apart have one *shape*: the same name (as far as patterns know it), the same
facts about their values, and children of the same shapes, in any order and number. Documents of one kind
repeat themselves, so a batch has far fewer shapes than elements, and the conditions of each shape are decided
once.

An lxml element knows its number of children, and `iter` walks in C; from these two the tree is built
backwards, from the last element to the first, each taking its children from a stack. That costs half as much
as following the children from Python. Likewise the value of an element, which is all text below it, is found
as a part of the text of the document: it is never concatenated for each element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lxml import etree

from gapless.content.xml.index.facts import Facet
from gapless.content.xml.index.graph import (
    ANY,
    ASKS_ATTRIBUTES,
    ASKS_TEXTS,
    ASKS_VALUE,
    IGNORED,
    UNKNOWN,
    PatternGraph,
)

__all__ = ["Shapes"]

_CHILDLESS: frozenset[int] = frozenset()
_STRING = etree.XPath("string()", smart_strings=False)
_Key = int | tuple[int, frozenset[int], tuple[int, ...]]


@dataclass(slots=True)
class Shapes:
    """The shapes of the elements of a batch; children come before their parents."""

    graph: PatternGraph
    labels: list[int] = field(default_factory=list)
    #: 0 for an element without children, otherwise one more than its highest child.
    heights: list[int] = field(default_factory=list)
    children: list[frozenset[int]] = field(default_factory=list)
    #: The facts about the values of the element.
    facts: list[tuple[int, ...]] = field(default_factory=list)
    _known: dict[_Key, int] = field(default_factory=dict)

    def add(self, root: etree._Element) -> int:
        """The shape of a root element; also registers the shapes of all elements below it."""
        elements = list(root.iter())
        get = self.graph.labels.get
        labels = [get(each.tag, UNKNOWN) for each in elements]
        counts = [len(each) for each in elements]
        facts_of = self._facts(elements, labels, counts)
        known = self._known
        stack: list[int] = []
        for at in range(len(elements) - 1, -1, -1):
            label = labels[at]
            if label == IGNORED:
                stack.append(IGNORED)
                continue
            children = _CHILDLESS
            count = counts[at]
            if count:
                children = frozenset(stack[-count:])
                del stack[-count:]
                if IGNORED in children:
                    children -= {IGNORED}
            facts = facts_of.get(at, ())
            key: _Key = (label, children, facts) if children or facts else label
            shape = known.get(key)
            if shape is None:
                shape = known[key] = self._new(label, children, facts)
            stack.append(shape)
        assert len(stack) == 1, f"{len(stack)} roots"
        return stack[0]

    def _new(self, label: int, children: frozenset[int], facts: tuple[int, ...]) -> int:
        heights = self.heights
        self.labels.append(label)
        self.children.append(children)
        self.facts.append(facts)
        heights.append(1 + max([heights[each] for each in children]) if children else 0)
        return len(heights) - 1

    def _facts(
        self, elements: list[etree._Element], labels: list[int], counts: list[int]
    ) -> dict[int, tuple[int, ...]]:
        """The facts about the values of those elements that have some, by position."""
        facets = self.graph.facets
        found: dict[int, tuple[int, ...]] = {}
        if not facets:
            return found
        any_asked = self.graph.asks[ANY]
        # Ignored elements have the label -1, so they find the last entry.
        asks = [each | any_asked for each in self.graph.asks] + [0]
        asked = [asks[label] for label in labels]
        attributes = [at for at, each in enumerate(asked) if each & ASKS_ATTRIBUTES]
        if attributes:
            _add_attributes(found, facets, elements, attributes)
        places = [at for at, each in enumerate(asked) if each & ASKS_TEXTS]
        if places:
            _add_texts(found, facets["text()"], elements, counts, places)
        places = [at for at, each in enumerate(asked) if each & ASKS_VALUE]
        if places:
            whole, spans = _values(elements, labels, counts, places)
            _join(found, places, facets["."].facts_within(whole, spans))
        return found


def _join(
    found: dict[int, tuple[int, ...]], places: Sequence[int], facts_of: Iterable[tuple[int, ...]]
) -> None:
    """The elements at these places have these facts, too."""
    for at, facts in zip(places, facts_of, strict=True):
        if facts:
            others = found.get(at)
            found[at] = facts if others is None or others == facts else tuple(sorted({*others, *facts}))


def _add_attributes(
    found: dict[int, tuple[int, ...]],
    facets: Mapping[str, Facet],
    elements: list[etree._Element],
    places: list[int],
) -> None:
    every = facets.get("@*")
    values: dict[Facet, tuple[list[int], list[str]]] = {}
    for at in places:
        for name, value in elements[at].items():
            for facet in (facets.get(f"@{name!s}"), every):
                if facet is not None:
                    owners, asked = values.setdefault(facet, ([], []))
                    owners.append(at)
                    asked.append(str(value))
    for facet, (owners, asked) in values.items():
        _join(found, owners, facet.facts_of(asked))


def _add_texts(
    found: dict[int, tuple[int, ...]],
    facet: Facet,
    elements: list[etree._Element],
    counts: list[int],
    places: list[int],
) -> None:
    texts: list[str] = []
    owners: list[int] = []
    for at in places:
        text = elements[at].text
        if text:
            owners.append(at)
            texts.append(text)
    tails = [each.tail for each in elements]
    tails[0] = None
    if any(tails):
        is_asked = [False] * len(elements)
        for at in places:
            is_asked[at] = True
        # After the end of each element, where its tail is, its parent continues.
        stack: list[int] = []
        for at in range(len(elements) - 1, -1, -1):
            count = counts[at]
            if count:
                if is_asked[at]:
                    behind = [tail for child in stack[-count:] if (tail := tails[child])]
                    owners += [at] * len(behind)
                    texts += behind
                del stack[-count:]
            stack.append(at)
    _join(found, owners, facet.facts_of(texts))


def _values(
    elements: list[etree._Element], labels: list[int], counts: list[int], places: list[int]
) -> tuple[str, list[tuple[int, int]]]:
    """All text of a document, and for the elements at `places` which part of it is their value."""
    if len(places) == 1 and places[0] == 0:
        whole = str(_STRING(elements[0]))
        return whole, [(0, len(whole))]
    texts = [
        0 if label == IGNORED else len(each.text or "") for each, label in zip(elements, labels, strict=True)
    ]
    tails = [len(each.tail or "") for each in elements]
    #: For each element, the position after its last descendant; and how much text follows the elements that
    #: end there.
    ends = [0] * len(elements)
    closed = [0] * (len(elements) + 1)
    stack: list[int] = []
    for at in range(len(elements) - 1, -1, -1):
        count, end = counts[at], at + 1
        if count:
            end = stack[-count]
            del stack[-count:]
        stack.append(end)
        ends[at] = end
        closed[end] += tails[at]
    texts_before = [0, *accumulate(texts)]
    tails_before = [0, *accumulate(tails)]
    closed_before = list(accumulate(closed))
    spans: list[tuple[int, int]] = []
    for at in places:
        start = texts_before[at] + closed_before[at]
        end = ends[at]
        inner = texts_before[end] - texts_before[at] + tails_before[end] - tails_before[at + 1]
        spans.append((start, start + inner))
    return str(_STRING(elements[0])), spans
