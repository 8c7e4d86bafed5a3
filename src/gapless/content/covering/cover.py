"""Does one subscription ask for everything that another asks for?

`covers(a, b)` is YES only if a accepts every event that b accepts: routers drop what is covered, so a wrong
YES loses events. A missed YES costs a little traffic: an undecided answer is UNKNOWN and counts as not
covering.

For conjunctions of comparisons of columns with constants the answer is never UNKNOWN: the values that
each column may have are exact sets, columns are independent, so a covers b just when each of a's sets
includes b's; otherwise some event tells them apart.

The work is counted, and an answer that takes more than `COVER_WORK_MAX` is UNKNOWN as well: two conditions
of a thousand parts each have a million pairs.

Implements docs/content.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from gapless.content.condition import AnyOf, Atom, Compare, Condition, Conjunction, Like, Matches
from gapless.content.covering.verdict import Cover
from gapless.content.covering.work import UNBOUNDED, OutOfWorkError, Work
from gapless.content.domain import Domain
from gapless.content.sql.printing import prefix_interval
from gapless.content.terms import ColumnTerm, Term
from gapless.content.xml.imply import Implication

#: What a comparison of two terms implies about the same two.
_IMPLIED: dict[str, frozenset[str]] = {
    "=": frozenset({"=", "<="}),
    "<": frozenset({"<", "<=", "<>"}),
    "<=": frozenset({"<="}),
    "<>": frozenset({"<>"}),
}
#: Maximum number of values of a domain on which a LIKE pattern is tried.
_TRIED_KEYS_MAX = 1_000
#: Maximum depth of nested disjunctions; each level at least doubles the work.
_DEPTH_MAX = 3
#: Maximum work for one answer, in units of about a microsecond.
COVER_WORK_MAX = 4_000
#: Maximum number of pairs of needs examined to compare two patterns, and the work for each.
PATTERN_STEPS_MAX = 500
_STEP_WORK = 4
#: Number of intervals of a domain compared per unit of work.
_UNIT_INTERVALS = 4


def covers(first: Condition, second: Condition, work: Work | None = None) -> Cover:
    """Whether `first` accepts every event that `second` accepts; UNKNOWN when that takes too much work."""
    try:
        missed = _missed(first, second, 0, work or Work(COVER_WORK_MAX))
    except OutOfWorkError:
        return Cover.UNKNOWN
    if not missed:
        return Cover.YES
    decided = len(first.terms) <= 1 and all(_is_plain(term) for term in (*first.terms, *missed))
    return Cover.NO if decided else Cover.UNKNOWN


def surely_covers(first: Condition, second: Condition, work: Work | None = None) -> bool:
    """Whether the answer of `covers` is YES; cheaper than the full answer."""
    work = work or Work(COVER_WORK_MAX)
    try:
        return all(any(_implies(term, wider, 0, work) for wider in first.terms) for term in second.terms)
    except OutOfWorkError:
        return False


def implies(narrow: Conjunction, wide: Conjunction) -> bool:
    """Whether `wide` is surely true whenever `narrow` is. The caller knows that both are small."""
    return _implies(narrow, wide, 0, Work(UNBOUNDED))


def implied_domain(atom: Like | Compare | Matches, column: ColumnTerm) -> Domain:
    """The values that a column may have where an atom that reads it is true."""
    if isinstance(atom, Like) and not atom.negated:
        return Domain.of(column.kind, [prefix_interval(atom.pattern.prefix)])
    return Domain.all(column.kind)  # never true for null


def implied_domains(atoms: Iterable[Atom]) -> dict[ColumnTerm, Domain]:
    """The values that columns may have where all of these are true; only for columns that are read."""
    left: dict[ColumnTerm, Domain] = {}
    for atom in atoms:
        if isinstance(atom, AnyOf):
            continue  # says nothing about any one column
        for column in sorted(atom.columns, key=str):
            implied = implied_domain(atom, column)
            left[column] = left[column] & implied if column in left else implied
    return left


def _missed(first: Condition, second: Condition, depth: int, work: Work) -> list[Conjunction]:
    """The part of `second` that `first` may not accept."""
    return [
        term for term in second.terms if not any(_implies(term, wider, depth, work) for wider in first.terms)
    ]


def _implies(narrow: Conjunction, wide: Conjunction, depth: int, work: Work) -> bool:
    work.spend(1)
    return all(_known(narrow, term, domain, work) for term, domain in wide.within.items()) and all(
        _implies_atom(narrow, atom, depth, work) for atom in wide.ordered_atoms
    )


def _is_plain(conjunction: Conjunction) -> bool:
    """Whether it consists only of comparisons of columns with constants."""
    return not conjunction.atoms and all(isinstance(term, ColumnTerm) for term in conjunction.within)


def _known(narrow: Conjunction, term: Term, wide: Domain, work: Work) -> bool:
    domain = narrow.within.get(term)
    if domain is not None:
        work.spend(1 + (len(domain.intervals) + len(wide.intervals)) // _UNIT_INTERVALS)
        if wide.includes(domain):
            return True
    if not narrow.atoms or not isinstance(term, ColumnTerm):
        return False
    work.spend(4 * len(narrow.atoms))
    implied = implied_domains(narrow.ordered_atoms).get(term)
    if implied is not None:
        domain = implied if domain is None else domain & implied
    return domain is not None and wide.includes(domain)


def _implies_atom(narrow: Conjunction, wanted: Atom, depth: int, work: Work) -> bool:
    if wanted in narrow.atoms:
        return True
    work.spend(1 + len(narrow.atoms))
    match wanted:
        case Like():
            return _implies_like(narrow, wanted, work)
        case Compare():
            return any(
                isinstance(atom, Compare)
                and (atom.left, atom.right) == (wanted.left, wanted.right)
                and wanted.operator in _IMPLIED[atom.operator]
                for atom in narrow.ordered_atoms
            )
        case Matches():
            return any(
                isinstance(atom, Matches)
                and (atom.column, atom.negated) == (wanted.column, wanted.negated)
                and _covers_matches(wanted, atom, work)
                for atom in narrow.ordered_atoms
            )
        case AnyOf():
            if depth >= _DEPTH_MAX:
                return False
            if any(_implies(narrow, term, depth + 1, work) for term in wanted.condition.terms):
                return True
            return any(
                isinstance(atom, AnyOf) and not _missed(wanted.condition, atom.condition, depth + 1, work)
                for atom in narrow.ordered_atoms
            )


def _covers_matches(wide: Matches, narrow: Matches, work: Work) -> bool:
    """Whether there is a proof; no counterexample is searched for."""
    implication = Implication(PATTERN_STEPS_MAX)
    weak, strong = (narrow, wide) if wide.negated else (wide, narrow)
    found = implication.holds(strong.pattern.need, weak.pattern.need)
    work.spend(2 * _STEP_WORK + _STEP_WORK * (PATTERN_STEPS_MAX - implication.steps_left))
    return found


def _implies_like(narrow: Conjunction, wanted: Like, work: Work) -> bool:
    """Whether each of the few values that the column may have matches."""
    domain = narrow.within.get(wanted.column)
    if domain is None or domain.null or len(domain.intervals) > _TRIED_KEYS_MAX:
        return False
    work.spend(20 + len(domain.intervals))
    keys = domain.keys()
    if keys is None:
        return False
    matched = wanted.pattern.matches(pa.array(keys, pa.string())).to_pylist()
    return all(found is not wanted.negated for found in matched)
