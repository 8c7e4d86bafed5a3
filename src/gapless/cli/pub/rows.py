"""How do lines of JSON and the rows of a table become rows of a topic?

The schema is the topic's: nothing is guessed from a file. Values are read as the topic has them (a text
such as `2026-01-31T12:00:00Z` for a timestamp, `"1.50"` for a decimal), a column that is left out is null
where it may be, and whatever does not fit is refused with its place: file, line or row, column. What stands
before the place comes first, so that exactly the rows before a mistake can be published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from gapless.cli.files.cells import cell, cells, first_unfit, fitted, reason_of
from gapless.cli.files.formats import (
    LineBlock,
    ObjectDecoder,
    csv_batches,
    csv_reader,
    parquet_batches,
    parquet_reader,
)
from gapless.errors import UsageError
from gapless.model.schema import COLUMN_TYPES, Schema

#: For each type of ours, those of JSON's that Arrow takes as they are, and takes quickly.
_PLAIN: dict[str, frozenset[type]] = {
    "int": frozenset({int, type(None)}),
    "float": frozenset({float, int, type(None)}),
    "string": frozenset({str, type(None)}),
    "bool": frozenset({bool, type(None)}),
}


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Some rows that follow each other, and how many bytes of the file they took; about."""

    rows: pa.RecordBatch
    size: int = 0


class _Misfit(NamedTuple):
    """The first value of a column that is not as the topic wants it."""

    row: int
    code: str
    reason: str

    def at(self, place: str) -> UsageError:
        return UsageError(self.code, f"{place}: {self.reason}")


