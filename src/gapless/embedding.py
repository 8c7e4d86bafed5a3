"""How does a program have a network of its own? `embedded`: a node inside the process, and a client of it.

```python
async with gapless.embedded("data") as client:
    await client.create_topic("trades", {"sym": "string", "price": "float"})
    await client.publish("trades", {"sym": "IBM", "price": 121.5})
```

It is the very node that `gapless up` starts, in all roles, on the event loop of the program. The client
speaks with it over the loopback interface, at a random port, with a token that no other program has:
whatever works here works with a network of many nodes. The folder is that of `gapless up --data`, so the
same data may be served to others later. One process at a time can have it open. Spark is started when the
first view is created, as `gapless up` does.
"""

from __future__ import annotations

import asyncio
import contextlib
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from gapless.client.connection import Client
from gapless.client.options import DEFAULTS, Options
from gapless.errors import StoreError
from gapless.node.config import (
    SOLE_BROKER,
    SOLE_RETENTION,
    NodeConfig,
    Spark,
    parse_retention,
    sole_network,
)
from gapless.node.node import Node
from gapless.node.security import Rights, Tokens, new_token, token_hash
from gapless.node.spark.supervisor import supervised_pipeline
from gapless.wire.address import Address


def embedded(
    path: str | PathLike[str] | None = None, *, spark: bool = True, options: Options = DEFAULTS
) -> EmbeddedClient:
    """A client of a node inside this process that keeps its data in `path`; use it with `async with`.

    Without a path everything is kept in memory, and is lost at the end. Spark is started, as a process of its
    own, while there are views; with `spark=False` somebody else has to compute them.

    >>> async def story() -> str:
    ...     async with embedded() as client:
    ...         await client.create_topic("trades", {"sym": "string", "price": "float"})
    ...         async with client.subscribe("trades", where="price > 100") as trades:
    ...             await client.publish("trades", {"sym": "HAL", "price": 99.0})
    ...             await client.publish("trades", {"sym": "IBM", "price": 121.5})
    ...             trade = await anext(trades)
    ...             return f"{trade['sym']} at {trade['price']}"
    >>> asyncio.run(story())
    'IBM at 121.5'

    Entering it raises StoreError when the folder cannot be used: E304 when another process has it open.
    """
    return EmbeddedClient(None if path is None else Path(path), options, spark=spark)


class EmbeddedClient(Client):
    """A client with a node of its own. Made by `embedded`."""

    def __init__(self, folder: Path | None, options: Options, *, spark: bool) -> None:
        token = new_token()
        # Where the node listens is known when it does.
        super().__init__("gapless://127.0.0.1", token=token, name="embedded", options=options)
        everything = Rights(name="embedded", publish=("*",), subscribe=("*",), admin=True)
        self._config = NodeConfig(
            network=sole_network({}),
            broker=SOLE_BROKER,
            addresses={SOLE_BROKER: Address("127.0.0.1", 0)},
            folder=None if folder is None else folder / SOLE_BROKER,
            software="embedded",
            tokens=Tokens.of({token_hash(token): everything}),
            retention_else=parse_retention(SOLE_RETENTION),
            spark=Spark(broker=SOLE_BROKER, token=token) if spark else None,
        )
        #: The node, what starts Spark for it, and the task that watches the node.
        self._running = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            node = await stack.enter_async_context(Node(self._config))
            await stack.enter_async_context(supervised_pipeline(node, self._config))
            self._addresses = (node.address,)
            await super().__aenter__()
            watch = asyncio.create_task(self._watched(node), name="embedded node")
            stack.push_async_callback(_cancelled, watch)
            self._running = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._running:
            await super().__aexit__(kind, error, trace)

    async def _watched(self, node: Node) -> None:
        """A node that can no longer trust its disk stops; those waiting for it must be told."""
        try:
            await node.run()
        except StoreError as error:
            self._entered().give_up(error)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
