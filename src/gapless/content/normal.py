"""How are conditions built, so that equal ones come out equal?

The functions here are the only makers of conditions. `both` and `either` keep the normal form: an OR of
conjunctions in which no conjunction is impossible, none implies another, and conjunctions that differ in the
values of one column only are one conjunction with the union of the values. NOT has no function: the parser
pushes it down to the comparisons, and asks for the opposite comparison.

A product of disjunctions is expanded if that takes at most `TERMS_MAX` conjunctions; otherwise the
disjunctions stay whole inside one conjunction (`AnyOf`). So a condition's size is bounded by that of its
text.

Implements docs/content.md, section 4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Literal, TypeAlias

from gapless.content.condition import (
    EVERYTHING,
    NOTHING,
    AnyOf,
    Atom,
    Compare,
    Condition,
    Conjunction,
    Like,
    Matches,
)
from gapless.content.covering.cover import implied_domains, implies
from gapless.content.domain import Domain
from gapless.content.sql.like import LikePattern
from gapless.content.sql.printing import prefix_interval
from gapless.content.terms import ColumnTerm, Constant, Term, constant
from gapless.content.values import Value, key_bounds, next_key
from gapless.content.xml.pattern import FALSE, Pattern

#: Maximum number of conjunctions to which a product of disjunctions is expanded.
TERMS_MAX = 64
#: Maximum number of conjunctions among which those that differ in one column are merged.
MERGED_TERMS_MAX = 1_000
#: Conjunctions that imply another are searched for only if the square of their total size is below this. What
#: is found reduces it, so that a normal form parses to itself.
IMPLIED_WORK_MAX = 50_000

AnyComparison: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]

#: The same comparison with its sides exchanged.
MIRRORED: dict[AnyComparison, AnyComparison] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
#: The comparison that is true exactly when another is false; both are unknown for null.
OPPOSITE: dict[AnyComparison, AnyComparison] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}


def within(term: Term, domain: Domain) -> Condition:
    """The term's value, or null, lies in the domain."""
    found = _conjunction({term: domain}, ())
    return NOTHING if found is None else Condition([found])


def like(column: ColumnTerm, pattern: LikePattern, *, negated: bool = False) -> Condition:
    """The text matches the pattern, or does not."""
    if pattern.exact is not None:
        domain = Domain.points("string", [pattern.exact])
    elif pattern.is_prefix:
        domain = Domain.of("string", [prefix_interval(pattern.prefix)])
    else:
        return Condition([Conjunction({}, [Like(column, pattern, negated)])])
    return within(column, domain.without_null_inverse() if negated else domain)


def matches(column: ColumnTerm, pattern: Pattern, *, negated: bool = False) -> Condition:
    """The document matches the pattern, or does not; an unreadable one does neither."""
    if pattern.need == FALSE and not negated:
        return NOTHING
    return Condition([Conjunction({}, [Matches(column, pattern, negated)])])


def compare(left: Term, operator: AnyComparison, right: Term) -> Condition:
    """Two terms compared; at least one reads a column."""
    if isinstance(left, Constant):
        left, operator, right = right, MIRRORED[operator], left
    assert not isinstance(left, Constant), "two constants are compared by the parser"
    if isinstance(right, Constant) and (isinstance(left, ColumnTerm) or left.kind != "decimal"):
        return within(left, comparison_domain(left.kind, operator, right.value))
    if isinstance(right, Constant) and right.kind == "decimal" and right.value == int(right.value):
        right = constant(int(right.value))  # compared with a decimal, 3.0 is 3
    if operator in (">", ">=") or (operator in ("=", "<>") and str(right) < str(left)):
        left, operator, right = right, MIRRORED[operator], left
    if left == right:
        # True for every value but null, or for none at all.
        if operator in ("<", "<>"):
            return NOTHING
        if isinstance(left, ColumnTerm) or left.kind != "decimal":
            return within(left, Domain.all(left.kind))
    assert operator in ("=", "<>", "<", "<=")
    return Condition([Conjunction({}, [Compare(left, operator, right)])])


