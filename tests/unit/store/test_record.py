"""One record: what is written is read back, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.model.batch import EventBatch
from gapless.protocol.effects import ReleaseRecord, ReserveRecord
from gapless.store.files import File
from gapless.store.record import (
    BadFrame,
    Payload,
    RecordFrame,
    RecordKind,
    batch_payload,
    control_payload,
    decoded_batch,
    decoded_control,
    decoded_notes,
    find_frames,
    framed,
    frames,
)
from tests.contracts.events import SCHEMA, events, start
from tests.contracts.faulty import FaultyFiles


def file_with(*payloads: Payload, salt: int = 9, start_at: int = 0, lead: bytes = b"") -> tuple[File, int]:
    file = FaultyFiles().create(Path("/file"))
    at = start_at
    file.write(0, bytes(at))
    for payload in payloads:
        data = b"".join(bytes(part) for part in framed(payload, salt=salt, offset=at, group=start_at))
        assert len(data) % 8 == 0
        file.write(at, data)
        at += len(data)
    return file, at


def read(*payloads: Payload) -> list[RecordFrame]:
    file, stop = file_with(*payloads, start_at=16)
    return list(frames(file, salt=9, start=16, stop=stop))


@pytest.mark.parametrize("ticks", [[5], [5, 6, 7], [5, 9, 1_000], list(range(-3, 400))])
def test_a_batch_survives_encoding(ticks: list[int]) -> None:
    (frame,) = read(batch_payload(events(ticks)))
    assert (frame.kind, frame.first, frame.last, frame.rows) == (
        RecordKind.BATCH,
        ticks[0],
        ticks[-1],
        len(ticks),
    )
    assert decoded_batch(frame, SCHEMA) == events(ticks)
    assert decoded_notes(frame) == []


def test_a_slice_is_written_without_the_rest() -> None:
    whole = events(range(1_000))
    part = batch_payload(whole.slice(500, 510))
    assert sum(len(piece) for piece in part.parts) < 2_000
    (frame,) = read(part)
    assert decoded_batch(frame, SCHEMA) == events(range(500, 510))


def test_ticks_without_gaps_are_not_written() -> None:
    dense = sum(len(part) for part in batch_payload(events(range(100))).parts)
    sparse = sum(len(part) for part in batch_payload(events([*range(99), 100])).parts)
    assert sparse - dense >= 700


@pytest.mark.parametrize(
    "record",
    [
        ReserveRecord(before=-7),
        ReleaseRecord(before=2**60),
        start("edge", 2**40, 5),
        start("e", 1, 5, wanted=-4),
    ],
)
def test_a_promise_survives_encoding(record: object) -> None:
    (frame,) = read(control_payload(record))  # type: ignore[arg-type]
    assert decoded_control(frame) == record


def test_notes_of_any_length_come_back() -> None:
    for length in range(20):
        notes = [(5, b"\0" * length), (6, b"x")]
        (frame,) = read(batch_payload(events([5, 6]), notes))
        assert decoded_notes(frame) == notes
        assert decoded_batch(frame, SCHEMA) == events([5, 6])


def test_a_frame_is_valid_only_in_its_place_and_segment() -> None:
    file, stop = file_with(control_payload(ReserveRecord(before=5)), start_at=16)
    assert len(list(frames(file, salt=9, start=16, stop=stop))) == 1
    with pytest.raises(BadFrame):
        list(frames(file, salt=8, start=16, stop=stop))
    moved = FaultyFiles().create(Path("/file"))
    moved.write(0, file.read(16, stop))
    with pytest.raises(BadFrame):
        list(frames(moved, salt=9, start=0, stop=moved.size()))


def test_frames_larger_than_a_chunk_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.store.record.CHUNK_BYTES", 256)
    batches = [events(range(at, at + size)) for at, size in ((0, 50), (100, 1), (200, 30), (300, 2))]
    found = read(*(batch_payload(each) for each in batches))
    assert [decoded_batch(frame, SCHEMA) for frame in found] == batches


def test_frames_after_damage_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.store.record.CHUNK_BYTES", 64)
    payloads = [control_payload(ReserveRecord(before=tick)) for tick in range(20)]
    file, stop = file_with(*payloads)
    for begin in range(56):
        found = [frame.first for frame in find_frames(file, salt=9, start=begin + 1, stop=stop)]
        assert found == list(range(1, 20))
    assert list(find_frames(file, salt=8, start=0, stop=stop)) == []


def test_a_frame_that_holds_something_else_is_bad() -> None:
    (frame,) = read(control_payload(ReserveRecord(before=5)))
    with pytest.raises(BadFrame):
        decoded_batch(frame._replace(kind=RecordKind.BATCH), SCHEMA)
    with pytest.raises(BadFrame):
        decoded_control(frame._replace(kind=RecordKind.START))
    with pytest.raises(BadFrame):
        decoded_control(frame._replace(kind=RecordKind.HEADER))
    (frame,) = read(batch_payload(events([5, 6])))
    for wrong in (frame._replace(rows=3), frame._replace(flags=0), frame._replace(last=9)):
        with pytest.raises(BadFrame):
            decoded_batch(wrong, SCHEMA)


def large() -> Payload:
    payload = batch_payload(events([*range(20_000), 30_000]), [(30_000, b"note")])
    assert sum(map(len, payload.parts)) > 2**19
    return payload


def test_a_large_batch_survives_encoding() -> None:
    (frame,) = read(large())
    assert decoded_batch(frame, SCHEMA) == events([*range(20_000), 30_000])
    assert decoded_notes(frame) == [(30_000, b"note")]


def test_a_received_message_is_written_unchanged() -> None:
    batch = events(range(20_000))
    message = memoryview(batch.columns.serialize())
    payload = batch_payload(EventBatch(batch.ticks, batch.columns, encoded=message))
    assert payload.parts[-1] is message
    (frame,) = read(payload)
    assert decoded_batch(frame, SCHEMA) == batch


def is_valid(data: bytes) -> bool:
    file = FaultyFiles().create(Path("/file"))
    file.write(0, data)
    try:
        return len(list(frames(file, salt=9, start=0, stop=len(data)))) == 1
    except BadFrame:
        return False


def test_damage_in_a_large_batch_is_found_wherever_it_is() -> None:
    file, stop = file_with(large())
    good = file.read(0, stop)
    assert is_valid(good)
    for at in [*range(300), *range(300, stop - 8, 9_973), *range(stop - 300, stop - 8)]:
        for bit in (0, 7):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            assert not is_valid(bytes(bad)), f"bit {bit} of byte {at}"
    sector = 4_096
    for at in range(0, stop - 2 * sector, 7 * sector):
        first, second = good[at : at + sector], good[at + sector : at + 2 * sector]
        for torn in (bytes(sector) + second, second + first, second + second):
            assert torn == first + second or not is_valid(good[:at] + torn + good[at + 2 * sector :])


def test_an_empty_batch_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="without events"):
        batch_payload(events([]))
