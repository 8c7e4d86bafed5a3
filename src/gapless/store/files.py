"""How does the store touch the disk? Only through here, so that tests can make every call fail.

The layer is thin: it adds no buffering and no retries, and it lets every `OSError` through. A write may be
short, like the system's; the caller continues where it stopped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

from gapless.errors import StoreError
from gapless.store import discard
from gapless.store.discard import Discarder

#: What can be written.
Data: TypeAlias = bytes | bytearray | memoryview

#: Number of bytes at the end of a written file that stay in the system's cache.
CACHED_BYTES = 8 * 2**20

#: Writes of this many bytes start at once, not with the sync.
BEGIN_BYTES = 256 * 2**10
#: Larger writes are split into slices of this size, and each is synced before the next.
SLICE_BYTES = 1 * 2**20

#: Permissions of stored files: only the node's user. An archive may be opened to a group.
PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
SHARED = 0o640
#: The folder in a node's folder whose permissions are left to its owner.
ARCHIVE_NAME = "archive"

#: Number of descriptors reserved for the store.
SPARES = 8

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


class File(Protocol):
    """One open file."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on; fewer only where the file ends."""
        ...

    def write(self, offset: int, data: Data) -> int:
        """Write at `offset`; returns how many bytes were written, possibly fewer than all."""
        ...

    def sync(self) -> None:
        """Return once content and size are on disk. After a failure, nothing is known."""
        ...

    def reserve(self, size: int) -> None:
        """Make the file at least this large, with zeros at its end that were never written.

        While the size is unchanged, a sync writes only the data: it takes two thirds of the time, and waits
        for no other file.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file off at `size`."""
        ...

    def size(self) -> int:
        """How many bytes the file has."""
        ...

    def close(self) -> None:
        """Close the file; releases a lock on it."""
        ...


class Files(Protocol):
    """A disk."""

    def open(self, path: Path) -> File:
        """Open a file that exists, to read and write."""
        ...

    def create(self, path: Path, mode: int = PRIVATE) -> File:
        """Open a new, empty file, replacing any existing one; `mode` says who may read it."""
        ...

    def lock(self, path: Path) -> File:
        """Open a file that cannot be opened this way again until it is closed. Raises StoreError E304."""
        ...

    def rename(self, path: Path, to: Path) -> None:
        """Rename a file within its folder, atomically, replacing any existing one."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; does nothing if it does not exist."""
        ...

    def discard(self, path: Path) -> None:
        """Like `remove`, but a large file only loses its name at once; its space is freed soon after.

        Those who have it open find it truncated. Leftovers of a crash end with `DISCARDED_SUFFIX`.
        """
        ...

    def make_folder(self, folder: Path) -> None:
        """Create the folder and its parents, private to us, unless they exist."""
        ...

    def list_folder(self, folder: Path) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Return once the names in the folder are on disk."""
        ...

    def free_bytes(self, folder: Path) -> int:
        """Number of free bytes available to us."""
        ...


class DiskFile:
    """A file of the operating system.

    Synced bytes that are no longer at the end are dropped from the system's cache. A broker has its newest
    events in memory, so they are hardly ever read back, while a cache that only grows costs a fresh page for
    every 4 KiB written: on a virtual machine up to six times as much as the write itself.
    """

    __slots__ = ("_dropped", "_end", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        #: Where the last write ended, and up to where the cache was emptied.
        self._end = 0
        self._dropped = 0

    def read(self, offset: int, size: int) -> bytes:
        """See `File.read`."""
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        while data and size > (have := sum(map(len, parts))):
            data = os.pread(self._fd, size - have, offset + have)
            parts.append(data)
        return b"".join(parts)

    def write(self, offset: int, data: Data) -> int:
        """See `File.write`."""
        if len(data) > SLICE_BYTES:
            # Syncs of other files on the same disk would wait for all pending writes to it.
            written = os.pwrite(self._fd, memoryview(data)[:SLICE_BYTES], offset)
            os.fdatasync(self._fd)
            self._end = offset + written
            return written
        written = os.pwrite(self._fd, data, offset)
        self._end = offset + written
        if written >= BEGIN_BYTES:
            # The disk starts while the next part of the group is prepared, and the sync waits for less.
            self._advise(offset, written)
        return written

    def sync(self) -> None:
        """See `File.sync`."""
        os.fdatasync(self._fd)
        if self._end - self._dropped > 2 * CACHED_BYTES:
            self._drop(self._end - CACHED_BYTES)

    def reserve(self, size: int) -> None:
        """See `File.reserve`."""
        os.posix_fallocate(self._fd, 0, size)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """See `File.size`."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """See `File.close`."""
        if self._fd >= 0 and self._dropped:
            self._drop(self._end)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _drop(self, stop: int) -> None:
        """Drop everything below that is on disk from the system's cache."""
        self._dropped = stop
        self._advise(0, stop)

    def _advise(self, offset: int, size: int) -> None:
        """Advise that these bytes are not needed soon: Linux writes them, and drops what is written."""
        with suppress(OSError):
            # It is only advice: a system may ignore it.
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)


