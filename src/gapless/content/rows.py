"""What are the values of a term in a whole batch? Arrays of numbers, and arrays of codes.

A *code* is a key (see `values`) as one int64, so that comparisons of every type but text are comparisons of
integer arrays. Null is the least int64. A few values cannot be told apart that way (the least integer itself,
decimals beyond nine billion): then the codes are not `exact`, and exact answers need the keys.

Everything is computed once per batch and term.

Implements docs/content.md, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gapless.content.terms import Arithmetic, ColumnTerm, Constant, Term, compute
from gapless.content.values import DECIMAL_DIGITS, Key, float_key, key_of
from gapless.content.xml.document import parse_document
from gapless.content.xml.evaluate import Truths
from gapless.errors import ContentError
from gapless.model.schema import COLUMN_TYPES

RowMask: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.int64]
CodeArray: TypeAlias = npt.NDArray[np.int64]
#: The code of null: below all others.
NULL_CODE = -(2**63)
#: The codes of values lie between these two.
CODE_MIN, CODE_MAX = NULL_CODE + 1, 2**63 - 1

#: Maximum total bytes of documents that are parsed once while a batch is matched, and that are kept
#: afterwards.
DOCUMENTS_READ_BYTES_MAX = 2**22
DOCUMENTS_KEPT_BYTES_MAX = 2**18

_NAN_CODE = float_key(float("nan"))
_FRACTION_BITS = np.int64(2**63 - 1)


@dataclass(frozen=True, slots=True)
class Codes:
    """One code for each row."""

    values: CodeArray
    #: Whether equal codes mean equal values, for all rows of the batch.
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Numbers:
    """One number for each row; meaningless where `valid` is false."""

    #: int64, float64, or objects of type Decimal.
    values: npt.NDArray[Any]
    #: Which rows are not null; None when all are.
    valid: RowMask | None = None


class Rows:
    """The rows of a batch, read column by column."""

    __slots__ = ("_arrays", "_codes", "_documents", "_numbers", "_texts", "columns")

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.columns = columns
        self._arrays: dict[str, pa.Array] = {}
        self._codes: dict[Term, Codes] = {}
        self._numbers: dict[Term, Numbers] = {}
        self._documents: dict[ColumnTerm, list[Truths | None]] = {}
        self._texts: dict[ColumnTerm, list[Key | None]] = {}

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def column(self, column: ColumnTerm) -> pa.Array:
        """A column as an Arrow array. It must have the schema's type, because its bytes are read directly."""
        found = self._arrays.get(column.name)
        if found is None:
            found = self._arrays[column.name] = self.columns.column(column.name)
            wanted = COLUMN_TYPES[column.kind]
            assert found.type == wanted, (
                f"column {column} is {found.type}, not {wanted}: check the batch first"
            )
        return found

    def take(self, rows: Positions, names: Sequence[str]) -> Rows:
        """Some of the rows, in this order, and some of the columns."""
        return Rows(self.columns.select(names).take(pa.array(rows)))

    def codes(self, term: Term) -> Codes:
        """The codes of a term that is neither text nor binary."""
        found = self._codes.get(term)
        if found is None:
            found = self._codes[term] = self._coded(term)
        return found

    def keys(self, term: Term) -> list[Key | None]:
        """The key of each row: exact, and slow."""
        if isinstance(term, ColumnTerm):
            if term.kind == "timestamp":
                # Times beyond the years of Python's calendar are values too; as numbers they are their keys.
                times: list[Key | None] = self.column(term).view(pa.int64()).to_pylist()
                return times
            values = self.column(term).to_pylist()
            return [None if value is None else key_of(term.kind, value) for value in values]
        numbers = self.numbers(term)
        valid = np.ones(len(self), dtype=np.bool_) if numbers.valid is None else numbers.valid
        return [
            key_of(term.kind, value) if known else None
            for value, known in zip(numbers.values.tolist(), valid.tolist(), strict=True)
        ]

    def numbers(self, term: Term) -> Numbers:
        """The values of a number term."""
        found = self._numbers.get(term)
        if found is None:
            found = self._numbers[term] = self._numbered(term)
        return found

    def texts(self, column: ColumnTerm) -> list[Key | None]:
        """The values of a column of texts, or of bytes.

        Cached until `release`: many conditions look them up in sets, and a text caches its hash.
        """
        found = self._texts.get(column)
        if found is None:
            found = self._texts[column] = self.column(column).to_pylist()
        return found

    def documents(self, column: ColumnTerm) -> Iterable[Truths | None]:
        """The documents of an XML column; None for null, and for unreadable ones.

        They are parsed once for all conditions, unless they would take too much memory.
        """
        found = self._documents.get(column)
        if found is not None:
            return found
        texts = self.column(column)
        if texts.nbytes > DOCUMENTS_READ_BYTES_MAX:
            return map(_document, texts.to_pylist())
        found = self._documents[column] = [_document(text) for text in texts.to_pylist()]
        return found

    def release(self) -> None:
        """Matching is done: drop large caches, because the rows may be kept for long."""
        self._texts.clear()
        if self._documents:
            self._documents = {
                column: found
                for column, found in self._documents.items()
                if self.column(column).nbytes <= DOCUMENTS_KEPT_BYTES_MAX
            }

    def _numbered(self, term: Term) -> Numbers:
        match term:
            case ColumnTerm():
                return column_numbers(self.column(term), term.kind)
            case Constant():
                kind: Any = {"int": np.int64, "float": np.float64}.get(term.kind, object)
                return Numbers(np.full(len(self), term.value, dtype=kind))
            case Arithmetic():
                return _calculated(term, self.numbers(term.left), self.numbers(term.right))

    def _coded(self, term: Term) -> Codes:
        if isinstance(term, ColumnTerm) and term.kind == "decimal":
            return _decimal_codes(self.column(term))
        numbers = self.numbers(term)
        values = numbers.values
        exact = True
        if term.kind == "float":
            values = float_codes(values)
        elif len(values) and values.min() == NULL_CODE:
            least = values == NULL_CODE
            exact = numbers.valid is not None and not bool((least & numbers.valid).any())
            values = np.where(least, CODE_MIN, values)
        if numbers.valid is not None:
            values = np.where(numbers.valid, values, NULL_CODE)
        return Codes(values, exact)


