"""Five nodes in five processes: kill -9 one of them while events flow, and nobody loses or repeats any."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.client import connect
from gapless.model.ids import BrokerId
from tests.integration.nodes import FIVE_NODES, PATIENCE_SECONDS, free_addresses

BROKERS = [BrokerId(name) for name in ("p1", "b1", "b2", "s1", "s2")]


class Processes:
    """The nodes of a network, each a process."""

    def __init__(self, folder: Path) -> None:
        self.addresses = free_addresses(BROKERS)
        listed = ", ".join(f'{name} = "{address}"' for name, address in self.addresses.items())
        self._file = folder / "network.toml"
        self._file.write_text(f"addresses = {{{listed}}}\n{FIVE_NODES}")
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        arguments = ["up", str(self._file), "--broker", name, "--data", str(self._folder)]
        node = subprocess.Popen(
            [sys.executable, "-m", "gapless", *arguments], stdout=subprocess.PIPE, text=True
        )
        assert node.stdout is not None
        assert json.loads(node.stdout.readline())["broker"] == name
        self._running[name] = node

    def kill(self, name: str) -> None:
        node = self._running.pop(name)
        node.send_signal(signal.SIGKILL)
        node.communicate(timeout=PATIENCE_SECONDS)

    def stop(self) -> None:
        for node in self._running.values():
            node.terminate()
        for node in self._running.values():
            node.communicate(timeout=PATIENCE_SECONDS)

    def address(self, name: str) -> str:
        return f"gapless://{self.addresses[BrokerId(name)]}"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    nodes = Processes(tmp_path)
    try:
        for name in BROKERS:
            nodes.start(name)
        yield nodes
    finally:
        nodes.stop()


@pytest.mark.parametrize("victim", ["b1", "p1"])
def test_a_killed_node_costs_no_event(victim: str, processes: Processes) -> None:
    async def story() -> None:
        async with (
            connect(processes.address("p1")) as publisher,
            connect(processes.address("s1")) as first,
            connect(processes.address("s2")) as second,
            first.subscribe("trades", "price < 500") as low,
            second.subscribe("trades", "price >= 500") as high,
        ):
            for price in range(1_000):
                publication = publisher.publish("trades", {"name": "x", "price": float(price)})
                if price % 50 == 0:
                    await publication
                if price == 300:
                    processes.kill(victim)
                    processes.start(victim)
            await publication
            assert [(await anext(low))["price"] for _ in range(500)] == [float(p) for p in range(500)]
            assert [(await anext(high))["price"] for _ in range(500)] == [float(p) for p in range(500, 1_000)]

    asyncio.run(asyncio.wait_for(story(), 2 * PATIENCE_SECONDS))
