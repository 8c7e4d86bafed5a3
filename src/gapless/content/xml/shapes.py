"""What do the documents of a batch have in common?

Elements that no pattern can tell apart have one *shape*: the same name (as far as patterns know it), the same
facts about their values, and children of the same shapes, in any order and number. Documents of one kind
repeat themselves, so a batch has far fewer shapes than elements, and the conditions of each shape are decided
once.

An lxml element tells its number of children, and `iter` walks in C; from these two the tree is put together
backwards, from the last element to the first, each taking its children from a stack. That costs half of what
following the children from Python does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lxml import etree

from gapless.content.xml.graph import ANY, ASKS_ATTRIBUTES, ASKS_TEXTS, ASKS_VALUE, IGNORED, UNKNOWN, Graph

__all__ = ["Shapes"]

_CHILDLESS: frozenset[int] = frozenset()
_STRING = etree.XPath("string()", smart_strings=False)
_Key = int | tuple[int, frozenset[int], tuple[int, ...]]


@dataclass(slots=True)
class Shapes:
    """The shapes of the elements of a batch; children come before their parents."""

    graph: Graph
    labels: list[int] = field(default_factory=list)
    #: 0 for an element without children, otherwise one more than its highest child.
    heights: list[int] = field(default_factory=list)
    children: list[frozenset[int]] = field(default_factory=list)
    #: The facts about the values of the element.
    facts: list[tuple[int, ...]] = field(default_factory=list)
    _known: dict[_Key, int] = field(default_factory=dict)

    def add(self, root: etree._Element) -> int:
        """The shape of a root element; the shapes of all elements below it are made known."""
        elements = list(root.iter())
        get = self.graph.labels.get
        labels = [get(each.tag, UNKNOWN) for each in elements]
        counts = [len(each) for each in elements]
        asks, known = self.graph.asks, self._known
        asks_any = asks[ANY]
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
            asked = asks[label] | asks_any
            facts = self._facts(elements[at], asked) if asked else ()
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

    def _facts(self, element: etree._Element, asked: int) -> tuple[int, ...]:
        facets = self.graph.facets
        facts: set[int] = set()
        if asked & ASKS_ATTRIBUTES:
            every = facets.get("@*")
            for name, value in element.items():
                facet = facets.get(f"@{name!s}")
                if facet is not None:
                    facts.update(facet.facts(str(value)))
                if every is not None:
                    facts.update(every.facts(str(value)))
        if asked & ASKS_TEXTS and "text()" in facets:
            facet = facets["text()"]
            for text in (element.text, *[child.tail for child in element]):
                if text:
                    facts.update(facet.facts(str(text)))
        if asked & ASKS_VALUE and "." in facets:
            facts.update(facets["."].facts(_value(element)))
        return tuple(sorted(facts))


def _value(element: etree._Element) -> str:
    """The string-value of an element: all text below it."""
    if not len(element):
        return str(element.text or "")
    # libxml2 collects it ten times as fast as we would: in a deep document every text is read at each level.
    return str(_STRING(element))
