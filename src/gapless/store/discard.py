"""How is a large file deleted without holding anybody up? Under another name, a slice at a time, in a thread.

To free a file of 64 MiB takes a file system some tens of milliseconds, longer where it tells the disk of each
block that is free, and the syncs of all other files wait for that. So the file gets another name, which is on
the disk before anything else happens to it: whatever comes between, it is either the whole file under its old
name or one that nobody asks for. Then it is cut shorter and shorter, with pauses. Nobody waits for that. What
a restart finds of it, it deletes.
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

#: The names of files that are about to be deleted end so.
DISCARDED_SUFFIX = ".discarded"
#: So much is freed at once, and so long others have the disk then, unless there is little room left.
SLICE_BYTES, PAUSE_SECONDS = 4 * 2**20, 0.02
PLENTY_BYTES = 2**30


class Discarder:
    """Deletes files in a thread, one after the other. The thread is begun with the first of them."""

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
            # What cannot be deleted now is deleted by a restart.
            with suppress(OSError):
                for _ in shortened(files, path):
                    if files.free_bytes(path.parent) >= PLENTY_BYTES:
                        self._pause(PAUSE_SECONDS)


def put_aside(files: Files, path: Path) -> None:
    """Give a file the name of one that is about to be deleted. Raises OSError."""
    files.rename(path, path.with_suffix(DISCARDED_SUFFIX))


def shortened(files: Files, path: Path, slice_bytes: int = SLICE_BYTES) -> Iterator[None]:
    """Delete a file that was put aside, by its new name, a slice with each step. Raises OSError."""
    # Else a power cut could leave a short file with its old name.
    files.sync_folder(path.parent)
    with closing(files.open(path)) as file:
        size = file.size()
        while size > slice_bytes:
            size -= slice_bytes
            file.truncate(size)
            yield
    files.remove(path)
