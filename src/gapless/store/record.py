"""What is one record on the disk? A frame: length, checksum, kind, tick range, payload.

```
 0  crc      u32   of the 52 bytes below, begun with the segment's salt and the frame's offset
 4  -        u32
 8  sum      u64   of the payload: XXH3
16  mark     4     "GpLs", so that frames can be found again behind damage
20  kind     u8
21  flags    u8    1: the ticks have no gaps, are not written; 4: packed rows
22  -        u16
24  back     u32   how far behind this frame its group begins
28  rows     u32
32  note     u32   bytes of the payload that are notes, without their padding
36  length   u32   of the payload
40  first    i64   the first tick of a batch, or the only tick of another record
48  last     i64   the last tick of a batch
56  payload        of a batch: notes, ticks (i64), one Arrow record batch without its schema; or, of packed
                   rows, the length of each (u32), then the rows
```

Frames begin at multiples of 8, with zeros between them. The first checksum is seeded with a salt known only
to the segment and with the offset in the file, so that neither bytes sent by a publisher nor a misplaced
frame can pass for a frame. This is version 2; `store.form` describes how version 1, which is still read,
differs.

A *group* is what one flush wrote. A frame says where its group begins, because only that distinguishes a torn
tail from damage: a crash may leave any part of the last group, but of earlier ones every byte was on disk.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId
from gapless.model.packed import PackedRows
from gapless.model.ticks import Tick
from gapless.protocol.effects import ReleaseRecord, ReserveRecord, StartRecord
from gapless.store.files import Data, File
from gapless.store.form import NEWEST, SUMMED, Form, payload_sum

ALIGNMENT = 8
#: A frame that claims to be larger is damaged: a broker keeps far less waiting for its disk.
FRAME_BYTES_MAX = 2**30
#: How much is read from a file at once.
CHUNK_BYTES = 2**20
#: The same when only headers are needed: enough for those of small frames, little compared to a large one.
HEADERS_BYTES = 2**14

_SEED = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_MARK = b"GpLs"
_NO_GAPS = 1
_PACKED = 4
_PADDING = bytes(ALIGNMENT)
_TICKS = np.dtype("<i8")
_NOTHING = memoryview(b"")


class RecordKind(IntEnum):
    """The kind of a frame. The numbers are on disks: never reuse one."""

    HEADER = 1
    CHECKPOINT = 2
    BATCH = 3
    RESERVE = 4
    START = 5
    RELEASE = 6


_KINDS = {int(kind): kind for kind in RecordKind}


class BadFrame(Exception):  # noqa: N818  # not an error yet: a torn tail is normal
    """There is no valid frame at this offset."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class Payload(NamedTuple):
    """A record prepared for framing; its position in the file is not known yet."""

    kind: RecordKind
    first: Tick
    last: Tick
    parts: Sequence[Data] = ()
    rows: int = 0
    flags: int = 0
    note_bytes: int = 0


class RecordFrame(NamedTuple):
    """A valid frame that was read."""

    kind: RecordKind
    #: Where it begins and ends in its file.
    offset: int
    stop: int
    #: Where the group of its flush begins.
    group: int
    first: Tick
    last: Tick
    rows: int
    flags: int
    note_bytes: int
    payload: memoryview

    def apart(self) -> RecordFrame:
        """A copy of the frame in its own memory: the buffer that it was read with may be far larger."""
        if 2 * len(self.payload) >= memoryview(self.payload.obj).nbytes:
            return self
        return self._replace(payload=memoryview(bytes(self.payload)))


class _Start(msgspec.Struct, array_like=True, frozen=True):
    edge: str
    epoch: int
    wanted: Tick | None
    start: Tick


_encoder = msgspec.msgpack.Encoder()
_start_decoder = msgspec.msgpack.Decoder(_Start)
_notes_decoder = msgspec.msgpack.Decoder(list[tuple[Tick, bytes]])


