"""How is a large file deleted without delaying anybody? Renamed, then truncated in slices, in a thread.

Freeing a file of 64 MiB takes a file system tens of milliseconds, longer with online discard, and syncs of
other files have to wait. So the file is renamed, and the new name is durable before anything else happens:
after a crash there is either the whole file under its old name, or a file that is never read. Then it is
truncated slice by slice, with pauses. A restart deletes what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gapless.store.files import Files

#: Suffix of files that are being deleted.
DISCARDED_SUFFIX = ".discarded"
#: Bytes freed at a time, and the pause after each slice.
SLICE_BYTES, PAUSE_SECONDS = 4 * 2**20, 0.02
#: With less free space than this there are no pauses.
PLENTY_BYTES = 2**30


class Discarder:
    """Deletes files one by one in a thread, which starts with the first file."""

    def __init__(self, pause: Callable[[float], None] = time.sleep) -> None:
        self._pause = pause
        self._queue: SimpleQueue[tuple[Files, Path]] = SimpleQueue()
        self._lock = Lock()
        self._thread: Thread | None = None

    def discard(self, files: Files, path: Path) -> None:
        """See `Files.discard`."""
        try:
            put_aside(files, path)
        except FileNotFoundError:
            return
        except OSError:
            # A new name may need room, and the disk may be full.
            files.remove(path)
            return
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="gapless-discard", daemon=True)
                self._thread.start()
        self._queue.put((files, path.with_suffix(DISCARDED_SUFFIX)))

    def _run(self) -> None:
        while True:
            files, path = self._queue.get()
            try:
                for _ in shortened(files, path):
                    if files.free_bytes(path.parent) >= PLENTY_BYTES:
                        self._pause(PAUSE_SECONDS)
            except OSError:
                # What cannot be deleted now either, a restart deletes.
                with suppress(OSError):
                    files.remove(path)


def put_aside(files: Files, path: Path) -> None:
    """Rename a file that is to be deleted. Raises OSError."""
    files.rename(path, path.with_suffix(DISCARDED_SUFFIX))


def shortened(files: Files, path: Path, slice_bytes: int = SLICE_BYTES) -> Iterator[None]:
    """Delete a renamed file, one slice per step. Raises OSError."""
    # Otherwise a power failure could leave a truncated file under the old name.
    files.sync_folder(path.parent)
    with closing(files.open(path)) as file:
        size = file.size()
        while size > slice_bytes:
            size -= slice_bytes
            file.truncate(size)
            yield
    files.remove(path)
