"""What does a subscription ask for, once its text is understood? A condition in normal form.

A condition accepts an event when it is TRUE for it; FALSE and UNKNOWN are equivalent. So SQL's three-valued
logic can be resolved when the text is read: NOT is pushed down to the comparisons, where `NOT (x < 3)` is `x
>= 3`, and from then on everything is plain sets. What is left is an OR of conjunctions, and a conjunction
says for each column which values it may have (a `Domain`), plus the few things that no domain can express:
LIKE with a wildcard inside, a comparison of two columns, an XPath pattern.

Equal subscriptions have one identity: `3 < x AND x < 5` and `x = 4` are the same object to a set or a
dict. Printing a condition and reading it again gives the same condition. Conditions are made with
`gapless.content.normal` and read from text with `gapless.content.language`.

Implements docs/content.md, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gapless.content.domain import Domain
from gapless.content.sql.like import LikePattern
from gapless.content.sql.printing import print_domain
from gapless.content.terms import ColumnTerm, Term, columns_of
from gapless.content.xml.pattern import Pattern
from gapless.model.schema import Schema

Comparison: TypeAlias = Literal["=", "<>", "<", "<="]


@dataclass(frozen=True, slots=True)
class Like:
    """A text column matches a pattern, or does not; null does neither."""

    column: ColumnTerm
    pattern: LikePattern
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.column} {'NOT ' if self.negated else ''}LIKE {self.pattern}"

    @property
    def columns(self) -> frozenset[ColumnTerm]:
        """The columns that are read."""
        return frozenset({self.column})


@dataclass(frozen=True, slots=True)
class Compare:
    """Two terms compared, neither of them a mere constant. Make one with `normal.compare`."""

    left: Term
    operator: Comparison
    right: Term

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"

    @property
    def columns(self) -> frozenset[ColumnTerm]:
        """The columns that are read."""
        return columns_of(self.left) | columns_of(self.right)


@dataclass(frozen=True, slots=True)
class Matches:
    """An XML column matches an XPath pattern, or does not; null does neither."""

    column: ColumnTerm
    pattern: Pattern
    negated: bool = False

    def __str__(self) -> str:
        text = str(self.pattern).replace("'", "''")
        return f"{'NOT ' if self.negated else ''}XPATH({self.column}, '{text}')"

    @property
    def columns(self) -> frozenset[ColumnTerm]:
        """The columns that are read."""
        return frozenset({self.column})


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A disjunction inside a conjunction, where expanding it would take too many conjunctions."""

    condition: Condition

    def __str__(self) -> str:
        return f"({self.condition})"

    @property
    def columns(self) -> frozenset[ColumnTerm]:
        """The columns that are read."""
        return self.condition.columns


Atom: TypeAlias = Like | Compare | Matches | AnyOf


class Conjunction:
    """Everything that must hold: a domain for each restricted term, and atoms."""

    __slots__ = ("_hash", "_ordered", "_signature", "_text", "atoms", "within")

    def __init__(self, within: Mapping[Term, Domain], atoms: Iterable[Atom] = ()) -> None:
        #: In the order of the terms' text, so that equal conjunctions print alike.
        self.within: Mapping[Term, Domain] = (
            {term: within[term] for term in sorted(within, key=str)} if len(within) > 1 else dict(within)
        )
        self.atoms: frozenset[Atom] = frozenset(atoms)
        self._ordered: tuple[Atom, ...] | None = None
        self._hash: int | None = None
        self._signature: int | None = None
        self._text: str | None = None

    @property
    def ordered_atoms(self) -> tuple[Atom, ...]:
        """The atoms in the order of their text: the order of a set differs between processes."""
        if self._ordered is None:
            self._ordered = tuple(sorted(self.atoms, key=str) if len(self.atoms) > 1 else self.atoms)
        return self._ordered

    @property
    def signature(self) -> int:
        """A sum over the domains, to compare quickly what two conjunctions say of all but one term."""
        if self._signature is None:
            self._signature = sum(map(hash, self.within.items()))
        return self._signature

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conjunction):
            return NotImplemented
        return self.within == other.within and self.atoms == other.atoms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((tuple(self.within.items()), self.atoms))
        return self._hash

    @property
    def columns(self) -> frozenset[ColumnTerm]:
        """The columns that are read."""
        read = [columns_of(term) for term in self.within]
        return frozenset[ColumnTerm]().union(*read, *(atom.columns for atom in self.atoms))

    def pieces(self) -> list[str]:
        """The text of each thing that must hold, to be joined by AND."""
        domains = [print_domain(str(term), domain) for term, domain in self.within.items()]
        return domains + sorted(str(atom) for atom in self.atoms)

    def __str__(self) -> str:
        if self._text is None:
            self._text = " AND ".join(self.pieces()) or "TRUE"
        return self._text

    def __repr__(self) -> str:
        return f"Conjunction({self})"


class Condition:
    """An OR of conjunctions, in normal form: accepts the events of which one of them is true."""

    __slots__ = ("_hash", "_text", "terms")

    def __init__(self, terms: Iterable[Conjunction]) -> None:
        #: In the order of their text; none of them implies another.
        self.terms = tuple(terms)
        self._hash: int | None = None
        self._text: str | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Condition):
            return NotImplemented
        return hash(self) == hash(other) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.terms)
        return self._hash

    def __iter__(self) -> Iterator[Conjunction]:
        return iter(self.terms)

    @property
    def columns(self) -> frozenset[ColumnTerm]:
        """The columns that are read."""
        return frozenset[ColumnTerm]().union(*(term.columns for term in self.terms))

    def misfit(self, schema: Schema) -> str | None:
        """Why the condition does not fit this schema; None when it does."""
        known = {column.name: column for column in schema.columns}
        for column in sorted(self.columns, key=str):
            found = known.get(column.name)
            if found is None:
                return f"topic '{schema.topic}' has no column '{column.name}': it has {', '.join(known)}"
            if found.type != column.kind:
                return (
                    f"column '{column.name}' of topic '{schema.topic}' is {found.type}, "
                    f"and the condition expects {column.kind}"
                )
            if found.nullable and not column.nullable:
                # The normal form may have dropped what is always true of a column without nulls.
                return f"column '{column.name}' of topic '{schema.topic}' may be null, unlike the condition's"
        return None

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._print()
        return self._text

    def _print(self) -> str:
        if len(self.terms) == 1:
            return str(self.terms[0])
        texts = [f"({term})" if len(term.pieces()) > 1 else str(term) for term in self.terms]
        return " OR ".join(texts) or "FALSE"

    def __repr__(self) -> str:
        return f"Condition({self})"


#: Accepts every event.
EVERYTHING = Condition([Conjunction({})])
#: Accepts no event.
NOTHING = Condition([])
