"""How can a full disk free space, when even that needs space? By deleting a reserve file.

Before a log deletes events, the database has to store who published them; and a node that starts records its
start. On a full disk neither is possible, and nothing would ever be deleted. So a node keeps a file of zeros
while there is room. When the disk is full it deletes that file, frees more space, and recreates the file when
there is plenty.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gapless.store.files import DiskFiles, Files

NAME = "reserve"
#: Enough for the database's journal and some records in each log.
RESERVE_BYTES = 4 * 2**20
#: A disk with less free space than this is full.
FULL_BYTES = 2**20


class Reserve:
    """The reserve of one folder. Its calls take no longer than deleting or creating a file."""

    def __init__(self, folder: Path, free_bytes_min: int, files: Files | None = None) -> None:
        """It is created only if that leaves more than `free_bytes_min`."""
        self.path = folder / NAME
        self._free_bytes_min = free_bytes_min
        self._files = files or DiskFiles()

    def free_bytes(self) -> int:
        """Number of free bytes. Raises OSError."""
        return self._files.free_bytes(self.path.parent)

    def release(self) -> bool:
        """Free space if the disk is full; returns whether it did."""
        with suppress(OSError):
            if self.free_bytes() < FULL_BYTES and self.path.exists():
                self._files.remove(self.path)
                return True
        return False

    def restore(self) -> None:
        """Recreate the file, if there is plenty of space."""
        with suppress(OSError):
            if self.path.exists() or self.free_bytes() < self._free_bytes_min + 2 * RESERVE_BYTES:
                return
            file = self._files.create(self.path)
            try:
                file.reserve(RESERVE_BYTES)
            except OSError:
                self._files.remove(self.path)
            finally:
                file.close()
