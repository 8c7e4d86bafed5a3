"""How is history kept for other programs? Each sealed segment as one Parquet file.

The columns are those of the topic, with `tick` and `pubend` before them. A file is called `<pubend>.<number
of the segment>.<first tick>-<stop tick>.parquet`, so that a reader finds a time without opening the rest;
DuckDB, pandas and Spark read a folder of them directly. A file is written under another name, synced and
renamed: a visible file is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId
from gapless.store.files import SHARED, DiskFiles, File, Files, failure, write_all

#: Rows of a file are gathered into groups of about this size, so that memory does not grow with the segment.
ROW_GROUP_BYTES = 8 * 2**20
_TEMPORARY_SUFFIX = ".new"


class Archive:
    """A folder of Parquet files with the events of one pubend."""

    def __init__(self, folder: Path, pubend: PubendId, schema: pa.Schema, files: Files | None = None) -> None:
        self.folder = folder
        self.pubend = pubend
        self._files = files or DiskFiles()
        own = [pa.field("tick", pa.int64(), nullable=False), pa.field("pubend", pa.string(), nullable=False)]
        taken = {"tick", "pubend"} & set(schema.names)
        # A column of the topic with one of our names is stored under another name.
        renamed = [each.with_name(f"{each.name}_") if each.name in taken else each for each in schema]
        #: The columns of every file.
        self.schema = pa.schema([*own, *renamed])

    def keep(self, number: int, batches: Iterator[EventBatch]) -> Path | None:
        """Write the events of segment `number`, unless already done; returns the file, None without events.

        Raises StoreError: disk full (E302), I/O error (E303). Then no file is visible.
        """
        try:
            self._files.make_folder(self.folder)
            prefix = f"{quote(self.pubend, safe='@')}.{number:012}."
            for name in self._files.list_folder(self.folder):
                if name.startswith(prefix) and name.endswith(".parquet"):
                    return self.folder / name
            return self._write(prefix, batches)
        except OSError as error:
            raise failure(error, self.folder) from error

    def _write(self, prefix: str, batches: Iterator[EventBatch]) -> Path | None:
        first = next(batches, None)
        if first is None:
            return None
        temporary = self.folder / f"{prefix}{_TEMPORARY_SUFFIX}"
        file = self._files.create(temporary, SHARED)
        try:
            stop = self._write_rows(file, first, batches)
            file.sync()
            path = self.folder / f"{prefix}{first.first}-{stop}.parquet"
            self._files.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                self._files.remove(temporary)
            raise
        finally:
            file.close()
        self._files.sync_folder(self.folder)
        return path

    def _write_rows(self, file: File, first: EventBatch, batches: Iterator[EventBatch]) -> int:
        sink = _Sink(file)
        # The tick is the only column that everybody filters by: its statistics are used to find a row group.
        with pq.ParquetWriter(
            sink, self.schema, compression="zstd", write_statistics=True, write_page_checksum=True
        ) as writer:
            gathered = [first]
            size, stop = first.nbytes, first.last + 1
            for batch in batches:
                if size >= ROW_GROUP_BYTES:
                    writer.write_table(self._table(gathered))
                    gathered, size = [], 0
                gathered.append(batch)
                size += batch.nbytes
                stop = batch.last + 1
            writer.write_table(self._table(gathered))
        return stop

    def _table(self, batches: list[EventBatch]) -> pa.Table:
        tables = []
        for batch in batches:
            pubend = pa.repeat(pa.scalar(self.pubend, pa.string()), len(batch))
            arrays = [pa.array(batch.ticks), pubend, *batch.columns.columns]
            tables.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        return pa.Table.from_batches(tables).combine_chunks()


class _Sink:
    """A `File` as the writable object that Arrow expects."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        taken = write_all(self._file, self._at, bytes(data))
        self._at += taken
        return taken

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Required by Arrow; we buffer nothing."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
