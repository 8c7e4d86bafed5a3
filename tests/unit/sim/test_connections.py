"""A simulated connection breaks at any byte, and never reorders or repeats what it carries."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

import pytest

from gapless.sim.connections import SimulatedConnection
from gapless.wire.frames import Frame, Kind, encode_frame


class Clock:
    """A queue of actions in virtual time."""

    def __init__(self) -> None:
        self.time_us = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heapq.heappush(self._queue, (self.time_us + delay_us, self._count, action))

    def run(self, until_us: int | None = None) -> None:
        """Let everything happen, or all up to a moment."""
        while self._queue and (until_us is None or self._queue[0][0] <= until_us):
            self.time_us, _, action = heapq.heappop(self._queue)
            action()


class Listener:
    """An end that writes down what it hears."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.losses = 0

    def received(self, frame: Frame) -> None:
        """A frame came."""
        assert not self.losses, "a frame after the end"
        self.heads.append(bytes(frame.head))

    def lost(self) -> None:
        """The connection is gone."""
        self.losses += 1


HEADS = [b"%d" % number * (number % 7 + 1) for number in range(40)]


def connected(seed: int) -> tuple[Clock, SimulatedConnection, Listener, Listener]:
    """A connection, its clock and its two ends."""
    clock, client, node = Clock(), Listener(), Listener()
    return clock, SimulatedConnection(clock, Random(seed), client, node), client, node


@pytest.mark.parametrize("seed", range(5))
def test_frames_arrive_whole_and_in_order(seed: int) -> None:
    clock, connection, client, node = connected(seed)
    for head in HEADS:
        connection.client.write(encode_frame(Kind.CREDIT, head))
        connection.node.write(encode_frame(Kind.DONE, head))
    clock.run()
    assert client.heads == node.heads == HEADS
    assert client.losses == node.losses == 0


def test_a_cut_leaves_a_prefix_in_each_direction() -> None:
    lengths = set()
    for seed in range(30):
        clock, connection, client, node = connected(seed)
        for head in HEADS:
            connection.client.write(encode_frame(Kind.CREDIT, head))
            connection.node.write(encode_frame(Kind.DONE, head))
        clock.run(until_us=1_500)
        connection.cut()
        connection.client.write(encode_frame(Kind.CREDIT, b"too late"))
        clock.run()
        for end in (client, node):
            assert end.heads == HEADS[: len(end.heads)]
            assert end.losses == 1
        lengths |= {len(client.heads), len(node.heads)}
    assert len(lengths) > 10


def test_a_dropped_end_hears_nothing_and_the_other_is_told() -> None:
    clock, connection, client, node = connected(3)
    connection.client.write(encode_frame(Kind.CREDIT, b"last words"))
    connection.node.write(encode_frame(Kind.DONE, b"unheard"))
    connection.client.drop()
    clock.run()
    assert (client.heads, client.losses) == ([], 0)
    assert node.heads in ([], [b"last words"])
    assert node.losses == 1


def test_a_stalled_connection_holds_everything_back() -> None:
    clock, connection, client, node = connected(4)
    connection.stall()
    connection.client.write(encode_frame(Kind.CREDIT, b"held"))
    clock.run()
    assert node.heads == []
    connection.resume()
    assert node.heads == [b"held"]
    assert client.heads == []
