"""What does it cost to match one event against a condition? Counted when the condition is read.

Comparisons of columns with constants, and the first XPath pattern of a conjunction, are found by the index:
they cost almost nothing, however many there are. Everything else is evaluated once per batch, for each
distinct atom. The unit is about a microsecond, for an event with a text of 100 kB.

Implements docs/content.md, section 10.
"""

from __future__ import annotations

from gapless.content.condition import AnyOf, Atom, Compare, Condition, Conjunction, Like, Matches
from gapless.content.sql.like import LikePattern
from gapless.content.terms import Arithmetic, Term

#: Maximum cost of a condition; a more expensive one is refused.
MATCHING_COST_MAX = 10_000

#: LIKE with a wildcard before its end scans the whole text. Beyond this many characters and wildcards, each
#: costs extra: the automaton is rebuilt for every batch, and has a state for each.
_LIKE_COST, _LIKE_PARTS, _LIKE_PART_COST = 250, 32, 10
#: A comparison of two terms, and each operator of a calculation.
_COMPARE_COST, _OPERATOR_COST = 40, 50
#: A comparison of a column with constants that the index cannot find: of numbers, and of texts.
_COLUMN_COST, _TEXT_COST = 10, 40
#: Receiving a condition, filing a conjunction or a restricted term of it, reading an atom from its text.
_CONDITION_COST, _FILED_COST, _READ_COST = 20, 10, 100
#: A pattern that the index cannot find is evaluated on every document separately.
_PATTERN_COST, _NEED_COST = 1_500, 20
#: Number of parts of patterns in the index per unit.
_INDEXED_NEEDS = 8


def matching_cost(condition: Condition) -> int:
    """Approximate time in microseconds for a large event.

    >>> from gapless.content.language import parse_condition
    >>> from gapless.model.schema import Schema
    >>> schema = Schema.parse("trades", {"sym": "string", "price": "int"})
    >>> [matching_cost(parse_condition(text, schema)) for text in ("price = 7", "sym LIKE '%a%'")]
    [0, 250]
    """
    seen: set[Term | Atom] = set()
    return sum(_conjunction_cost(conjunction, seen) for conjunction in condition.terms)


def like_cost(pattern: LikePattern) -> int:
    """The same for one LIKE with a wildcard before its end."""
    return _LIKE_COST + _LIKE_PART_COST * max(0, pattern.automaton_size - _LIKE_PARTS)


def placing_cost(condition: Condition) -> int:
    """Approximate time in microseconds for a broker to read a condition from a message and to file it."""
    cost = _CONDITION_COST
    for conjunction in condition.terms:
        cost += _FILED_COST * (1 + len(conjunction.within))
        cost += sum(len(domain.intervals) for domain in conjunction.within.values())
        cost += sum(map(_reading_cost, conjunction.atoms))
    return cost


def _reading_cost(atom: Atom) -> int:
    match atom:
        case Matches():
            return _READ_COST + _NEED_COST * atom.pattern.need.size
        case AnyOf():
            return placing_cost(atom.condition)
        case _:
            return _READ_COST


def _conjunction_cost(conjunction: Conjunction, seen: set[Term | Atom]) -> int:
    """What a conjunction adds to those seen so far: duplicates are evaluated once."""
    cost = 0
    for term in conjunction.within:
        if term not in seen:
            seen.add(term)
            cost += _term_cost(term)
    patterns = [atom for atom in conjunction.atoms if isinstance(atom, Matches) and not atom.negated]
    found = min(patterns, key=str, default=None)
    if found is not None:
        cost += 1 + found.pattern.need.size // _INDEXED_NEEDS
    for atom in conjunction.atoms:
        if atom is not found and atom not in seen:
            seen.add(atom)
            cost += _atom_cost(atom)
    return cost


def _atom_cost(atom: Atom) -> int:
    match atom:
        case Like():
            return like_cost(atom.pattern)
        case Compare():
            return _COMPARE_COST + _term_cost(atom.left) + _term_cost(atom.right)
        case Matches():
            return _PATTERN_COST + _NEED_COST * atom.pattern.need.size
        case AnyOf():
            return sum(map(_evaluated_cost, atom.condition.terms))


def _evaluated_cost(conjunction: Conjunction) -> int:
    """The same for a conjunction that is in no index."""
    terms = sum(_column_cost(term) for term in conjunction.within)
    return terms + sum(map(_atom_cost, conjunction.atoms))


def _column_cost(term: Term) -> int:
    return _TEXT_COST if term.kind in ("string", "binary", "xml") else _COLUMN_COST + _term_cost(term)


def _term_cost(term: Term) -> int:
    if isinstance(term, Arithmetic):
        return _OPERATOR_COST + _term_cost(term.left) + _term_cost(term.right)
    return 0
