"""How is any range of a pubend's past read? From the log, and from the archive where the log begins later.

A log deletes whole segments, the oldest first, and an archive has each of them as a Parquet file before it is
deleted. So the past is continuous: the files of the archive up to where the log begins, then the log. Events
in neither are *gone*, and a read that needs them is refused rather than cut short.

A read is bounded in memory: it yields batches, each with the ticks of its rows. Other reads, appending,
trimming and archiving may run at the same time: a segment that is deleted during a read is found in the
archive, or is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gapless.content.condition import Condition
from gapless.content.evaluate import mask
from gapless.content.rows import Rows
from gapless.errors import StoreError, UsageError
from gapless.model.ids import PubendId
from gapless.model.schema import Schema
from gapless.model.ticks import TICK_MIN, Tick, TickArray, TickRange
from gapless.store.contract import Extent, RecordLog
from gapless.store.log import Log

#: Maximum number of rows, and of bytes, read at once.
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 4 * 2**20
#: Maximum number of parts of a plan; the last one takes the rest.
PARTS_MAX: Final = 100_000
#: The columns that a read and an archive add; one of the topic with such a name gets a `_` after it.
OWN_NAMES: Final = ("tick", "pubend")

_TICK = pa.field("tick", pa.int64(), nullable=False)
_NAME = re.compile(r"([0-9]{12})\.(-?[0-9]+)-(-?[0-9]+)\.parquet")


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One file of an archive."""

    path: Path
    #: The number of its segment.
    number: int
    #: The first tick of its events, and one past the last.
    start: Tick
    stop: Tick


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows and columns of a range to read."""

    condition: Condition | None = None
    #: None for all columns of the topic.
    columns: tuple[str, ...] | None = None
    #: Also what was released, and in a compacted log also what was superseded.
    history: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Which part of a pubend's past still exists."""

    #: Everything is kept from `oldest` on, and from `log_oldest` on in the log.
    oldest: Tick
    log_oldest: Tick
    #: The files of the archive that go back from the log without a hole.
    files: tuple[ArchiveFile, ...]


