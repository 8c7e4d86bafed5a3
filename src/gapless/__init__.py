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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless import sync
    from gapless.client import connect
    from gapless.embedding import embedded

__all__ = ["__version__", "connect", "embedded", "sync"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What is only loaded when it is used: the command line need not wait for the client library."""
    if name == "connect":
        from gapless.client import connect  # noqa: PLC0415  # see above

        return connect
    if name == "embedded":
        from gapless.embedding import embedded  # noqa: PLC0415  # see above

        return embedded
    if name == "sync":
        from importlib import import_module  # noqa: PLC0415  # see above

        return import_module("gapless.sync")
    raise AttributeError(f"module 'gapless' has no attribute {name!r}")
