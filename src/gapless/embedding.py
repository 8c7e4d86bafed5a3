"""How does a program have a network of its own? `embedded`: a node inside the process, and a client of it.

```python
async with gapless.embedded("data") as client:
    await client.create_topic("trades", {"sym": "string", "price": "float"})
    await client.publish("trades", {"sym": "IBM", "price": 121.5})
```

It is the very node that `gapless up` starts, in all roles, on the event loop of the program. The client
speaks with it over the loopback interface, at a port that nobody knows, with a token that nobody else has:
whatever works here works with a network of many nodes. The folder is that of `gapless up --data`, so the
same data may be served to others later. One process at a time can have it open.
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
from gapless.node.config import SOLE_BROKER, SOLE_RETENTION, NodeConfig, parse_retention, sole_network
from gapless.node.node import Node
from gapless.node.security import Rights, Tokens, new_token, token_hash
from gapless.wire.address import Address


def embedded(path: str | PathLike[str] | None = None, *, options: Options = DEFAULTS) -> EmbeddedClient:
    """A client of a node inside this process that keeps its data in `path`; use it with `async with`.

    Without a path everything is kept in memory, and is gone in the end.

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
    return EmbeddedClient(None if path is None else Path(path), options)


class EmbeddedClient(Client):
    """A client with a node of its own. Made by `embedded`."""

    def __init__(self, folder: Path | None, options: Options) -> None:
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
        )
        self._node: Node | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        node = Node(self._config)
        await node.__aenter__()
        self._node = node
        try:
            self._addresses = (node.address,)
            await super().__aenter__()
        except BaseException:
            await node.__aexit__(None, None, None)
            raise
        self._watch = asyncio.create_task(self._watched(node), name="embedded node")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._node is not None, "the client was not entered"
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            if self._watch is not None:
                self._watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._watch
            await self._node.__aexit__(None, None, None)

    async def _watched(self, node: Node) -> None:
        """A node that cannot trust its disk any more stops; whoever waits for it must hear of it."""
        try:
            await node.run()
        except StoreError as error:
            self._entered().give_up(error)
