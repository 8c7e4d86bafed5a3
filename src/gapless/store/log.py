"""How is a pubend's log kept on disk? Segments, one flush for many records, an index, retention.

Everything appended since the last flush is written as one group and synced once, so the busier the log is,
the larger the groups are. A record is reported durable only after the sync.

When a write fails, its group is cut off again and the cut is synced: only then is it true that the records
"were not written and never will be". When a sync fails, nothing is known about its bytes, and a repeated sync
would report success regardless. So the segment is abandoned at the start of the group, and a new one is begun
whose header says how many bytes of the old one count. When even that fails, it is unknown what a restart will
find: the flush raises, and the log is unusable.

Implements the durability that docs/protocol.md, section 5, relies on. The records and their promises belong
to `protocol.pubend`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Protocol

import pyarrow as pa

from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.budget import cut_to
from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MIN, Tick, TickRange
from gapless.protocol.effects import BatchRecord, Record
from gapless.protocol.pubend import Recovered
from gapless.store.contract import READ_BYTES_MAX, Extent, Flushed
from gapless.store.control import Control
from gapless.store.discard import DISCARDED_SUFFIX
from gapless.store.files import Data, DiskFiles, File, Files, failure, write_all
from gapless.store.form import NEWEST
from gapless.store.group import FlushGroup, Waiting
from gapless.store.record import (
    BadFrame,
    RecordFrame,
    RecordKind,
    decoded_batch,
    decoded_notes,
    framed,
)
from gapless.store.retention import Keep, Retention
from gapless.store.segment import (
    INDEX_SUFFIX,
    SUFFIX,
    TEMPORARY_SUFFIX,
    Header,
    Repair,
    Segment,
    SegmentGone,
    damaged,
    new_id,
    new_salt,
    segment_name,
)

#: Parts of a frame of at least this size are written separately: copying them would take longer.
ALONE_BYTES = 128 * 2**10
#: Bytes of a group that are buffered before a write.
WRITE_BYTES = 4 * 2**20
#: A flush takes no further records at this many bytes: others wait for the same disk.
FLUSH_BYTES_MAX = 8 * 2**20
#: Number of sealed segments whose index stays in memory after a read.
INDEXES_MAX = 256
#: How much space a log allocates in advance.
RESERVE_BYTES_MIN = 4 * 2**10
RESERVE_BYTES_MAX = 4 * 2**20
LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The sizes of a log."""

    #: A segment that has reached this size is sealed, and the next flush begins a new one.
    segment_bytes_max: int = 64 * 2**20
    #: With less free space than this, no events are written; releases, which free space, still are.
    free_bytes_min: int = 16 * 2**20
    retention: Retention = field(default_factory=Retention)


class SegmentArchive(Protocol):
    """Keeps sealed segments before they are deleted."""

    def keep(self, number: int, batches: Iterator[EventBatch]) -> Path | None:
        """Store the events of a segment durably; None when it has none. Repeating is harmless."""
        ...


