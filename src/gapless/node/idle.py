"""Which bulk reads does nobody take on? Those that wait for their reader for too long: they lose their slot.

A read that is not taken on waits inside of gRPC, which has no limit for that, and it has one of the few slots
that there are. So each read says when it has handed something over and when that was taken, and somebody
looks at all of them now and then. A reader that does not come back in time has lost its slot to others; when
it does come back, it is told so, and may read on behind the last tick that it has. One that has not come back
after as long again is hung up on, so that the thread and the rows that wait for it are free as well: gRPC
cannot end one call from this side, so it is the connection that ends. Programs that have other reads on the
same connection connect again.

Nothing here looks at a clock but `Reads.watch`, which is the thread that looks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gapless.node.logs import event_log

log = event_log("gapless.bulk")

#: A reader that takes nothing for so long loses its slot. Whoever computes something with what it reads takes
#: on within seconds, a collection of garbage or a busy machine included; and whoever waits for a slot is told
#: to come again for a minute (`client.bulk.PATIENCE_SECONDS`), so it lives to see it free.
IDLE_SECONDS = 30.0


class Read:
    """One read that is under way."""

    __slots__ = ("handed", "is_cut", "peer")

    def __init__(self, peer: str) -> None:
        #: Who reads, as gRPC writes it: `ipv4:127.0.0.1:40312`.
        self.peer = peer
        #: Since when rows wait to be taken, in seconds; None while it is our turn.
        self.handed: float | None = None
        #: Whether it has lost its slot.
        self.is_cut = False


class Reads:
    """All reads that are under way, and a bounded number of slots for them. Any thread may call."""

    def __init__(self, slots: int, hang_up: Callable[[str], None], idle_s: float = IDLE_SECONDS) -> None:
        """`hang_up` ends the connection of a peer."""
        self._slots = threading.Semaphore(slots)
        self._hang_up = hang_up
        self.idle_s = idle_s
        self._lock = threading.Lock()
        self._under_way: set[Read] = set()

    def __len__(self) -> int:
        """How many there are, those without a slot too."""
        return len(self._under_way)

    def peers(self) -> set[str]:
        """Who has a read under way."""
        with self._lock:
            return {read.peer for read in self._under_way}

    def begin(self, peer: str, *, wait_s: float) -> Read | None:
        """A slot for a read; None when there is none for so long."""
        if not self._slots.acquire(timeout=wait_s):
            return None
        read = Read(peer)
        with self._lock:
            self._under_way.add(read)
        return read

    def end(self, read: Read) -> None:
        """It is over, in whatever way."""
        with self._lock:
            self._under_way.discard(read)
            if not read.is_cut:
                self._slots.release()

    def look(self, now: float) -> None:
        """Cut off who is idle, and hang up on who still is after as long again."""
        gone: set[str] = set()
        with self._lock:
            for read in self._under_way:
                handed = read.handed
                if handed is None or now - handed < self.idle_s:
                    continue
                if not read.is_cut:
                    read.is_cut = True
                    self._slots.release()
                    log.warning("idle_reader", peer=read.peer, seconds=round(now - handed))
                elif now - handed >= 2 * self.idle_s:
                    gone.add(read.peer)
        for peer in sorted(gone):
            self._hang_up(peer)

    def watch(self, stopping: threading.Event) -> None:
        """Look now and then, until it stops. Blocks."""
        while not stopping.wait(self.idle_s / 8):
            self.look(time.monotonic())
