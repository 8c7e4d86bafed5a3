"""What is on the disk after things went wrong: torn tails, damage, full disks, failed syncs, deaths."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.packed import PackedRows
from gapless.model.ticks import TickRange
from gapless.protocol.effects import BatchRecord, Record, ReleaseRecord, ReserveRecord
from gapless.store.contract import Flushed
from gapless.store.control import Control
from gapless.store.log import Log, LogOptions
from gapless.store.record import FRAME_BYTES_MAX, Payload, RecordKind, framed
from gapless.store.segment import segment_name
from tests.budget import parts
from tests.contracts.events import PUBEND, SCHEMA, batch, start, ticks_in
from tests.contracts.faulty import FaultyFiles, Inode, Killed, failing, killing

FOLDER = Path("/log")
FIRST = FOLDER / segment_name(1)


def open_log(files: FaultyFiles, segment_bytes_max: int = 10_000, free_bytes_min: int = 0) -> Log:
    options = LogOptions(segment_bytes_max=segment_bytes_max, free_bytes_min=free_bytes_min)
    return Log.open(FOLDER, PUBEND, SCHEMA, options=options, files=files)


def flush(log: Log, *records: Record, token: int = 0) -> Flushed:
    for record in records:
        token = log._token + 1
        log.append(token, record)
    return log.flush()


def restarted(files: FaultyFiles, **options: int) -> Log:
    files.restart_process()
    return open_log(files, **options)


def disk_with(*groups: tuple[Record, ...]) -> tuple[FaultyFiles, list[int]]:
    """A disk with one segment, and the offsets at which its groups begin; the last one is the size."""
    files = FaultyFiles()
    log = open_log(files)
    offsets = []
    for group in groups:
        offsets.append(log.log_bytes)
        assert flush(log, *group).error is None
    offsets.append(log.log_bytes)
    log.close()
    return files, offsets


def with_bytes(data: bytes) -> FaultyFiles:
    files = FaultyFiles()
    files.names[FIRST] = Inode(bytearray(data), bytearray(data))
    return files


def refusal(files: FaultyFiles) -> StoreError | None:
    """Why the log cannot be opened."""
    try:
        open_log(files)
    except StoreError as error:
        return error
    return None


# ---- torn tails and damage -----------------------------------------------------------------------------


def test_a_tail_torn_at_any_byte_is_cut_and_the_log_goes_on() -> None:
    files, offsets = disk_with((batch(10, 11),), (batch(20), ReserveRecord(before=70)), (batch(30, 33),))
    data = bytes(files.names[FIRST].data)
    assert len(data) == offsets[-1]
    for size in range(offsets[2], offsets[3]):
        torn = with_bytes(data[:size])
        log = open_log(torn)
        assert ticks_in(log) == [10, 11, 20]
        assert log.recover().reserved == 70
        cut = size - offsets[2]
        assert (log.repair.bytes_cut if log.repair else 0) == cut
        assert flush(log, batch(30)).error is None
        assert ticks_in(restarted(torn)) == [10, 11, 20, 30]


def test_a_flipped_bit_in_the_last_record_is_a_torn_tail() -> None:
    files, offsets = disk_with((batch(10, 11),), (batch(20, 22),))
    data = bytes(files.names[FIRST].data)
    for at in range(offsets[1], offsets[2]):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        log = open_log(with_bytes(flipped))
        assert ticks_in(log) in ([10, 11], [10, 11, 20, 22]), "the padding after a record may be anything"
        if log.repair is not None:
            assert str(log.repair) == (
                f"{FIRST}: cut {offsets[2] - offsets[1]} bytes of an unfinished write at offset {offsets[1]}"
            )


def test_a_flipped_bit_in_the_middle_is_reported_with_file_and_offset() -> None:
    files, offsets = disk_with((batch(10, 11),), (batch(20), start("e", 1, 2)), (batch(30),))
    data = bytes(files.names[FIRST].data)
    whole = ticks_in(open_log(with_bytes(data)))
    unnoticed = 0
    for at in range(8, offsets[2]):
        flipped = bytearray(data)
        flipped[at] ^= 0x01
        disk = with_bytes(flipped)
        error = refusal(disk)
        if error is None:
            unnoticed += 1
            assert ticks_in(restarted(disk)) == whole
            continue
        assert (error.code, error.retry) == ("E301", False)
        offset = int(str(error).split("offset ")[1].split(":")[0])
        assert str(error).startswith(f"E301 {FIRST} is damaged at offset {offset}: ")
        assert offset <= at
        assert bytes(disk.names[FIRST].data) == flipped, "nothing is repaired behind anybody's back"
    assert unnoticed < 5 * 8, "only padding is not under a checksum"


def test_a_group_with_a_hole_is_a_torn_tail_because_no_later_flush_began() -> None:
    files, offsets = disk_with((batch(10),), (start("a", 1, 2), start("b", 2, 3), start("c", 3, 4)))
    data = bytearray(files.names[FIRST].data)
    data[offsets[1] + 60 : offsets[1] + 100] = bytes(40)
    log = open_log(with_bytes(data))
    assert ticks_in(log) == [10]
    assert log.repair is not None
    assert len(log.recover().starts) <= 1


def test_damage_in_a_sealed_segment_is_found_when_it_is_read() -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes_max=600)
    for tick in range(0, 100, 10):
        flush(log, batch(tick, tick + 1))
    assert log.segments > 2
    sealed = files.names[FIRST].data
    sealed[-100] ^= 1
    log = restarted(files, segment_bytes_max=600)
    assert log.recover().next_tick == 92
    with pytest.raises(StoreError, match=rf"^E301 {FIRST} is damaged at offset \d+: check the disk"):
        ticks_in(log)


def test_a_sealed_segment_that_is_gone_or_shorter_is_damage() -> None:
    def disk() -> FaultyFiles:
        files = FaultyFiles()
        log = open_log(files, segment_bytes_max=600)
        for tick in range(0, 100, 10):
            flush(log, batch(tick, tick + 1))
        return files

    for number in (1, 2):
        files = disk()
        del files.names[FOLDER / segment_name(number)]
        with pytest.raises(StoreError, match=rf"^E301 .*{segment_name(number)} is damaged at offset 0"):
            restarted(files)
        files = disk()
        del files.names[FOLDER / segment_name(number)].data[-8:]
        with pytest.raises(StoreError, match=rf"^E301 .*{segment_name(number)} is damaged"):
            restarted(files)


def test_an_index_file_is_only_a_cache() -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes_max=600)
    for tick in range(0, 100, 10):
        flush(log, batch(tick, tick + 1))
    whole = ticks_in(log)
    index = FIRST.with_suffix(".index")
    good = bytes(files.names[index].data)
    for bad in (b"", good[:-1], b"\0\0\0\0" + good[4:], good):
        files.names[index] = Inode(bytearray(bad))
        assert ticks_in(restarted(files)) == whole
    del files.names[index]
    assert ticks_in(restarted(files)) == whole
    del files.names[FIRST]
    files.names[index] = Inode(bytearray(good))
    with pytest.raises(StoreError, match="E301"):
        restarted(files)
    assert index not in files.names, "an index without its segment is left over"


def test_files_that_are_not_ours_are_refused() -> None:
    with pytest.raises(StoreError, match=r"^E305 .* is not a segment of a log: move it out of the folder$"):
        open_log(with_bytes(b"hello, world"))
    with pytest.raises(
        StoreError, match=r"^E305 .* has version 9, this program reads 1 to 2: use the version"
    ):
        open_log(with_bytes(b"GAPLESS\x09" + bytes(100)))
    files, _ = disk_with((batch(10),))
    files.names[FOLDER / segment_name(3)] = files.names.pop(FIRST)
    with pytest.raises(StoreError, match=r"^E305 .* is segment 1 of pubend 'trades@p1'"):
        restarted(files)


def test_the_log_of_another_pubend_or_topic_is_refused() -> None:
    files, _ = disk_with((batch(10),))
    with pytest.raises(
        StoreError, match=r"^E305 .* of pubend 'trades@p1' with columns id int64, note string\?"
    ):
        Log.open(FOLDER, PUBEND, SCHEMA.remove(1), files=files)


def test_bytes_that_look_like_a_frame_are_not_taken_for_one() -> None:
    # A publisher sends what would be a record that follows the damage, but does not know the salt.
    files, offsets = disk_with((batch(10),))
    data = bytes(files.names[FIRST].data)
    fake = Payload(RecordKind.RESERVE, 5, 5)
    forged = b"".join(bytes(part) for part in framed(fake, salt=0, offset=len(data) + 8, group=len(data) + 8))
    log = open_log(with_bytes(data + bytes(8) + forged))
    assert log.repair is not None
    assert log.repair.offset == offsets[-1]


def test_an_absurd_length_allocates_nothing() -> None:
    files, offsets = disk_with((batch(10),))
    data = bytearray(files.names[FIRST].data)
    data[offsets[0] + 28 : offsets[0] + 32] = (FRAME_BYTES_MAX - 1).to_bytes(4, "little")
    log = open_log(with_bytes(data))
    assert ticks_in(log) == []
    assert log.repair is not None


# ---- failing calls -------------------------------------------------------------------------------------


def test_short_writes_are_completed() -> None:
    files = FaultyFiles()
    files.write_bytes_max = 7
    log = open_log(files, segment_bytes_max=600)
    for tick in range(0, 100, 10):
        assert flush(log, batch(tick)).error is None
    assert ticks_in(restarted(files)) == list(range(0, 100, 10))


def test_a_full_disk_refuses_events_and_takes_them_again_when_there_is_room() -> None:
    files = FaultyFiles()
    log = open_log(files)
    assert flush(log, batch(10)).error is None
    for room in range(0, 300, 7):
        files.capacity = files.used() + room
        done = flush(log, start("e", room, 5), batch(1_000 + room))
        if done.error is None:
            break
        assert done.error.code == "E302"
        assert done.error.retry
        assert len(done.failed) in {1, 2}, "all, or the events alone"
    files.capacity = None
    assert flush(log, batch(2_000)).error is None
    before = ticks_in(log)
    assert before[0] == 10
    assert before[-1] == 2_000
    files.cut_power(Random(1))
    assert ticks_in(open_log(files)) == before


def test_a_release_goes_through_when_events_do_not() -> None:
    files = FaultyFiles()
    log = open_log(files, free_bytes_min=4_000)
    flush(log, batch(10))
    files.capacity = files.used() + 4_000
    for token, record in enumerate((batch(20), ReleaseRecord(before=5), batch(30)), start=101):
        log.append(token, record)
    done = log.flush()
    assert (done.token, done.failed) == (102, (101, 103))
    assert str(done.error).startswith(
        "E302 the disk of /log has 4,000 bytes free, and limits.free_bytes_min reserves 4,000"
    )
    assert restarted(files).recover().released == 5


def test_preallocated_space_is_not_damage_and_is_freed() -> None:
    files = FaultyFiles()
    log = open_log(files)
    flush(log, batch(10))
    flush(log, batch(20))
    [path] = [path for path in files.names if path.suffix == ".segment"]
    used = log.log_bytes
    assert files.open(path).size() > used
    files.cut_power(Random(1))
    again = open_log(files)
    assert again.repair is None
    assert ticks_in(again) == [10, 20]
    flush(again, batch(30))
    again.close()
    assert files.open(path).size() == again.log_bytes > used


def test_a_log_works_without_preallocation() -> None:
    files = FaultyFiles()
    files.hook = failing("reserve", errno.ENOSPC)
    log = open_log(files)
    assert flush(log, batch(10)).error is None
    assert ticks_in(restarted(files)) == [10]


def test_packed_rows_are_logged_and_read_unchanged() -> None:
    files = FaultyFiles()
    log = open_log(files)
    columns = batch(10).batch.columns
    rows = [msgspec.msgpack.encode(list(row.values())) for row in columns.to_pylist()]
    ticks = np.array([10], dtype=np.int64)
    flush(log, BatchRecord(batch=EventBatch(ticks, PackedRows(SCHEMA, rows))))
    _, found = restarted(files).read(TickRange(0, 100), 10)
    assert found is not None
    assert found.packed is not None
    assert found == EventBatch(ticks, columns)


@pytest.mark.parametrize("call", ["write", "truncate", "sync"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_records_of_a_failed_write_never_come_back(call: str, number: int) -> None:
    for seed in range(20):
        files = FaultyFiles()
        log = open_log(files)
        flush(log, batch(10))
        # The second write of the group fails, after the first was taken; then the repair may fail too.
        files.write_bytes_max = 200
        writes = [0]

        def hook(_: int, name: str, __: Path, writes: list[int] = writes) -> None:
            writes[0] += name == "write"
            if name in {"write", call} and writes[0] == 2:
                raise OSError(number, "injected")

        files.hook = hook
        done = flush(log, start("e", 1, 4), batch(20), batch(*range(30, 40)))
        files.hook = files.write_bytes_max = None
        assert done.token is None
        assert len(done.failed) == 3
        assert done.error is not None
        assert done.error.code == {errno.EIO: "E303", errno.ENOSPC: "E302"}[number]
        files.cut_power(Random(seed))
        log = open_log(files)
        assert (ticks_in(log), log.recover().starts) == ([10], ())
        assert flush(log, batch(20)).error is None
        assert ticks_in(restarted(files)) == [10, 20]


def test_after_a_failed_sync_its_records_have_failed_and_a_new_segment_is_begun() -> None:
    for seed in range(20):
        files = FaultyFiles()
        log = open_log(files)
        flush(log, batch(10), ReserveRecord(before=40))
        files.hook = failing("sync", times=1)
        done = flush(log, batch(20), start("e", 1, 4))
        assert (done.token, len(done.failed)) == (None, 2)
        assert str(done.error) == f"E303 {FIRST}: injected: check the disk and the permissions of its folder"
        assert log.segments == 2
        assert ticks_in(log) == [10]
        if seed % 2:
            assert flush(log, batch(50)).error is None
        files.cut_power(Random(seed))
        log = open_log(files)
        assert ticks_in(log) == [10, 50][: 1 + seed % 2]
        assert log.recover().reserved == 40
        assert log.recover().starts == ()


def test_a_log_stops_when_the_outcome_of_a_write_is_unknown() -> None:
    files = FaultyFiles()
    log = open_log(files)
    flush(log, batch(10))
    files.hook = failing("sync")
    with pytest.raises(StoreError, match=r"^E303 /log: injected after a failed write: stop this node"):
        flush(log, batch(20))
    with pytest.raises(StoreError, match="stop this node"):
        flush(log, batch(30))
    assert ticks_in(log) == [10]
    # The system believes the failed bytes to be on the disk. A restart must not believe it.
    log = restarted(files)
    assert ticks_in(log) == [10, 20]
    files.cut_power(Random(0))
    assert ticks_in(open_log(files)) == [10, 20]


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_folder"])
def test_a_failed_rotation_fails_its_group_and_is_retried(call: str) -> None:
    for seed in range(10):
        files = FaultyFiles()
        log = open_log(files, segment_bytes_max=1)
        assert flush(log, batch(10)).error is None
        suffix = "" if call == "sync_folder" else ".new"
        files.hook = failing(call, times=2, suffix=suffix)
        for tick in (20, 21):
            done = flush(log, batch(tick))
            assert done.error is not None
            assert done.error.code == "E303"
        if seed % 2:
            assert flush(log, batch(30), start("e", 1, 4)).error is None
        files.cut_power(Random(seed))
        log = open_log(files, segment_bytes_max=1)
        assert ticks_in(log) == [10, 30][: 1 + seed % 2]
        assert flush(log, batch(40)).error is None
        assert ticks_in(restarted(files))[-1] == 40


def test_the_segment_of_a_failed_rotation_is_removed_but_only_if_it_is_empty() -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes_max=1)
    flush(log, batch(10))
    files.hook = failing("sync_folder", times=1)
    assert flush(log, batch(20)).error is not None
    flush(log, batch(30))
    orphan = FOLDER / segment_name(3)
    assert orphan in files.names
    kept = bytes(files.names[orphan].data)
    files.names[orphan].data += bytes(8)
    files.restart_process()
    error = refusal(files)
    assert error is not None
    assert str(error).startswith(f"E301 {orphan} is damaged at offset {len(kept)}")
    files.names[orphan].data[:] = kept
    assert ticks_in(restarted(files)) == [10, 30]
    assert orphan not in files.names


@pytest.mark.parametrize(
    ("call", "code"), [("create", "E303"), ("write", "E303"), ("sync", "E303"), ("sync_folder", "E303")]
)
def test_creating_a_log_can_fail_and_succeed_later(call: str, code: str) -> None:
    files = FaultyFiles()
    files.hook = failing(call)
    with pytest.raises(StoreError, match=rf"^{code} /log: injected: check the disk"):
        open_log(files)
    files.hook = None
    assert flush(open_log(files), batch(10)).error is None


def test_a_failed_trim_is_continued() -> None:
    files = FaultyFiles()
    log = open_log(files, segment_bytes_max=1)
    for tick in range(0, 100, 10):
        flush(log, batch(tick))
    flush(log, ReleaseRecord(before=90))
    files.hook = failing("remove", times=1)
    with pytest.raises(StoreError, match=r"^E303 .*000000000001.segment: injected"):
        log.trim(90, now=0)
    files.hook = None
    log.trim(90, now=0)
    assert ticks_in(log) == [90]
    log = restarted(files, segment_bytes_max=1)
    assert ticks_in(log) == [90]
    log.trim(90, now=0)
    assert len([name for name in files.list_folder(FOLDER) if name.endswith(".segment")]) <= 3


# ---- sudden deaths -------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What the log has said."""

    groups: list[tuple[Record, ...]] = field(default_factory=list)
    #: Said to be durable.
    durable: list[Record] = field(default_factory=list)
    under_way: tuple[Record, ...] = ()
    opened: bool = False

    def possible(self) -> list[list[Record]]:
        """The histories that a restart may find: all that was promised, and a part of what was under way."""
        return [[*self.durable, *self.under_way[:count]] for count in range(len(self.under_way), -1, -1)]


