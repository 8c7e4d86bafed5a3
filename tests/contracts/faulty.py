"""A disk in memory that fails, tears and forgets as real ones may: the file layer of the store, for tests.

Every file has what the system shows (`data`) and what is on the platter (`durable`). A sync brings the second
up to the first. After a failed sync the system believes that there is nothing left to write, as Linux does.
A power cut keeps any part of what was not synced, in pieces as small as `SECTOR`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from gapless.store.discard import DISCARDED_SUFFIX, put_aside, shortened
from gapless.store.files import PRIVATE, Data, File, in_use

#: Smaller than any real one, so that even short records tear.
SECTOR = 16
#: So much is cut off at once of a file that is discarded.
SLICE_BYTES = 200


class Killed(BaseException):
    """The process died here."""


@dataclass(slots=True)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    #: What a sync has to do: (offset, bytes) to write, or (size, None) to truncate.
    dirty: list[tuple[int, bytes | None]] = field(default_factory=list)

    def settle(self, random: Random | None) -> None:
        """Bring what is dirty to the platter: all of it, or what chance leaves of it."""
        # Now and then every write comes through, so that whole records survive which nobody had synced.
        odds = 1.0 if random is None or random.random() < 0.3 else 0.5
        for offset, data in self.dirty:
            if data is None:
                if random is None or random.random() < 0.5:
                    del self.durable[offset:]
                continue
            for at in range(0, len(data), SECTOR):
                if random is None or random.random() < odds:
                    put(self.durable, offset + at, data[at : at + SECTOR])
        self.dirty.clear()


def put(into: bytearray, offset: int, data: bytes) -> None:
    into.extend(bytes(max(0, offset + len(data) - len(into))))
    into[offset : offset + len(data)] = data


#: What a fault hook sees: the number of the call, its name and the file; what it returns or raises decides.
Hook = Callable[[int, str, Path], None]


class FaultyFiles:
    """The file layer over a disk in memory. `hook` may raise before any call that changes something."""

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        #: Changes of names since the folder was synced.
        self.dirty_names: list[tuple[Path, Inode | None]] = []
        self.locked: set[Path] = set()
        self.hook: Hook | None = None
        self.calls = 0
        #: How many bytes fit on the disk; None for no end.
        self.capacity: int | None = None
        #: The next write takes at most so many bytes.
        self.write_bytes_max: int | None = None

    # ---- what happens to machines ----------------------------------------------------------------------

    def restart_process(self) -> None:
        """The process is gone; the system and what it holds in memory stay."""
        self.locked.clear()
        self.hook = None

    def cut_power(self, random: Random) -> None:
        """Only the platter is left, and of what was on its way to it, any part."""
        self.restart_process()
        inodes = {id(inode): inode for inode in (*self.names.values(), *self.durable_names.values())}
        for inode in inodes.values():
            inode.settle(random)
            inode.data = bytearray(inode.durable)
        for path, inode in self.dirty_names[: random.randint(0, len(self.dirty_names))]:
            self._name(self.durable_names, path, inode)
        self.dirty_names.clear()
        self.names = dict(self.durable_names)

    def used(self) -> int:
        return sum(len(inode.data) for inode in self.names.values())

    # ---- the layer -------------------------------------------------------------------------------------

    def open(self, path: Path) -> File:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return FaultyFile(self, path, self.names[path])

    def create(self, path: Path, mode: int = PRIVATE) -> File:  # nobody else is here
        self.call("create", path)
        inode = Inode()
        self._rename(path, inode)
        return FaultyFile(self, path, inode)

    def lock(self, path: Path) -> File:
        if path in self.locked:
            raise in_use(path.parent)
        self.locked.add(path)
        return FaultyFile(self, path, self.names.setdefault(path, Inode()))

    def rename(self, path: Path, to: Path) -> None:
        self.call("rename", path)
        inode = self.names[path]
        self._rename(to, inode)
        self._rename(path, None)

    def remove(self, path: Path) -> None:
        self.call("remove", path)
        if path in self.names:
            self._rename(path, None)

    def discard(self, path: Path) -> None:
        if path in self.names:
            put_aside(self, path)
            for _ in shortened(self, path.with_suffix(DISCARDED_SUFFIX), SLICE_BYTES):
                pass

    def make_folder(self, folder: Path) -> None:
        pass

    def list_folder(self, folder: Path) -> list[str]:
        return sorted(path.name for path in self.names if path.parent == folder)

    def sync_folder(self, folder: Path) -> None:
        self.call("sync_folder", folder)
        self.durable_names = dict(self.names)
        self.dirty_names.clear()

    def free_bytes(self, folder: Path) -> int:
        return 2**40 if self.capacity is None else max(0, self.capacity - self.used())

    def call(self, name: str, path: Path) -> None:
        self.calls += 1
        if self.hook is not None:
            self.hook(self.calls, name, path)

    def _rename(self, path: Path, inode: Inode | None) -> None:
        self._name(self.names, path, inode)
        self.dirty_names.append((path, inode))

    @staticmethod
    def _name(names: dict[Path, Inode], path: Path, inode: Inode | None) -> None:
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


class FaultyFile:
    def __init__(self, files: FaultyFiles, path: Path, inode: Inode) -> None:
        self._files = files
        self._path = path
        self._inode = inode

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._inode.data[offset : offset + size])

    def write(self, offset: int, data: Data) -> int:
        files = self._files
        files.call("write", self._path)
        taken = bytes(data)
        if files.write_bytes_max is not None:
            taken = taken[: max(1, files.write_bytes_max)]
        if files.capacity is not None:
            grows = max(0, offset + len(taken) - len(self._inode.data))
            room = max(0, files.capacity - files.used())
            taken = taken[: len(taken) - max(0, grows - room)]
            if not taken:
                raise OSError(errno.ENOSPC, "no space left on device")
        put(self._inode.data, offset, taken)
        self._inode.dirty.append((offset, taken))
        return len(taken)

    def sync(self) -> None:
        try:
            self._files.call("sync", self._path)
        except OSError:
            # Some of it may have been written; the system forgets that any of it was not.
            self._inode.settle(Random(self._files.calls))
            raise
        self._inode.settle(None)

    def reserve(self, size: int) -> None:
        files = self._files
        files.call("reserve", self._path)
        start = len(self._inode.data)
        if size > start:
            if files.capacity is not None and size - start > files.capacity - files.used():
                raise OSError(errno.ENOSPC, "no space left on device")
            put(self._inode.data, start, bytes(size - start))
            self._inode.dirty.append((start, bytes(size - start)))

    def truncate(self, size: int) -> None:
        self._files.call("truncate", self._path)
        del self._inode.data[size:]
        self._inode.dirty.append((size, None))

    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        self._files.locked.discard(self._path)


def failing(name: str, number: int = errno.EIO, *, times: int | None = None, suffix: str = "") -> Hook:
    """Fail the calls of that name, on files with that suffix, so many times or for ever."""
    left = [times]

    def hook(_: int, called: str, path: Path) -> None:
        if called == name and path.name.endswith(suffix) and left[0] != 0:
            if left[0] is not None:
                left[0] -= 1
            raise OSError(number, "injected")

    return hook


def killing(at: int) -> Hook:
    """Die at the call with that number."""

    def hook(call: int, _: str, __: Path) -> None:
        if call == at:
            raise Killed

    return hook
