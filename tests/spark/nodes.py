"""Nodes beside Spark: in a thread of the test's process, because Spark's own calls block."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pyarrow as pa

from gapless.client import sync
from gapless.model.ids import BrokerId
from gapless.node.config import load_network
from gapless.node.node import Node
from tests.integration.nodes import free_addresses

Made = TypeVar("Made")


class NodeThread:
    """One broker of a network file, which may be stopped and started."""

    #: The node that was started last. It is made inside its event loop.
    node: Node

    def __init__(self, text: str, folder: Path, name: str = "n1") -> None:
        address = free_addresses([BrokerId(name)])[BrokerId(name)]
        file = load_network(f'addresses = {{{name} = "{address}"}}\n{text}', "network.toml", folder)
        self.config = file.node(BrokerId(name), folder / "data" / name, "gapless test")
        self.address = f"gapless://{address}"
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="node", daemon=True)
        self._thread.start()

    @staticmethod
    @contextmanager
    def running(text: str, folder: Path, name: str = "n1") -> Iterator[NodeThread]:
        """The node, started and in the end stopped."""
        made = NodeThread(text, folder, name)
        made.start()
        try:
            yield made
        finally:
            made.stop()
            made._loop.call_soon_threadsafe(made._loop.stop)
            made._thread.join()
            made._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Made]) -> Made:
        """Run in the node's loop, and wait for what it gives."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def start(self) -> None:
        async def started() -> Node:
            return await Node(self.config).__aenter__()

        self.node = self.run(started())

    def stop(self) -> None:
        self.run(self.node.__aexit__(None, None, None))

    def publish(self, topic: str, rows: pa.Table | dict[str, list[Any]]) -> list[int]:
        """Publish rows, and give their ticks."""
        with sync.connect(self.address) as client:
            return [int(tick) for tick in client.publish_batch(topic, rows).ticks]

    def report(self) -> dict[str, Any]:
        """The status of the node."""

        async def told() -> dict[str, object]:
            return self.node.report()

        return self.run(told())
