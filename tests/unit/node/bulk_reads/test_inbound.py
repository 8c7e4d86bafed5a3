"""Connections that send more than a request has are ended; those that read for long are not."""

from __future__ import annotations

import socket

import pytest

from gapless.node.bulk_reads import inbound
from gapless.node.bulk_reads.inbound import (
    CONNECTION_BYTES_MAX,
    GROWTH_BYTES,
    TOGETHER_BYTES_MAX,
    Inbound,
    Traffic,
)
from gapless.node.bulk_reads.peers import Place

PEER = "ipv4:10.0.0.1:1"
PLACE = ("10.0.0.1", 1)


class Watched:
    """A process whose size and connections we choose."""

    def __init__(self) -> None:
        self.size = 100 * 2**20
        self.traffic: list[Traffic] = []
        self.gone: list[Place] = []
        self.inbound = Inbound(lambda: self.size, lambda: self.traffic, self.gone.append)

    def grown(self, *traffic: Traffic) -> list[Place]:
        """Who is hung up on when the process has grown, and there are these connections."""
        self.size += GROWTH_BYTES
        self.traffic = list(traffic)
        self.gone.clear()
        self.inbound.look()
        return list(self.gone)


def test_a_connection_that_sends_more_than_a_request_is_ended() -> None:
    watched = Watched()
    assert watched.grown(Traffic(PLACE, CONNECTION_BYTES_MAX, 0)) == []
    assert watched.grown(Traffic(PLACE, CONNECTION_BYTES_MAX + 1, 0)) == [PLACE]


def test_traffic_is_checked_only_after_the_process_has_grown() -> None:
    watched = Watched()
    watched.traffic = [Traffic(PLACE, 2**40, 0)]
    watched.size += GROWTH_BYTES - 1
    watched.inbound.look()
    assert watched.gone == []
    watched.size -= 50 * 2**20
    watched.inbound.look()
    watched.size += GROWTH_BYTES
    watched.inbound.look()
    assert watched.gone == [PLACE], "it has grown since it was smallest"


def test_what_a_connection_sent_until_a_call_was_let_in_does_not_count() -> None:
    watched = Watched()
    sent = 0
    for _ in range(10):
        sent += CONNECTION_BYTES_MAX
        watched.inbound.let_in(PEER)
        assert watched.grown(Traffic(PLACE, sent, 0)) == []
    assert watched.grown(Traffic(PLACE, sent + CONNECTION_BYTES_MAX, 0)) == []
    assert watched.grown(Traffic(PLACE, sent + CONNECTION_BYTES_MAX + 1, 0)) == [PLACE]


def test_a_new_connection_from_the_same_port_is_not_excused() -> None:
    watched = Watched()
    watched.inbound.let_in(PEER)
    assert watched.grown(Traffic(PLACE, 10 * CONNECTION_BYTES_MAX, 0)) == []
    assert watched.grown(Traffic(PLACE, 9 * CONNECTION_BYTES_MAX, 0)) == [PLACE]


def test_a_long_read_may_tell_what_it_has_taken() -> None:
    watched = Watched()
    watched.inbound.let_in(PEER)
    for gigabytes in range(1, 100):
        assert watched.grown(Traffic(PLACE, gigabytes * 2**20, gigabytes * 2**30)) == []


def test_many_connections_are_ended_together_the_heaviest_first() -> None:
    watched = Watched()
    each = CONNECTION_BYTES_MAX // 2
    count = TOGETHER_BYTES_MAX // each
    many = [Traffic(("10.0.0.2", port), each, 0) for port in range(count)]
    assert watched.grown(*many) == []
    heavy = Traffic(("10.0.0.3", 1), each + 1, 0)
    assert watched.grown(*many, heavy) == [heavy.peer]


def test_peers_that_were_let_in_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "LET_IN_MAX", 3)
    watched = Watched()
    for port in range(10):
        watched.inbound.let_in(f"ipv4:10.0.0.1:{port}")
        watched.inbound.look()
    assert len(watched.inbound._let_in) < 3
    assert watched.inbound._excused == {}, "nobody is connected"


@pytest.mark.skipif(not inbound.can_watch(), reason="this system does not count what a connection receives")
def test_the_system_counts_what_a_connection_has_received() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(bytes(1_000))
                accepted.recv(1_000, socket.MSG_WAITALL)
                accepted.sendall(bytes(70))
                client.recv(70, socket.MSG_WAITALL)
                [found] = inbound.traffic_of(port)
                assert found.peer == client.getsockname()
                assert found.received == 1_000


@pytest.mark.skipif(not inbound.can_watch(), reason="this system does not tell how large a process is")
def test_the_size_of_the_process_is_known_without_another_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    size = inbound.Resident()
    monkeypatch.setattr(inbound, "_SIZE", None)
    assert size() > 2**20
    held = bytearray(b"x") * 2**26
    assert size() > len(held)
    size.close()