def comparison_domain(kind: str, operator: AnyComparison, value: Value) -> Domain:
    """The keys of a type that compare this way with a value, which the type need not contain.

    >>> from decimal import Decimal
    >>> comparison_domain("int", ">", Decimal("3.5")) == comparison_domain("int", ">=", 4)
    True
    """
    low, high = key_bounds(kind, value)
    match operator:
        case "=":
            return Domain.points(kind, [low] if low == high else [])
        case "<>":
            return Domain.points(kind, [low] if low == high else []).without_null_inverse()
        case "<":
            return Domain.interval(kind, None, high)
        case "<=":
            return Domain.interval(kind, None, next_key(low))
        case ">":
            return Domain.interval(kind, next_key(low), None)
        case ">=":
            return Domain.interval(kind, high, None)


def either(conditions: Iterable[Condition]) -> Condition:
    """At least one of them is true."""
    return _condition([term for condition in conditions for term in condition.terms])


def both(conditions: Iterable[Condition]) -> Condition:
    """All of them are true."""
    single: list[Conjunction] = []
    disjunctions: dict[Condition, None] = {}  # one of two equal ones is enough
    for condition in conditions:
        if not condition.terms:
            return NOTHING
        if len(condition.terms) == 1:
            single.append(condition.terms[0])
        else:
            disjunctions[condition] = None
    base = single[0] if len(single) == 1 else _joined(single)
    if base is None:
        return NOTHING
    if not disjunctions:
        return _condition([base])
    if _product_size(disjunctions) > TERMS_MAX:
        kept = [Conjunction({}, [AnyOf(condition)]) for condition in disjunctions]
        return _condition([_joined([base, *kept])])
    return _condition(
        [_joined([base, *choice]) for choice in product(*(each.terms for each in disjunctions))]
    )


def written_out(conditions: Iterable[Condition]) -> int:
    """Maximum number of conjunctions that `both` makes of these."""
    count = _product_size(conditions)
    return count if count <= TERMS_MAX else 1


def _product_size(conditions: Iterable[Condition]) -> int:
    """The number of conjunctions of a product, counted to just above the limit."""
    count = 1
    for condition in conditions:
        count = min(count * len(condition.terms), TERMS_MAX + 1)
    return count


def _conjunction(domains: dict[Term, Domain], atoms: Collection[Atom]) -> Conjunction | None:
    """A conjunction without trivial domains; None when it cannot be true."""
    kept: dict[Term, Domain] = {}
    for term, domain in domains.items():
        is_nullable = not isinstance(term, ColumnTerm) or term.nullable
        if not domain.intervals and not (domain.null and is_nullable):
            return None
        if domain.is_whole and (domain.null or not is_nullable):
            continue
        kept[term] = domain if is_nullable else Domain(domain.kind, domain.intervals)
    return Conjunction(kept, atoms) if _leave_a_value(kept, atoms) else None


def _leave_a_value(domains: dict[Term, Domain], atoms: Collection[Atom]) -> bool:
    """Whether no column is left without a value, as by `s LIKE 'a%b'` and `s IS NULL`."""
    left = implied_domains(atoms)
    return not any(
        (domain & domains[column] if column in domains else domain).is_empty
        for column, domain in left.items()
    )


def _joined(conjunctions: Sequence[Conjunction]) -> Conjunction | None:
    domains: dict[Term, list[Domain]] = {}
    atoms: set[Atom] = set()
    for conjunction in conjunctions:
        atoms |= conjunction.atoms
        for term, domain in conjunction.within.items():
            domains.setdefault(term, []).append(domain)
    return _conjunction({term: _intersection(found) for term, found in domains.items()}, atoms)


def _intersection(domains: list[Domain]) -> Domain:
    """The intersection of all domains; neighbours first, so that thousands of `<>` are not quadratic."""
    while len(domains) > 1:
        pairs = zip(domains[::2], domains[1::2], strict=False)
        domains = [left & right for left, right in pairs] + domains[len(domains) & ~1 :]
    return domains[0]


def _condition(found: Sequence[Conjunction | None]) -> Condition:
    terms = _opened([term for term in found if term is not None])
    if len(terms) <= 1:
        return Condition(terms)
    terms = list(dict.fromkeys(_opened(_merged(terms))))
    if any(not term.within and not term.atoms for term in terms):
        return EVERYTHING
    if len(terms) <= 1:
        return Condition(terms)
    terms.sort(key=str)
    if len(terms) <= TERMS_MAX and sum(map(_weight, terms)) ** 2 <= IMPLIED_WORK_MAX:
        terms = _without_implied(terms)
    return Condition(terms)


