"""Nodes as `gapless up` starts them: from the text of a network file, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from gapless.model.ids import BrokerId
from gapless.node.config import load_network
from gapless.node.node import Node
from tests.integration.nodes import PATIENCE_SECONDS, free_addresses

Loop = Callable[[], asyncio.AbstractEventLoop]
#: Both event loops that a node may run on.
LOOPS: list[Loop] = [uvloop.new_event_loop, asyncio.new_event_loop]


def run(story: Coroutine[Any, Any, None], loop: Loop = uvloop.new_event_loop) -> None:
    """Run a story to its end."""
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


async def until(condition: Callable[[], bool]) -> None:
    """Let the nodes run until this is so; `run` bounds for how long."""
    while not condition():  # noqa: ASYNC110  # what nodes do to themselves has no event to wait for
        await asyncio.sleep(0)


class Network:
    """Running nodes of one file."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes

    def address(self, name: str, *, host: str = "localhost", scheme: str | None = None) -> str:
        """Where clients find a node."""
        node = self.nodes[name]
        return f"{scheme or node.scheme}{host}:{node.address.port}"


@asynccontextmanager
async def running(text: str, folder: Path, *names: str) -> AsyncIterator[Network]:
    """These brokers of a network file, started and in the end stopped; they get free ports."""
    addresses = free_addresses([BrokerId(name) for name in names])
    listed = ", ".join(f'{name} = "{address}"' for name, address in addresses.items())
    file = load_network(f"addresses = {{{listed}}}\n{text}", "network.toml", folder)
    nodes: dict[str, Node] = {}
    async with AsyncExitStack() as stack:
        for name in names:
            config = file.node(BrokerId(name), folder / "data" / name, "gapless test")
            nodes[name] = await stack.enter_async_context(Node(config))
        yield Network(nodes)
