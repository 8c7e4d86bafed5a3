"""Which rows of a batch does one condition accept? Evaluated as it is written, with array operations.

This defines the meaning of a condition: the index must agree with it, and uses it to verify candidates. One
condition over a batch costs a few array operations per comparison.

Implements docs/content.md, section 3.
"""

from __future__ import annotations

from bisect import bisect_right
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gapless.content.condition import AnyOf, Atom, Compare, Condition, Conjunction, Like, Matches
from gapless.content.domain import Domain, Interval
from gapless.content.rows import CODE_MAX, CODE_MIN, NULL_CODE, CodeArray, Numbers, RowMask, Rows, float_codes
from gapless.content.terms import ColumnTerm, Term
from gapless.content.values import NUMBERS, Key

#: Up to this many rows, or fewer rows than values, texts are looked up in a set; beyond, Arrow does it for
#: all rows, which takes as long as a pass over the values.
FEW_ROWS = 64
#: Up to this many intervals, many texts are compared with each; with more intervals, or few texts, binary
#: search is used.
COMPARED_INTERVALS_MAX = 4


#: The types whose values have no code.
_TEXTS = ("string", "binary", "xml")


def prepare(condition: Condition) -> None:
    """Do the expensive one-time work of a large condition before the first batch."""
    hash(condition)
    for conjunction in condition.terms:
        for term, domain in conjunction.within.items():
            domain.form(_text_form if term.kind in _TEXTS else _code_form)
        for atom in conjunction.atoms:
            if isinstance(atom, AnyOf):
                prepare(atom.condition)
            elif isinstance(atom, Like):
                atom.pattern.regex()


def mask(condition: Condition, rows: Rows) -> RowMask:
    """Which rows the condition accepts."""
    accepted = None
    for term in condition.terms:
        found = mask_conjunction(term, rows)
        accepted = found if accepted is None else accepted | found
    return np.zeros(len(rows), dtype=np.bool_) if accepted is None else accepted


def mask_conjunction(conjunction: Conjunction, rows: Rows) -> RowMask:
    """Which rows the conjunction accepts."""
    accepted = None
    for term, domain in conjunction.within.items():
        found = mask_within(term, domain, rows)
        accepted = found if accepted is None else accepted & found
    for atom in conjunction.atoms:
        found = mask_atom(atom, rows)
        accepted = found if accepted is None else accepted & found
    return np.ones(len(rows), dtype=np.bool_) if accepted is None else accepted


def mask_within(term: Term, domain: Domain, rows: Rows) -> RowMask:
    """In which rows the term lies in the domain."""
    if term.kind in _TEXTS:
        assert isinstance(term, ColumnTerm)
        return _mask_texts(rows, term, domain)
    codes = rows.codes(term)
    bounds: CodeArray | None = domain.form(_code_form)[0] if codes.exact else None
    if bounds is None:
        return np.fromiter((domain.admits(key) for key in rows.keys(term)), dtype=np.bool_, count=len(rows))
    return mask_codes(codes.values, bounds, null=domain.null)


def code_bounds(domain: Domain) -> CodeArray | None:
    """The codes where the intervals begin and end, ascending; None where one has no code of its own."""
    found: CodeArray | None = domain.form(_code_form)[0]
    return found


def _code_form(domain: Domain) -> tuple[CodeArray | None]:
    return (_code_bounds(domain),)


def _code_bounds(domain: Domain) -> CodeArray | None:
    if not _fits_codes(domain):
        return None
    bounds = [bound for interval in domain.intervals for bound in interval if isinstance(bound, int)]
    return np.asarray([max(bound, CODE_MIN) for bound in bounds if bound <= CODE_MAX], dtype=np.int64)


def mask_codes(codes: CodeArray, bounds: CodeArray, *, null: bool) -> RowMask:
    """Which codes lie within a domain; null counts if requested."""
    # A code lies inside an interval exactly if an odd number of bounds is not above it.
    inside = (bounds.searchsorted(codes, side="right") & 1).astype(np.bool_)
    return inside | (codes == NULL_CODE) if null else inside


def mask_atom(atom: Atom, rows: Rows) -> RowMask:
    """For which rows the atom is true."""
    match atom:
        case Like():
            found = atom.pattern.matches(rows.column(atom.column))
            return _true(pc.invert(found) if atom.negated else found)
        case Compare():
            return _mask_compare(atom, rows)
        case Matches():
            return _mask_documents(atom, rows)
        case AnyOf():
            return mask(atom.condition, rows)


