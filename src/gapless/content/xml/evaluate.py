"""Does a document match a pattern? The direct answer, without cleverness.

Each need of the pattern is answered for all nodes of the document at once, as one list of booleans in
document order: a path below, by marking the parents (or all ancestors) of the elements that qualify. That
is one pass over the document for each need, whatever the pattern. The index has to agree with this file.
"""

from __future__ import annotations

from gapless.content.xml.document import Document
from gapless.content.xml.pattern import TEXT, And, Axis, Compare, Has, Need, Not, Or, Pattern, Some
from gapless.content.xml.values import (
    Literal,
    Operator,
    number_passes,
    numbers_within,
    passes,
    passing,
)

__all__ = ["Truths", "evaluate", "value_passes"]


def evaluate(pattern: Pattern, document: Document) -> bool:
    """Whether the document matches the pattern.

    >>> from gapless.content.xml import parse_document, parse_pattern
    >>> evaluate(parse_pattern("//b[@p > 5]"), parse_document("<a><b p='7'/></a>"))
    True
    """
    return Truths(document).of(pattern.need)[0]


def value_passes(need: Need, value: str) -> bool:
    """Whether the value of an attribute or a text passes a test."""
    match need:
        case Compare(operator=operator, literal=literal):
            return passes(value, operator, literal)
        case And(terms=terms):
            return all(value_passes(each, value) for each in terms)
        case Or(terms=terms):
            return any(value_passes(each, value) for each in terms)
        case Not(term=term):
            return not value_passes(term, value)
        case _:
            raise AssertionError(f"{need!r} is nothing to ask of a value")


class Truths:
    """For one document: which nodes have which needs. Remembers, so that shared parts cost once."""

    __slots__ = ("_known", "_numbers", "_values", "document")

    def __init__(self, document: Document) -> None:
        self.document = document
        self._known: dict[Need, list[bool]] = {}
        #: The string-values of all nodes, as parts of one text, and as numbers; None until somebody asks.
        self._values: tuple[str, list[tuple[int, int]]] | None = None
        self._numbers: list[float] | None = None

    def of(self, need: Need) -> list[bool]:
        """Whether each node of the document has the need."""
        known = self._known.get(need)
        if known is None:
            known = self._known[need] = self._compute(need)
        return known

    def _compute(self, need: Need) -> list[bool]:
        count = len(self.document.names)
        match need:
            case And(terms=terms):
                each_term = [self.of(each) for each in terms]
                return [all(term[node] for term in each_term) for node in range(count)]
            case Or(terms=terms):
                each_term = [self.of(each) for each in terms]
                return [any(term[node] for term in each_term) for node in range(count)]
            case Not(term=term):
                return [not each for each in self.of(term)]
            case Compare(operator=operator, literal=literal):
                return self._compared(operator, literal)
            case Some():
                return [self._some(need, node) for node in range(count)]
            case Has():
                return self._has(need)
            case _:
                raise AssertionError(f"unknown need {need!r}")

    def _compared(self, operator: Operator, literal: Literal) -> list[bool]:
        if self._values is None:
            self._values = self.document.values()
        whole, spans = self._values
        if isinstance(literal, str):
            return passing(whole, spans, operator, literal)
        if self._numbers is None:
            self._numbers = numbers_within(whole, spans)
        return [number_passes(number, operator, literal) for number in self._numbers]

    def _some(self, need: Some, node: int) -> bool:
        attributes = self.document.attributes[node]
        if need.name is not None:
            value = attributes.get(need.name)
            return value is not None and value_passes(need.test, value)
        values = (
            [self.document.texts[each] for each in self.document.own_texts[node]]
            if need.subject == TEXT
            else list(attributes.values())
        )
        return any(value_passes(need.test, value) for value in values)

    def _has(self, need: Has) -> list[bool]:
        marked = [False] * len(self.document.names)
        parents = self.document.parents
        for node in reversed(self.matching(need)):
            marked[parents[node]] = True
        if need.axis is Axis.DESCENDANT:
            # From the last node to the first, so that a mark has arrived before it is handed on.
            for node in range(len(marked) - 1, 0, -1):
                if marked[node]:
                    marked[parents[node]] = True
        return marked

    def matching(self, need: Has) -> list[int]:
        """The elements anywhere in the document that have the name and the needs asked for."""
        test, names = self.of(need.test), self.document.names
        return [
            node
            for node in range(1, len(names))
            if test[node] and (need.label is None or need.label == names[node])
        ]
