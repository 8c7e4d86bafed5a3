"""Does a document match a pattern? The direct answer, without optimizations.

Each need of the pattern is answered for all nodes of the document at once, as one array of booleans in
document order: a path below, by marking the parents (or all ancestors) of the elements that qualify. That
is one pass over the document for each need, whatever the pattern. The index has to agree with this file.
"""

from __future__ import annotations

from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gapless.content.xml.document import Document
from gapless.content.xml.pattern import TEXT, TRUE, And, Axis, Has, Need, Not, Or, Pattern, Some, TextCompare
from gapless.content.xml.values import (
    Literal,
    Operator,
    numbers_pass,
    numbers_within,
    passes,
    passing,
)

__all__ = ["Truths", "evaluate", "value_passes"]

#: One for each node of a document.
Marks: TypeAlias = npt.NDArray[np.bool_]


def evaluate(pattern: Pattern, document: Document) -> bool:
    """Whether the document matches the pattern.

    >>> from gapless.content.xml import parse_document, parse_pattern
    >>> evaluate(parse_pattern("//b[@p > 5]"), parse_document("<a><b p='7'/></a>"))
    True
    """
    return Truths(document).decided(pattern)


def value_passes(need: Need, value: str) -> bool:
    """Whether the value of an attribute or a text passes a test."""
    match need:
        case TextCompare(operator=operator, literal=literal):
            return passes(value, operator, literal)
        case And(terms=terms):
            return all(value_passes(each, value) for each in terms)
        case Or(terms=terms):
            return any(value_passes(each, value) for each in terms)
        case Not(term=term):
            return not value_passes(term, value)
        case _:
            raise AssertionError(f"{need!r} cannot be asked of a value")


class Truths:
    """For one document: which nodes have which needs. Cached, so that shared parts cost once."""

    __slots__ = ("_attributes", "_known", "_names", "_numbers", "_parents", "_stops", "_values", "document")

    def __init__(self, document: Document) -> None:
        self.document = document
        self._known: dict[Need, Marks] = {}
        #: The string-values of all nodes, as parts of one text, and as numbers; None until needed.
        self._values: tuple[str, list[tuple[int, int]]] | None = None
        self._numbers: npt.NDArray[np.float64] | None = None
        #: Which nodes have which name, and which attribute with which value.
        self._names: dict[str, list[int]] | None = None
        self._attributes: dict[str, tuple[list[int], list[str]]] | None = None
        self._parents: npt.NDArray[np.int64] | None = None
        #: For each node, the one after its last descendant.
        self._stops: npt.NDArray[np.int64] | None = None

    def of(self, need: Need) -> Marks:
        """Whether each node of the document has the need."""
        known = self._known.get(need)
        if known is None:
            known = self._known[need] = self._compute(need)
        return known

    def decided(self, pattern: Pattern) -> bool:
        """Whether the document matches. Intermediate results are dropped, the document is kept."""
        try:
            return bool(self.of(pattern.need)[0])
        finally:
            self._known.clear()

    def _compute(self, need: Need) -> Marks:
        count = len(self.document.names)
        match need:
            case And(terms=terms):
                marked = np.ones(count, dtype=np.bool_)
                for each in terms:
                    marked &= self.of(each)
                return marked
            case Or(terms=terms):
                marked = np.zeros(count, dtype=np.bool_)
                for each in terms:
                    marked |= self.of(each)
                return marked
            case Not(term=term):
                return ~self.of(term)
            case TextCompare(operator=operator, literal=literal):
                return self._compared(operator, literal)
            case Some():
                return self._some(need)
            case Has():
                return self._has(need)
            case _:
                raise AssertionError(f"unknown need {need!r}")

    def _compared(self, operator: Operator, literal: Literal) -> Marks:
        if self._values is None:
            self._values = self.document.values()
        whole, spans = self._values
        if isinstance(literal, str):
            return np.array(passing(whole, spans, operator, literal), dtype=np.bool_)
        if self._numbers is None:
            self._numbers = np.array(numbers_within(whole, spans), dtype=np.float64)
        return numbers_pass(self._numbers, operator, literal)

    def _some(self, need: Some) -> Marks:
        marked = np.zeros(len(self.document.names), dtype=np.bool_)
        if need.subject == TEXT:
            nodes = [node for node, texts in enumerate(self.document.own_texts) for _ in texts]
            values = [self.document.texts[each] for texts in self.document.own_texts for each in texts]
        else:
            nodes, values = self._attributes_called(need.name)
        if need.test != TRUE:
            nodes = [
                node for node, value in zip(nodes, values, strict=True) if value_passes(need.test, value)
            ]
        marked[nodes] = True
        return marked

    def _attributes_called(self, name: str | None) -> tuple[list[int], list[str]]:
        """The nodes that have an attribute, and its values; for None, all attributes of all nodes."""
        if self._attributes is None:
            found: dict[str, tuple[list[int], list[str]]] = {}
            for node, attributes in enumerate(self.document.attributes):
                for key, value in attributes.items():
                    nodes, values = found.setdefault(key, ([], []))
                    nodes.append(node)
                    values.append(value)
            self._attributes = found
        if name is not None:
            return self._attributes.get(name, ([], []))
        every = self._attributes.values()
        return list(chain(*(nodes for nodes, _ in every))), list(chain(*(values for _, values in every)))

    def _has(self, need: Has) -> Marks:
        count = len(self.document.names)
        nodes = self._matching(need)
        if need.axis is Axis.CHILD:
            marked = np.zeros(count, dtype=np.bool_)
            if len(nodes):
                if self._parents is None:
                    self._parents = np.array(self.document.parents, dtype=np.int64)
                marked[self._parents[nodes]] = True
            return marked
        if not len(nodes):
            return np.zeros(count, dtype=np.bool_)
        # The elements below a node are those that follow it, up to where it stops.
        before = np.zeros(count + 1, dtype=np.int64)
        before[nodes + 1] = 1
        before.cumsum(out=before)
        return before[self._ends] > before[1:]

    def matching(self, need: Has) -> list[int]:
        """The elements anywhere in the document that have the name and the needs asked for."""
        found: list[int] = self._matching(need).tolist()
        return found

    def _matching(self, need: Has) -> npt.NDArray[np.int64]:
        if need.label is None:
            return np.flatnonzero(self.of(need.test)[1:]) + 1
        if self._names is None:
            self._names = {}
            for node, name in enumerate(self.document.names):
                self._names.setdefault(name, []).append(node)
        named = np.array(self._names.get(need.label, ()), dtype=np.int64)
        return named[self.of(need.test)[named]] if len(named) and need.test != TRUE else named

    @property
    def _ends(self) -> npt.NDArray[np.int64]:
        if self._stops is None:
            parents = self.document.parents
            stops = list(range(1, len(parents) + 1))
            # From last to first, so that a node's stop is known before its parent's.
            for node in range(len(parents) - 1, 0, -1):
                parent = parents[node]
                stops[parent] = max(stops[parent], stops[node])
            self._stops = np.array(stops, dtype=np.int64)
        return self._stops
