"""Which bulk reads does nobody take on? Those that wait for their reader for too long: they lose their slot.

A read that is not taken on waits inside of gRPC, which has no limit for that, and it has one of the few slots
that there are. So each read says when it has handed something over and when that was taken, and somebody
looks at all of them now and then. A reader that does not come back in time has lost its slot to others; when
it does come back, it is told so, and may read on behind the last tick that it has. One that has not come back
after as long again is hung up on, so that the thread and the rows that wait for it are free as well: gRPC
cannot end one call from this side, so it is the connection that ends. Programs that have other reads on the
same connection connect again.

A call that waits for a slot holds a thread of gRPC. So few may wait, and one principal may neither wait with
many calls nor take all slots: further callers are refused at once.

Nothing here looks at a clock but `Reads.watch`, which is the thread that looks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from gapless.node.logs import event_log

log = event_log("gapless.bulk")

#: How long a reader may take nothing before it loses its slot. A reader that computes something continues
#: within seconds, even with garbage collection or on a busy machine; and one that waits for a slot retries
#: for a minute (`client.bulk.PATIENCE_SECONDS`), long enough to see it free.
IDLE_SECONDS = 30.0


class Read:
    """One read that is under way."""

    __slots__ = ("handed", "is_cut", "owner", "peer")

    def __init__(self, peer: str, owner: str) -> None:
        #: Who reads, as gRPC writes it: `ipv4:127.0.0.1:40312`.
        self.peer = peer
        #: The principal that the read counts for.
        self.owner = owner
        #: Since when rows wait to be taken, in seconds; None while it is our turn.
        self.handed: float | None = None
        #: Whether it has lost its slot.
        self.is_cut = False


class Reads:
    """All reads that are under way, and a bounded number of slots for them. Any thread may call."""

    def __init__(
        self,
        slots: int,
        hang_up: Callable[[str], None],
        idle_s: float = IDLE_SECONDS,
        *,
        owner_max: int | None = None,
    ) -> None:
        """`hang_up` ends the connection of a peer; `owner_max` bounds the reads of one principal."""
        self._slots = threading.Semaphore(slots)
        #: How many may have a slot or wait for one, of all principals and of one.
        self._admitted_max = 2 * slots
        self._owner_max = slots if owner_max is None else owner_max
        self._admitted: Counter[str] = Counter()
        self._hang_up = hang_up
        self.idle_s = idle_s
        self._lock = threading.Lock()
        self._under_way: set[Read] = set()
        #: Reads without references; they end at the next opportunity.
        self._abandoned: SimpleQueue[Read] = SimpleQueue()

    def __len__(self) -> int:
        """How many there are, those without a slot too."""
        self._end_abandoned()
        return len(self._under_way)

    def peers(self) -> set[str]:
        """Who has a read under way."""
        with self._lock:
            return {read.peer for read in self._under_way}

    def begin(self, peer: str, owner: str | None = None, *, wait_s: float) -> Read | None:
        """A slot for a read; None when there is none for so long, or at once when too many wait.

        The read counts for `owner`, or else for the peer.
        """
        self._end_abandoned()
        read = Read(peer, peer if owner is None else owner)
        with self._lock:
            if self._admitted.total() >= self._admitted_max or self._admitted[read.owner] >= self._owner_max:
                return None
            self._admitted[read.owner] += 1
        if not self._slots.acquire(timeout=wait_s):
            with self._lock:
                self._leave(read)
            return None
        with self._lock:
            self._under_way.add(read)
        return read

    def _leave(self, read: Read) -> None:
        self._admitted[read.owner] -= 1
        if not self._admitted[read.owner]:
            del self._admitted[read.owner]

    def end(self, read: Read) -> None:
        """The read has ended, for any reason. Repeating it is harmless."""
        with self._lock:
            if read not in self._under_way:
                return
            self._under_way.discard(read)
            self._leave(read)
            if not read.is_cut:
                self._slots.release()

    def abandon(self, read: Read) -> None:
        """End a read soon. The garbage collector may call this at any point, so it takes no lock."""
        self._abandoned.put(read)

    def _end_abandoned(self) -> None:
        with suppress(Empty):
            while True:
                self.end(self._abandoned.get_nowait())

    def look(self, now: float) -> None:
        """Stop idle reads, and close their connections if they stay idle for as long again."""
        self._end_abandoned()
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
