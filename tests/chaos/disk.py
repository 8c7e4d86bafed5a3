"""How is a disk filled? A small file system of its own for one folder, and a file that takes all the rest.

The mount is made in a mount namespace of this run alone (`in_own_namespace`), so that it is gone with the
last process of the run, however that ends. Where mounting is not allowed, `SmallDisk.mount` says so, and the
run leaves full disks out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_MARK = "GAPLESS_CHAOS_NAMESPACE"
#: Large enough for what a run writes, small enough to be filled in no time.
SIZE_MB = 128


def in_own_namespace(module: str, arguments: Sequence[str]) -> None:
    """Become the same program in a mount namespace of its own; does nothing where that is not allowed."""
    if os.environ.get(_MARK) or shutil.which("unshare") is None or os.geteuid() != 0:
        return
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode == 0:
        os.environ[_MARK] = "1"
        command = ["unshare", "--mount", sys.executable, "-m", module, *arguments]
        os.execvp(command[0], command)


class SmallDisk:
    """A folder that can be full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._filler = folder / "filler"

    def mount(self) -> bool:
        """Put a small file system there; says whether that worked."""
        if not os.environ.get(_MARK):
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        options = f"size={SIZE_MB}m"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self._folder)],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def fill(self) -> None:
        """Take all that is left."""
        with self._filler.open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                left = os.statvfs(self._folder)
                start = filler.seek(0, os.SEEK_END)
                os.posix_fallocate(filler.fileno(), start, max(left.f_bavail, 1) * left.f_frsize)

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink(missing_ok=True)
