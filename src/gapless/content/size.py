"""How large is a condition? An estimate of its encoded size, without encoding it.

Texts and byte strings may be long, and a product of disjunctions repeats them: so messages are measured while
they are built, and split before they exceed a frame.

Implements docs/content.md, section 4.
"""

from __future__ import annotations

from gapless.content.condition import AnyOf, Atom, Compare, Condition
from gapless.content.domain import Domain
from gapless.content.terms import Arithmetic, ColumnTerm, Term

#: Maximum size of a conjunction, a term of it, and a number, each with its overhead.
_CONJUNCTION_BYTES, _TERM_BYTES, _NUMBER_BYTES = 8, 16, 9
#: The digits of a decimal's key.
_DECIMAL_BYTES = 40
#: A character, in UTF-8.
_CHARACTER_BYTES = 4


def size_of(condition: Condition) -> int:
    """An upper bound of the condition's bytes, and a close one.

    >>> from gapless.content.language import parse_condition
    >>> from gapless.model.schema import Schema
    >>> schema = Schema.parse("trades", {"sym": "string", "price": "int"})
    >>> size_of(parse_condition("price = 7", schema)) < 100
    True
    >>> size_of(parse_condition(f"sym = '{'x' * 1000}'", schema)) > 1000
    True
    """
    size = _CONJUNCTION_BYTES
    for conjunction in condition.terms:
        size += _CONJUNCTION_BYTES
        for term, domain in conjunction.within.items():
            size += _TERM_BYTES + _CHARACTER_BYTES * len(str(term))
            size += 2 * _NUMBER_BYTES * len(domain.intervals)
            if domain.kind == "string":
                size += _CHARACTER_BYTES * _keys_length(domain)
            elif domain.kind in ("binary", "xml"):
                size += _keys_length(domain)
            elif domain.kind == "decimal":
                # Only these have keys of more than 64 bits.
                size += 2 * _DECIMAL_BYTES * len(domain.intervals)
        for atom in conjunction.atoms:
            size += _TERM_BYTES
            size += size_of(atom.condition) if isinstance(atom, AnyOf) else _CHARACTER_BYTES * len(str(atom))
    return size


def _keys_length(domain: Domain) -> int:
    starts, stops = zip(*domain.intervals, strict=True) if domain.intervals else ((), ())
    return sum(map(len, starts)) + sum(map(len, filter(None, stops)))


def written_size(condition: Condition) -> tuple[int, int]:
    """Upper bounds of the tokens and characters of a condition that travels as text.

    Without atoms and calculations it travels as sets of values: then both are 0.
    """
    if all(
        not conjunction.atoms and all(isinstance(term, ColumnTerm) for term in conjunction.within)
        for conjunction in condition.terms
    ):
        return 0, 0
    return _words(condition), size_of(condition) * 2


def _words(condition: Condition) -> int:
    words = 0
    for conjunction in condition.terms:
        words += 3
        for term, domain in conjunction.within.items():
            # An interval is `x BETWEEN 1 AND 2 OR` at most.
            words += 4 + (5 + _term_words(term)) * (1 + len(domain.intervals))
        for atom in conjunction.atoms:
            words += 2 + (_words(atom.condition) if isinstance(atom, AnyOf) else _atom_words(atom))
    return words


def _atom_words(atom: Atom) -> int:
    match atom:
        case Compare():
            return 1 + _term_words(atom.left) + _term_words(atom.right)
        case _:
            return 7


def _term_words(term: Term) -> int:
    """A calculation has an operator and perhaps parentheses around each of its parts."""
    return 1 + 2 + _term_words(term.left) + _term_words(term.right) if isinstance(term, Arithmetic) else 2
