"""Reads that nobody takes on: they lose their slot, and then their connection; all others keep both."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from gapless.node.bulk_reads.peers import address_of, hang_up, is_loopback
from gapless.node.bulk_reads.slots import Read, Reads

OPEN_FILES = Path("/dev/fd")
#: More seconds than a lock can wait for: whoever waits fails.
NEVER = 1e30


class Watched:
    """Reads with two slots, a clock that we turn, and what was hung up on."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.reads = Reads(2, self.gone.append, idle_s=30.0)

    def begun(self, peer: str = "ipv4:10.0.0.1:1") -> Read:
        read = self.reads.begin(peer, wait_s=0)
        assert read is not None
        return read


def test_a_reader_that_takes_nothing_loses_its_slot_once() -> None:
    watched = Watched()
    idle, other = watched.begun(), watched.begun("ipv4:10.0.0.2:1")
    assert watched.reads.begin("ipv4:10.0.0.3:1", wait_s=0) is None, "there are two slots"
    idle.handed = 100.0
    watched.reads.look(129.9)
    assert not idle.is_cut
    watched.reads.look(130.0)
    watched.reads.look(131.0)
    assert idle.is_cut
    assert not other.is_cut, "others do not notice"
    third = watched.begun("ipv4:10.0.0.3:1")
    assert watched.reads.begin("ipv4:10.0.0.4:1", wait_s=0) is None, "one slot was free, and no second one"
    for read in (idle, other, third):
        watched.reads.end(read)
    assert len(watched.reads) == 0
    watched.begun()
    watched.begun()
    assert watched.reads.begin("ipv4:10.0.0.4:1", wait_s=0) is None, "two slots, as before"
    assert watched.gone == []


def test_a_slow_but_steady_reader_goes_on() -> None:
    watched = Watched()
    slow = watched.begun()
    for now in range(0, 3_600, 29):
        slow.handed = float(now)
        watched.reads.look(now + 28.9)
    assert not slow.is_cut


def test_a_read_that_we_work_on_is_not_idle_however_long_it_takes() -> None:
    watched = Watched()
    busy = watched.begun()
    busy.handed = 0.0
    busy.handed = None
    watched.reads.look(1e6)
    assert not busy.is_cut


def test_a_reader_that_stays_away_is_hung_up_on() -> None:
    watched = Watched()
    away, back = watched.begun("ipv4:10.0.0.1:1"), watched.begun("ipv4:10.0.0.2:1")
    away.handed = back.handed = 0.0
    watched.reads.look(30.0)
    watched.reads.end(back)
    watched.reads.look(59.9)
    assert watched.gone == []
    watched.reads.look(60.0)
    assert watched.gone == ["ipv4:10.0.0.1:1"]


def test_only_the_connection_of_that_peer_is_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        mine, other = socket.create_connection(("127.0.0.1", port)), None
        here, _ = door.accept()
        other = socket.create_connection(("127.0.0.1", port))
        there, _ = door.accept()
        with mine, other, here, there:
            peer = f"ipv4:127.0.0.1:{mine.getsockname()[1]}"
            before = len(list(OPEN_FILES.iterdir()))
            hang_up(peer, port + 1)
            hang_up("unix:", port)
            assert len(list(OPEN_FILES.iterdir())) == before, "all copies are closed"
            here.sendall(b"a")
            assert mine.recv(1) == b"a"
            hang_up(peer, port)
            assert mine.recv(1) == b"", "it has ended"
            there.sendall(b"b")
            assert other.recv(1) == b"b"


def test_peers_are_known_by_how_grpc_writes_them() -> None:
    assert address_of("ipv6:%5B::ffff:127.0.0.1%5D:7") == ("127.0.0.1", 7)
    assert address_of("ipv6:%5Bfe80::1%25eth0%5D:7") == ("fe80::1%eth0", 7)
    assert is_loopback("ipv4:127.8.9.1:7")
    assert is_loopback("ipv6:%5B::ffff:127.0.0.1%5D:7")
    for peer in ("ipv4:192.168.1.4:7", "ipv6:%5Bfe80::1%25eth0%5D:7", "unix:/tmp/x", ""):
        assert not is_loopback(peer)


def test_one_principal_has_no_more_than_its_share_of_the_slots() -> None:
    reads = Reads(4, [].append, owner_max=2)
    first = reads.begin("ipv4:10.0.0.1:1", "token one", wait_s=0)
    assert first is not None
    assert reads.begin("ipv4:10.0.0.2:1", "token one", wait_s=0) is not None
    assert reads.begin("ipv4:10.0.0.3:1", "token one", wait_s=NEVER) is None, "whatever its connection"
    assert reads.begin("ipv4:10.0.0.1:1", "token other", wait_s=0) is not None
    reads.end(first)
    reads.end(first)
    assert reads.begin("ipv4:10.0.0.1:1", "token one", wait_s=0) is not None
    assert reads.begin("ipv4:10.0.0.1:1", "token one", wait_s=NEVER) is None, "an end counts once"


def test_beyond_the_few_that_wait_a_read_is_refused_at_once() -> None:
    reads = Reads(1, [].append)
    running = reads.begin("ipv4:10.0.0.1:1", wait_s=0)
    assert running is not None
    begun: list[Read | None] = []
    waiting = threading.Thread(target=lambda: begun.append(reads.begin("ipv4:10.0.0.2:1", wait_s=60)))
    waiting.start()
    while reads._admitted.total() < 2:
        waiting.join(0.001)
    assert reads.begin("ipv4:10.0.0.3:1", wait_s=NEVER) is None
    reads.end(running)
    waiting.join()
    assert begun[0] is not None
    reads.end(begun[0])
    assert reads._admitted == {}


def test_a_read_that_got_no_slot_in_time_counts_no_longer() -> None:
    reads = Reads(1, [].append)
    running = reads.begin("ipv4:10.0.0.1:1", wait_s=0)
    assert running is not None
    for port in range(10):
        assert reads.begin(f"ipv4:10.0.0.2:{port}", wait_s=0) is None
    reads.end(running)
    assert reads.begin("ipv4:10.0.0.3:1", wait_s=0) is not None


def test_an_abandoned_read_gives_its_slot_back_and_takes_no_lock() -> None:
    """The garbage collector may find it while the same thread holds the lock."""
    reads = Reads(1, lambda _: None)
    first = reads.begin("ipv4:127.0.0.1:1", wait_s=0)
    assert first is not None
    assert reads.begin("ipv4:127.0.0.1:2", wait_s=0) is None
    with reads._lock:
        reads.abandon(first)
    assert reads.begin("ipv4:127.0.0.1:2", wait_s=0) is not None
    reads.end(first)
    assert len(reads) == 1
