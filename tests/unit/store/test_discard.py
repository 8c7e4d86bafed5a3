"""A large file that is deleted loses its name at once and its bytes by and by, whatever comes between."""

from __future__ import annotations

import errno
from pathlib import Path
from queue import SimpleQueue
from random import Random

import pytest

from gapless.errors import StoreError
from gapless.protocol.effects import ReleaseRecord
from gapless.store.discard import DISCARDED_SUFFIX, PLENTY_BYTES, SLICE_BYTES, Discarder
from gapless.store.files import DiskFile, DiskFiles, write_all
from gapless.store.log import Log, LogOptions
from gapless.store.segment import SegmentGone
from tests.contracts.events import PUBEND, SCHEMA, batch, ticks_in
from tests.contracts.faulty import FaultyFiles, Killed

FOLDER = Path("/log")
PATIENCE_SECONDS = 10


class Pauses:
    """Notes how large a file is at each pause, which lasts until somebody has looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: SimpleQueue[int | None] = SimpleQueue()
        self._go_on: SimpleQueue[None] = SimpleQueue()

    def __call__(self, seconds: float) -> None:
        assert seconds > 0
        self._sizes.put(self._path.stat().st_size if self._path.exists() else None)
        self._go_on.get()

    def next(self) -> int | None:
        size = self._sizes.get(timeout=PATIENCE_SECONDS)
        self._go_on.put(None)
        return size


def made(path: Path, size: int) -> Path:
    file = DiskFiles().create(path)
    write_all(file, 0, bytes(size))
    file.close()
    return path


def test_a_large_file_is_truncated_with_pauses_and_then_deleted(tmp_path: Path) -> None:
    path = made(tmp_path / "one.segment", 3 * SLICE_BYTES + 1)
    pauses = Pauses(path.with_suffix(DISCARDED_SUFFIX))
    discarder = Discarder(pauses)
    discarder.discard(DiskFiles(), path)
    assert not path.exists()
    found = [pauses.next() for _ in range(3)]
    assert found == [2 * SLICE_BYTES + 1, SLICE_BYTES + 1, 1]
    # One after the other: while this one is cut, the first is gone.
    discarder.discard(DiskFiles(), made(tmp_path / "two.segment", SLICE_BYTES + 1))
    assert pauses.next() is None


def test_an_almost_full_disk_is_freed_without_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = DiskFiles()
    paths = [made(tmp_path / f"{name}.segment", 2 * SLICE_BYTES) for name in ("one", "two")]
    pauses = Pauses(paths[0].with_suffix(DISCARDED_SUFFIX))
    asked: list[Path] = []

    def free_bytes(_: DiskFiles, folder: Path) -> int:
        asked.append(folder)
        return 0 if len(asked) == 1 else PLENTY_BYTES

    monkeypatch.setattr(DiskFiles, "free_bytes", free_bytes)
    discarder = Discarder(pauses)
    for path in paths:
        discarder.discard(files, path)
    assert pauses.next() is None, "the first pause is for the second file"


def test_a_file_that_cannot_be_truncated_is_deleted_at_once(tmp_path: Path) -> None:
    removed: SimpleQueue[Path] = SimpleQueue()

    class Uncut(DiskFiles):
        def open(self, path: Path) -> DiskFile:
            raise OSError(errno.EIO, "a bad block", str(path))

        def remove(self, path: Path) -> None:
            super().remove(path)
            removed.put(path)

    path = made(tmp_path / "one.segment", 2 * SLICE_BYTES)
    Discarder().discard(Uncut(), path)
    assert removed.get(timeout=PATIENCE_SECONDS) == path.with_suffix(DISCARDED_SUFFIX)
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_is_deleted_at_once(tmp_path: Path) -> None:
    path = made(tmp_path / "one.segment", SLICE_BYTES)
    DiskFiles().discard(path)
    DiskFiles().discard(path)
    assert DiskFiles().list_folder(tmp_path) == []


def test_a_file_that_cannot_be_renamed_is_deleted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    path = made(tmp_path / "one.segment", 2 * SLICE_BYTES)
    monkeypatch.setattr(DiskFiles, "rename", full)
    DiskFiles().discard(path)
    assert DiskFiles().list_folder(tmp_path) == []


def log_to_trim(files: FaultyFiles) -> Log:
    """A log whose segments but the last are not needed any more."""
    log = opened(files)
    for tick in range(0, 100, 10):
        log.append(tick, batch(tick))
        log.flush()
    log.append(100, ReleaseRecord(before=90))
    log.flush()
    return log


def opened(files: FaultyFiles) -> Log:
    return Log.open(FOLDER, PUBEND, SCHEMA, options=LogOptions(segment_bytes_max=1), files=files)


@pytest.mark.parametrize("call", ["sync_folder", "truncate", "remove"])
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_restart_finishes_the_deletion_of_a_segment(call: str, power: bool) -> None:
    for seed in range(20):
        files = FaultyFiles()
        log = log_to_trim(files)
        called: list[str] = []

        def hook(_: int, name: str, __: Path, called: list[str] = called) -> None:
            called.append(name)
            if "rename" in called and name == call:
                raise Killed

        files.hook = hook
        with pytest.raises(Killed):
            log.trim(90, now=0)
        assert any(name.endswith(DISCARDED_SUFFIX) for name in files.list_folder(FOLDER))
        if power:
            files.cut_power(Random(seed))
        else:
            files.restart_process()
        log = opened(files)
        assert ticks_in(log) == [90]
        assert not any(name.endswith(DISCARDED_SUFFIX) for name in files.list_folder(FOLDER))


def test_a_truncated_segment_is_damaged_unless_it_was_deleted() -> None:
    files = FaultyFiles()
    (segment, _), *_ = log_to_trim(files).sealed()
    del files.names[segment.path].data[segment.size // 2 :]
    with pytest.raises(StoreError, match="E301"):
        list(segment.frames(0, segment.size))
    segment.removed = True
    with pytest.raises(SegmentGone):
        list(segment.frames(0, segment.size))