def _document(text: bytes | None) -> Truths | None:
    try:
        return None if text is None else Truths(parse_document(text))
    except ContentError:
        return None


def valid_rows(array: pa.Array) -> RowMask | None:
    """Which rows are not null; None when all are."""
    if not array.null_count:
        return None
    return _bits(array.buffers()[0], array.offset, len(array))


def _bits(buffer: pa.Buffer, start: int, count: int) -> RowMask:
    """Some bits of a bitmap. A buffer may be longer than its rows need, by any number of bytes."""
    first, stop = start >> 3, start + count + 7 >> 3
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8, stop - first, first), bitorder="little")
    return bits[start - 8 * first :][:count].view(np.bool_)


def column_numbers(array: pa.Array, kind: str) -> Numbers:
    """A column as numbers: integers also for booleans and times.

    Read from the buffers: each Arrow function costs more than a batch of a few hundred rows, and releases the
    interpreter lock.
    """
    valid = valid_rows(array)
    stored = _STORED.get(kind)
    values: npt.NDArray[Any]
    if kind == "decimal":
        filled = array if valid is None else array.fill_null(Decimal(0))
        return Numbers(filled.to_numpy(zero_copy_only=False), valid)
    if not len(array):
        return Numbers(np.zeros(0, stored or np.int64))
    data = array.buffers()[1]
    if stored is None:
        values = _bits(data, array.offset, len(array)).astype(np.int64)
    else:
        values = np.frombuffer(data, stored, len(array), 8 * array.offset)
    # The bits of null rows are arbitrary.
    return Numbers(values if valid is None else np.where(valid, values, values.dtype.type(0)), valid)


#: The types that are stored as numbers of 64 bits, and which.
_STORED: dict[str, Any] = {"int": np.int64, "float": np.float64, "timestamp": np.int64}


def float_codes(values: npt.NDArray[Any]) -> CodeArray:
    """The codes of floats, in the order of `values.float_key`."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    ordered = np.where(bits < 0, -(bits & _FRACTION_BITS), bits)
    return np.where(np.isnan(values), _NAN_CODE, ordered)


def _decimal_codes(array: pa.Array) -> Codes:
    """Decimals times 10**9, clamped to the range of codes."""
    # Only the rows: a buffer may be longer than they need.
    halves = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), 16 * array.offset).reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    valid = valid_rows(array)
    fits = (high == (low >> 63)) & (low != NULL_CODE)
    if valid is not None:
        fits |= ~valid
    values = low
    if not fits.all():
        values = np.where(fits, low, np.where(high < 0, CODE_MIN, CODE_MAX))
    if valid is not None:
        values = np.where(valid, values, NULL_CODE)
    return Codes(np.ascontiguousarray(values), bool(fits.all()))


def _calculated(term: Arithmetic, left: Numbers, right: Numbers) -> Numbers:
    valid = _both(left.valid, right.valid)
    match term.kind:
        case "float":
            first, second = _floats(left.values), _floats(right.values)
            return _calculated_floats(term.operator, first, second, valid)
        case "int":
            return _calculated_integers(term, left.values, right.values, valid)
        case _:
            with localcontext(prec=DECIMAL_DIGITS):
                values = _operate(term.operator, left.values.astype(object), right.values.astype(object))
            return Numbers(values, valid)


def _calculated_floats(
    operator: str, left: npt.NDArray[Any], right: npt.NDArray[Any], valid: RowMask | None
) -> Numbers:
    with np.errstate(all="ignore"):
        if operator == "/":
            zero = right == 0.0
            valid = _both(valid, ~zero if zero.any() else None)
            return Numbers(left / np.where(zero, 1.0, right), valid)
        return Numbers(_operate(operator, left, right), valid)


def _calculated_integers(
    term: Arithmetic, left: npt.NDArray[Any], right: npt.NDArray[Any], valid: RowMask | None
) -> Numbers:
    """Integers that wrap around are found by comparing with floats, and then computed one by one."""
    with np.errstate(all="ignore"):
        values = _operate(term.operator, left, right)
        near = _operate(term.operator, left.astype(np.float64), right.astype(np.float64))
    doubtful = np.flatnonzero(np.abs(near) > 2.0**62)
    if not len(doubtful):
        return Numbers(values, valid)
    values = values.copy()
    fits = np.ones(len(values), dtype=np.bool_)
    for row in doubtful.tolist():
        result = compute(term.operator, int(left[row]), int(right[row]), "int")
        fits[row] = result is not None
        values[row] = 0 if result is None else result
    return Numbers(values, _both(valid, fits))


def _operate(operator: str, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    match operator:
        case "+":
            return np.asarray(left + right)
        case "-":
            return np.asarray(left - right)
        case _:
            return np.asarray(left * right)


def _floats(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.astype(np.float64)


def _both(left: RowMask | None, right: RowMask | None) -> RowMask | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right
