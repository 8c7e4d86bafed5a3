"""What is one file of a log? A header, a checkpoint, then the groups of records that flushes wrote.

A segment is created under another name, synced and renamed, so a visible segment has a complete header and
checkpoint. Then it only grows, by whole groups, until it is *sealed*: its successor's header says how many of
its bytes count. Only the newest segment may therefore have a torn tail.

A sparse index maps ticks to approximate offsets. It is built while appending and kept beside a sealed segment
in a small file. That file is a cache: without it, or when its checksum is wrong, the index is rebuilt from
the segment.

Sealed segments may be *rewritten*: one new file, of the next generation, replaces one or several. It has the
number of the last of them and follows what the first followed, so that the chain stays complete, and its own
header says how many of its bytes count.
"""

from __future__ import annotations

import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.ticks import Tick
from gapless.store.control import Control
from gapless.store.files import Data, File, Files, write_all
from gapless.store.form import FORMS, NEWEST, Form
from gapless.store.record import (
    CHUNK_BYTES,
    BadFrame,
    Payload,
    RecordFrame,
    RecordKind,
    bare_frames,
    batch_payload,
    decoded_control,
    find_frames,
    framed,
    framed_bytes,
    frames,
)

SUFFIX = ".segment"
INDEX_SUFFIX = ".index"
TEMPORARY_SUFFIX = ".new"
#: Minimum number of bytes per entry of the index.
INDEX_STEP_BYTES = 64 * 2**10

_MAGIC = b"GAPLESS"
_PREFIX = _MAGIC + bytes([NEWEST.version])
_HEADER_BYTES_MAX = 2**20
_DIGITS = 12


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a segment."""

    pubend: str
    #: The columns of its batches: `schema_text`.
    schema: str
    #: Segments of a log are numbered from 1 on, ascending; a number may be missing.
    number: int
    #: The segment before this one, and how many of its bytes count; 0 for none.
    follows: int
    follows_bytes: int
    #: No event here or in a later segment has a tick below this; none in an earlier one has this tick or
    #: above.
    floor: Tick
    salt: int
    #: How often it was rewritten. Of two files with the same number, the later generation counts.
    generation: int = 0
    #: For a rewritten segment: how many bytes after this header count.
    body_bytes: int | None = None
    #: The log that it belongs to; empty if an older version wrote it.
    log_id: str = ""

    @property
    def name(self) -> str:
        """The name of its file."""
        return segment_name(self.number, self.generation)


class SegmentGone(Exception):  # noqa: N818  # not an error: the reader looks up the segments again
    """The file was deleted: it is not needed, or another one has replaced it."""


class _IndexFile(msgspec.Struct, array_like=True, frozen=True):
    number: int
    salt: int
    size: int
    ticks: bytes
    offsets: bytes


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(Header)
_index_decoder = msgspec.msgpack.Decoder(_IndexFile)


@dataclass(slots=True)
class SegmentIndex:
    """Where in the file to look for a tick: first tick and offset of some of the batches."""

    ticks: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))

    def add(self, first: Tick, offset: int) -> None:
        """Adds a batch that begins with tick `first` at `offset`."""
        if not self.offsets or offset - self.offsets[-1] >= INDEX_STEP_BYTES:
            # Offset first: readers in other threads rely on `ticks`.
            self.offsets.append(offset)
            self.ticks.append(first)

    def find(self, tick: Tick, start: int) -> int:
        """The largest known offset with only lower ticks before it; `start` when there is none."""
        at = bisect_right(self.ticks, tick) - 1
        return self.offsets[at] if at >= 0 else start


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a crash left at the end of a segment, and was cut off."""

    path: Path
    offset: int
    bytes_cut: int

    def __str__(self) -> str:
        return f"{self.path}: cut {self.bytes_cut} bytes of an unfinished write at offset {self.offset}"


