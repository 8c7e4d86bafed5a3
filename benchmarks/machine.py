"""What ran, and what did the machine do meanwhile? Processes, their CPU, and what everybody else took.

Servers and load clients are processes of their own, so that each has its own interpreter and the kernel
tells what each has cost. A load client says on one line of standard output that it is ready, begins when it
is told to on standard input, and ends with one line of results. All of them read the same monotonic clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_HERTZ = os.sysconf("SC_CLK_TCK")
#: A load client that has said nothing for so long has failed.
PATIENCE_S = 300.0
#: Ends a process with the one that started it, however that ends, where the system has the tool for it.
_TETHER = ["setpriv", "--pdeathsig", "SIGKILL"] if shutil.which("setpriv") else []
#: A machine on which others take less than this many cores is quiet.
QUIET_CORES = 0.25
QUIET_WAIT_S = 10.0


def raise_limits() -> None:
    """As many open files as the system allows: every connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has taken, with all its threads; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _HERTZ


def tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += tree(int(child))
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def _busy_s() -> float:
    """Seconds of CPU that anybody has taken on this machine."""
    with Path("/proc/stat").open() as lines:
        fields = [int(each) for each in lines.readline().split()[1:9]]
    idle, waiting = fields[3], fields[4]
    return (sum(fields) - idle - waiting) / _HERTZ


def _own_s() -> float:
    """Seconds of CPU of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Process:
    """A server or a load client, in a process of its own."""

    def __init__(
        self,
        command: Sequence[object],
        *,
        pid_of: Callable[[], int] | None = None,
        after: Sequence[object] = (),
        environment: dict[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """`pid_of` says which process does the work when the command only starts it.

        `after` is a command that ends what the process leaves behind.
        """
        self._log = log
        self._command = " ".join(str(each) for each in command)
        errors = subprocess.DEVNULL if log is None else log.open("wb")
        self._popen = subprocess.Popen(
            [*_TETHER, *(str(each) for each in command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=None if environment is None else {**os.environ, **environment},
            start_new_session=True,
        )
        self._pid_of = pid_of
        self._after = [str(each) for each in after]

    @property
    def pid(self) -> int:
        """The process that does the work."""
        return self._popen.pid if self._pid_of is None else self._pid_of()

    @property
    def started_pid(self) -> int:
        """The process that was started."""
        return self._popen.pid

    def line(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next line that the process says, which is JSON. Raises RuntimeError when it says none."""
        assert self._popen.stdout is not None
        ready, _, _ = select.select([self._popen.stdout], [], [], patience_s)
        text = self._popen.stdout.readline() if ready else b""
        if not text:
            raise RuntimeError(f"{self._command} said nothing more: {self.complaint()}")
        found: dict[str, Any] = json.loads(text)
        return found

    def say(self, text: str) -> None:
        """A line for the process; lost when it has ended, which the next `line` tells."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(text.encode() + b"\n")
            self._popen.stdin.flush()

    def complaint(self) -> str:
        """The end of what it wrote to standard error."""
        if self._log is None or not self._log.exists():
            return f"exit status {self._popen.poll()}"
        return self._log.read_text(errors="replace")[-600:]

    def wait_for_port(self, port: int, patience_s: float = 90.0) -> None:
        """Return when the process listens. Raises RuntimeError."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if self._popen.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self._command} does not listen at {port}: {self.complaint()}")

    def kill(self) -> None:
        """kill -9."""
        self._popen.kill()
        self._popen.communicate()

    def stop(self, patience_s: float = 30.0) -> None:
        """Ask the process to end, and insist when it does not."""
        with contextlib.suppress(ProcessLookupError, ValueError, OSError):
            if self.pid != self._popen.pid:
                os.kill(self.pid, 15)
        if self._popen.poll() is None:
            self._popen.terminate()
        try:
            self._popen.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._after:
            subprocess.run(self._after, check=False, capture_output=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def load_client(
    module: str, *arguments: object, log: Path | None = None, environment: dict[str, str] | None = None
) -> Process:
    """A load client of this package: `python -m MODULE ARGUMENTS`."""
    return Process([sys.executable, "-m", module, *arguments], log=log, environment=environment)


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[dict[str, str]]:
    """The environment in which Python finds the package as it was at a revision of this repository."""
    with tempfile.TemporaryDirectory(prefix="gapless-at-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, revision], check=True)
        try:
            yield {"PYTHONPATH": str(tree / "src")}
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True)


class Window:
    """A span of time, and who took how much CPU in it."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self.wall_s = 0.0
        #: Cores taken by each of the processes, in order, and by everybody who is neither of them nor ours.
        self.cores: list[float] = []
        self.foreign_cores = 0.0

    def __enter__(self) -> Self:
        self._began = (time.monotonic(), [cpu_s(pid) for pid in self._pids], _busy_s(), _own_s())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        began, cpu, busy, own = self._began
        self.wall_s = max(time.monotonic() - began, 1e-3)
        taken = [max(0.0, cpu_s(pid) - before) for pid, before in zip(self._pids, cpu, strict=True)]
        self.cores = [each / self.wall_s for each in taken]
        foreign = _busy_s() - busy - sum(taken) - (_own_s() - own)
        self.foreign_cores = max(0.0, foreign / self.wall_s)


class SyncCount:
    """Counts the calls with which a process, with all its threads, makes something durable."""

    CALLS = ("fsync", "fdatasync", "msync", "sync_file_range", "syncfs")

    def __init__(self, pid: int, file: Path) -> None:
        self._pid = pid
        self._file = file
        self.calls = 0

    def __enter__(self) -> Self:
        arguments = ("-f", "-e", f"trace={','.join(self.CALLS)}", "-o", self._file, "-p", self._pid)
        self._tracer = Process(["strace", *arguments], log=self._file.with_suffix(".log"))
        # It says on standard error that it has attached.
        end = time.monotonic() + 10
        while "attached" not in self._tracer.complaint() and time.monotonic() < end:
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tracer.stop()
        lines = self._file.read_text(errors="replace").splitlines()
        begun = [line for line in lines if "resumed>" not in line]
        self.calls = sum(any(f"{call}(" in line for call in self.CALLS) for line in begun)


def wait_until_quiet(limit_cores: float = QUIET_CORES, wait_s: float = QUIET_WAIT_S) -> float:
    """Wait, not for ever, until others leave the machine alone; gives the cores that they took last."""
    end = time.monotonic() + wait_s
    while True:
        with Window() as window:
            time.sleep(0.5)
        if window.foreign_cores < limit_cores or time.monotonic() > end:
            return window.foreign_cores


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder on disk that is gone afterwards; TMPDIR says where."""
    folder = Path(tempfile.mkdtemp(prefix="gapless-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pinned(cores: set[int]) -> None:
    """Run this process, and those that it starts from now on, on these cores."""
    os.sched_setaffinity(0, cores & os.sched_getaffinity(0) or os.sched_getaffinity(0))
