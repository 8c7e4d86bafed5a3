"""Who starts Spark? The node does, in a process of its own, while there are views, and starts it again.

Spark takes seconds to start and a gigabyte to run, so it runs only while there are views. The process
is `gapless pipeline`. When it dies, it is started again after a pause, which grows with every failure that
follows soon after another; when the node stops, it is stopped first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gapless.node.config import Spark
from gapless.node.logs import event_log

log = event_log("gapless.pipeline")

#: The pause before a process that has died is started again doubles from the one to the other.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 1.0, 60.0
#: A process that ran for so long did not die of its start.
STARTED_SECONDS = 60.0
#: A process that was told to stop is killed after so long.
STOP_SECONDS_MAX = 30.0
#: The variable of the environment that tells the process to end when its input does.
WITH_INPUT = "GAPLESS_PIPELINE_WITH_INPUT"
#: Number of bytes at the end of a process's output that are searched for the reason of its end.
REASON_BYTES = 2_000
#: A file of what processes have said that is larger at the start of one is put aside; one such file is kept.
OUTPUT_BYTES_MAX = 16 * 2**20


def command(
    address: str,
    spark: Spark,
    folder: Path,
    *,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
) -> list[str]:
    """The program to start. The files are for TLS: the authority to trust, and what it shows."""
    place = ["--master", spark.master, "--checkpoints", str(spark.checkpoints or folder / "checkpoints")]
    place += ["--state", spark.state, "--rows-max", str(spark.rows_max)]
    files = {"--ca": ca, "--certificate": certificate, "--key": key}
    shown = [word for option, file in files.items() if file is not None for word in (option, file)]
    return [sys.executable, "-m", "gapless", "pipeline", "--to", address, *place, *shown]


class PipelineProcess:
    """Keeps a process running while it is wanted."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        """What the process says goes to the end of the file `output`."""
        self._command = list(command)
        self._output = output
        self._environment = {**os.environ, **environment, WITH_INPUT: "1"}
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        #: How often it was started.
        self.starts = 0
        #: Called with the last line of a process that ended although it was wanted.
        self.on_end: Callable[[str], None] = lambda _reason: None

    @property
    def pid(self) -> int | None:
        """The process that runs, if one does."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    def want(self, wanted: bool) -> None:
        """Whether it shall run."""
        if not wanted:
            self._wanted.clear()
            self._tell(signal.SIGTERM)
            return
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pipeline")

    async def close(self) -> None:
        """Stop it, and return when it has ended."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._tell(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            self._tell(signal.SIGKILL)
            await process.wait()

    async def _run(self) -> None:
        pause_s = PAUSE_SECONDS_MIN
        loop = asyncio.get_running_loop()
        while True:
            await self._wanted.wait()
            started = loop.time()
            status = await self._once()
            if not self._wanted.is_set():
                continue
            pause_s = PAUSE_SECONDS_MIN if loop.time() - started > STARTED_SECONDS else pause_s
            reason = self._reason()
            log.warning("pipeline_ended", status=status, reason=reason, again_s=pause_s)
            self.on_end(reason)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_SECONDS_MAX)

    async def _once(self) -> int:
        """Start it and wait for its end."""
        self._output.parent.mkdir(parents=True, exist_ok=True)
        if self._output.exists() and self._output.stat().st_size > OUTPUT_BYTES_MAX:
            self._output.replace(self._output.with_name(f"{self._output.name}.1"))
        self._output.touch(mode=0o600)
        with self._output.open("ab") as output:
            # A session of its own: Ctrl-C at a terminal is for the node, which stops it in order.
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                # It ends with its input: a node that is killed leaves no process behind.
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        self.starts += 1
        log.info("pipeline_started", pid=self._process.pid, output=str(self._output))
        if not self._wanted.is_set():
            # The last view was dropped before there was a process to tell.
            self._tell(signal.SIGTERM)
        return await self._process.wait()

    def _tell(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _reason(self) -> str:
        """The last line that it said."""
        try:
            with self._output.open("rb") as output:
                output.seek(max(0, self._output.stat().st_size - REASON_BYTES))
                said = output.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line for line in reversed(said) if line.strip()), "")