class History:
    """The past of one pubend."""

    def __init__(self, pubend: PubendId, schema: Schema, log: RecordLog, archive: Path | None = None) -> None:
        """`archive` is the folder of the topic's Parquet files, if there is one."""
        self.pubend = pubend
        self.schema = schema
        self.log = log
        self._folder = archive
        self._prefix = f"{quote(pubend, safe='@')}."

    # What there is.

    def kept(self) -> Kept:
        """Which part of the past still exists."""
        log_oldest, files = self._looked()
        if files and files[0].number == 1:
            # The very first segment: there was nothing before it.
            oldest = TICK_MIN + 1
        else:
            oldest = min(files[0].start, log_oldest) if files else log_oldest
        return Kept(oldest=oldest, log_oldest=log_oldest, files=tuple(files))

    def _looked(self, *, whole: bool = True) -> tuple[Tick, list[ArchiveFile]]:
        """Where the log begins, and the files before it: those without a hole, or all."""
        # The log first: segments deleted while the folder is listed are in the folder.
        log = self.log
        first = log.first_number if isinstance(log, Log) else 1
        log_oldest = log.oldest
        if self._folder is None or not self._folder.is_dir():
            return log_oldest, []
        found = [_parsed(path, self._prefix) for path in self._folder.glob("*.parquet")]
        files = sorted(
            (each for each in found if each is not None and each.number < first),
            key=lambda each: each.number,
        )
        if not whole:
            return log_oldest, files
        # A missing number may belong to a segment without events, but we cannot know.
        unbroken: list[ArchiveFile] = []
        for each in reversed(files):
            if each.number != first - len(unbroken) - 1:
                break
            unbroken.append(each)
        return log_oldest, unbroken[::-1]

    # Reading.

    def arrow(self, columns: tuple[str, ...] | None = None) -> pa.Schema:
        """The schema of the batches of a read. Raises UsageError for an unknown column."""
        return pa.schema([_TICK, *(field for _, field in self._chosen(columns))])

    def read(self, ticks: TickRange, wanted: Wanted, *, gone: bool = False) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a range, in order, in batches with `tick` and the wanted columns.

        Raises StoreError: E306 when part of the range is no longer kept, unless `gone` allows it; E301 where
        it is damaged.
        """
        shape = _Shape(self.schema, self._chosen(wanted.columns), wanted.condition)
        at = ticks.start
        while at < ticks.stop:
            if not wanted.history or at >= self.log.oldest:
                covered, batch = self.log.read(
                    TickRange(at, ticks.stop), BATCH_ROWS, bytes_max=BATCH_BYTES, history=wanted.history
                )
                if wanted.history and at < self.log.oldest:
                    # It was trimmed in the meantime, and the log skips deleted events.
                    continue
                if batch is not None:
                    yield from shape.of(batch.ticks, batch.columns)
                at = covered.stop
                continue
            log_oldest, files = self._looked(whole=not gone)
            stop = min(ticks.stop, log_oldest)
            if at >= log_oldest:
                continue
            if not gone:
                self._check_kept(TickRange(at, stop), log_oldest, files)
            for each in files:
                if each.stop > at and each.start < stop:
                    yield from _archived(each, TickRange(at, stop), shape)
            at = stop

    def plan(self, ticks: TickRange, rows: int, rows_max: int | None = None) -> list[tuple[Tick, Tick, int]]:
        """Cut a range into parts of about `rows` rows: start, stop, and how many rows there are at most.

        The parts lie end to end. They end before the range does when it would have more than `rows_max`.
        """
        parts: list[tuple[Tick, Tick, int]] = []
        start, count, room = ticks.start, 0, rows_max
        for extent in self._extents(ticks):
            first, stop = max(extent.first, ticks.start), min(extent.last + 1, ticks.stop)
            # No tick has two rows, so a range never has more rows than ticks.
            held = min(extent.rows, stop - first)
            is_last = room is not None and held > room
            if is_last:
                assert room is not None
                stop, held = self._cut(TickRange(first, stop), room)
            if room is not None:
                room -= held
            while count + held >= rows and len(parts) < PARTS_MAX - 1:
                # Where every tick has a row, a part may end anywhere; elsewhere with the batch.
                split = first + rows - count if held == stop - first else stop
                parts.append((start, split, count + min(held, split - first)))
                held, start, first, count = max(0, held - (split - first)), split, split, 0
            count += held
            if is_last:
                if start < stop:
                    parts.append((start, stop, count))
                return parts
        if start < ticks.stop:
            parts.append((start, ticks.stop, count))
        return parts

    def _cut(self, ticks: TickRange, rows: int) -> tuple[Tick, int]:
        """Where the first `rows` rows of a range end, and how many there are before that tick."""
        left = rows
        for batch in self.read(ticks, Wanted(columns=()), gone=True):
            if batch.num_rows > left:
                return batch.column(0)[left].as_py(), rows
            left -= batch.num_rows
        return ticks.stop, rows - left

    def _extents(self, ticks: TickRange) -> Iterator[Extent]:
        log_oldest, files = self._looked(whole=False)
        for each in files:
            if each.stop > ticks.start and each.start < min(ticks.stop, log_oldest):
                for extent in _groups(str(each.path)):
                    if extent.last >= ticks.start and extent.first < ticks.stop:
                        yield extent
        yield from self.log.extents(TickRange(max(ticks.start, log_oldest), max(ticks.stop, log_oldest)))

    def _check_kept(self, ticks: TickRange, log_oldest: Tick, files: list[ArchiveFile]) -> None:
        oldest = self.kept().oldest if files else log_oldest
        if ticks.start < oldest:
            raise StoreError(
                "E306",
                f"pubend '{self.pubend}' keeps nothing below tick {oldest}, and {ticks.start} was requested: "
                "begin there, or keep the topic for longer",
            )

    def _chosen(self, columns: tuple[str, ...] | None) -> list[tuple[str, pa.Field]]:
        """The columns to read, each with its name in the result."""
        named = {
            f"{field.name}_" if field.name in OWN_NAMES else field.name: field
            for field in self.schema.arrow()
        }
        if columns is None:
            return [(field.name, field.with_name(name)) for name, field in named.items()]
        for name in columns:
            if name not in named:
                raise UsageError(
                    "E198", f"topic '{self.schema.topic}' has no column {name!r}: it has {', '.join(named)}"
                )
        return [(named[name].name, named[name].with_name(name)) for name in columns]


class _Shape:
    """How a read turns stored rows into its result."""

    def __init__(
        self, schema: Schema, chosen: list[tuple[str, pa.Field]], condition: Condition | None
    ) -> None:
        self._condition = condition
        self._chosen = [name for name, _ in chosen]
        self._arrow = pa.schema([_TICK, *(field for _, field in chosen)])
        read = {*self._chosen, *(() if condition is None else (each.name for each in condition.columns))}
        #: The columns that have to be read, by the names of the topic, in its order.
        self.names = [each.name for each in schema.columns if each.name in read]

    def of(self, ticks: TickArray, columns: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The wanted rows and columns; nothing when no row is wanted."""
        chosen = [columns.column(name) for name in self._chosen]
        arrays = [pa.array(ticks), *chosen]
        if self._condition is not None:
            accepted = mask(self._condition, Rows(columns))
            if not accepted.all():
                if not accepted.any():
                    return
                taken = pa.array(np.flatnonzero(accepted))
                arrays = [each.take(taken) for each in arrays]
        if len(arrays[0]):
            yield pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _archived(file: ArchiveFile, ticks: TickRange, shape: _Shape) -> Iterator[pa.RecordBatch]:
    """The wanted rows of one file of an archive."""
    groups = [
        at
        for at, extent in enumerate(_groups(str(file.path)))
        if extent.last >= ticks.start and extent.first < ticks.stop
    ]
    stored = {name: _renamed(name) for name in shape.names}
    try:
        with pq.ParquetFile(file.path, page_checksum_verification=True) as opened:
            batches = opened.iter_batches(
                BATCH_ROWS, row_groups=groups, columns=["tick", *stored.values()], use_threads=False
            )
            for batch in batches:
                found = batch.column("tick").to_numpy()
                low, high = np.searchsorted(found, (ticks.start, ticks.stop))
                part = batch.slice(low, high - low)
                columns = pa.RecordBatch.from_arrays(
                    [part.column(name) for name in stored.values()], names=list(stored)
                )
                yield from shape.of(found[low:high], columns)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(file.path, error) from error


@lru_cache(maxsize=4_096)
def _groups(path: str) -> tuple[Extent, ...]:
    """The row groups of a file. Cached, because files never change."""
    try:
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(Path(path), error) from error
    found: list[Extent] = []
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        ticks = group.column(0).statistics
        found.append(Extent(ticks.min, ticks.max, group.num_rows))
    return tuple(found)


def _renamed(name: str) -> str:
    """The name of a topic's column next to the columns that a read adds."""
    return f"{name}_" if name in OWN_NAMES else name


def _unreadable(path: Path, error: Exception) -> StoreError:
    if isinstance(error, FileNotFoundError):
        return StoreError("E306", f"{path.name} was deleted while it was read: begin later, or restore it")
    reason = str(error).splitlines()[0]
    return StoreError("E301", f"{path} is damaged: {reason}: restore the file from a copy")


def _parsed(path: Path, prefix: str) -> ArchiveFile | None:
    """Parses the name of a file; None when it is not of this pubend."""
    name = path.name
    if not name.startswith(prefix):
        return None
    match = _NAME.fullmatch(name[len(prefix) :])
    if match is None:
        return None
    number, start, stop = map(int, match.groups())
    return ArchiveFile(path, number, start, stop)
