"""Which event loop do commands run on? uvloop, which is about twice as fast, and Python's own without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger("gapless.loop")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop; None for Python's own."""
    try:
        import uvloop  # noqa: PLC0415  # it may be missing
    except ImportError as error:
        log.warning("running on Python's event loop, which is slower: %s: install uvloop", error)
        return None
    return uvloop.new_event_loop
