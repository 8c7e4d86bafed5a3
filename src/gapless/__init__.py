"""Gapless: publish/subscribe that never skips.

Subscribers say what content they want and get every matching event exactly once, in order, through
crashes of brokers, links and stores. The protocol is a set of deterministic machines (events in, effects
out) that the network host and the simulator run alike.

The names in `__all__` are the public interface; everything else may move.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
