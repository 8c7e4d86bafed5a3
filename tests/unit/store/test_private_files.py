"""Files of the operating system: who may read them, and what happens without descriptors."""

import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.store.files import DiskFiles, keep_private

#: Uses up all descriptors, and opens a file of the store then.
EXHAUSTED = """
import os, sys
from pathlib import Path
from gapless.store.files import SPARES, DiskFiles
files = DiskFiles()
files.create(Path(sys.argv[1])).close()
try:
    while True:
        os.open(os.devnull, os.O_RDONLY)
except OSError:
    pass
held = [files.open(Path(sys.argv[1])) for _ in range(SPARES)]
try:
    files.open(Path(sys.argv[1]))
except OSError as error:
    print(len(held), error.strerror)
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_store_opens_files_when_the_process_has_no_descriptors_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXHAUSTED, str(tmp_path / "file")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
    )
    assert done.stdout == "8 Too many open files\n"


def test_only_the_user_of_the_store_can_read_its_files(tmp_path: Path) -> None:
    files = DiskFiles()
    files.make_folder(tmp_path / "a" / "b")
    files.create(tmp_path / "a" / "b" / "file").close()
    files.lock(tmp_path / "a" / "lock").close()
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    assert mode(tmp_path / "a" / "b" / "file") == mode(tmp_path / "a" / "lock") == 0o600


@pytest.mark.parametrize(
    ("before", "after"), [(0o755, 0o711), (0o700, 0o700), (0o777, 0o711), (0o750, 0o710)]
)
def test_others_may_pass_through_a_folder_and_read_nothing(before: int, after: int, tmp_path: Path) -> None:
    folder = tmp_path / "n1"
    (folder / "log").mkdir(parents=True)
    (folder / "archive").mkdir()
    (folder / "node.sqlite").touch()
    (folder / "link").symlink_to(tmp_path)
    for each in (folder / "log", folder / "archive", folder / "node.sqlite"):
        each.chmod(0o755)
    folder.chmod(before)
    kept = mode(tmp_path)
    keep_private(folder)
    assert mode(folder) == after
    assert (mode(folder / "log"), mode(folder / "node.sqlite")) == (0o700, 0o700)
    assert (mode(folder / "archive"), mode(tmp_path)) == (0o755, kept)
