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
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gapless.cli.match_cells import (
    cell,
    cells,
    first_unfit,
    fitted,
    kind_of_arrow,
    kind_of_values,
    reason_of,
    row_text,
)
from gapless.content.xml.document import DOCUMENT_BYTES_MAX
from gapless.errors import UsageError
from gapless.model.ids import TopicId
from gapless.model.python_values import rows_of
from gapless.model.schema import Column, Schema

#: A chunk has at most so many rows, and is closed when it has had so many bytes.
CHUNK_ROWS_MAX = 8_192
CHUNK_BYTES_MAX = 8 * 1024 * 1024
#: A longer line is refused.
LINE_BYTES_MAX = 64 * 1024 * 1024
#: The one column of an XML file.
DOCUMENT = "document"
#: Types of a file that a column may have although its values are of one of ours.
_UNDECIDED = frozenset({"always null", "null"})
#: The columns of a chunk when a condition reads none: a batch without columns has no rows.
_NO_COLUMN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
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
class Source(ABC):
    """Rows of one schema."""

    paths: Sequence[Path]
    #: The types that were asked for, by column.
    wanted: Mapping[str, str]
    schema: Schema = field(init=False)
    #: What was left out, and why.
    notices: list[str] = field(init=False, default_factory=list)

    @abstractmethod
    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
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


def open_sources(paths: Sequence[Path], wanted: Mapping[str, str]) -> list[Source]:
    """The sources of some files, in order; all files are looked at before any row is read.

    Raises UsageError: E156 for a file that cannot be read, E157 for one of a kind that we do not know, E159
    for a column that no file has.
    """
    for path in paths:
        if path.suffix.lower() not in KINDS:
            raise UsageError("E157", f"{path}: what kind of file is this? Known are {', '.join(KINDS)}")
        with opened(path):
            pass
    found: list[Source] = []
    for kind, group in groupby(paths, key=lambda path: KINDS[path.suffix.lower()]):
        files = list(group)
        parts = [files] if kind is XmlFiles else [[path] for path in files]
        found += [kind(part, wanted) for part in parts]
    known = {column.name for source in found for column in source.schema.columns}
    for name in wanted:
        if name not in known:
            raise UsageError("E159", f"--column {name}: no such column: there are {', '.join(sorted(known))}")
    return found


def opened(path: Path) -> IO[bytes]:
    """A file, open for reading. Raises UsageError E156."""
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError("E156", f"{path}: cannot be read: {error.strerror}") from error


