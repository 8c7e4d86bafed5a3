"""How are the rows of a file read? A bounded piece at a time, with the columns that are asked for.

A *source* knows the columns of one file (of several for XML, where each file is one document), and hands out
its rows in chunks. What a file has and we have no type for is left out, with a notice.

| suffix | a row is | a row's place | printed as |
| --- | --- | --- | --- |
| `.jsonl`, `.ndjson` | an object on a line | its line | the line itself |
| `.csv` | a record below the header | its number | a JSON object |
| `.parquet` | a row | its number | a JSON object |
| `.xml` | a file | | the file's name |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from gapless.cli.files import formats
from gapless.cli.files.cells import (
    cell,
    cells,
    first_unfit,
    fitted,
    kind_of_arrow,
    kind_of_values,
    reason_of,
    row_text,
)
from gapless.cli.files.formats import (
    LineBlock,
    ObjectDecoder,
    csv_batches,
    csv_reader,
    format_of,
    line_blocks,
    opened,
    parquet_batches,
    parquet_reader,
)
from gapless.content.xml.document import DOCUMENT_BYTES_MAX
from gapless.errors import UsageError
from gapless.model.ids import TopicId
from gapless.model.python_values import rows_of
from gapless.model.schema import Column, Schema

if TYPE_CHECKING:
    from pyarrow.csv import CSVStreamingReader

#: The one column of an XML file.
DOCUMENT = "document"
#: Types of a file that a column may have although its values are of one of ours.
_UNDECIDED = frozenset({"always null", "null"})
#: The columns of a chunk when a condition reads none: a batch without columns has no rows.
_NO_COLUMN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChunk:
    """Some rows that follow each other."""

    #: The columns that were asked for, in our types.
    columns: pa.RecordBatch
    #: The number of each row, counted from 1; of JSON, its line.
    numbers: Sequence[int]
    #: What to print of one of the rows, and where it stands.
    text: Callable[[int], str]
    place: Callable[[int], str]
    #: How many bytes of the files have been read for this chunk; about.
    size: int


@dataclass(slots=True)
class FileSource(ABC):
    """Rows of one schema."""

    paths: Sequence[Path]
    #: The types that were asked for, by column.
    wanted: Mapping[str, str]
    schema: Schema = field(init=False)
    #: What was left out, and why.
    notices: list[str] = field(init=False, default_factory=list)

    @abstractmethod
    def chunks(self, columns: Sequence[str]) -> Iterator[FileChunk]:
        """The rows, with just these columns. Raises UsageError E156 or E158."""

    def _settle(self, kinds: Iterable[tuple[str, str | None, str]]) -> None:
        """Make the schema of (name, our type, the file's type) triples."""
        listed = list(kinds)
        twice = {name for name, count in Counter(name for name, _, _ in listed).items() if count > 1}
        columns: dict[str, Column] = {}
        for name, kind, found in listed:
            chosen = self.wanted.get(name, kind)
            if name in twice:
                self._notice(f"column {name!r} is there twice and left out")
            elif chosen is None:
                way_out = f": say --column {name}=type to have it" if found in _UNDECIDED else ""
                self._notice(f"column {name!r} ({found}) is left out{way_out}")
            else:
                columns[name] = Column(name, chosen, nullable=True)
        self.schema = Schema(TopicId(self.paths[0].stem), tuple(columns.values()))

    def _notice(self, text: str) -> None:
        notice = f"{self.paths[0]}: {text}"
        if notice not in self.notices:
            self.notices.append(notice)

    def _kind(self, name: str) -> str:
        return next(column.type for column in self.schema.columns if column.name == name)


def open_sources(paths: Sequence[Path], wanted: Mapping[str, str]) -> list[FileSource]:
    """The sources of some files, in order; all files are looked at before any row is read.

    Raises UsageError: E156 for a file that cannot be read, E157 for one of a kind that we do not know, E159
    for a column that no file has.
    """
    for path in paths:
        format_of(path)
        with opened(path):
            pass
    found: list[FileSource] = []
    for kind, group in groupby(paths, key=lambda path: KINDS[format_of(path)]):
        files = list(group)
        parts = [files] if kind is XmlFiles else [[path] for path in files]
        found += [kind(part, wanted) for part in parts]
    known = {column.name for source in found for column in source.schema.columns}
    for name in wanted:
        if name not in known:
            raise UsageError("E159", f"--column {name}: no such column: there are {', '.join(sorted(known))}")
    return found


def _batch(arrays: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    if not arrays:
        return pa.record_batch({_NO_COLUMN: pa.nulls(count)})
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


# ---- JSON --------------------------------------------------------------------------------------------


class JsonLinesFile(FileSource):
    """A JSON object on each line. The first block says which columns there are, and of which type."""

    def __init__(self, paths: Sequence[Path], wanted: Mapping[str, str]) -> None:
        super().__init__(paths, wanted)
        self._decoder = ObjectDecoder(wanted.values())
        found: dict[str, set[type]] = {}
        with opened(paths[0]) as file:
            first = next((block for block in line_blocks(file) if block.lines), LineBlock([], [], 0))
            for each in self._objects(first):
                for name, value in each.items():
                    kinds = found.setdefault(name, set())
                    if value is not None:
                        kinds.add(type(value))
        self._settle(
            (name, kind_of_values(kinds), " and ".join(sorted(map(_json_type, kinds))) or "always null")
            for name, kinds in found.items()
        )

    def chunks(self, columns: Sequence[str]) -> Iterator[FileChunk]:
        with opened(self.paths[0]) as file:
            for block in line_blocks(file):
                yield self._chunk(block, columns)

    def _objects(self, block: LineBlock) -> list[dict[str, Any]]:
        places = (f"{self.paths[0]} line {number}" for number in block.numbers)
        return [self._decoder.decode(line, place) for line, place in zip(block.lines, places, strict=True)]

    def _chunk(self, block: LineBlock, columns: Sequence[str]) -> FileChunk:
        path, lines, numbers = self.paths[0], block.lines, block.numbers
        objects = self._objects(block)
        arrays = {name: self._array([each.get(name) for each in objects], name, numbers) for name in columns}
        return FileChunk(
            columns=_batch(arrays, len(lines)),
            numbers=numbers,
            text=lambda row: lines[row].decode(),
            place=lambda row: f"{path} line {numbers[row]}",
            size=block.size,
        )

    def _array(self, values: list[Any], name: str, numbers: Sequence[int]) -> pa.Array:
        kind = self._kind(name)
        try:
            return cells(values, kind)
        except ValueError:
            at, reason = _first_misfit(values, kind)
            raise UsageError(
                "E158",
                f"{self.paths[0]} line {numbers[at]}: column {name!r} is {kind}, and {reason}: "
                f"say --column {name}=type for another type",
            ) from None


def _first_misfit(values: Sequence[Any], kind: str) -> tuple[int, str]:
    for at, value in enumerate(values):
        try:
            cell(value, kind)
        except ValueError as error:
            return at, str(error)
    raise AssertionError(f"every value is {kind}")


def _json_type(kind: type) -> str:
    return {dict: "object", list: "array", str: "string", bool: "bool", int: "int"}.get(kind, "float")


# ---- tables ------------------------------------------------------------------------------------------


class _Table(FileSource):
    """Rows that Arrow reads."""

    def chunks(self, columns: Sequence[str]) -> Iterator[FileChunk]:
        first = 1
        try:
            for batch, size in self._batches():
                yield self._chunk(batch, columns, first, size)
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise UsageError("E158", f"{self.paths[0]}: cannot be read on: {reason_of(error)}") from error

    @abstractmethod
    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The rows, with the bytes of the file that they took; about."""

    def _chunk(self, batch: pa.RecordBatch, columns: Sequence[str], first: int, size: int) -> FileChunk:
        path = self.paths[0]
        arrays = {name: self._array(batch, name, first) for name in columns}
        return FileChunk(
            columns=_batch(arrays, batch.num_rows),
            numbers=range(first, first + batch.num_rows),
            text=lambda row: row_text(rows_of(batch.slice(row, 1))[0]),
            place=lambda row: f"{path} row {first + row}",
            size=size,
        )

    def _array(self, batch: pa.RecordBatch, name: str, first: int) -> pa.Array:
        kind = self._kind(name)
        array = batch.column(name)
        try:
            return fitted(array, kind)
        except (pa.ArrowException, ValueError):
            at, reason = first_unfit(array, kind)
            where = f"{self.paths[0]} row {first + at}: column {name!r} ({array.type})"
            raise UsageError("E158", f"{where} does not fit {kind}: {reason}") from None


class CsvFile(_Table):
    """Records below a header, with the types that Arrow finds in the first block."""

    def __init__(self, paths: Sequence[Path], wanted: Mapping[str, str]) -> None:
        super().__init__(paths, wanted)
        with opened(paths[0]) as file:
            schema = self._reader(file).schema
        self._settle((each.name, kind_of_arrow(each.type), str(each.type)) for each in schema)

    def _reader(self, file: IO[bytes]) -> CSVStreamingReader:
        return csv_reader(file, str(self.paths[0]), dict.fromkeys(self.wanted, pa.string()))

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        with opened(self.paths[0]) as file:
            yield from csv_batches(self._reader(file), file)


class ParquetRows(_Table):
    """The rows of a Parquet file."""

    def __init__(self, paths: Sequence[Path], wanted: Mapping[str, str]) -> None:
        super().__init__(paths, wanted)
        with opened(paths[0]) as file:
            schema = parquet_reader(file, str(paths[0])).schema_arrow
        self._settle((each.name, kind_of_arrow(each.type), str(each.type)) for each in schema)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        path = self.paths[0]
        with opened(path) as file:
            yield from parquet_batches(parquet_reader(file, str(path)), path.stat().st_size)


# ---- XML ---------------------------------------------------------------------------------------------


class XmlFiles(FileSource):
    """Several files, each of them one document."""

    def __init__(self, paths: Sequence[Path], wanted: Mapping[str, str]) -> None:
        super().__init__(paths, wanted)
        if wanted.get(DOCUMENT, "xml") != "xml":
            raise UsageError("E159", f"--column {DOCUMENT}={wanted[DOCUMENT]}: {paths[0]} is an xml document")
        self._settle([(DOCUMENT, "xml", "xml")])

    def chunks(self, columns: Sequence[str]) -> Iterator[FileChunk]:
        first = 1
        while first <= len(self.paths):
            chunk = self._chunk(first, columns)
            yield chunk
            first += len(chunk.numbers)

    def _chunk(self, first: int, columns: Sequence[str]) -> FileChunk:
        documents: list[bytes] = []
        size = 0
        for path in self.paths[first - 1 : first - 1 + formats.PIECE_ROWS_MAX]:
            with opened(path) as file:
                # One byte more than is allowed, so that a longer one is refused without being read.
                documents.append(_read(file, path))
            size += len(documents[-1])
            if size >= formats.PIECE_BYTES_MAX:
                break
        paths = self.paths[first - 1 : first - 1 + len(documents)]
        return FileChunk(
            columns=_batch(dict.fromkeys(columns, pa.array(documents, pa.binary())), len(documents)),
            numbers=range(first, first + len(documents)),
            text=lambda row: str(paths[row]),
            place=lambda row: str(paths[row]),
            size=size,
        )


def _read(file: IO[bytes], path: Path) -> bytes:
    try:
        return file.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError("E156", f"{path}: cannot be read: {error.strerror}") from error


#: What reads each format.
KINDS: dict[str, type[FileSource]] = {
    "jsonl": JsonLinesFile,
    "csv": CsvFile,
    "parquet": ParquetRows,
    "xml": XmlFiles,
}
