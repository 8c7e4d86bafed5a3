"""Gapless: publish/subscribe that never skips.

Subscribers say what content they want and get every matching event exactly once, in order, through
crashes of brokers, links and stores. The protocol is a set of deterministic machines (events in, effects
out) that the network host and the simulator run alike.

The names in `__all__` are the public interface; everything else may move.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.client import connect

__all__ = ["__version__", "connect"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What is only loaded when it is used: the command line need not wait for the client library."""
    if name == "connect":
        from gapless.client import connect  # noqa: PLC0415  # see above

        return connect
    raise AttributeError(f"module 'gapless' has no attribute {name!r}")