def _batch(arrays: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    if not arrays:
        return pa.record_batch({_NO_COLUMN: pa.nulls(count)})
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


# ---- JSON --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Block:
    """Some lines of a file that are not blank."""

    lines: list[bytes]
    numbers: list[int]
    objects: list[dict[str, Any]]
    size: int


class JsonLines(Source):
    """A JSON object on each line. The first block says which columns there are, and of which type."""

    def __init__(self, paths: Sequence[Path], wanted: Mapping[str, str]) -> None:
        super().__init__(paths, wanted)
        # Digits are kept as they are written where somebody asked for decimals.
        exact = Decimal if "decimal" in wanted.values() else None
        self._decoder = msgspec.json.Decoder(float_hook=exact)
        found: dict[str, set[type]] = {}
        with opened(paths[0]) as file:
            for each in self._block(file, 1).objects:
                for name, value in each.items():
                    kinds = found.setdefault(name, set())
                    if value is not None:
                        kinds.add(type(value))
        self._settle(
            (name, kind_of_values(kinds), " and ".join(sorted(map(_json_type, kinds))) or "always null")
            for name, kinds in found.items()
        )

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        with opened(self.paths[0]) as file:
            number = 1
            while (block := self._block(file, number)).size:
                number = self._after
                yield self._chunk(block, columns)

    def _chunk(self, block: _Block, columns: Sequence[str]) -> Chunk:
        path, lines, numbers = self.paths[0], block.lines, block.numbers
        arrays = {name: self._array(block, name) for name in columns}
        return Chunk(
            columns=_batch(arrays, len(lines)),
            numbers=numbers,
            text=lambda row: lines[row].decode(),
            place=lambda row: f"{path} line {numbers[row]}",
            size=block.size,
        )

    def _array(self, block: _Block, name: str) -> pa.Array:
        kind = self._kind(name)
        values = [each.get(name) for each in block.objects]
        try:
            return cells(values, kind)
        except ValueError:
            at, reason = _first_misfit(values, kind)
            raise UsageError(
                "E158",
                f"{self.paths[0]} line {block.numbers[at]}: column {name!r} is {kind}, and {reason}: "
                f"say --column {name}=type for another type",
            ) from None

    def _block(self, file: IO[bytes], number: int) -> _Block:
        block = _Block([], [], [], 0)
        size = 0
        while len(block.lines) < CHUNK_ROWS_MAX and size < CHUNK_BYTES_MAX:
            line = file.readline(LINE_BYTES_MAX)
            if not line:
                break
            size += len(line)
            stripped = line.strip()
            if number == 1:
                stripped = stripped.removeprefix(b"\xef\xbb\xbf")
            if stripped:
                block.objects.append(self._object(stripped, number))
                block.lines.append(stripped)
                block.numbers.append(number)
            number += 1
        self._after = number
        return _Block(block.lines, block.numbers, block.objects, size)

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        where = f"{self.paths[0]} line {number}"
        if len(line) >= LINE_BYTES_MAX:
            raise UsageError("E158", f"{where}: a line has at most {LINE_BYTES_MAX:,} bytes")
        try:
            found = self._decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise UsageError("E158", f"{where}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise UsageError("E158", f'{where}: not an object: a row is written {{"column": value}}')
        return found


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


class _Table(Source):
    """Rows that Arrow reads."""

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
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

    def _chunk(self, batch: pa.RecordBatch, columns: Sequence[str], first: int, size: int) -> Chunk:
        path = self.paths[0]
        arrays = {name: self._array(batch, name, first) for name in columns}
        return Chunk(
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

    def _reader(self, file: IO[bytes]) -> pa.csv.CSVStreamingReader:
        # Without threads an error names the row.
        options = pa.csv.ReadOptions(use_threads=False, block_size=CHUNK_BYTES_MAX)
        convert = pa.csv.ConvertOptions(column_types=dict.fromkeys(self.wanted, pa.string()))
        try:
            return pa.csv.open_csv(file, read_options=options, convert_options=convert)
        except (pa.ArrowException, OSError) as error:
            raise UsageError("E156", f"{self.paths[0]}: not readable as CSV: {reason_of(error)}") from error

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        with opened(self.paths[0]) as file:
            before = 0
            for batch in self._reader(file):
                position = file.tell()
                yield batch, position - before
                before = position


class ParquetFile(_Table):
    """The rows of a Parquet file."""

    def __init__(self, paths: Sequence[Path], wanted: Mapping[str, str]) -> None:
        super().__init__(paths, wanted)
        with opened(paths[0]) as file:
            schema = self._reader(file).schema_arrow
        self._settle((each.name, kind_of_arrow(each.type), str(each.type)) for each in schema)

    def _reader(self, file: IO[bytes]) -> pa.parquet.ParquetFile:
        try:
            return pa.parquet.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise UsageError("E156", f"{self.paths[0]}: not a Parquet file: {reason_of(error)}") from error

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        size = self.paths[0].stat().st_size
        with opened(self.paths[0]) as file:
            reader = self._reader(file)
            rows = max(reader.metadata.num_rows, 1)
            for batch in reader.iter_batches(batch_size=CHUNK_ROWS_MAX):
                yield batch, size * batch.num_rows // rows


# ---- XML ---------------------------------------------------------------------------------------------


class XmlFiles(Source):
    """Several files, each of them one document."""

    def __init__(self, paths: Sequence[Path], wanted: Mapping[str, str]) -> None:
        super().__init__(paths, wanted)
        if wanted.get(DOCUMENT, "xml") != "xml":
            raise UsageError("E159", f"--column {DOCUMENT}={wanted[DOCUMENT]}: {paths[0]} is an xml document")
        self._settle([(DOCUMENT, "xml", "xml")])

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        first = 1
        while first <= len(self.paths):
            chunk = self._chunk(first, columns)
            yield chunk
            first += len(chunk.numbers)

    def _chunk(self, first: int, columns: Sequence[str]) -> Chunk:
        documents: list[bytes] = []
        size = 0
        for path in self.paths[first - 1 : first - 1 + CHUNK_ROWS_MAX]:
            with opened(path) as file:
                # One byte more than is allowed, so that a longer one is refused without being read.
                documents.append(_read(file, path))
            size += len(documents[-1])
            if size >= CHUNK_BYTES_MAX:
                break
        paths = self.paths[first - 1 : first - 1 + len(documents)]
        return Chunk(
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


#: The kinds of file, by suffix.
KINDS: dict[str, type[Source]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".csv": CsvFile,
    ".parquet": ParquetFile,
    ".xml": XmlFiles,
}