class RowReader:
    """Reads rows of one topic."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._kinds = {column.name: column.type for column in schema.columns}
        self._decoder = ObjectDecoder(self._kinds.values())

    # Lines of JSON.

    def lines(self, block: LineBlock, name: str) -> Iterator[RowPiece]:
        """The rows of some lines. Raises UsageError at a bad one, after the rows before it.

        >>> reader = RowReader(Schema.parse("trades", {"sym": "string", "price": "float?"}))
        >>> lines = LineBlock.of([b'{"sym": "IBM", "price": 3}', b"", b'{"sym": "SAP"}'], 1)
        >>> [piece] = reader.lines(lines, "stdin")
        >>> piece.rows.to_pylist()
        [{'sym': 'IBM', 'price': 3.0}, {'sym': 'SAP', 'price': None}]
        """
        objects: list[dict[str, Any]] = []
        places = [f"{name} line {number}" for number in block.numbers]
        error: UsageError | None = None
        for line, place in zip(block.lines, places, strict=True):
            try:
                objects.append(self._object(line, place))
            except UsageError as found:
                error = found
                break
        yield from self._objects(objects, places, block.size)
        if error is not None:
            raise error

    def objects(self, texts: Sequence[str]) -> pa.RecordBatch:
        """JSON objects from the command line. Raises UsageError before anything can be published."""
        several = len(texts) > 1
        places = [f"event {number}" if several else "the event" for number in range(1, len(texts) + 1)]
        # Bytes of a command line that are not text are refused as such.
        lines = [text.encode(errors="surrogateescape") for text in texts]
        found = [self._object(line, place) for line, place in zip(lines, places, strict=True)]
        [piece] = self._objects(found, places, 0)
        return piece.rows

    def _object(self, line: bytes, place: str) -> dict[str, Any]:
        found = self._decoder.decode(line, place)
        for name in found:
            if name not in self._kinds:
                raise self._no_column(place, name)
        return found

    def _objects(self, objects: list[dict[str, Any]], places: list[str], size: int) -> Iterator[RowPiece]:
        if not objects:
            return
        arrays, good, error = [], len(objects), None
        for column in self.schema.columns:
            values = [each.get(column.name) for each in objects[:good]]
            array, misfit = self._column(column.name, values)
            arrays.append(array)
            if misfit is not None:
                good, error = misfit.row, misfit.at(places[misfit.row])
        if good:
            yield RowPiece(self._batch([array.slice(0, good) for array in arrays]), size)
        if error is not None:
            raise error

    def _column(self, name: str, values: list[Any]) -> tuple[pa.Array, _Misfit | None]:
        """A column as far as it is good, and what is wrong with the first value that is not."""
        column = next(each for each in self.schema.columns if each.name == name)
        array = None
        if set(map(type, values)) <= _PLAIN.get(column.type, frozenset()):
            try:
                array = pa.array(values, COLUMN_TYPES[column.type])
            except (pa.ArrowException, OverflowError, ValueError):
                array = None
        if array is None:
            for at, value in enumerate(values):
                try:
                    cell(value, column.type)
                except ValueError as error:
                    array, null = self._nulls(cells(values[:at], column.type), name)
                    return array, null or self._misfit(at, name, str(error))
            array = cells(values, column.type)
        return self._nulls(array, name)

    def _nulls(self, array: pa.Array, name: str) -> tuple[pa.Array, _Misfit | None]:
        column = next(each for each in self.schema.columns if each.name == name)
        if column.nullable or not array.null_count:
            return array, None
        at = array.is_null().index(True).as_py()
        return array.slice(0, at), _Misfit(at, "E112", _missing(name))

    # Tables.

    def csv(self, file: IO[bytes], name: str) -> Iterator[RowPiece]:
        """The records below a header. Raises UsageError."""
        # Every column as texts: what they mean, the topic says. Nothing at all is null, and NA a text.
        reader = csv_reader(
            file,
            name,
            dict.fromkeys(self._kinds, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
        )
        self._check_columns(reader.schema.names, name)
        yield from self._tables(csv_batches(reader, file), name, is_csv=True)

    def parquet(self, path: Path) -> Iterator[RowPiece]:
        """The rows of a Parquet file. Raises UsageError."""
        with path.open("rb") as file:
            reader = parquet_reader(file, str(path))
            self._check_columns(reader.schema_arrow.names, str(path))
            yield from self._tables(parquet_batches(reader, path.stat().st_size), str(path))

    def document(self, path: Path) -> Iterator[RowPiece]:
        """A file that is one XML document. Raises UsageError."""
        columns = [column.name for column in self.schema.columns if column.type == "xml"]
        if len(columns) != 1:
            raise UsageError(
                "E158", f"{path}: topic '{self.schema.topic}' has not exactly one column for documents"
            )
        self._check_columns(columns, str(path))
        data = path.read_bytes()
        yield from self._objects([{columns[0]: data}], [str(path)], len(data))

    def _tables(
        self, batches: Iterable[tuple[pa.RecordBatch, int]], name: str, *, is_csv: bool = False
    ) -> Iterator[RowPiece]:
        first = 1
        try:
            for batch, size in batches:
                yield from self._table(batch, size, name, first, is_csv=is_csv)
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise UsageError("E158", f"{name}: cannot be read on: {reason_of(error)}") from error

    def _table(
        self, batch: pa.RecordBatch, size: int, name: str, first: int, *, is_csv: bool
    ) -> Iterator[RowPiece]:
        good, error = batch.num_rows, None
        arrays = []
        for column in self.schema.columns:
            if column.name not in batch.schema.names:
                arrays.append(pa.nulls(batch.num_rows, COLUMN_TYPES[column.type]))
                continue
            array = batch.column(column.name).slice(0, good)
            if column.type == "string" and not column.nullable and pa.types.is_string(array.type) and is_csv:
                array = array.fill_null("")
            try:
                array = fitted(array, column.type)
            except (pa.ArrowException, ValueError):
                good, reason = first_unfit(array, column.type)
                error = self._misfit(good, column.name, reason).at(f"{name} row {first + good}")
                array = fitted(array.slice(0, good), column.type)
            array, null = self._nulls(array, column.name)
            if null is not None:
                good, error = null.row, null.at(f"{name} row {first + null.row}")
            arrays.append(array)
        if good:
            yield RowPiece(self._batch([array.slice(0, good) for array in arrays]), size)
        if error is not None:
            raise error

    # Refusals.

    def _batch(self, arrays: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow())

    def _check_columns(self, names: Sequence[str], place: str) -> None:
        for name in names:
            if name not in self._kinds:
                raise self._no_column(place, name)
            if names.count(name) > 1:
                raise UsageError("E111", f"{place}: column {name!r} is there twice")
        for column in self.schema.columns:
            if column.name not in names and not column.nullable:
                raise UsageError("E112", f"{place}: {_missing(column.name)}")

    def _no_column(self, place: str, name: str) -> UsageError:
        topic, known = self.schema.topic, ", ".join(self._kinds)
        return UsageError("E111", f"{place}: topic '{topic}' has no column {name!r}: it has {known}")

    def _misfit(self, row: int, name: str, reason: str) -> _Misfit:
        return _Misfit(row, "E158", f"column '{name}' ({self._kinds[name]}): {reason}")


def _missing(name: str) -> str:
    return f"column '{name}' is missing, and it may not be null"
