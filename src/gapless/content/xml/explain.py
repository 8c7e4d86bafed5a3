"""Why did a document match a pattern, or which part of it failed?

The pattern is followed from the root down. Of the elements that a step could mean, the one that satisfies
most is shown; its predicates are listed below it, and failed ones are broken down in turn. So the last lines
show how far the pattern got, and what was missing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gapless.content.xml.document import Document
from gapless.content.xml.evaluate import Truths
from gapless.content.xml.imply import terms_of
from gapless.content.xml.pattern import (
    TEXT,
    TRUE,
    And,
    Axis,
    Has,
    Need,
    Not,
    Or,
    Pattern,
    Some,
    TextCompare,
    name_text,
)

__all__ = ["PatternExplanation", "explain_pattern"]

#: Longer values are cut.
_SHOWN_CHARS_MAX = 40
#: How many names or values are listed.
_LISTED_MAX = 5


@dataclass(frozen=True, slots=True)
class PatternExplanation:
    """One piece of a pattern: whether the document has it, and what was found or missed.

    `str` prints the tree, one line for each piece.
    """

    #: The piece as XPath.
    text: str
    matched: bool
    #: Where it was found, or why not.
    detail: str
    #: The pieces that it is made of, as far as they explain it.
    parts: tuple[PatternExplanation, ...] = ()

    def lines(self, indent: int = 0) -> Iterator[str]:
        """The lines of the printed tree."""
        answer = "yes" if self.matched else "NO "
        yield f"{answer} {'  ' * indent}{self.text}: {self.detail}"
        for part in self.parts:
            yield from part.lines(indent + 1)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def failure(self) -> PatternExplanation | None:
        """The first innermost piece that failed; None when none did."""
        if self.matched:
            return None
        for part in self.parts:
            found = part.failure()
            if found is not None:
                return found
        return self


def explain_pattern(pattern: Pattern, document: Document) -> PatternExplanation:
    """Which parts of a pattern a document has.

    >>> from gapless.content.xml import parse_document, parse_pattern
    >>> document = parse_document("<a><b p='3'><c/></b></a>")
    >>> print(explain_pattern(parse_pattern("/a/b[c][@p > 5]"), document))
    NO  /a: /a lacks something
    NO    /b: /a/b lacks something
    NO      @p > 5: @p is '3' at /a/b
    yes     c: found at /a/b/c
    """
    return _Explainer(Truths(document)).explain(pattern.need, 0)


class _Explainer:
    def __init__(self, truths: Truths) -> None:
        self._truths = truths
        self._document = truths.document
        self._reaches: dict[Need, list[int]] = {}

    def explain(self, need: Need, node: int) -> PatternExplanation:
        matched = bool(self._truths.of(need)[node])
        match need:
            case Has():
                return self._has(need, node, matched)
            case And(terms=terms) if terms:
                parts = tuple(self.explain(each, node) for each in terms)
                return PatternExplanation(need.text, matched, "all of these are needed", parts)
            case Or(terms=terms) if terms:
                parts = tuple(self.explain(each, node) for each in terms)
                return PatternExplanation(need.text, matched, "one of these is needed", parts)
            case Not(term=term):
                return PatternExplanation(
                    need.text, matched, f"without the not: {self.explain(term, node).detail}"
                )
            case Some():
                return PatternExplanation(need.text, matched, self._some(need, node))
            case TextCompare():
                value = _shown(self._document.value(node))
                return PatternExplanation(
                    need.text, matched, f"the text is {value} at {self._document.path(node)}"
                )
            case _:
                return PatternExplanation(
                    need.text, matched, "always" if matched else "never; the pattern contradicts itself"
                )

    def _has(self, need: Has, node: int, matched: bool) -> PatternExplanation:
        below = self._below(node, need.axis)
        alike = [each for each in below if need.label in {None, self._document.names[each]}]
        text = ("/" if need.axis is Axis.CHILD else "//") + name_text(need.label)
        if not alike:
            return PatternExplanation(text, False, self._nothing(need, node, below))
        terms = [each for each in terms_of(need.test) if each != TRUE]
        best = max(alike, key=lambda each: self._score(terms, each))
        where = self._document.path(best)
        if matched and not node:
            parts = tuple(self.explain(each, best) for each in terms)
            return PatternExplanation(text, True, f"found at {where}", parts)
        if matched:
            return PatternExplanation(need.text, True, f"found at {where}")
        others = f" (best of {len(alike)})" if len(alike) > 1 else ""
        parts = tuple(self.explain(each, best) for each in terms)
        return PatternExplanation(text, False, f"{where} lacks something{others}", parts)

    def _score(self, terms: list[Need], node: int) -> tuple[int, int]:
        """How much of the need an element satisfies, and how deep the paths get."""
        steps = sum(self._reach(each)[node] for each in terms if isinstance(each, Has))
        return sum(bool(self._truths.of(each)[node]) for each in terms), steps

    def _reach(self, need: Has) -> list[int]:
        """For each node, how many steps of a path are below it by name alone."""
        known = self._reaches.get(need)
        if known is not None:
            return known
        names, parents = self._document.names, self._document.parents
        inner = [self._reach(each) for each in terms_of(need.test) if isinstance(each, Has)]
        reach = [0] * len(names)
        for node in range(len(names) - 1, 0, -1):
            here = (
                1 + max((each[node] for each in inner), default=0) if need.label in {None, names[node]} else 0
            )
            if need.axis is Axis.DESCENDANT:
                here = max(here, reach[node])
            reach[parents[node]] = max(reach[parents[node]], here)
        self._reaches[need] = reach
        return reach

    def _below(self, node: int, axis: Axis) -> list[int]:
        parents = self._document.parents
        if axis is Axis.CHILD:
            return [each for each, parent in enumerate(parents) if parent == node]
        inside = {node}
        for each in range(node + 1, len(parents)):
            if parents[each] not in inside:
                break
            inside.add(each)
        return sorted(inside - {node})

    def _nothing(self, need: Has, node: int, below: list[int]) -> str:
        what = "an element" if need.label is None else f"a {name_text(need.label)}"
        where = self._document.path(node) if node else "the document"
        names = list(dict.fromkeys(self._document.names[each] for each in below))
        if not names:
            return f"{where} has nothing below, so not {what}"
        more = ", ..." if len(names) > _LISTED_MAX else ""
        kind = "below" if need.axis is Axis.DESCENDANT else "directly below"
        return f"{where} has not {what} {kind}, but {', '.join(names[:_LISTED_MAX])}{more}"

    def _some(self, need: Some, node: int) -> str:
        where = self._document.path(node)
        attributes = self._document.attributes[node]
        if need.name is not None:
            value = attributes.get(need.name)
            shown = "@" + name_text(need.name)
            return f"no {shown} at {where}" if value is None else f"{shown} is {_shown(value)} at {where}"
        if need.subject == TEXT:
            values = [self._document.texts[each] for each in self._document.own_texts[node]]
        else:
            values = list(attributes.values())
        listed = ", ".join(_shown(each) for each in values[:_LISTED_MAX]) or "nothing"
        return f"{need.subject} is {listed} at {where}"


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN_CHARS_MAX else value[: _SHOWN_CHARS_MAX - 3] + "...")