class Log:
    """The log of one pubend, in its own folder. Made by `open`."""

    def __init__(
        self, folder: Path, pubend: PubendId, schema: pa.Schema, options: LogOptions, files: Files
    ) -> None:
        self.folder = folder
        self.pubend = pubend
        self.schema = schema
        self.options = options
        #: Distinguishes this log from any other, even of the same pubend; empty when an older version began
        #: it.
        self.log_id = ""
        #: What `open` cut off, for the operator; None after a clean stop.
        self.repair: Repair | None = None
        self._files = files
        self._lock_file: File | None = None
        #: Appended and not taken by a flush yet.
        self._waiting: deque[Waiting] = deque()
        self._token = -1
        #: Guards the following fields while they are changed or copied. Never held during I/O.
        self._lock = Lock()
        #: In order; the last is appended to.
        self._segments: list[Segment] = []
        self._control = Control()
        #: Events below this tick were trimmed, or are about to be.
        self._floor: Tick = TICK_MIN
        self._indexed: deque[Segment] = deque()
        #: Used only by the flush: the newest segment's file; None while it must not be appended to.
        self._file: File | None = None
        #: Allocated size of the file; 0 when it was not allocated.
        self._reserved = 0
        self._number = 0
        self._broken: StoreError | None = None

    @staticmethod
    def open(
        folder: Path,
        pubend: PubendId,
        schema: pa.Schema,
        *,
        options: LogOptions | None = None,
        files: Files | None = None,
    ) -> Log:
        """Open the log in `folder`, or create one; repairs what a crash left unfinished.

        Reads one segment, however many there are. Blocks.

        Raises StoreError: damaged (E301), disk full (E302), I/O error (E303), in use (E304), not ours (E305).
        """
        self = Log(folder, pubend, schema, options or LogOptions(), files or DiskFiles())
        try:
            self._files.make_folder(folder)
            self._lock_file = self._files.lock(folder / LOCK_NAME)
            self._open_segments()
        except OSError as error:
            self.close()
            raise failure(error, folder) from error
        except StoreError:
            self.close()
            raise
        return self

    def append(self, token: int, record: Record, note: bytes = b"") -> None:
        """See `RecordLog.append`."""
        assert token > self._token, f"token {token} after {self._token}: tokens ascend"
        assert not note or isinstance(record, BatchRecord), "a note goes with a batch"
        self._token = token
        self._waiting.append(Waiting(token, record, note))

    @property
    def waiting(self) -> int:
        """Number of records that no flush has taken yet."""
        return len(self._waiting)

    def flush(self) -> Flushed:
        """See `RecordLog.flush`."""
        if self._broken is not None:
            raise self._broken
        entries = self._taken()
        if not entries:
            return Flushed()
        group = self._with_room(FlushGroup(entries, []))
        if group.entries:
            self._write(group)
        written = group.entries[-1].token if group.entries else None
        return Flushed(token=written, failed=tuple(group.failed), error=group.error)

    def _taken(self) -> list[Waiting]:
        """The records of one flush: up to `FLUSH_BYTES_MAX`, and the record that exceeds it."""
        entries: list[Waiting] = []
        size = 0
        for _ in range(len(self._waiting)):
            if size >= FLUSH_BYTES_MAX:
                break
            entry = self._waiting.popleft()
            entries.append(entry)
            if isinstance(entry.record, BatchRecord):
                size += entry.record.batch.nbytes
        return entries

    def take_back(self) -> tuple[int, ...]:
        """See `RecordLog.take_back`."""
        given_up = [entry for entry in self._waiting if isinstance(entry.record, BatchRecord)]
        self._waiting = deque(entry for entry in self._waiting if not isinstance(entry.record, BatchRecord))
        return tuple(entry.token for entry in given_up)

    def read(
        self,
        ticks: TickRange,
        rows_max: int,
        *,
        bytes_max: int = READ_BYTES_MAX,
        history: bool = False,
    ) -> tuple[TickRange, EventBatch | None]:
        """See `RecordLog.read`."""
        assert rows_max > 0, f"a read of {rows_max} rows"
        with self._lock:
            floor = TICK_MIN if history else self._floor
        wanted = TickRange(max(ticks.start, floor), ticks.stop)
        if not wanted:
            return ticks, None
        parts: list[EventBatch] = []
        rows = size = 0
        at = wanted.start
        is_all = True
        for segment, frame in self._frames(wanted):
            if rows >= rows_max or size >= bytes_max:
                is_all = False
                break
            # Several are joined, and thus copied. A single one must not keep alive what was read with it.
            part = self._batch(segment, frame if parts else frame.apart()).between(at, wanted.stop)
            at = max(at, frame.last + 1)
            if len(part):
                parts.append(part)
                rows += len(part)
                size += part.nbytes
        if is_all and rows <= rows_max and size <= 2 * bytes_max:
            return ticks, EventBatch.joined(parts) if parts else None
        # The last record may be far larger than one read.
        joined = next(cut_to(EventBatch.joined(parts).slice(0, rows_max), 2 * bytes_max))
        return TickRange(ticks.start, joined.last + 1), joined

    def extents(self, ticks: TickRange) -> Iterator[Extent]:
        """See `RecordLog.extents`."""
        for _, frame in self._frames(ticks, headers=True):
            yield Extent(frame.first, frame.last, frame.rows)

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        """See `RecordLog.notes`."""
        for segment, frame in self._frames(TickRange(start, 2**63)):
            try:
                found = decoded_notes(frame)
            except BadFrame as bad:
                raise damaged(segment.path, bad.offset) from None
            yield from ((tick, note) for tick, note in found if tick >= start)

    def trim(self, before: Tick, now: Tick, archive: SegmentArchive | None = None) -> None:
        """See `RecordLog.trim`. With an `archive`, a segment is deleted only after it was archived.

        Raises StoreError; then nothing more is deleted, and the next call continues.
        """
        with self._lock:
            assert before <= self._control.released, f"trim to {before} above {self._control.released}"
            self._floor = max(self._floor, before)
            below = self.options.retention.below(before=self._floor, now=now)
            log_bytes = sum(segment.size for segment in self._segments)
            sealed = list(zip(self._segments, self._segments[1:], strict=False))
        for segment, successor in sealed:
            if successor.header.floor > below or self.options.retention.fits(log_bytes):
                break
            if archive is not None:
                archive.keep(segment.header.number, self.batches(segment))
            self._remove(segment)
            log_bytes -= segment.size

    def archive(self, archive: SegmentArchive, numbers_above: int = 0) -> int:
        """Archive the sealed segments above that number, released or not; returns the highest one done."""
        with self._lock:
            sealed = self._segments[:-1]
        done = numbers_above
        for segment in sealed:
            if segment.header.number > numbers_above:
                archive.keep(segment.header.number, self.batches(segment))
                done = segment.header.number
        return done

    def recover(self) -> Recovered:
        """See `RecordLog.recover`."""
        with self._lock:
            return self._control.recovered()

    @property
    def retention(self) -> Retention:
        """See `RecordLog.retention`."""
        return self.options.retention

    def kept_from(self, now: Tick) -> Tick:
        """See `RecordLog.kept_from`. By size, it is where a segment begins."""
        retention = self.options.retention
        kept = retention.kept_from(now)
        if retention.keep is not Keep.SIZE:
            return kept
        with self._lock:
            log_bytes = sum(segment.size for segment in self._segments)
            for segment, successor in zip(self._segments, self._segments[1:], strict=False):
                if retention.fits(log_bytes):
                    break
                log_bytes -= segment.size
                kept = successor.header.floor
        return kept

    @property
    def log_bytes(self) -> int:
        """How large the log is."""
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def oldest(self) -> Tick:
        """See `RecordLog.oldest`."""
        with self._lock:
            return self._segments[0].header.floor

    @property
    def end(self) -> tuple[int, int]:
        """The number of the newest segment and of its durable bytes. Only grows."""
        with self._lock:
            return self._segments[-1].header.number, self._segments[-1].size

    @property
    def first_number(self) -> int:
        """The number of the oldest segment that is kept."""
        with self._lock:
            return self._segments[0].header.number

    @property
    def segments(self) -> int:
        """Number of files."""
        with self._lock:
            return len(self._segments)

    def close(self) -> None:
        """See `RecordLog.close`. No other call may be running."""
        if self._broken is None:
            self._give_back()
        for file in (self._file, self._lock_file):
            if file is not None:
                file.close()
        self._file = self._lock_file = None
        if self._broken is None:
            self._broken = StoreError("E303", f"{self.folder} was closed: open the log again")

    # ---- opening -------------------------------------------------------------------------------------

    def _open_segments(self) -> None:
        found = self._found_segments()
        if not found:
            self._begin_segment(follows=None)
            return
        newest = found[-1]
        if newest.header.body_bytes is not None:
            # Only sealed segments are rewritten, so there was one after it.
            raise damaged(self.folder / segment_name(newest.header.number + 1), 0)
        self._number = newest.header.number
        self.log_id = newest.header.log_id
        # It may have been renamed without the folder having been synced.
        self._files.sync_folder(self.folder)
        self._file = self._files.open(newest.path)
        self._control = newest.checkpoint(self._file)
        try:
            self.repair = newest.repair(self._file, self._control)
        except BadFrame as bad:
            raise damaged(newest.path, bad.offset) from None
        self._segments = self._chained(found)
        self._floor = self._control.released
        if newest.form is not NEWEST:
            # An older version wrote it: it is read as it is, and new records go into a new segment.
            self._file.close()
            self._file = None

    def _found_segments(self) -> list[Segment]:
        names = self._files.list_folder(self.folder)
        stems = {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)}
        for name in names:
            left_over = name.endswith(INDEX_SUFFIX) and name.removesuffix(INDEX_SUFFIX) not in stems
            if left_over or name.endswith((TEMPORARY_SUFFIX, DISCARDED_SUFFIX)):
                self._files.remove(self.folder / name)
        segments = [Segment.open(self._files, self.folder / f"{stem}{SUFFIX}") for stem in stems]
        segments.sort(key=lambda each: (each.header.number, each.header.generation))
        wanted = (self.pubend, schema_text(self.schema))
        for segment in segments:
            header = segment.header
            if (header.pubend, header.schema) != wanted or segment.path.name != header.name:
                raise StoreError(
                    "E305",
                    f"{segment.path} is segment {header.number} of pubend '{header.pubend}' with columns "
                    f"{header.schema}, not of '{self.pubend}' with {wanted[1]}: "
                    "give each pubend its own folder",
                )
        ids = {segment.header.log_id: segment for segment in segments if segment.header.log_id}
        if len(ids) > 1:
            one, other = list(ids.values())[:2]
            raise StoreError(
                "E310",
                f"{one.path} and {other.path.name} are of different logs: restore the folder from one copy",
            )
        return segments

    def _chained(self, found: list[Segment]) -> list[Segment]:
        """The segments that count, each with the size that its successor gives it."""
        chain = [found[-1]]
        for segment in reversed(found[:-1]):
            successor = chain[-1]
            header = successor.header
            if header.follows < segment.header.number:
                # A rotation that failed after the rename was replaced by the next one; or its live events
                # were rewritten.
                if header.body_bytes is None and segment.has_groups():
                    raise damaged(segment.path, segment.start)
                self._delete(segment)
                continue
            if header.follows == segment.header.number and segment.header.body_bytes is None:
                if segment.size < header.follows_bytes:
                    raise damaged(segment.path, segment.size)
                segment.size = header.follows_bytes
            elif header.follows != segment.header.number and header.floor > self._control.released:
                raise damaged(self.folder / segment_name(header.follows), 0)
            chain.append(segment)
        lowest = chain[-1].header
        if lowest.follows and lowest.floor > self._control.released:
            raise damaged(self.folder / segment_name(lowest.follows), 0)
        return chain[::-1]

    # ---- flushing ------------------------------------------------------------------------------------

    def _with_room(self, group: FlushGroup) -> FlushGroup:
        """Drop the events when the disk is almost full: releases must still go through."""
        size = sum(
            entry.record.batch.nbytes for entry in group.entries if isinstance(entry.record, BatchRecord)
        )
        try:
            free = self._files.free_bytes(self.folder) if size else 0
        except OSError as error:
            group.fail(failure(error, self.folder))
            return group
        if not size or free - size >= self.options.free_bytes_min:
            return group
        full = StoreError(
            "E302",
            f"the disk of {self.folder} has {free:,} bytes free, and limits.free_bytes_min "
            f"reserves {self.options.free_bytes_min:,}: free some space, then publish again",
            retry=True,
        )
        batches = [entry for entry in group.entries if isinstance(entry.record, BatchRecord)]
        others = [entry for entry in group.entries if not isinstance(entry.record, BatchRecord)]
        return FlushGroup(others, [entry.token for entry in batches], full)

    def _write(self, group: FlushGroup) -> None:
        """Write and sync a group; on failure it is emptied. Raises when the outcome is unknown."""
        if self._file is None or self._segments[-1].size >= self.options.segment_bytes_max:
            try:
                self._give_back()
                self._rotate()
            except OSError as error:
                # Nothing of the group was written anywhere.
                group.fail(failure(error, self.folder))
                return
        file, segment = self._file, self._segments[-1]
        assert file is not None, "a rotation gives a file"
        try:
            end = self._write_frames(file, segment, group)
        except OSError as error:
            group.fail(failure(error, segment.path))
            self._cut(file, segment)
            return
        try:
            file.sync()
        except OSError as error:
            group.fail(failure(error, segment.path))
            self._abandon()
            return
        with self._lock:
            segment.size = end
            assert segment.index is not None, "the newest segment has its index"
            for first, offset in group.batches:
                segment.index.add(first, offset)
            for entry in group.entries:
                self._control.apply(entry.record)

    def _write_frames(self, file: File, segment: Segment, group: FlushGroup) -> int:
        start = at = written = segment.size
        parts: list[Data] = []
        for payload in group.payloads(self._control.next_tick, self.schema):
            if payload.kind is RecordKind.BATCH:
                group.batches.append((payload.first, at))
            frame = framed(payload, salt=segment.header.salt, offset=at, group=start)
            at += sum(map(len, frame))
            for part in frame:
                if len(part) < ALONE_BYTES:
                    parts.append(part)
                    continue
                written += write_all(file, written, b"".join(parts))
                written += write_all(file, written, part)
                parts = []
            if at - written >= WRITE_BYTES:
                written += write_all(file, written, b"".join(parts))
                parts = []
        if parts:
            if at > self._reserved:
                self._reserve(file, at)
            write_all(file, written, b"".join(parts))
        return at

    def _reserve(self, file: File, end: int) -> None:
        """Allocate space in advance: as much again as is used, within bounds, to keep small logs small."""
        size = end + min(max(end, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX)
        try:
            file.reserve(size)
            self._reserved = size
        except OSError:
            # No space, or not supported: the write itself will show whether that matters.
            self._reserved = end

    def _give_back(self) -> None:
        """Nothing more is appended to the newest segment: free the space that it does not need."""
        if self._reserved and self._file is not None and self._reserved > self._segments[-1].size:
            with suppress(OSError):
                self._file.truncate(self._segments[-1].size)
        self._reserved = 0

    def _cut(self, file: File, segment: Segment) -> None:
        """Undo a write that failed, durably."""
        self._reserved = 0
        try:
            file.truncate(segment.size)
            file.sync()
        except OSError:
            self._abandon()

    def _abandon(self) -> None:
        """Continue in a new segment, whose header says where the old one ends."""
        try:
            self._rotate()
        except OSError as error:
            self._broken = StoreError(
                "E303",
                f"{self.folder}: {error.strerror or error} after a failed write: stop this node, "
                "check the disk, restart it",
            )
            raise self._broken from error

    def _rotate(self) -> None:
        before = self._segments[-1]
        self._begin_segment(follows=before)
        before.seal()
        self._remember_index(before)

    def _begin_segment(self, follows: Segment | None) -> None:
        """Make the next segment the newest one. Raises OSError; the old one is then no longer appended to."""
        self._number += 1
        self.log_id = self.log_id or new_id()
        header = Header(
            pubend=self.pubend,
            schema=schema_text(self.schema),
            number=self._number,
            follows=follows.header.number if follows else 0,
            follows_bytes=follows.size if follows else 0,
            floor=self._control.next_tick,
            salt=new_salt(),
            log_id=self.log_id,
        )
        if self._file is not None:
            self._file.close()
            self._file = None
        self._reserved = 0
        segment, file = Segment.create(self._files, self.folder, header, self._control)
        try:
            self._files.sync_folder(self.folder)
        except OSError:
            file.close()
            raise
        with self._lock:
            self._segments.append(segment)
        self._file = file

    # ---- reading -------------------------------------------------------------------------------------

    def _frames(self, ticks: TickRange, *, headers: bool = False) -> Iterator[tuple[Segment, RecordFrame]]:
        """The durable batch frames that may have rows in `ticks`; optionally without their payload."""
        with self._lock:
            floors = [segment.header.floor for segment in self._segments]
            low = max(0, bisect_right(floors, ticks.start) - 1)
            found = [(segment, segment.size) for segment in self._segments[low:]]
        at = ticks.start
        for segment, size in found:
            if segment.header.floor >= ticks.stop:
                return
            if segment.index is None:
                self._remember_index(segment)
            try:
                for frame in segment.frames(at, size, headers=headers):
                    if frame.kind is not RecordKind.BATCH or frame.last < at:
                        continue
                    if frame.first >= ticks.stop:
                        return
                    yield segment, frame
                    at = frame.last + 1
            except SegmentGone:
                # It was deleted in the meantime: another one has what still exists.
                yield from self._frames(TickRange(at, ticks.stop), headers=headers)
                return
            except OSError as error:
                raise failure(error, segment.path) from error

    def _batch(self, segment: Segment, frame: RecordFrame) -> EventBatch:
        try:
            return decoded_batch(frame, self.schema)
        except BadFrame as bad:
            raise damaged(segment.path, bad.offset) from None

    def batches(self, segment: Segment) -> Iterator[EventBatch]:
        """All events of a sealed segment."""
        for frame in segment.frames(TICK_MIN, segment.size):
            if frame.kind is RecordKind.BATCH:
                yield self._batch(segment, frame)

    def _remember_index(self, segment: Segment) -> None:
        with self._lock:
            self._indexed.append(segment)
            if len(self._indexed) > INDEXES_MAX:
                self._indexed.popleft().index = None

    # ---- trimming ------------------------------------------------------------------------------------

    def sealed(self) -> list[tuple[Segment, Tick]]:
        """The sealed segments, each with the tick below which all its events are."""
        with self._lock:
            return [
                (segment, successor.header.floor)
                for segment, successor in zip(self._segments, self._segments[1:], strict=False)
            ]

    def replace(self, old: Sequence[Segment], batches: Iterable[EventBatch]) -> Segment:
        """Replace the contents of neighbouring sealed segments by these events, durably.

        Their notes are lost. After an error or a crash the log has either the old events or these. Raises
        StoreError.
        """
        made: Segment | None = None
        try:
            made = Segment.rewritten(self._files, old, batches)
            self._files.sync_folder(self.folder)
        except OSError as error:
            if made is not None:
                with suppress(OSError):
                    self._files.remove(made.path)
            raise failure(error, self.folder) from error
        made.seal()
        with self._lock:
            at = self._segments.index(old[0])
            assert self._segments[at : at + len(old)] == list(old), "segments to replace are neighbours"
            self._segments[at : at + len(old)] = [made]
            for segment in old:
                segment.removed = True
        self._remember_index(made)
        try:
            for segment in old:
                self._delete(segment)
        except OSError as error:
            # Leftovers are deleted when the log is opened again.
            raise failure(error, made.path) from error
        return made

    def _remove(self, segment: Segment) -> None:
        with self._lock:
            segment.removed = True
            self._segments.remove(segment)
        try:
            self._delete(segment)
        except OSError as error:
            raise failure(error, segment.path) from error

    def _delete(self, segment: Segment) -> None:
        self._files.discard(segment.path)
        self._files.remove(segment.path.with_suffix(INDEX_SUFFIX))


def schema_text(schema: pa.Schema) -> str:
    """Names and types of the columns: two logs of one topic agree on it, whatever wrote them.

    >>> schema_text(pa.schema([pa.field("price", pa.float64()), pa.field("id", pa.int64(), nullable=False)]))
    'price double?, id int64'
    """
    return ", ".join(f"{each.name} {each.type}{'?' if each.nullable else ''}" for each in schema)
