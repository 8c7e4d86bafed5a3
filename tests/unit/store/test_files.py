"""The file layer does what the system does, no less, and its errors say what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gapless.errors import StoreError
from gapless.store.files import BEGIN_BYTES, CACHED_BYTES, SLICE_BYTES, DiskFiles, failure, write_all
from tests.contracts.faulty import FaultyFiles


def test_a_file_is_written_read_cut_and_renamed(tmp_path: Path) -> None:
    files = DiskFiles()
    folder = tmp_path / "a" / "b"
    files.make_folder(folder)
    files.make_folder(folder)
    file = files.create(folder / "one")
    assert write_all(file, 0, b"hello") == 5
    assert write_all(file, 5, memoryview(b", world")) == 7
    file.sync()
    assert file.read(3, 100) == b"lo, world"
    assert file.read(50, 100) == b""
    file.truncate(4)
    assert (file.size(), file.read(0, 9)) == (4, b"hell")
    file.close()
    file.close()
    files.rename(folder / "one", folder / "two")
    files.sync_folder(folder)
    assert files.list_folder(folder) == ["two"]
    again = files.open(folder / "two")
    assert again.read(0, 4) == b"hell"
    again.close()
    files.remove(folder / "two")
    files.remove(folder / "two")
    assert files.list_folder(folder) == []
    assert files.free_bytes(folder) > 0


def test_synced_bytes_leave_the_cache_except_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[tuple[int, int]] = []
    monkeypatch.setattr("os.posix_fadvise", lambda _, offset, size, advice: advised.append((offset, size)))
    monkeypatch.setattr("gapless.store.files.CACHED_BYTES", 100)
    file = DiskFiles().create(tmp_path / "file")
    for at in range(0, 250, 50):
        write_all(file, at, bytes(50))
        file.sync()
    assert advised == [(0, 150)]
    write_all(file, 250, bytes(BEGIN_BYTES))
    assert advised == [(0, 150), (250, BEGIN_BYTES)], "the disk begins before it is told to sync"
    file.close()
    assert advised[2:] == [(0, 250 + BEGIN_BYTES)]


def test_a_large_write_is_made_in_slices_that_are_synced_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def written(fd: int, data: bytes | memoryview, offset: int) -> int:
        taken = pwrite(fd, data, offset)
        calls.append(("write", taken))
        return taken

    def synced(fd: int) -> None:
        fdatasync(fd)
        calls.append(("sync", 0))

    monkeypatch.setattr("os.pwrite", written)
    monkeypatch.setattr("os.fdatasync", synced)
    file = DiskFiles().create(tmp_path / "file")
    data = os.urandom(2 * SLICE_BYTES + 5)
    assert write_all(file, 3, data) == len(data)
    one = [("write", SLICE_BYTES), ("sync", 0)]
    assert calls == [*one, *one, ("write", 5)], "the last one is synced with what comes next"
    file.close()
    assert (tmp_path / "file").read_bytes() == bytes(3) + data
    calls.clear()
    file = DiskFiles().create(tmp_path / "other")
    assert write_all(file, 0, data[:SLICE_BYTES]) == SLICE_BYTES
    assert calls == [("write", SLICE_BYTES)], "one slice is not synced by itself"
    file.close()


def test_a_system_may_ignore_cache_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EINVAL, "no advice")

    monkeypatch.setattr("os.posix_fadvise", refuse)
    file = DiskFiles().create(tmp_path / "file")
    data = bytes(range(256)) * (CACHED_BYTES // 64)
    assert write_all(file, 0, data) == len(data)
    file.sync()
    assert file.read(0, len(data)) == data
    file.close()


def test_a_lock_has_one_owner_until_it_is_closed(tmp_path: Path) -> None:
    files = DiskFiles()
    lock = files.lock(tmp_path / "lock")
    with pytest.raises(
        StoreError, match=r"^E304 .* is in use by another node: stop that one, or give"
    ) as caught:
        files.lock(tmp_path / "lock")
    assert caught.value.retry
    lock.close()
    files.lock(tmp_path / "lock").close()


@pytest.mark.parametrize(
    ("number", "code", "retry"),
    [(errno.ENOSPC, "E302", True), (errno.EDQUOT, "E302", True), (errno.EIO, "E303", False)],
)
def test_a_failed_call_says_what_to_do(number: int, code: str, retry: bool) -> None:
    error = failure(OSError(number, "reason"), Path("/data"))
    assert (error.code, error.retry) == (code, retry)
    assert "/data" in str(error)
    assert "\n" not in str(error)


def test_a_disk_that_accepts_nothing_is_an_error() -> None:
    class Stuck:
        def write(self, offset: int, data: bytes) -> int:
            return 0

    with pytest.raises(OSError, match="accepts no more bytes"):
        write_all(Stuck(), 0, b"abc")  # type: ignore[arg-type]


def test_the_disk_of_the_tests_forgets_what_was_not_synced() -> None:
    from random import Random

    path = Path("/d/file")
    outcomes = set()
    for seed in range(40):
        files = FaultyFiles()
        file = files.create(path)
        write_all(file, 0, b"kept")
        file.sync()
        files.sync_folder(path.parent)
        write_all(file, 4, b" lost" * 10)
        files.cut_power(Random(seed))
        data = files.open(path).read(0, 1_000)
        assert data.startswith(b"kept")
        outcomes.add(data)
    assert len(outcomes) > 5
