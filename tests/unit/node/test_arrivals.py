"""Connections that come in: bounds for strangers, and a system without descriptors."""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import dataclass, field

import pytest

from gapless.errors import UsageError
from gapless.node.arrivals import Arrivals
from gapless.node.connection import Connection
from gapless.node.descriptors import Descriptors
from gapless.node.guard import Guard
from gapless.node.http import REQUESTS_MAX
from gapless.wire.address import Address
from gapless.wire.frames import FROM_STRANGER, Frame
from tests.integration.files import LOOPS, Loop, run, until


@dataclass(slots=True)
class Silent:
    """Nobody's connection."""

    arrivals: Arrivals
    connection: Connection
    gone: list[str] = field(default_factory=list)

    def received(self, frame: Frame) -> None: ...

    def settled(self) -> None: ...

    def drained(self) -> None: ...

    def lost(self, reason: str) -> None:
        self.arrivals.settled(self.connection)


@dataclass(slots=True)
class Bound:
    strangers_max: int


def fail(mistake: BaseException) -> None:
    raise mistake


STRICT = Guard(fail)


def made(arrivals: Arrivals) -> Connection:
    return Connection(FROM_STRANGER, lambda connection: Silent(arrivals, connection))


class Exhausted(socket.socket):
    """A listening socket of a process that has no descriptors left, for a while."""

    failures = 0

    def accept(self) -> tuple[socket.socket, object]:
        if Exhausted.failures:
            Exhausted.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.parametrize("loop", LOOPS)
def test_without_descriptors_nothing_is_accepted_for_a_moment_and_then_all(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless.node.arrivals.socket.socket", Exhausted)
    monkeypatch.setattr("gapless.node.arrivals.PAUSE_SECONDS", 0.01)
    Exhausted.failures = 3

    async def story() -> None:
        arrivals = Arrivals(made, Bound(10), 5.0, STRICT)
        await arrivals.open(Address("127.0.0.1", 0))
        _, writer = await asyncio.open_connection("127.0.0.1", arrivals.address.port)
        await until(lambda: len(arrivals) == 1)
        assert Exhausted.failures == 0
        writer.close()
        await until(lambda: len(arrivals) == 0)
        arrivals.shut()

    run(story(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_oldest_makes_room_and_those_of_one_host_make_room_for_each_other(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the loopback were a host like any other.
    monkeypatch.setattr("gapless.node.arrivals.ip_address", lambda _: _NotLoopback)

    async def story() -> None:
        arrivals = Arrivals(made, Bound(6), 5.0, STRICT)
        await arrivals.open(Address("127.0.0.1", 0))
        pairs = []
        for _ in range(5):
            pairs.append(await asyncio.open_connection("127.0.0.1", arrivals.address.port))
            await until(lambda: len(arrivals) == min(len(pairs), 3))
        # Half of all places are for one host: the two that came first were sent away, and hear why.
        for reader, _ in pairs[:2]:
            assert b"E219" in await reader.read()
        assert len(arrivals) == 3
        arrivals.shut()
        for reader, writer in pairs:
            await reader.read()
            writer.close()
        assert not arrivals._of_host

    run(story(), loop)


class _NotLoopback:
    is_loopback = False


@pytest.mark.parametrize(
    ("limit", "strangers", "clients"), [(1_048_576, 1_024, 20_000), (1_024, 221, 665), (256, 29, 89)]
)
def test_what_is_left_is_for_strangers_and_clients(limit: int, strangers: int, clients: int) -> None:
    found = Descriptors(limit=limit, links=2, logs=lambda: 3, has_http=False)
    found.check()
    assert (found.strangers_max, found.clients_max(20_000)) == (strangers, clients)
    assert found.strangers_max + found.clients_max(10**6) <= limit - 128


def test_logs_that_are_created_take_from_clients() -> None:
    logs = 0
    found = Descriptors(limit=1_024, links=0, logs=lambda: logs, has_http=True)
    before = found.free
    logs = 100
    assert found.free == before - 200


def test_a_node_keeps_descriptors_for_all_http_requests_that_it_answers_at_once() -> None:
    without, with_http = (
        Descriptors(limit=1_024, links=0, logs=lambda: 0, has_http=has_http) for has_http in (False, True)
    )
    # One more is accepted before it is sent away.
    assert without.free - with_http.free > REQUESTS_MAX


def test_a_limit_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="E183 this process may open 100 files, and the node needs 144"):
        Descriptors(limit=100, links=0, logs=lambda: 0, has_http=False).check()
