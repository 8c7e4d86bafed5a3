"""A node in a process of its own, to be attacked: `gapless up`, and what can be seen of it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path

from gapless.model.ids import BrokerId
from tests.hostile.raw import PATIENCE_SECONDS, Raw
from tests.integration.nodes import free_addresses

#: One node with two topics of one publisher each.
TWO_TOPICS = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.mine = {price = "float", note = "string?"}
topics.theirs = {price = "float", note = "string?"}
pubends.mine-1 = {topic = "mine", broker = "n1"}
pubends.theirs-1 = {topic = "theirs", broker = "n1"}
"""
COLUMNS = {"price": "float", "note": "string?"}


class Victim:
    """A running node. Use it as a context manager; `kill` and `start` in between as often as you like."""

    def __init__(
        self,
        folder: Path,
        network: str = TWO_TOPICS,
        *,
        broker: str = "n1",
        brokers: Sequence[str] = (),
        program: Sequence[str] = ("-m", "gapless"),
        prefix: Sequence[str] = (),
    ) -> None:
        """`program` is what Python runs as `gapless`, and `prefix` a command that runs all of it."""
        names = [BrokerId(name) for name in (brokers or (broker,))]
        http, *listening = free_addresses([BrokerId("http"), *names]).values()
        listed = ", ".join(f'{name} = "{at}"' for name, at in zip(names, listening, strict=True))
        self._command = [*prefix, sys.executable, *program]
        self.broker = broker
        self.folder = folder
        #: Where each broker of the network listens; only this one does.
        self.ports = {str(name): at.port for name, at in zip(names, listening, strict=True)}
        self.port = self.ports[broker]
        self._http = http
        self.file = folder / "network.toml"
        self.file.write_text(f'addresses = {{{listed}}}\nhttp = {{{broker} = "{http}"}}\n{network}')
        self.log = folder / f"{broker}.log"
        self.process: subprocess.Popen[str] | None = None

    def beside(self, broker: str) -> Victim:
        """Another node of the same network, with the same file; it has no HTTP endpoint."""
        other = copy(self)
        other.broker = broker
        other.port = self.ports[broker]
        other.log = self.folder / f"{broker}.log"
        other.process = None
        return other

    def __enter__(self) -> Victim:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the node, and return when it listens."""
        command = [
            *(*self._command, "up", str(self.file), "--broker", self.broker),
            *("--data", str(self.folder / "data"), "--log", "json"),
        ]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the node did not start:\n{self.log.read_text()[-2000:]}"

    def stop(self) -> int:
        """Stop it in order; gives its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        process = self.process
        assert process is not None
        with suppress(ProcessLookupError):
            process.send_signal(how)
        status = process.wait(PATIENCE_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        return status

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def resident_bytes(self) -> int:
        """How much memory the process takes."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def dial(self, name: str = "mallory", **fields: object) -> Raw:
        """A connection that was welcomed."""
        return Raw.welcomed(self.port, name, **fields)

    def page(self, path: str) -> tuple[int, str]:
        """A page of its HTTP endpoint: the status and the text."""
        try:
            with urllib.request.urlopen(f"http://{self._http}{path}", timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