class _Spares:
    """Spare descriptors, so that one is available when a file has to be opened.

    A process whose descriptors were used up by connections, if only for a moment, could not read its own log.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self._using = threading.Lock()

    def open(self, path: Path | str, flags: int, mode: int = 0) -> int:
        """Like `os.open`, with a spare descriptor if there is no other."""
        try:
            made = os.open(path, flags, mode)
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            return self._open_with_spare(path, flags, mode)
        if len(self._held) < self._count:
            self._keep()
        return made

    def _open_with_spare(self, path: Path | str, flags: int, mode: int) -> int:
        with self._using:
            while self._held:
                os.close(self._held.pop())
                try:
                    return os.open(path, flags, mode)
                except OSError as error:
                    # Another thread may have taken it.
                    if error.errno not in _EXHAUSTED:
                        raise
        return os.open(path, flags, mode)

    def _keep(self) -> None:
        with self._using, suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


_spares = _Spares(SPARES)
#: All folders of a process are on one disk, most of the time.
_discarder = Discarder()


class DiskFiles:
    """The disk of the operating system."""

    def open(self, path: Path) -> File:
        """See `Files.open`."""
        return DiskFile(_spares.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: Path, mode: int = PRIVATE) -> File:
        """See `Files.create`."""
        return DiskFile(_spares.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode))

    def lock(self, path: Path) -> File:
        """See `Files.lock`."""
        fd = _spares.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                raise in_use(path.parent) from None
            raise
        return DiskFile(fd)

    def rename(self, path: Path, to: Path) -> None:
        """See `Files.rename`."""
        path.rename(to)

    def remove(self, path: Path) -> None:
        """See `Files.remove`."""
        path.unlink(missing_ok=True)

    def discard(self, path: Path) -> None:
        """See `Files.discard`."""
        if path.exists() and path.stat().st_size > discard.SLICE_BYTES:
            _discarder.discard(self, path)
        else:
            self.remove(path)

    def make_folder(self, folder: Path) -> None:
        """See `Files.make_folder`. The new names are synced, as `sync_folder` does."""
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        for each in missing:
            self.sync_folder(each.parent)

    def list_folder(self, folder: Path) -> list[str]:
        """See `Files.list_folder`."""
        return sorted(os.listdir(folder))  # noqa: PTH208  # names are wanted, not paths

    def sync_folder(self, folder: Path) -> None:
        """See `Files.sync_folder`."""
        fd = _spares.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, folder: Path) -> int:
        """See `Files.free_bytes`."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize


def write_all(file: File, offset: int, data: Data) -> int:
    """Write all of `data`, however short the single writes; returns the number of bytes."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        taken = file.write(offset + done, view[done:])
        if taken <= 0:
            raise OSError(errno.EIO, "the disk accepts no more bytes and gives no reason")
        done += taken
    return done


def in_use(folder: Path) -> StoreError:
    """The error for a store that another process, or this one, has open."""
    return StoreError(
        "E304",
        f"{folder} is in use by another node: stop that one, or give this one its own folder",
        retry=True,
    )


def failure(error: OSError, path: Path) -> StoreError:
    """Translate a failed system call into an error of the store."""
    if error.errno in _FULL:
        return StoreError("E302", f"the disk of {path} is full: make room, then go on", retry=True)
    reason = error.strerror or str(error)
    return StoreError("E303", f"{path}: {reason}: check the disk and the permissions of its folder")


def keep_private(folder: Path) -> None:
    """Tighten the permissions of a node's folder that was made with wider ones.

    Permission to pass through it stays: others reach its archive that way, which is left as it is. Raises
    OSError.

    Raises OSError.
    """
    _take(folder, 0o066)
    for each in os.scandir(folder):
        if each.name != ARCHIVE_NAME and not each.is_symlink():
            _take(Path(each.path), 0o077)


def _take(path: Path, rights: int) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & rights:
        path.chmod(mode & ~rights)