@dataclass(slots=True)
class Segment:
    """One visible file of a log."""

    files: Files
    path: Path
    header: Header
    #: Where the checkpoint begins and where it ends.
    checkpoint_at: int
    start: int
    #: Number of bytes that count: all of them are durable.
    size: int
    #: None until it is needed.
    index: SegmentIndex | None = None
    #: It was deleted: it is not needed, or another one has replaced it.
    removed: bool = False
    #: How its frames are laid out and checked.
    form: Form = NEWEST

    @staticmethod
    def create(files: Files, folder: Path, header: Header, control: Control) -> tuple[Segment, File]:
        """Create a segment without events and sync it; the file is open for appending.

        The name is durable only after `sync_folder`, which is left to the caller: from the rename on, the
        previous segment must not be appended to.
        """
        path = folder / header.name
        parts = _begun(header)
        checkpoint_at = sum(map(len, parts))
        parts += framed(
            _checkpoint(header, control), salt=header.salt, offset=checkpoint_at, group=checkpoint_at
        )
        file, size = _made(files, path, parts)
        return Segment(files, path, header, checkpoint_at, size, size, SegmentIndex()), file

    @staticmethod
    def rewritten(files: Files, old: Sequence[Segment], batches: Iterable[EventBatch]) -> Segment:
        """Create and sync a segment with these events that replaces `old`, neighbouring sealed segments.

        Its name is durable, and the old ones may be deleted, only after `sync_folder`. Raises OSError.
        """
        first, last = old[0].header, old[-1].header
        file = files.open(old[-1].path)
        try:
            control = old[-1].checkpoint(file)
        finally:
            file.close()
        payloads = [_checkpoint(first, control), *(batch_payload(batch) for batch in batches)]
        header = msgspec.structs.replace(
            last,
            follows=first.follows,
            follows_bytes=first.follows_bytes,
            floor=first.floor,
            salt=new_salt(),
            generation=last.generation + 1,
            body_bytes=sum(map(framed_bytes, payloads)),
        )
        parts = _begun(header)
        at = checkpoint_at = sum(map(len, parts))
        index = SegmentIndex()
        for payload in payloads:
            if payload.kind is RecordKind.BATCH:
                index.add(payload.first, at)
            parts += framed(payload, salt=header.salt, offset=at, group=checkpoint_at)
            at += framed_bytes(payload)
        path = old[-1].path.with_name(header.name)
        made, size = _made(files, path, parts)
        made.close()
        assert size == at, f"{path} has {size} bytes instead of {at}"
        start = checkpoint_at + framed_bytes(payloads[0])
        return Segment(files, path, header, checkpoint_at, start, size, index)

    @staticmethod
    def open(files: Files, path: Path) -> Segment:
        """Read only a segment's header. Its size is that of the file, until corrected.

        Raises StoreError when it is not ours (E305) or its header is damaged (E301).
        """
        file = files.open(path)
        try:
            if file.read(0, len(_MAGIC)) != _MAGIC:
                raise StoreError("E305", f"{path} is not a segment of a log: move it out of the folder")
            version = file.read(len(_MAGIC), 1)
            form = FORMS.get(int.from_bytes(version))
            if form is None:
                raise StoreError(
                    "E305",
                    f"{path} has version {int.from_bytes(version)}, this program reads 1 to {max(FORMS)}: "
                    "use the version that wrote it",
                )
            stop = min(file.size(), len(_PREFIX) + _HEADER_BYTES_MAX)
            frame = next(frames(file, salt=0, start=len(_PREFIX), stop=stop, form=form))
            header = _header_decoder.decode(frame.payload)
            size = file.size()
            if header.body_bytes is not None:
                if size < frame.stop + header.body_bytes:
                    raise BadFrame(size)
                size = frame.stop + header.body_bytes
            return Segment(files, path, header, frame.stop, frame.stop, size, form=form)
        except (BadFrame, StopIteration, msgspec.DecodeError):
            raise damaged(path, len(_PREFIX)) from None
        finally:
            file.close()

    def checkpoint(self, file: File) -> Control:
        """The sum of all earlier segments; also finds where the groups begin."""
        try:
            frame = next(self._walk(file, self.checkpoint_at, self.size))
            if frame.kind is not RecordKind.CHECKPOINT:
                raise BadFrame(frame.offset)
            self.start = frame.stop
            return Control.decoded(frame.payload)
        except (BadFrame, StopIteration, msgspec.DecodeError):
            raise damaged(self.path, self.checkpoint_at) from None

    def repair(self, file: File, control: Control) -> Repair | None:
        """Find the end of the valid bytes, cut off a torn tail, and make the rest durable, if it was not.

        For the newest segment, whose last flush may not have ended. Fills the index, and applies all records
        to `control`, which begins as the checkpoint.

        Raises StoreError E301 when something is damaged that had been durable.
        """
        end = self.size
        self.index = SegmentIndex()
        self.size = group = self.start
        repair = None
        try:
            for frame in self._walk(file, self.start, end):
                if frame.kind is RecordKind.BATCH:
                    self.index.add(frame.first, frame.offset)
                    control.apply_batch(frame.last)
                else:
                    control.apply(decoded_control(frame))
                self.size, group = frame.stop, frame.group
        except BadFrame as bad:
            for frame in find_frames(
                file, salt=self.header.salt, start=bad.offset + 1, stop=end, form=self.form
            ):
                if frame.group > bad.offset:
                    # A later flush began, so this place had been durable.
                    raise damaged(self.path, bad.offset) from None
            if not _is_blank(file, bad.offset, end):
                # Otherwise it is space allocated in advance.
                repair = Repair(path=self.path, offset=bad.offset, bytes_cut=end - bad.offset)
            file.truncate(bad.offset)
        # Its sync may have failed before the crash: then the system believes that the last group is on disk,
        # but it is not. Writing it again makes the next sync valid.
        for at in range(group, self.size, CHUNK_BYTES):
            write_all(file, at, file.read(at, min(CHUNK_BYTES, self.size - at)))
        file.sync()
        return repair

    def frames(self, tick: Tick, size: int, *, headers: bool = False) -> Iterator[RecordFrame]:
        """The frames of the first `size` bytes, from one that has only ticks below `tick` before it.

        With `headers` their payloads are neither read nor checked.

        Raises StoreError E301 where one is damaged, and SegmentGone when it was deleted in the meantime.
        """
        try:
            file = self.files.open(self.path)
        except FileNotFoundError:
            if self.removed:
                raise SegmentGone from None
            raise damaged(self.path, 0) from None
        try:
            index = self.index
            if index is None:
                index = self.index = self._loaded_index(file)
            start = index.find(tick, self.checkpoint_at)
            walk = bare_frames if headers else frames
            yield from walk(file, salt=self.header.salt, start=start, stop=size, form=self.form)
        except BadFrame as bad:
            if self.removed:
                # It is being truncated.
                raise SegmentGone from None
            raise damaged(self.path, bad.offset) from None
        finally:
            file.close()

    def seal(self) -> None:
        """Store the index beside the segment. Failing to is harmless."""
        assert self.index is not None, f"{self.path} was written without an index"
        found = _encoder.encode(
            _IndexFile(
                self.header.number,
                self.header.salt,
                self.size,
                self.index.ticks.tobytes(),
                self.index.offsets.tobytes(),
            )
        )
        path = self.path.with_suffix(INDEX_SUFFIX)
        try:
            file = self.files.create(path)
            try:
                write_all(file, 0, zlib.crc32(found).to_bytes(4, "little") + found)
            finally:
                file.close()
        except OSError:
            return

    def has_groups(self) -> bool:
        """Whether any flush has written to the segment."""
        file = self.files.open(self.path)
        try:
            self.checkpoint(file)
            return self.size > self.start
        finally:
            file.close()

    def _walk(self, file: File, start: int, stop: int) -> Iterator[RecordFrame]:
        return frames(file, salt=self.header.salt, start=start, stop=stop, form=self.form)

    def _loaded_index(self, file: File) -> SegmentIndex:
        index = self._index_file()
        if index is None:
            index = SegmentIndex()
            for frame in self._walk(file, self.checkpoint_at, self.size):
                if frame.kind is RecordKind.BATCH:
                    index.add(frame.first, frame.offset)
        return index

    def _index_file(self) -> SegmentIndex | None:
        try:
            file = self.files.open(self.path.with_suffix(INDEX_SUFFIX))
        except OSError:
            return None
        try:
            data = file.read(0, file.size())
            if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
                return None
            found = _index_decoder.decode(data[4:])
        except (OSError, msgspec.DecodeError):
            return None
        finally:
            file.close()
        if (found.number, found.salt, found.size) != (self.header.number, self.header.salt, self.size):
            return None
        index = SegmentIndex()
        index.ticks.frombytes(found.ticks)
        index.offsets.frombytes(found.offsets)
        return index