def _mask_documents(atom: Matches, rows: Rows) -> RowMask:
    """For which documents the atom is true; never for unreadable ones."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for row, document in enumerate(rows.documents(atom.column)):
        if document is not None:
            found[row] = document.decided(atom.pattern) is not atom.negated
    return found


def _fits_codes(domain: Domain) -> bool:
    """Whether no bound falls where two values share a code."""
    return all(
        bound is None or _is_code(bound) or bound in _ENDS
        for interval in domain.intervals
        for bound in interval
    )


#: Bounds that mean "no bound": the ends of the integers and of the decimals.
_ENDS = frozenset({-(2**63), 2**63, -(10**38) + 1, 10**38})


def _is_code(bound: object) -> bool:
    return isinstance(bound, int) and CODE_MIN + 1 < bound < CODE_MAX


def _mask_texts(rows: Rows, column: ColumnTerm, domain: Domain) -> RowMask:
    texts = rows.column(column)
    keys, others, bounds = domain.form(_text_form)
    if keys is not None:
        found = _is_in(rows, column, keys)
    elif others is not None:
        found = ~_is_in(rows, column, others)
        if texts.null_count:
            found &= ~_true(texts.is_null())
    elif len(domain.intervals) <= COMPARED_INTERVALS_MAX and len(texts) > FEW_ROWS:
        found = np.zeros(len(texts), dtype=np.bool_)
        for interval in domain.intervals:
            found |= _true(_between(texts, interval))
    else:
        # A text lies inside an interval exactly if an odd number of bounds is not above it.
        found = np.fromiter(
            (text is not None and bisect_right(bounds, text) % 2 == 1 for text in rows.texts(column)),
            np.bool_,
            len(texts),
        )
    return found | _true(texts.is_null()) if domain.null and texts.null_count else found


def _is_in(rows: Rows, column: ColumnTerm, keys: frozenset[Key]) -> RowMask:
    if len(rows) > max(FEW_ROWS, len(keys)):
        texts = rows.column(column)
        return _true(pc.is_in(texts, value_set=pa.array(keys, texts.type)))
    return np.fromiter((text in keys for text in rows.texts(column)), np.bool_, len(rows))


def _text_form(domain: Domain) -> tuple[frozenset[Key] | None, frozenset[Key] | None, list[Key]]:
    """The only values, or the only missing ones; and where the intervals begin and end."""
    keys, others = domain.keys(), None
    if keys is None and len(domain.intervals) > COMPARED_INTERVALS_MAX:
        others = domain.without_null_inverse().keys()
    bounds = [bound for interval in domain.intervals for bound in interval if bound is not None]
    return None if keys is None else frozenset(keys), None if others is None else frozenset(others), bounds


def _between(texts: pa.Array, interval: Interval) -> pa.Array:
    start, stop = interval
    found = pc.greater_equal(texts, pa.scalar(start, texts.type))
    if stop is not None:
        found = pc.and_(found, pc.less(texts, pa.scalar(stop, texts.type)))
    return found


def _true(found: pa.Array) -> RowMask:
    """Which are true: neither false nor null."""
    if found.null_count:
        found = found.fill_null(False)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


_ARROW: dict[str, Any] = {"=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal}


def _mask_compare(atom: Compare, rows: Rows) -> RowMask:
    left, right = atom.left, atom.right
    if left.kind not in NUMBERS and left.kind != "bool":
        assert isinstance(left, ColumnTerm)
        assert isinstance(right, ColumnTerm)
        return _true(_ARROW[atom.operator](rows.column(left), rows.column(right)))
    kinds = {left.kind, right.kind}
    first, second = _in_order(rows.numbers(left), kinds), _in_order(rows.numbers(right), kinds)
    match atom.operator:
        case "=":
            found = first == second
        case "<>":
            found = first != second
        case "<":
            found = first < second
        case "<=":
            found = first <= second
    accepted = np.asarray(found, dtype=np.bool_)
    for numbers in (rows.numbers(left), rows.numbers(right)):
        if numbers.valid is not None:
            accepted = accepted & numbers.valid
    return accepted


def _in_order(numbers: Numbers, kinds: set[str]) -> Any:
    """Numbers that NumPy compares like SQL: floats as codes, decimals as objects."""
    if "float" in kinds:
        return float_codes(numbers.values.astype(np.float64))
    if "decimal" in kinds:
        return np.asarray([Decimal(value) for value in numbers.values.tolist()], dtype=object)
    return numbers.values
