"""Silent connections cannot take the descriptors that a node needs, and clients notice nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gapless.node.config import load_network
from gapless.wire.handshake import network_fingerprint
from tests.hostile.raw import PATIENCE_SECONDS, Raw, frame, hello, publish_rows
from tests.hostile.test_brokers import broker_hello
from tests.hostile.victim import COLUMNS, TWO_TOPICS, Victim
from tests.integration.authority import Authority

#: As many files as the node may open.
FILES_MAX = 256
LIMITED = ("prlimit", f"--nofile={FILES_MAX}")
PAIR = f"""{TWO_TOPICS.replace('all = ["n1"]', 'all = ["n1"], z = ["z1"]')}
links = ["all--z"]
"""


@contextmanager
def flooded(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing. Those that the node hangs up on stay open on this side."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS))
            for _ in range(count)
        ]


def exchange(writer: Raw, reader: Raw, at: int) -> None:
    """One event from one client to another."""
    writer.send(publish_rows("mine", COLUMNS, [[float(at), "x"]], first=at))
    assert writer.hear_kind("RECEIPT").head[1] == at
    reader.hear_kind("ROWS", "COLUMNS")


def open_files(victim: Victim) -> int:
    assert victim.process is not None
    return len(list(Path(f"/proc/{victim.process.pid}/fd").iterdir()))


def test_more_silent_connections_than_descriptors_do_not_stop_service(tmp_path: Path) -> None:
    with Victim(tmp_path, prefix=LIMITED) as victim, victim.dial("r") as reader, victim.dial("w") as writer:
        reader.send(frame("SUBSCRIBE", [1, "mine", "", None, "publisher", "now", "guaranteed", 2**40]))
        reader.hear_kind("CONFIRMED")
        exchange(writer, reader, 0)
        with flooded(victim.port, 2 * FILES_MAX):
            for at in range(1, 20):
                exchange(writer, reader, at)
            assert victim.page("/readyz") == (200, "ready\n")
            # Whoever says who it is gets in, at once: silent ones make room.
            with victim.dial("late") as late:
                late.send(frame("LIST_TOPICS", [7]))
                assert late.hear_kind("TOPICS").head[0] == 7
                # And what the node needs files for, it can do.
                late.send(frame("CREATE_TOPIC", [8, "made", {"a": "int"}, ""]))
                late.hear_kind("DONE")
            assert open_files(victim) < FILES_MAX - 32
        exchange(writer, reader, 20)
        assert "descriptors" in victim.log.read_text()
        assert victim.stop() == 0


def test_silent_bulk_read_connections_are_closed(tmp_path: Path) -> None:
    with Victim(tmp_path, prefix=LIMITED) as victim, victim.dial("w") as writer:
        writer.send(frame("LIST_TOPICS", [1, True]))
        port = int(writer.hear_kind("TOPICS").head[5].rpartition(":")[2])
        with flooded(port, 2 * FILES_MAX):
            while "bulk_crowded" not in victim.log.read_text() or open_files(victim) > FILES_MAX - 32:
                assert victim.is_alive
            writer.send(publish_rows("mine", COLUMNS, [[1.0, "x"]]))
            writer.hear_kind("RECEIPT")
            writer.send(frame("CREATE_TOPIC", [8, "made", {"a": "int"}, ""]))
            writer.hear_kind("DONE")
            assert victim.page("/readyz") == (200, "ready\n")
        assert victim.stop() == 0


def test_clients_cannot_use_the_nodes_own_descriptors(tmp_path: Path) -> None:
    with Victim(tmp_path, prefix=LIMITED) as victim, ExitStack() as stack:
        codes = []
        for at in range(FILES_MAX):
            raw = stack.enter_context(Raw(victim.port))
            heard = raw.ask(hello(f"c{at}"))
            assert heard is not None
            codes.append(heard.head["code"] if heard.kind == "REFUSE" else heard.kind)
        assert set(codes) == {"WELCOME", "E197"}
        most = json.loads(victim.page("/status")[1])["clients"]["max"]
        assert codes.count("WELCOME") == most
        assert open_files(victim) < FILES_MAX - 32


def test_a_link_comes_up_through_a_flood(tmp_path: Path) -> None:
    with (
        Victim(tmp_path, PAIR, broker="z1", brokers=["n1", "z1"], prefix=LIMITED) as victim,
        flooded(victim.port, 2 * FILES_MAX),
        Raw(victim.port) as link,
    ):
        said = broker_hello(None, "n1", network=_fingerprint(victim))
        heard = link.ask(said)
        assert heard is not None
        assert heard.kind == "WELCOME", heard
        link.send(frame("PING", 1))
        assert link.hear_kind("PONG").head == 1


def _fingerprint(victim: Victim) -> str:
    return network_fingerprint(load_network(victim.file.read_text(), "network.toml").network)


def test_connections_that_never_finish_tls_are_closed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("n1")
    tls = '[tls]\ncertificate = "{broker}.pem"\nkey = "{broker}.key"\nauthority = "ca.pem"\n'
    with Victim(tmp_path, TWO_TOPICS + tls, prefix=LIMITED) as victim:
        with flooded(victim.port, 2 * FILES_MAX):
            with socket.create_connection(("127.0.0.1", victim.port), timeout=PATIENCE_SECONDS) as plain:
                context = authority.context()
                with context.wrap_socket(plain, server_hostname="localhost") as shaken:
                    shaken.sendall(hello())
                    assert shaken.recv(4)[3] == 2
            assert open_files(victim) < FILES_MAX - 32
        assert victim.stop() == 0


@pytest.mark.parametrize("count", [64])
def test_a_node_with_too_few_descriptors_does_not_start(count: int, tmp_path: Path) -> None:
    victim = Victim(tmp_path, prefix=("prlimit", f"--nofile={count}"))
    with pytest.raises(AssertionError, match="E183 this process may open 64 files, and the node needs"):
        victim.start()
    assert victim.stop() == 2
