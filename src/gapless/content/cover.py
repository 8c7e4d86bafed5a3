"""Does one subscription ask for everything that another asks for?

`covers(a, b)` is YES only if every event that b accepts is accepted by a, whatever the event: routers
leave out what is covered, so a wrong YES loses events. A missed YES costs a little traffic: what is not
decided is UNKNOWN and counts as not covering.

For conjunctions of comparisons of columns with constants the answer is never UNKNOWN: the values that
each column may have are exact sets, columns are independent, so a covers b just when each of a's sets
includes b's; otherwise some event tells them apart.

Implements docs/content.md, section 5.
"""

from __future__ import annotations

import pyarrow as pa

from gapless.content.condition import AnyOf, Atom, Compare, Condition, Conjunction, Like, Matches
from gapless.content.domain import Domain
from gapless.content.printing import prefix_interval
from gapless.content.terms import Column, Term
from gapless.content.verdict import Cover
from gapless.content.xml.cover import covers_pattern

#: What a comparison of two terms implies about the same two.
_IMPLIED: dict[str, frozenset[str]] = {
    "=": frozenset({"=", "<="}),
    "<": frozenset({"<", "<=", "<>"}),
    "<=": frozenset({"<="}),
    "<>": frozenset({"<>"}),
}
#: A LIKE pattern is tried on the values of a domain only when they are this few.
_TRIED_KEYS_MAX = 1_000
#: Disjunctions inside disjunctions are looked into so deep; each level at least doubles the work.
_DEPTH_MAX = 3


def covers(first: Condition, second: Condition) -> Cover:
    """Whether `first` accepts every event that `second` accepts."""
    missed = _missed(first, second, 0)
    if not missed:
        return Cover.YES
    decided = len(first.terms) <= 1 and all(_is_plain(term) for term in (*first.terms, *missed))
    return Cover.NO if decided else Cover.UNKNOWN


def surely_covers(first: Condition, second: Condition) -> bool:
    """Whether the answer of `covers` is YES, for those who need to know no more."""
    return all(any(_implies(term, wider, 0) for wider in first.terms) for term in second.terms)


def implies(narrow: Conjunction, wide: Conjunction) -> bool:
    """Whether `wide` is surely true whenever `narrow` is."""
    return _implies(narrow, wide, 0)


def implied_domain(atom: Like | Compare | Matches, column: Column) -> Domain:
    """The values that a column may have where an atom that reads it is true."""
    if isinstance(atom, Like) and not atom.negated:
        return Domain.of(column.kind, [prefix_interval(atom.pattern.prefix)])
    return Domain.all(column.kind)  # true of no null


def _missed(first: Condition, second: Condition, depth: int) -> list[Conjunction]:
    """What `second` accepts and `first` perhaps not."""
    return [term for term in second.terms if not any(_implies(term, wider, depth) for wider in first.terms)]


def _implies(narrow: Conjunction, wide: Conjunction, depth: int) -> bool:
    return all(_known(narrow, term, domain) for term, domain in wide.within.items()) and all(
        _implies_atom(narrow, atom, depth) for atom in wide.atoms
    )


def _is_plain(conjunction: Conjunction) -> bool:
    """Whether it is nothing but comparisons of columns with constants."""
    return not conjunction.atoms and all(isinstance(term, Column) for term in conjunction.within)


def _known(narrow: Conjunction, term: Term, wide: Domain) -> bool:
    domain = narrow.within.get(term)
    if domain is not None and wide.includes(domain):
        return True
    for atom in narrow.atoms:
        if not isinstance(atom, AnyOf) and isinstance(term, Column) and term in atom.columns:
            implied = implied_domain(atom, term)
            domain = implied if domain is None else domain & implied
    return domain is not None and wide.includes(domain)


def _implies_atom(narrow: Conjunction, wanted: Atom, depth: int) -> bool:
    if wanted in narrow.atoms:
        return True
    match wanted:
        case Like():
            return _implies_like(narrow, wanted)
        case Compare():
            return any(
                isinstance(atom, Compare)
                and (atom.left, atom.right) == (wanted.left, wanted.right)
                and wanted.operator in _IMPLIED[atom.operator]
                for atom in narrow.atoms
            )
        case Matches():
            return any(
                isinstance(atom, Matches)
                and (atom.column, atom.negated) == (wanted.column, wanted.negated)
                and _covers_matches(wanted, atom)
                for atom in narrow.atoms
            )
        case AnyOf():
            if depth >= _DEPTH_MAX:
                return False
            if any(_implies(narrow, term, depth + 1) for term in wanted.condition.terms):
                return True
            return any(
                isinstance(atom, AnyOf) and not _missed(wanted.condition, atom.condition, depth + 1)
                for atom in narrow.atoms
            )


def _covers_matches(wide: Matches, narrow: Matches) -> bool:
    if wide.negated:
        return covers_pattern(narrow.pattern, wide.pattern) is Cover.YES
    return covers_pattern(wide.pattern, narrow.pattern) is Cover.YES


def _implies_like(narrow: Conjunction, wanted: Like) -> bool:
    """Whether each of the few values that the column may have matches."""
    domain = narrow.within.get(wanted.column)
    if domain is None or domain.null or len(domain.intervals) > _TRIED_KEYS_MAX:
        return False
    keys = domain.keys()
    if keys is None:
        return False
    matched = wanted.pattern.matches(pa.array(keys, pa.string())).to_pylist()
    return all(found is not wanted.negated for found in matched)