def live(files: FaultyFiles, ledger: Ledger) -> None:
    log = open_log(files, segment_bytes_max=900)
    ledger.opened = True
    for tick in range(0, 120, 10):
        group: tuple[Record, ...] = (batch(tick, tick + 2), start("e", tick, tick), batch(tick + 5))
        if tick % 30 == 20:
            group = (*group, ReleaseRecord(before=tick - 15), ReserveRecord(before=tick + 500))
        ledger.under_way = group
        done = flush(log, *group)
        assert done.error is None
        ledger.durable += group
        ledger.under_way = ()
        log.trim(log.recover().released, now=0)


def summary(records: list[Record]) -> tuple[object, list[int]]:
    control = Control()
    ticks: list[int] = []
    for record in records:
        control.apply(record)
        if isinstance(record, BatchRecord):
            ticks += record.batch.ticks.tolist()
    found = control.recovered()
    return found, [tick for tick in ticks if tick >= found.released]


def calls_of(life: Callable[[FaultyFiles, Ledger], None]) -> int:
    files = FaultyFiles()
    life(files, Ledger())
    return files.calls


@pytest.mark.parametrize("part", parts(5))
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_what_was_reported_durable_survives_a_crash_at_any_call(power: bool, part: int) -> None:
    calls = calls_of(live)
    assert calls > 50
    for at in range(1 + part, calls + 1, 5):
        for seed in range(4 if power else 1):
            files = FaultyFiles()
            files.hook = killing(at)
            ledger = Ledger()
            with pytest.raises(Killed):
                live(files, ledger)
            if power:
                files.cut_power(Random(seed))
            # It may die again while it repairs, as often as it likes.
            for again in range(3):
                files.restart_process()
                files.hook = killing(files.calls + 1 + again)
                try:
                    open_log(files)
                except Killed:
                    if power:
                        files.cut_power(Random(again))
            log = restarted(files)
            found = (log.recover(), ticks_in(log))
            assert found in [summary(each) for each in ledger.possible()], f"killed at call {at}, seed {seed}"
            assert flush(log, batch(9_000)).error is None
            files.cut_power(Random(seed))
            log = open_log(files)
            assert ticks_in(log) == [*found[1], 9_000], "what a restart has found stays, and what it adds"
            assert log.recover() == replace(found[0], next_tick=9_001)


def test_a_single_record_does_not_keep_its_neighbours_in_memory(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log", PUBEND, SCHEMA, options=LogOptions(free_bytes_min=0))
    flush(log, *(batch(*range(at, at + 5)) for at in range(0, 20_000, 5)))
    tracemalloc.start()
    try:
        held = [log.read(TickRange(at, at + 5), 100)[1] for at in range(0, 20_000, 1_000)]
        assert [len(each) for each in held if each is not None] == [5] * 20
        assert tracemalloc.get_traced_memory()[0] < 20 * 2**16
    finally:
        tracemalloc.stop()
        log.close()


def test_a_flush_is_bounded_and_the_next_one_takes_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.store.log.FLUSH_BYTES_MAX", 2 * batch(1).batch.nbytes)
    files = FaultyFiles()
    log = open_log(files)
    assert flush(log, *(batch(tick) for tick in range(1, 6))) == Flushed(token=1)
    assert log.flush() == Flushed(token=3)
    assert log.flush() == Flushed(token=4)
    assert log.flush() == Flushed()
    log.close()
    log = restarted(files)
    assert ticks_in(log) == [1, 2, 3, 4, 5]
