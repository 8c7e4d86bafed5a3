"""A standalone Spark cluster on this machine: a master and workers, from the installed package."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyspark

#: A busy machine takes its time to start a virtual machine.
PATIENCE_SECONDS = 300.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class Daemon:
    """A process of Spark's, of which every line is read."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reading: asyncio.Task[None] | None = None
        self.said: list[str] = []

    @staticmethod
    async def start(*command: str, folder: Path) -> Daemon:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
        }
        process = await asyncio.create_subprocess_exec(
            str(home / "bin" / "spark-class"),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        return Daemon(process)

    async def says(self, pattern: str) -> str:
        """Wait for a line; what the group of the pattern matched in it."""
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in self._process.stderr:
                self.said.append(line.decode(errors="replace"))
                if found := re.search(pattern, self.said[-1]):
                    # From now on nobody looks, but the pipe must not fill.
                    self._reading = asyncio.create_task(self._drain())
                    return found[1]
        raise AssertionError("".join(self.said[-20:]))

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        async for _ in self._process.stderr:
            pass

    @property
    def executors(self) -> list[int]:
        """The executors that it has started."""
        folder = Path("/proc")
        return [int(each.name) for each in folder.iterdir() if each.name.isdigit() and self._is_mine(each)]

    def _is_mine(self, process: Path) -> bool:
        with contextlib.suppress(OSError):
            parent = process.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            return int(parent) == self._process.pid and _EXECUTOR in process.joinpath("cmdline").read_bytes()
        return False

    async def kill(self) -> None:
        """End it and what it has started, as if the power had gone."""
        for pid in [*self.executors, self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._process.wait()
        if self._reading is not None:
            await self._reading


class SparkCluster:
    """A master and its workers."""

    def __init__(self, folder: Path, master: Daemon, address: str) -> None:
        self._folder = folder
        self._master = master
        #: What `--master` takes.
        self.address = address
        self.workers: list[Daemon] = []

    @staticmethod
    @asynccontextmanager
    async def running(folder: Path, workers: int = 2) -> AsyncIterator[SparkCluster]:
        """Started, and in the end killed."""
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        master = await Daemon.start(
            _MASTER, *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"), folder=folder
        )
        made = SparkCluster(folder, master, "")
        try:
            made.address = await master.says(r"Starting Spark master at (spark://\S+)")
            for _ in range(workers):
                await made.add_worker()
            yield made
        finally:
            for each in [*made.workers, master]:
                await each.kill()

    async def add_worker(self) -> Daemon:
        """One more, with one core and a gigabyte."""
        place = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self._folder / "work"))
        worker = await Daemon.start(
            _WORKER, *place, "--cores", "1", "--memory", "1g", self.address, folder=self._folder
        )
        self.workers.append(worker)
        await worker.says(r"(Successfully registered with master)")
        return worker