def _is_blank(file: File, start: int, stop: int) -> bool:
    """Whether there are only zeros."""
    return not any(any(file.read(at, min(CHUNK_BYTES, stop - at))) for at in range(start, stop, CHUNK_BYTES))


def new_salt() -> int:
    """An unpredictable number."""
    return int.from_bytes(os.urandom(8))


def new_id() -> str:
    """A unique name."""
    return os.urandom(16).hex()


def segment_name(number: int, generation: int = 0) -> str:
    """The file name of a segment; names sort as numbers do.

    >>> segment_name(7), segment_name(7, 1)
    ('000000000007.segment', '000000000007-1.segment')
    """
    return f"{number:0{_DIGITS}}{f'-{generation}' if generation else ''}{SUFFIX}"


def _begun(header: Header) -> list[Data]:
    """The bytes that every segment begins with."""
    said = Payload(RecordKind.HEADER, header.floor, header.floor, [_encoder.encode(header)])
    return [_PREFIX, *framed(said, salt=0, offset=len(_PREFIX), group=len(_PREFIX))]


def _checkpoint(header: Header, control: Control) -> Payload:
    return Payload(RecordKind.CHECKPOINT, header.floor, header.floor, [control.encoded()])


def _made(files: Files, path: Path, parts: Sequence[Data]) -> tuple[File, int]:
    """A new file with this content, synced before it is visible. Raises OSError, and then leaves nothing."""
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    try:
        file = files.create(temporary)
        try:
            size = write_all(file, 0, b"".join(parts))
            file.sync()
            files.rename(temporary, path)
        except OSError:
            file.close()
            raise
    except OSError:
        with suppress(OSError):
            files.remove(temporary)
        raise
    return file, size


def damaged(path: Path, offset: int) -> StoreError:
    """The error for durable bytes that differ from what was written."""
    return StoreError(
        "E301",
        f"{path} is damaged at offset {offset}: check the disk and restore the file from a copy, or move "
        f"{path.parent} away and start once with --accept-loss {path.parent.name}",
    )
