"""How does the demo run the Spark application, and how does it kill it? As a child, with everything below it.

The application is `gapless pipeline`: a Python program with a Java virtual machine and Python workers below
it. It leads a session of its own, so that one signal reaches the program and its machine alike; the workers
end when their pipes close. Like the nodes of a fleet it dies with the process that started it (see `fleet`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from types import TracebackType

from gapless.errors import PipelineError, UsageError

#: Where Spark runs: on this machine, with as many tasks at a time as it has partitions.
MASTER = "local[2]"
#: A virtual machine that lives for half a minute, twice, had better not spend it on compiling well.
JAVA_OPTIONS = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def missing() -> str | None:
    """What has to be installed before Spark can run, in one line; None when nothing is missing."""
    from gapless.spark.session import check_installed  # noqa: PLC0415  # the first act does without

    try:
        check_installed()
    except UsageError as error:
        return error.message
    return None


class SparkApplication:
    """The program that computes the views of a network. Use it with `async with`."""

    def __init__(self, address: str, folder: Path) -> None:
        """It is a client of the node at `address`; checkpoints and the log go to `folder`."""
        self._command = (
            *("-m", "gapless.fleet", str(os.getpid())),
            *("pipeline", "--to", address, "--master", MASTER),
            *("--checkpoints", str(folder / "checkpoints")),
        )
        #: Everything that it has said, over all its lives.
        self.log = folder / "pipeline.log"
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> SparkApplication:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # No orderly end is needed: what matters is in the logs of the network.
        await self.kill()

    async def start(self) -> None:
        """Start it; it takes seconds until it computes anything."""
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**JAVA_OPTIONS, **os.environ},
                start_new_session=True,
            )

    async def kill(self) -> None:
        """Kill the program and its virtual machine with SIGKILL; it is gone when this returns."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def check(self) -> None:
        """Raise PipelineError E501 if it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            said = self.log.read_text(encoding="utf-8", errors="replace").strip()
            reason = said.splitlines()[-1] if said else f"see {self.log}"
            raise PipelineError("E501", f"the Spark application has ended: {reason}", retry=True)
