"""Does one pattern accept everything that another accepts?

YES comes from `imply.py`: a proof that b's needs include a's. NO comes from a counterexample: a minimal
document that b describes; if b accepts it and a does not, the question is settled. For patterns without `*`,
and for patterns without `//`, one of the two always succeeds (which makes homomorphism complete for them): in
a document with a fresh name for every `*` and inside every `//`, a can only match what b demands. Otherwise a
few documents are tried, and the answer may be UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterator

from gapless.content.covering.verdict import Cover
from gapless.content.xml.document import Document
from gapless.content.xml.evaluate import evaluate, value_passes
from gapless.content.xml.imply import Implication, terms_of
from gapless.content.xml.pattern import TEXT, TRUE, And, Axis, Has, Need, Not, Or, Pattern, Some, TextCompare

__all__ = ["WITNESSES_MAX", "covers_pattern"]

#: Number of documents tried for each way to fill the `//`s.
WITNESSES_MAX = 24
#: The longest filling of a `//`.
_FILLING_MAX = 8
#: A name and a text that no pattern has: neither is possible in XPath.
_UNHEARD = "?"
_OTHER_TEXT = "\0'\""


def covers_pattern(a: Pattern, b: Pattern) -> Cover:
    """Whether every document that matches `b` matches `a`.

    >>> from gapless.content.xml import parse_pattern
    >>> covers_pattern(parse_pattern("//b[@p > 3]"), parse_pattern("/a/b[c][@p = 5]"))
    <Cover.YES: 'yes'>
    >>> covers_pattern(parse_pattern("/a/b"), parse_pattern("/a//b"))
    <Cover.NO: 'no'>
    """
    if Implication().holds(b.need, a.need):
        return Cover.YES
    values = sorted({*_values(a.need), *_values(b.need)})
    stars = min(_FILLING_MAX, _stars(a.need) + 1)
    choices = min(WITNESSES_MAX, max(len(values), _branches(b.need)))
    for filling in sorted({1, 0, stars}, reverse=True):
        for choice in range(choices):
            document = _Witness(values, filling, choice).build(b.need)
            if evaluate(b, document) and not evaluate(a, document):
                return Cover.NO
    return Cover.UNKNOWN


class _Witness:
    """Builds a document that satisfies a need, with as little else as possible."""

    __slots__ = ("_choice", "_document", "_filling", "_values")

    def __init__(self, values: list[str], filling: int, choice: int) -> None:
        #: The texts that attributes and text nodes may have; `choice` says which of the fitting ones.
        self._values = values
        self._choice = choice
        #: How many elements stand inside a `//`.
        self._filling = filling
        self._document = Document([""], [-1], [{}], [], [(0, 0)], [[]])

    def build(self, need: Need) -> Document:
        self._furnish(0, need)
        self._close(0)
        return self._document

    def _furnish(self, node: int, need: Need) -> None:
        """Give a node what is needed."""
        terms = list(self._chosen(need))
        compared = [each for each in terms if isinstance(each, TextCompare)]
        if compared:
            self._write(node, And(tuple(compared)))
        tests: dict[str, list[Need]] = {}
        for each in terms:
            if isinstance(each, Some) and each.subject == TEXT:
                self._write(node, each.test)
            elif isinstance(each, Some):
                tests.setdefault(each.name or _UNHEARD, []).extend(self._chosen(each.test))
        for name, asked in tests.items():
            self._document.attributes[node][name] = self._pick(And(tuple(asked)))
        # The document node has one element below it at most, which the `//`s of a conjunction share.
        children = sorted((each for each in terms if isinstance(each, Has)), key=lambda each: each.axis.value)
        for each in children:
            above = node or min(len(self._document.names) - 1, 1)
            if each.axis is Axis.DESCENDANT:
                for _ in range(self._filling):
                    above = self._open(above, _UNHEARD)
            child = self._open(above, each.label or _UNHEARD)
            self._furnish(child, each.test)
            while child != node:
                self._close(child)
                child = self._document.parents[child]

    def _chosen(self, need: Need) -> Iterator[Need]:
        """The terms of a need, of every `or` only one."""
        for each in terms_of(need):
            if isinstance(each, Or) and each.terms:
                yield from self._chosen(each.terms[self._choice % len(each.terms)])
            elif each != TRUE:
                yield each

    def _open(self, parent: int, name: str) -> int:
        document = self._document
        document.names.append(name)
        document.parents.append(parent)
        document.attributes.append({})
        document.spans.append((len(document.texts), len(document.texts)))
        document.own_texts.append([])
        return len(document.names) - 1

    def _close(self, node: int) -> None:
        self._document.spans[node] = (self._document.spans[node][0], len(self._document.texts))

    def _write(self, node: int, test: Need) -> None:
        text = self._pick(test)
        if text:
            self._document.own_texts[node].append(len(self._document.texts))
            self._document.texts.append(text)

    def _pick(self, test: Need) -> str:
        fitting = [each for each in self._values if value_passes(test, each)]
        return fitting[self._choice % len(fitting)] if fitting else ""


def _values(need: Need) -> Iterator[str]:
    """Texts that distinguish the comparisons of a need: the literals, and values next to them."""
    yield ""
    yield _OTHER_TEXT
    for each in _all(need):
        if isinstance(each, TextCompare):
            literal = each.literal
            if isinstance(literal, str):
                yield literal
                yield literal + _OTHER_TEXT
                yield _OTHER_TEXT + literal
            elif abs(literal) < 1e15:
                for number in (literal, literal - 1, literal + 1, literal - 0.25, literal + 0.25):
                    yield format(number, "f")


def _all(need: Need) -> Iterator[Need]:
    """A need and all inside it."""
    yield need
    match need:
        case And(terms=terms) | Or(terms=terms):
            for each in terms:
                yield from _all(each)
        case Not(term=term):
            yield from _all(term)
        case Has(test=test) | Some(test=test):
            yield from _all(test)


def _stars(need: Need) -> int:
    return sum(isinstance(each, Has) and each.label is None for each in _all(need))


def _branches(need: Need) -> int:
    return max((len(each.terms) for each in _all(need) if isinstance(each, Or)), default=1)
