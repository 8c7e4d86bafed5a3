"""Who sends too much to the bulk-read port? Connections whose bytes belong to no call that was let in.

Arrow Flight sets no limit for the size of a message and offers no option for one, and gRPC assembles a
message before its token can be checked. So a stranger could fill a node's memory. The operating system counts
the bytes that each connection has received. A thread checks these counts whenever the process has grown, and
ends connections that have sent more than any request needs since their last admitted call.

Only Linux counts these bytes: elsewhere nothing is checked.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gapless.node.bulk_reads.peers import Place, address_of, connections
from gapless.node.logs import event_log

log = event_log("gapless.bulk")

#: A connection may send this much until a call of it is let in, and all together this much. A request has
#: at most 4 MB.
CONNECTION_BYTES_MAX: Final = 8 * 2**20
TOGETHER_BYTES_MAX: Final = 64 * 2**20
#: For this many bytes that it was sent, a connection may send one more: it tells how much it has taken.
SENT_PER_RECEIVED: Final = 64
#: Connections are checked when the process has grown by this much; its size is checked this often.
GROWTH_BYTES: Final = 16 * 2**20
LOOK_SECONDS: Final = 0.05
#: Connections are also checked after this many peers were admitted.
LET_IN_MAX: Final = 10_000

_SIZE = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
#: Where `struct tcp_info` has the bytes that were sent and acknowledged, and those received.
_COUNTS = struct.Struct("=QQ")
_COUNTS_AT = 120


class Traffic(NamedTuple):
    """What was received from one peer and sent to it, in bytes."""

    peer: Place
    received: int
    sent: int


class Inbound:
    """Keeps what strangers send to one port from filling the memory."""

    def __init__(
        self,
        size: Callable[[], int],
        traffic: Callable[[], Iterable[Traffic]],
        hang_up: Callable[[Place], None],
    ) -> None:
        """`size` is the memory of the process, `traffic` what each connection has received and sent."""
        self._size = size
        self._traffic = traffic
        self._hang_up = hang_up
        self._size_before = size()
        self._lock = threading.Lock()
        #: Peers with an admitted call since the last check.
        self._let_in: set[Place] = set()
        #: What each peer had sent at its last admitted call.
        self._excused: dict[Place, int] = {}

    def let_in(self, peer: str) -> None:
        """A call of this peer had a good token: what it has sent until now is fine. Any thread."""
        place = address_of(peer)
        if place is not None:
            with self._lock:
                self._let_in.add(place)

    def watch(self, stopping: threading.Event, end: Callable[[], None]) -> None:
        """Check periodically until stopped, then call `end`. Blocks."""
        while not stopping.wait(LOOK_SECONDS):
            self.look()
        end()

    def look(self) -> None:
        """Check the connections if the process has grown."""
        size = self._size()
        self._size_before = min(self._size_before, size)
        if size < self._size_before + GROWTH_BYTES and len(self._let_in) < LET_IN_MAX:
            return
        self._size_before = size
        with self._lock:
            let_in, self._let_in = self._let_in, set()
        excused, found = self._excused, []
        self._excused = {}
        for peer, received, sent in self._traffic():
            weight = received - sent // SENT_PER_RECEIVED
            before = excused.get(peer, 0)
            if peer in let_in:
                before = weight
            elif weight < before:
                before = 0  # another connection from the same port
            self._excused[peer] = before
            found.append((weight - before, peer))
        self._end_the_heaviest(found)

    def _end_the_heaviest(self, found: list[tuple[int, Place]]) -> None:
        """Hang up on those that have sent too much, alone or together."""
        found.sort(reverse=True)
        total = sum(bytes_count for bytes_count, _ in found)
        for bytes_count, peer in found:
            if bytes_count <= CONNECTION_BYTES_MAX and total <= TOGETHER_BYTES_MAX:
                return
            total -= bytes_count
            log.repeated("bulk_flooded", by=None, peer=f"{peer[0]}:{peer[1]}", bytes=bytes_count)
            self._hang_up(peer)


def can_watch() -> bool:
    """Whether this system counts what a connection receives."""
    return _TCP_INFO is not None and _SIZE.exists()


class Resident:
    """The memory of this process. Its file stays open: there may be no descriptor left when it matters."""

    def __init__(self) -> None:
        self._file = _SIZE.open("rb", buffering=0)

    def __call__(self) -> int:
        """In bytes."""
        self._file.seek(0)
        return int(self._file.read(256).split()[1]) * _PAGE_BYTES

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def traffic_of(port: int) -> Iterator[Traffic]:
    """The connections to a port of this process."""
    assert _TCP_INFO is not None
    for connection, peer in connections(port):
        with suppress(OSError, struct.error):
            counts = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _COUNTS_AT + _COUNTS.size)
            sent, received = _COUNTS.unpack_from(counts, _COUNTS_AT)
            yield Traffic(peer, received, sent)
