"""What is an XPath pattern, once it is understood? A small tree of needs, with one text for each.

A pattern asks one question of a document: is there at least one node like this? So it does not matter where a
path ends, and the pattern is an unordered tree: `/a/b`, `/a[b]` and `/a[./b]` are the same, and so are
`/a[b][c]` and `/a[c and b]`. The tree is made of *needs*, things that an element must have:

    Has          an element below, as child (`b`) or anywhere (`.//b`), that in turn has needs
    Some         an attribute or a text node whose value passes a test (`@p > 5`, `text() = 'x'`)
    TextCompare  its own text, all that is below it put together (`. = 'x'`)
    And, Or, Not of the above; an empty And is always true, an empty Or never

Every need is immutable and prints as XPath. `normal.py` builds them so that equal patterns get equal texts;
so the text is the identity, equality compares it, and the hash is precomputed.
"""

from __future__ import annotations

from decimal import Decimal
from enum import Enum

from gapless.content.xml.values import Literal, Operator

__all__ = [
    "FALSE",
    "TEXT",
    "TRUE",
    "And",
    "Axis",
    "Has",
    "Need",
    "Not",
    "Or",
    "Pattern",
    "Some",
    "TextCompare",
    "name_text",
]

#: The subject of a `Some` that looks at text nodes; the others are `@name` and `@*`.
TEXT = "text()"
#: How a number beyond every float is written, because XPath has no literal for infinity.
_INFINITE = "1" + "0" * 309


class Axis(Enum):
    """Where the element below is looked for."""

    CHILD = "/"
    DESCENDANT = "//"


class Need:
    """Something that an element, an attribute or a text must have. Equal needs print alike."""

    __slots__ = ("_hash", "depth", "size", "text")

    #: XPath, as it stands in a predicate.
    text: str
    #: How many needs it is made of, and how deeply they nest.
    size: int
    depth: int

    def __init__(self, text: str, parts: tuple[Need, ...] = ()) -> None:
        self.text = text
        self.size = 1 + sum(part.size for part in parts)
        self.depth = 1 + max((part.depth for part in parts), default=0)
        self._hash = hash(text)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Need) and self.text == other.text)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class Has(Need):
    """There is an element below: `label` is None for any name, `test` is what it must have itself."""

    __slots__ = ("axis", "label", "step", "test")

    def __init__(self, axis: Axis, label: str | None, test: Need) -> None:
        self.axis = axis
        self.label = label
        self.test = test
        #: The text without the axis, such as `b[c]/d`.
        self.step = name_text(label) + _tail(test)
        super().__init__(self.step if axis is Axis.CHILD else f".//{self.step}", (test,))


class Some(Need):
    """There is an attribute or a text node (`subject` is `@name`, `@*` or `text()`) that passes `test`.

    An element has at most one attribute of a name, so the test of a named one is True or one TextCompare:
    `normal.py` takes everything else apart.
    """

    __slots__ = ("name", "subject", "test")

    def __init__(self, subject: str, test: Need) -> None:
        self.subject = subject
        #: The name of the attribute as lxml spells it; None for `@*` and `text()`.
        self.name = subject[1:] if subject.startswith("@") and subject != "@*" else None
        self.test = test
        shown = "@" + name_text(self.name) if self.name is not None else subject
        if isinstance(test, TextCompare) and (self.name is not None or not test.is_function):
            text = test.on(shown)
        else:
            text = shown + _brackets(test)
        super().__init__(text, (test,))

    @property
    def is_single(self) -> bool:
        """Whether an element has at most one node of this kind."""
        return self.name is not None


class TextCompare(Need):
    """The node's own text compared with a literal: `. = 'x'`, `contains(., 'x')`."""

    __slots__ = ("literal", "operator")

    def __init__(self, operator: Operator, literal: Literal) -> None:
        self.operator = operator
        self.literal = literal
        super().__init__(self.on("."))

    @property
    def is_function(self) -> bool:
        """Whether it is written `name(., 'x')`."""
        return self.operator in {"contains", "starts-with"}

    def on(self, subject: str) -> str:
        """The text of the comparison with another subject than `.`."""
        shown = _literal_text(self.literal)
        return (
            f"{self.operator}({subject}, {shown})"
            if self.is_function
            else f"{subject} {self.operator} {shown}"
        )


class And(Need):
    """All of `terms`, at least two of them; with none, always true."""

    __slots__ = ("terms",)

    def __init__(self, terms: tuple[Need, ...]) -> None:
        self.terms = terms
        text = " and ".join(
            f"({each})" if isinstance(each, Or) and each.terms else each.text for each in terms
        )
        super().__init__(text or "true()", terms)


class Or(Need):
    """At least one of `terms`, of which there are at least two; with none, never true."""

    __slots__ = ("terms",)

    def __init__(self, terms: tuple[Need, ...]) -> None:
        self.terms = terms
        text = " or ".join(
            f"({each})" if isinstance(each, And) and each.terms else each.text for each in terms
        )
        super().__init__(text or "false()", terms)


class Not(Need):
    """Not `term`, which is a Has, a Some or a TextCompare."""

    __slots__ = ("term",)

    def __init__(self, term: Need) -> None:
        self.term = term
        super().__init__(f"not({term})", (term,))


TRUE = And(())
FALSE = Or(())


class Pattern:
    """What a subscription asks of a document; made by `parse_pattern`.

    Equal patterns compare and hash equal, however they were written; `str` prints XPath that parses to an
    equal pattern, and that lxml accepts too unless it names a namespace.
    """

    __slots__ = ("need", "text")

    def __init__(self, need: Need) -> None:
        #: What the document node must have: nearly always one Has, the outermost step.
        self.need = need
        #: XPath in normal form: the identity.
        self.text = _root_text(need)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


def name_text(name: str | None) -> str:
    """A name as it is written in a pattern: `*` for any, `Q{uri}local` for one in a namespace."""
    if name is None:
        return "*"
    return f"Q{name}" if name.startswith("{") else name


def _tail(test: Need) -> str:
    """What follows a step: the rest of the path where there is only one, predicates otherwise."""
    match test:
        case Has(axis=axis, step=step):
            return axis.value + step
        case Some(test=inner) if inner == TRUE:
            return f"/{test}"
        case _:
            return _brackets(test)


def _brackets(test: Need) -> str:
    if isinstance(test, And):
        return "".join(f"[{each}]" for each in test.terms)
    return f"[{test}]"


def _root_text(need: Need) -> str:
    match need:
        case Has(axis=axis, step=step):
            return axis.value + step
        case Not(term=term):
            return f"not({_root_text(term)})"
        case And(terms=terms) if terms:
            return " and ".join(
                f"({_root_text(each)})" if isinstance(each, Or) else _root_text(each) for each in terms
            )
        case Or(terms=terms) if terms:
            return " or ".join(
                f"({_root_text(each)})" if isinstance(each, And) else _root_text(each) for each in terms
            )
        case _:
            return need.text


def _literal_text(literal: Literal) -> str:
    if isinstance(literal, str):
        quote = '"' if "'" in literal else "'"
        assert quote not in literal, f"XPath 1.0 cannot write {literal!r}"
        return f"{quote}{literal}{quote}"
    sign = "-" if literal < 0 else ""
    if literal in {float("inf"), float("-inf")}:
        return sign + _INFINITE
    return str(int(literal)) if literal == int(literal) else format(Decimal(repr(literal)), "f")