def padded(size: int) -> int:
    """The size with padding to the next frame.

    >>> padded(1), padded(8)
    (8, 8)
    """
    return -(-size // ALIGNMENT) * ALIGNMENT


def batch_payload(batch: EventBatch, notes: Sequence[tuple[Tick, bytes]] = ()) -> Payload:
    """Encodes events; `notes` go with them, each with the tick it belongs to."""
    assert len(batch), "a batch without events is not logged"
    parts: list[Data] = []
    note_bytes = 0
    if notes:
        note = _encoder.encode(notes)
        note_bytes = len(note)
        parts.append(note + _PADDING[: padded(note_bytes) - note_bytes])
    first, last = batch.first, batch.last
    flags = _NO_GAPS if last - first == len(batch) - 1 else 0
    if not flags:
        parts.append(np.ascontiguousarray(batch.ticks, dtype=_TICKS).view(np.uint8).data)
    if batch.packed is not None:
        flags |= _PACKED
        rows = batch.packed.rows
        parts.append(struct.pack(f"<{len(rows)}I", *map(len, rows)))
        parts.extend(rows)
    else:
        parts.append(memoryview(batch.columns.serialize()) if batch.encoded is None else batch.encoded)
    return Payload(RecordKind.BATCH, first, last, parts, len(batch), flags, note_bytes)


def control_payload(record: ReserveRecord | StartRecord | ReleaseRecord) -> Payload:
    """Encodes a promise."""
    match record:
        case ReserveRecord(before=before):
            return Payload(RecordKind.RESERVE, before, before)
        case ReleaseRecord(before=before):
            return Payload(RecordKind.RELEASE, before, before)
        case StartRecord():
            start = _Start(record.edge, record.epoch, record.wanted, record.start)
            return Payload(RecordKind.START, record.start, record.start, [_encoder.encode(start)])


def framed_bytes(payload: Payload) -> int:
    """How long the frame of a payload is."""
    return NEWEST.header.size + padded(sum(map(len, payload.parts)))


def framed(payload: Payload, *, salt: int, offset: int, group: int) -> list[Data]:
    """The bytes of a frame at `offset`, in parts; together they are a multiple of 8 long."""
    size = sum(map(len, payload.parts))
    assert size <= FRAME_BYTES_MAX, f"a record of {size} bytes is over the limit of {FRAME_BYTES_MAX}"
    header = bytearray(
        NEWEST.header.pack(
            0,
            payload_sum(payload.parts),
            _MARK,
            payload.kind,
            payload.flags,
            offset - group,
            payload.rows,
            payload.note_bytes,
            size,
            payload.first,
            payload.last,
        )
    )
    _CRC.pack_into(header, 0, _header_crc(memoryview(header), salt, offset))
    return [header, *payload.parts, _PADDING[: padded(size) - size]]


def frame_size(view: memoryview, at: int, *, form: Form, salt: int, offset: int) -> int | None:
    """The size of the frame that begins at `at` in `view`; None if its header is not valid."""
    begin = at + form.header.size
    if begin > len(view):
        return None
    if _CRC.unpack_from(view, at)[0] != _header_crc(view[at:begin], salt, offset):
        return None
    length: int = form.length.unpack_from(view, at)[0]
    return form.header.size + padded(length) if length <= FRAME_BYTES_MAX else None


def frame_at(view: memoryview, at: int, *, form: Form, offset: int) -> RecordFrame | None:
    """The frame at `at` in `view`, which is `offset` in its file; None if not whole or not valid.

    `frame_size` has already validated its header.
    """
    _, checksum, mark, kind, flags, back, rows, note_bytes, length, first, last = form.header.unpack_from(
        view, at
    )
    begin = at + form.header.size
    stop, end = begin + length, begin + padded(length)
    known = _KINDS.get(kind)
    if mark != _MARK or stop > len(view) or note_bytes > length or known is None:
        return None
    payload = view[begin:stop]
    ticks_bytes = 0 if flags & _NO_GAPS else rows * _TICKS.itemsize
    before = padded(note_bytes) + ticks_bytes if flags & SUMMED else 0
    if form.checksum(payload, before, flags) != checksum:
        return None
    if form.checks_padding and view[stop:end] != _PADDING[: end - stop]:
        return None
    # Positional, for speed: a restart makes one for each record of the newest segment.
    return RecordFrame(
        known, offset, offset + end - at, offset - back, first, last, rows, flags, note_bytes, payload
    )


def frames(file: File, *, salt: int, start: int, stop: int, form: Form = NEWEST) -> Iterator[RecordFrame]:
    """All frames from `start` to `stop`, which must lie end to end.

    Raises BadFrame at the first place where one should begin and none is valid.
    """
    at = base = start
    view = memoryview(b"")
    while at < stop:
        size = frame_size(view, at - base, form=form, salt=salt, offset=at)
        if size is None or at - base + size > len(view):
            view, base = memoryview(file.read(at, min(stop - at, max(CHUNK_BYTES, size or 0)))), at
            size = frame_size(view, 0, form=form, salt=salt, offset=at)
            if size is None or at + size > stop:
                raise BadFrame(at)
            if size > len(view):
                view = memoryview(file.read(at, size))
        frame = frame_at(view, at - base, form=form, offset=at)
        if frame is None:
            raise BadFrame(at)
        yield frame
        at = frame.stop


def bare_frames(
    file: File, *, salt: int, start: int, stop: int, form: Form = NEWEST
) -> Iterator[RecordFrame]:
    """The frames from `start` to `stop` without their payloads, which are skipped where they are long.

    Raises BadFrame at the first place where one should begin and none does.
    """
    at = base = start
    view = memoryview(b"")
    while at < stop:
        size = frame_size(view, at - base, form=form, salt=salt, offset=at)
        if size is None:
            view, base = memoryview(file.read(at, min(stop - at, HEADERS_BYTES))), at
            size = frame_size(view, 0, form=form, salt=salt, offset=at)
            if size is None or at + size > stop:
                raise BadFrame(at)
        _, _, _, kind, flags, back, rows, note_bytes, _, first, last = form.header.unpack_from(
            view, at - base
        )
        if kind not in _KINDS:
            raise BadFrame(at)
        end = at + size
        yield RecordFrame(_KINDS[kind], at, end, at - back, first, last, rows, flags, note_bytes, _NOTHING)
        at = end


def find_frames(
    file: File, *, salt: int, start: int, stop: int, form: Form = NEWEST
) -> Iterator[RecordFrame]:
    """Valid frames anywhere in `start..stop`, whatever is between them."""
    at = padded(start)
    while at < stop:
        data = file.read(at, min(CHUNK_BYTES, stop - at))
        mark = data.find(_MARK, form.mark_at)
        while mark >= 0:
            found = mark - form.mark_at
            if found % ALIGNMENT == 0:
                frame = _whole_frame(file, form=form, salt=salt, offset=at + found, stop=stop)
                if frame is not None:
                    yield frame
            mark = data.find(_MARK, mark + 1)
        # A frame may begin in the last bytes of the chunk, with its mark in the next.
        at += len(data) - form.mark_at if len(data) == CHUNK_BYTES else stop


def decoded_control(frame: RecordFrame) -> ReserveRecord | StartRecord | ReleaseRecord:
    """The promise in a frame. Raises BadFrame when it holds none, although its checksum is right."""
    match frame.kind:
        case RecordKind.RESERVE:
            return ReserveRecord(before=frame.first)
        case RecordKind.RELEASE:
            return ReleaseRecord(before=frame.first)
        case RecordKind.START:
            try:
                found = _start_decoder.decode(frame.payload)
            except msgspec.DecodeError:
                raise BadFrame(frame.offset) from None
            edge = BrokerId(found.edge)
            return StartRecord(edge=edge, epoch=found.epoch, wanted=found.wanted, start=found.start)
        case _:
            raise BadFrame(frame.offset)


def decoded_batch(frame: RecordFrame, schema: pa.Schema) -> EventBatch:
    """The events of a batch frame; they share the memory of what was read."""
    at = padded(frame.note_bytes)
    if frame.flags & _NO_GAPS:
        if frame.last - frame.first != frame.rows - 1:
            raise BadFrame(frame.offset)
        ticks = np.arange(frame.first, frame.last + 1, dtype=np.int64)
    else:
        stop = at + frame.rows * _TICKS.itemsize
        if stop > len(frame.payload):
            raise BadFrame(frame.offset)
        ticks = np.frombuffer(frame.payload[at:stop], dtype=_TICKS)
        at = stop
    if frame.flags & _PACKED:
        return EventBatch(ticks, _packed(frame, at, schema))
    try:
        columns = pa.ipc.read_record_batch(pa.py_buffer(frame.payload[at:]), schema)
    except (pa.ArrowException, OSError, EOFError):
        raise BadFrame(frame.offset) from None
    if columns.num_rows != frame.rows:
        raise BadFrame(frame.offset)
    return EventBatch(ticks, columns)


def _packed(frame: RecordFrame, at: int, schema: pa.Schema) -> PackedRows:
    """The packed rows of a frame, starting at an offset of its payload."""
    start = at + 4 * frame.rows
    if start > len(frame.payload):
        raise BadFrame(frame.offset)
    rows: list[bytes] = []
    for length in struct.unpack_from(f"<{frame.rows}I", frame.payload, at):
        rows.append(bytes(frame.payload[start : start + length]))
        start += length
    if start != len(frame.payload):
        raise BadFrame(frame.offset)
    return PackedRows(schema, rows)


def decoded_notes(frame: RecordFrame) -> list[tuple[Tick, bytes]]:
    """The notes of a batch frame, each with the last tick of the batch that it came with."""
    if not frame.note_bytes:
        return []
    try:
        return _notes_decoder.decode(frame.payload[: frame.note_bytes])
    except msgspec.DecodeError:
        raise BadFrame(frame.offset) from None


def _header_crc(header: memoryview, salt: int, offset: int) -> int:
    return zlib.crc32(header[_CRC.size :], zlib.crc32(_SEED.pack(salt, offset)))


def _whole_frame(file: File, *, form: Form, salt: int, offset: int, stop: int) -> RecordFrame | None:
    header = memoryview(file.read(offset, form.header.size))
    size = frame_size(header, 0, form=form, salt=salt, offset=offset)
    if size is None or offset + size > stop:
        return None
    return frame_at(memoryview(file.read(offset, size)), 0, form=form, offset=offset)
