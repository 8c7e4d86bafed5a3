"""What if too many connect to the bulk-read port? Connections without a read are closed.

Arrow Flight accepts connections by itself, has no limit for them, and waits for minutes until somebody says
something. They take descriptors that the node needs. So a thread checks several times a second whether the
process is about to run out of descriptors, and then closes every connection to that port without a read under
way. Programs reconnect.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection

from gapless.node.bulk_reads.peers import hang_up_others
from gapless.node.logs import event_log

log = event_log("gapless.bulk")

#: Connections are shut when fewer descriptors than this are free. All other bounds leave more.
FREE_MIN = 64
#: How often connections are checked.
LOOK_SECONDS = 0.1


class ConnectionBound:
    """Keeps the connections to one port from using up the descriptors of the process."""

    def __init__(self, limit: int, port: int, reading: Callable[[], Collection[str]]) -> None:
        """`reading` gives the peers that have a read under way, as gRPC writes them."""
        self._limit = limit
        self._port = port
        self._reading = reading
        #: Looking at a socket takes a descriptor; when there is none left, this one makes room.
        self._spare = _nothing()

    def watch(self, stopping: threading.Event) -> None:
        """Look now and then, until it stops. Blocks."""
        while not stopping.wait(LOOK_SECONDS):
            self.look()
        self._let_go()

    def look(self) -> None:
        """Hang up on those that read nothing, if there are too few descriptors left."""
        if not self._is_crowded():
            return
        self._let_go()
        count = hang_up_others(self._reading(), self._port)
        with contextlib.suppress(OSError):
            self._spare = _nothing()
        if count:
            log.repeated("bulk_crowded", by=None, connections=count)

    def _is_crowded(self) -> bool:
        try:
            lowest = _nothing()
        except OSError:
            return True
        os.close(lowest)
        # The system gives out the lowest number that is free: all below it are in use.
        return lowest >= self._limit - FREE_MIN

    def _let_go(self) -> None:
        spare, self._spare = self._spare, -1
        if spare >= 0:
            os.close(spare)


def _nothing() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
