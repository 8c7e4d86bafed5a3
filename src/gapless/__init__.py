"""Gapless: publish/subscribe that never skips.

Subscribers say what content they want and get every matching event exactly once, in order, through
crashes of brokers, links and stores. The protocol is a set of deterministic machines (events in, effects
out) that the network host and the simulator run alike.

```python
async with gapless.connect("gapless://localhost:7400") as client:  # a network of nodes
    ...
async with gapless.embedded("data") as client:  # a node inside this process
    ...
```

`gapless.sync` has the same names for programs without an event loop.

The names in `__all__` are the public interface; everything else may move.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gapless import sync
    from gapless.client import (
        AckMode,
        Batch,
        BatchReceipt,
        Change,
        Client,
        DeliveryMode,
        DeliveryOrder,
        Event,
        Gap,
        GapMode,
        Options,
        Publication,
        Publisher,
        Receipt,
        StartAt,
        Subscription,
        TlsFiles,
        Topic,
        View,
        ViewInfo,
        connect,
    )
    from gapless.embedding import embedded
    from gapless.errors import (
        ContentError,
        GaplessError,
        LinkError,
        NetworkDescriptionError,
        ParameterError,
        PeerError,
        PipelineError,
        SchemaError,
        StoreError,
        UsageError,
        ViewError,
    )

__all__ = [
    "AckMode",
    "Batch",
    "BatchReceipt",
    "Change",
    "Client",
    "ContentError",
    "DeliveryMode",
    "DeliveryOrder",
    "Event",
    "Gap",
    "GapMode",
    "GaplessError",
    "LinkError",
    "NetworkDescriptionError",
    "Options",
    "ParameterError",
    "PeerError",
    "PipelineError",
    "Publication",
    "Publisher",
    "Receipt",
    "SchemaError",
    "StartAt",
    "StoreError",
    "Subscription",
    "TlsFiles",
    "Topic",
    "UsageError",
    "View",
    "ViewError",
    "ViewInfo",
    "__version__",
    "connect",
    "embedded",
    "sync",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    """The public names alone, so that completion offers nothing that may move."""
    return list(__all__)


# Type checkers must not see this: it would make every misspelt name a value of any type.
if not TYPE_CHECKING:

    def __getattr__(name):
        """Load a public name when it is first used: the command line need not wait for the client library."""
        from importlib import import_module  # noqa: PLC0415  # only when something is used

        if name == "sync":
            return import_module("gapless.sync")
        if name in __all__:
            home = "embedding" if name == "embedded" else "errors" if name.endswith("Error") else "client"
            found = globals()[name] = getattr(import_module(f"gapless.{home}"), name)
            return found
        raise AttributeError(f"module 'gapless' has no attribute {name!r}")