def _weight(term: Conjunction) -> int:
    """The size of a conjunction for comparisons."""
    weight = 1 + sum(1 + len(domain.intervals) // 8 for domain in term.within.values())
    for atom in term.atoms:
        match atom:
            case Matches():
                weight += 2 * atom.pattern.need.size
            case AnyOf():
                weight += sum(map(_weight, atom.condition.terms))
            case _:
                weight += 1
    return weight


def _opened(terms: list[Conjunction]) -> list[Conjunction]:
    """A disjunction on its own is not an `AnyOf`: its conjunctions become those of the condition."""
    if not any(term.atoms and _alone(term) for term in terms):
        return terms
    opened: list[Conjunction] = []
    for term in terms:
        inside = _alone(term)
        opened += inside.terms if inside else [term]
    return opened


def _alone(term: Conjunction) -> Condition | None:
    if len(term.atoms) == 1 and not term.within:
        (atom,) = term.atoms
        return atom.condition if isinstance(atom, AnyOf) else None
    return None


def _merged(terms: list[Conjunction]) -> list[Conjunction]:
    """Merge conjunctions that differ only in one term's domain, as long as there are any."""
    terms = _merged_single(list(dict.fromkeys(terms)))
    changed = 1 < len(terms) <= MERGED_TERMS_MAX
    alive = dict.fromkeys(terms)
    while changed:
        changed = False
        about: dict[Term, list[Conjunction]] = {}
        for term in alive:
            for subject in term.within:
                about.setdefault(subject, []).append(term)
        for subject in sorted((each for each, found in about.items() if len(found) > 1), key=str):
            here = [term for term in dict.fromkeys(about[subject]) if term in alive]
            for group in _groups(subject, here):
                united = _united(subject, group)
                for term in group:
                    del alive[term]
                alive[united] = None
                for other in united.within:
                    about[other].append(united)
                changed = True
    return list(alive)


def _groups(subject: Term, terms: list[Conjunction]) -> list[list[Conjunction]]:
    """The conjunctions that agree in all but the subject, two or more at a time."""
    groups: dict[object, list[list[Conjunction]]] = {}
    for term in terms:
        # A quick sum first: conjunctions of thousands of terms are compared in full only if it agrees.
        rest = term.signature - hash((subject, term.within[subject]))
        similar = groups.setdefault((rest, len(term.within), term.atoms), [])
        for group in similar:
            if _agree(subject, group[0], term):
                group.append(term)
                break
        else:
            similar.append([term])
    return [group for similar in groups.values() for group in similar if len(group) > 1]


def _agree(subject: Term, left: Conjunction, right: Conjunction) -> bool:
    pairs = zip(left.within.items(), right.within.items(), strict=True)
    return all(one == other or one[0] == other[0] == subject for one, other in pairs)


def _merged_single(terms: list[Conjunction]) -> list[Conjunction]:
    """Merge the conjunctions that restrict only one term: `x = 1 OR x = 2`."""
    groups: dict[object, list[Conjunction]] = {}
    for term in terms:
        plain = len(term.within) == 1 and not term.atoms
        groups.setdefault(next(iter(term.within)) if plain else term, []).append(term)
    if len(groups) == len(terms):
        return terms
    return [
        _united(next(iter(group[0].within)), group) if group[1:] else group[0] for group in groups.values()
    ]


def _united(subject: Term | None, group: list[Conjunction]) -> Conjunction:
    if len(group) == 1 or subject not in group[0].within:
        return group[0]
    assert subject is not None
    domain = group[0].within[subject]
    intervals = [interval for term in group for interval in term.within[subject].intervals]
    null = any(term.within[subject].null for term in group)
    united = _conjunction(
        {**group[0].within, subject: Domain.of(domain.kind, intervals, null=null)}, group[0].atoms
    )
    assert united is not None, "a union of possible values is possible"
    return united


def _without_implied(terms: list[Conjunction]) -> list[Conjunction]:
    kept: list[Conjunction] = []
    for at, term in enumerate(terms):
        others = (*kept, *terms[at + 1 :])
        if not any(implies(term, other) for other in others):
            kept.append(term)
    return kept
