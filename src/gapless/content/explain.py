"""Why did an event match a subscription, or which condition failed?

The answer follows the condition's normal form: for each alternative, what holds and what does not, with the
value that decided it. When nothing matched, the alternative that came closest is first.

Implements docs/content.md, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.content.condition import AnyOf, Atom, Condition, Conjunction, Matches
from gapless.content.evaluate import mask_atom, mask_within
from gapless.content.rows import Rows
from gapless.content.sql.printing import print_domain
from gapless.content.terms import ColumnTerm, Term, columns_of
from gapless.content.values import Value, literal
from gapless.content.xml.document import parse_document
from gapless.content.xml.explain import explain_pattern
from gapless.errors import ContentError
from gapless.model.python_values import time_text, values_of

#: A longer value is cut in the middle of an explanation.
VALUE_CHARACTERS_MAX = 60


@dataclass(frozen=True, slots=True)
class ExplainedPiece:
    """One thing that an alternative asks for."""

    text: str
    holds: bool
    #: The value that decided, such as "price is 90.0"; several lines for a document.
    because: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """One conjunction of the condition: it holds when all of its pieces do."""

    pieces: tuple[ExplainedPiece, ...]

    @property
    def holds(self) -> bool:
        """Whether the event satisfies it."""
        return all(piece.holds for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a condition accepts an event, or does not."""

    condition: str
    matched: bool
    #: Those that hold first, then those that came closest.
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        lines = [f"{'matches' if self.matched else 'does not match'}: {self.condition}"]
        for number, alternative in enumerate(self.alternatives, 1):
            if len(self.alternatives) > 1:
                lines.append(f"  alternative {number}: {'holds' if alternative.holds else 'fails'}")
            width = max((len(piece.text) for piece in alternative.pieces), default=0)
            for piece in alternative.pieces:
                first, *more = piece.because.splitlines() or [""]
                text = f"  {'yes' if piece.holds else 'NO '}  {piece.text:<{min(width, 60)}}  {first}"
                lines.append(text.rstrip())
                lines += [f"         {line}" for line in more]
        return "\n".join(lines)


def explain(condition: Condition, rows: Rows, row: int) -> Explanation:
    """Why the condition accepts one row of a batch, or does not.

    >>> from gapless.content.language import parse_condition
    >>> from gapless.model.schema import Schema
    >>> import pyarrow as pa
    >>> schema = Schema.parse("trades", {"sym": "string", "price": "float"})
    >>> rows = Rows(pa.record_batch({"sym": ["IBM"], "price": [90.0]}))
    >>> print(explain(parse_condition("sym = 'IBM' AND price > 100", schema), rows, 0))
    does not match: price > 100.0 AND sym = 'IBM'
      NO   price > 100.0  price is 90.0
      yes  sym = 'IBM'    sym is 'IBM'
    """
    one = Rows(rows.columns.slice(row, 1))
    alternatives = [_explained(term, one) for term in condition.terms]
    alternatives.sort(key=lambda each: sum(not piece.holds for piece in each.pieces))
    matched = any(each.holds for each in alternatives)
    return Explanation(str(condition), matched, tuple(alternatives))


def _explained(conjunction: Conjunction, one: Rows) -> Alternative:
    pieces = [
        ExplainedPiece(
            print_domain(str(term), domain), bool(mask_within(term, domain, one)[0]), _value_of(term, one)
        )
        for term, domain in conjunction.within.items()
    ]
    pieces += [_explained_atom(atom, one) for atom in sorted(conjunction.atoms, key=str)]
    return Alternative(tuple(pieces))


def _explained_atom(atom: Atom, one: Rows) -> ExplainedPiece:
    holds = bool(mask_atom(atom, one)[0])
    match atom:
        case AnyOf():
            because = str(explain(atom.condition, one, 0))
        case Matches():
            because = _explained_document(atom, one)
        case _:
            because = ", ".join(_value_of(column, one) for column in sorted(atom.columns, key=str))
    return ExplainedPiece(str(atom), holds, because)


def _explained_document(atom: Matches, one: Rows) -> str:
    text = one.column(atom.column)[0].as_py()
    if text is None:
        return f"{atom.column} is null"
    try:
        return str(explain_pattern(atom.pattern, parse_document(text)))
    except ContentError as error:
        return f"{atom.column} cannot be read: {error.message}"


def _value_of(term: Term, one: Rows) -> str:
    if isinstance(term, ColumnTerm):
        [value] = values_of(one.column(term).slice(0, 1))
        return f"{term} is {_shown(value)}"
    numbers = one.numbers(term)
    known = numbers.valid is None or bool(numbers.valid[0])
    read = [f"{term} is {_shown(numbers.values.tolist()[0]) if known else 'unknown'}"]
    read += [_value_of(column, one) for column in sorted(columns_of(term), key=str)]
    return ", ".join(read)


def _shown(value: Value | np.datetime64 | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, np.datetime64):
        text = f"TIMESTAMP '{time_text(value)}'"
    else:
        text = repr(value) if isinstance(value, float) else literal(value)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text
    half = VALUE_CHARACTERS_MAX // 2 - 2
    return f"{text[:half]} .. {text[-half:]}"
