"""How is a whole network started on one machine, each node a process of its own?

```python
async with Fleet(description, folder) as fleet:
    async with connect(fleet.address("s1")) as client:
        ...
        await fleet.kill("b1")
        await fleet.start("b1")
```

The demo, the chaos suite, the benchmarks and the tests kill, freeze and restart nodes; this module does it
for them, and sees to it that nothing is left behind:

- Every node is a child that the kernel kills when the process that started it dies, however that happens.
  That is the tether in `_main`: the child asks for it before it does anything else. It needs no code between
  fork and exec, where only what is safe in a copy of a threaded process may run.
- A node is the leader of a session of its own, so Ctrl-C in a terminal reaches the fleet alone, which then
  ends its nodes in an orderly way.
- Ports are reserved for as long as the fleet lives. A socket that is bound with SO_REUSEADDR and never
  listens keeps the kernel from giving its port to anybody else, but not a node from listening there.

What a node is and does is `gapless up`'s business; the fleet only runs that command.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from gapless.errors import UsageError
from gapless.node.config import NODE_SECTIONS
from gapless.protocol.network import Network

#: A node that has not said where it listens after so long never will.
START_SECONDS_MAX = 60.0
#: A node that is told to stop finishes what is on its way to the disk. After so long it is killed.
STOP_SECONDS_MAX = 15.0
#: `prctl`: the signal that this process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


class Fleet:
    """The nodes of one network, each a process of `gapless up`. Use it with `async with`."""

    def __init__(
        self,
        description: str,
        folder: Path,
        *,
        addresses: Mapping[str, str] | None = None,
        seen_by: Mapping[str, Mapping[str, str]] | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`description` is the network as TOML, without addresses.

        Data, logs and the files with the addresses go to `folder`. `addresses` are those of brokers that
        must have a certain one (`host:port`); the others get a free port. `seen_by[a][b]` is where broker `a`
        believes broker `b` to be, such as at a proxy between the two. `options` are further ones of
        `gapless up`; `environment` is added to that of this process.

        Raises NetworkDescriptionError, SchemaError or ParameterError for a description that cannot be run.
        """
        # How nodes are run is for the nodes to check.
        sections = {
            name: each for name, each in tomllib.loads(description).items() if name not in NODE_SECTIONS
        }
        self.network = Network.parse(sections)
        self.names = tuple(sorted(str(name) for name in self.network.cell_of))
        self.folder = folder
        self._description = description
        self._seen_by = seen_by or {}
        self._options = tuple(options)
        self._environment = {**os.environ, **(environment or {})}
        self._reserved = {name: _reserve() for name in self.names if name not in (addresses or {})}
        ports = {name: f"127.0.0.1:{held.getsockname()[1]}" for name, held in self._reserved.items()}
        #: `host:port` of every broker, as it is.
        self.addresses: dict[str, str] = ports | dict(addresses or {})
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Fleet:
        """Start all nodes at the same time; all of them listen when this returns."""
        try:
            async with asyncio.TaskGroup() as starts:
                for name in self.names:
                    starts.create_task(self.start(name))
        except BaseException as error:
            await self._end(signal.SIGKILL)
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a failure, or Ctrl-C, do not wait for disks.
        await self._end(signal.SIGTERM if kind is None else signal.SIGKILL)

    async def start(self, name: str) -> None:
        """Start a node that does not run, and wait until it listens. Raises UsageError when it does not."""
        assert name in self.names, f"there is no broker {name}, there are {self.names}"
        assert name not in self._running, f"{name} runs already"
        file = self.folder / f"{name}.toml"
        await asyncio.to_thread(self._write_description, name, file)
        command = ("up", str(file), "--broker", name, "--data", str(self.folder), *self._options)
        with self.log(name).open("ab") as log:
            node = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "gapless.fleet", str(os.getpid()), *command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        # From here on the node is ended with the fleet, whatever happens to the lines below.
        self._running[name] = node
        assert node.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            line = await asyncio.wait_for(node.stdout.readline(), START_SECONDS_MAX)
        if not line:
            await self.kill(name)
            output = self.log(name).read_text(encoding="utf-8", errors="replace").strip()
            reason = output.splitlines()[-1] if output else f"see {self.log(name)}"
            raise UsageError("E186", f"the node {name} did not start: {reason}", retry=True)
        assert json.loads(line)["broker"] == name, f"{name} said {line!r}"

    async def kill(self, name: str) -> None:
        """Kill a node with SIGKILL, as if the power had gone; it is gone when this returns."""
        await self._signal_and_reap(name, signal.SIGKILL)

    async def stop(self, name: str) -> int:
        """Ask a node to stop with SIGTERM and give its exit code. One that does not stop is killed."""
        return await self._signal_and_reap(name, signal.SIGTERM)

    def pause(self, name: str) -> None:
        """Freeze a node: its connections stay open, and it does and says nothing (SIGSTOP)."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a frozen node go on (SIGCONT)."""
        os.kill(self.pid(name), signal.SIGCONT)

    def runs(self, name: str) -> bool:
        """Whether a node was started and not ended by the fleet; also of one that has died by itself."""
        return name in self._running

    def pid(self, name: str) -> int:
        """The process of a running node."""
        return self._running[name].pid

    def address(self, name: str) -> str:
        """Where clients find a node: `gapless://host:port`."""
        return f"gapless://{self.addresses[name]}"

    def log(self, name: str) -> Path:
        """The file with everything that a node has written to standard error, over all its lives."""
        return self.folder / f"{name}.log"

    def cpu_seconds(self, name: str) -> float:
        """The processor time of a running node since it was started, its own and the system's for it."""
        # The name of the program, in parentheses, may contain anything; what follows the last one is fixed.
        fields = Path(f"/proc/{self.pid(name)}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self, name: str) -> int:
        """The memory of a running node that is in RAM."""
        pages = Path(f"/proc/{self.pid(name)}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def _write_description(self, name: str, file: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        addresses = self.addresses | dict(self._seen_by.get(name, {}))
        listed = ", ".join(f'{broker} = "{address}"' for broker, address in addresses.items())
        file.write_text(f"addresses = {{{listed}}}\n{self._description}", encoding="utf-8")

    async def _signal_and_reap(self, name: str, number: signal.Signals) -> int:
        node = self._running.pop(name)
        for each in (number, signal.SIGCONT):  # a frozen node hears SIGTERM only when it goes on
            with contextlib.suppress(ProcessLookupError):
                node.send_signal(each)
        try:
            await asyncio.wait_for(node.communicate(), STOP_SECONDS_MAX)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                node.kill()
            await node.communicate()
            if not isinstance(error, TimeoutError):
                raise
        assert node.returncode is not None
        return node.returncode

    async def _end(self, number: signal.Signals) -> None:
        try:
            names = list(self._running)
            await asyncio.gather(*(self._signal_and_reap(name, number) for name in names))
        finally:
            for held in self._reserved.values():
                held.close()


def _reserve() -> socket.socket:
    """A free port of the loopback, kept until the socket is closed."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _main(parent: int, arguments: Sequence[str]) -> None:
    """Run the command line in a child that dies with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before that: nothing would ever end this process.
        os._exit(1)
    from gapless.cli.main import program  # noqa: PLC0415  # the commands themselves import this module

    sys.argv[1:] = arguments
    program()


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
