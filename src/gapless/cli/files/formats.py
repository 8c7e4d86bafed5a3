"""Which kinds of files are there, and how are they read? A bounded piece at a time, whatever the rows mean.

`sources` takes the types of columns from the file itself, for `gapless match`; `pub.rows` takes them from a
topic, for `gapless pub`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gapless.cli.files.cells import reason_of
from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyarrow.csv import CSVStreamingReader
    from pyarrow.parquet import ParquetFile

#: Maximum number of rows in a piece, and the number of bytes at which it is closed.
PIECE_ROWS_MAX = 16_384
PIECE_BYTES_MAX = 4 * 2**20
#: A longer line is refused.
LINE_BYTES_MAX = 64 * 2**20
#: The formats of files, by suffix.
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".xml": "xml"}

_BOM = b"\xef\xbb\xbf"


def format_of(path: Path, hint: str = "") -> str:
    """The format that a file's suffix names. Raises UsageError E157."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        known = ", ".join(FORMATS)
        raise UsageError("E157", f"{path}: what kind of file is this? Known are {known}{hint}")
    return found


def opened(path: Path) -> IO[bytes]:
    """A file, open for reading. Raises UsageError E156."""
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError("E156", f"{path}: cannot be read: {error.strerror}") from error


# ---- lines of JSON -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some lines of a file that are not blank, each with its number."""

    lines: list[bytes]
    numbers: list[int]
    #: How many bytes of the file they took.
    size: int

    @staticmethod
    def of(lines: Sequence[bytes], first: int) -> LineBlock:
        """A block of lines as they were read, the first of which has that number."""
        block = LineBlock([], [], sum(map(len, lines)))
        for number, line in enumerate(lines, first):
            text = line.strip()
            if number == 1:
                text = text.removeprefix(_BOM)
            if text:
                block.lines.append(text)
                block.numbers.append(number)
        return block


def line_blocks(file: IO[bytes]) -> Iterator[LineBlock]:
    """The lines of a file. One that is too long comes cut off, for `ObjectDecoder` to refuse."""
    number, lines, size = 1, list[bytes](), 0
    # One byte more than is allowed, so that a longer line is refused without being read.
    while line := file.readline(LINE_BYTES_MAX + 1):
        lines.append(line)
        size += len(line)
        if len(lines) >= PIECE_ROWS_MAX or size >= PIECE_BYTES_MAX or len(line) > LINE_BYTES_MAX:
            yield LineBlock.of(lines, number)
            number += len(lines)
            lines, size = [], 0
    if lines:
        yield LineBlock.of(lines, number)


class ObjectDecoder:
    """Reads JSON objects, one on a line."""

    def __init__(self, types: Iterable[str]) -> None:
        # Digits are kept as they are written where there are decimals.
        self._decoder = msgspec.json.Decoder(float_hook=Decimal if "decimal" in types else None)

    def decode(self, line: bytes, place: str) -> dict[str, Any]:
        """The object of a line. Raises UsageError E158."""
        if len(line) > LINE_BYTES_MAX:
            raise UsageError("E158", f"{place}: a line has at most {LINE_BYTES_MAX:,} bytes")
        try:
            found = self._decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise UsageError("E158", f"{place}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise UsageError("E158", f'{place}: not an object: a row is written {{"column": value}}')
        return found


# ---- tables ------------------------------------------------------------------------------------------


def csv_reader(
    file: IO[bytes], name: str, types: Mapping[str, pa.DataType], **conversions: Any
) -> CSVStreamingReader:
    """A reader of the records below a header. Raises UsageError E156."""
    from pyarrow import csv  # noqa: PLC0415  # loaded only for CSV files

    # Without threads an error names the row.
    options = csv.ReadOptions(use_threads=False, block_size=PIECE_BYTES_MAX)
    convert = csv.ConvertOptions(column_types=types, **conversions)
    try:
        return csv.open_csv(file, read_options=options, convert_options=convert)
    except (pa.ArrowException, OSError) as error:
        raise UsageError("E156", f"{name}: not readable as CSV: {reason_of(error)}") from error


def csv_batches(reader: CSVStreamingReader, file: IO[bytes]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows, with the bytes of the file that they took; about."""
    before = 0
    for batch in reader:
        position = file.tell() if file.seekable() else 0
        for start in range(0, batch.num_rows, PIECE_ROWS_MAX):
            yield batch.slice(start, PIECE_ROWS_MAX), position - before
            before = position


def parquet_reader(file: IO[bytes], name: str) -> ParquetFile:
    """A reader of a Parquet file. Raises UsageError E156."""
    from pyarrow import parquet  # noqa: PLC0415  # loaded only for Parquet files

    try:
        return parquet.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise UsageError("E156", f"{name}: not a Parquet file: {reason_of(error)}") from error


def parquet_batches(reader: ParquetFile, file_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows, with the bytes of the file that they took; about."""
    rows = max(reader.metadata.num_rows, 1)
    for batch in reader.iter_batches(batch_size=PIECE_ROWS_MAX):
        yield batch, file_bytes * batch.num_rows // rows
