"""What do the load clients of all peers share? A window of unconfirmed messages, a pace, and a clock.

A message is 250 bytes that begin with the time at which it was sent, as text of 20 digits.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from collections.abc import Callable

from benchmarks.report import percentile

MESSAGE_BYTES = 250
STAMP_BYTES = 20
REST = b"x" * (MESSAGE_BYTES - STAMP_BYTES)
READ_BYTES = 256 * 2**10
#: Messages are put together for one write, up to so many.
WRITE_MESSAGES = 64
#: The first part of a latency run warms everything up.
WARM_SHARE = 0.1


def say(**found: object) -> None:
    """One line for whoever started this process."""
    print(json.dumps(found), flush=True)


def told() -> None:
    """Wait until whoever started this process says so."""
    sys.stdin.readline()


def body() -> bytes:
    """A message with the time of now."""
    return b"%020d%s" % (time.monotonic_ns(), REST)


def dialled(port: int) -> socket.socket:
    """A connection to a server on this machine."""
    found = socket.create_connection(("127.0.0.1", port), 60)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def options(description: str | None) -> argparse.ArgumentParser:
    """The arguments that the load client of every peer has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("role", choices=("publish", "subscribe"))
    parser.add_argument("port", type=int)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--window", type=int, default=4_000)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--subscriptions", type=int, default=1)
    parser.add_argument("--kind", default="")
    return parser


class Publisher:
    """Sends messages with at most a window of them unconfirmed, and tells the rate."""

    def __init__(
        self, connection: socket.socket, message: Callable[[int], bytes], confirms: Callable[[bytes], int]
    ) -> None:
        """`message` gives the bytes of one; `confirms` how many confirmations some bytes hold."""
        self._connection = connection
        self._message = message
        self._confirms = confirms
        self._confirmed = 0

    def run(self, count: int, window: int, rate: float) -> None:
        """Publish so many, as fast as the window allows or at a pace."""
        say(ready=True)
        told()
        began = time.monotonic()
        if rate:
            self._paced(count, rate, began)
        else:
            self._flat_out(count, window)
        while self._confirmed < count:
            self._read()
        say(began=began, ended=time.monotonic(), count=count, cpu_s=time.process_time())

    def _flat_out(self, count: int, window: int) -> None:
        sent = 0
        while sent < count:
            room = min(window - (sent - self._confirmed), count - sent, WRITE_MESSAGES)
            if room <= 0:
                self._read()
                continue
            self._send(b"".join([self._message(number) for number in range(sent, sent + room)]))
            sent += room

    def _paced(self, count: int, rate: float, began: float) -> None:
        for number in range(count):
            while (left := began + number / rate - time.monotonic()) > 0:
                time.sleep(left)
            self._send(self._message(number))

    def _send(self, data: bytes) -> None:
        """Write it all; when the server does not read, hear what it says meanwhile."""
        view = memoryview(data)
        self._connection.setblocking(False)
        while view:
            readable, _, _ = select.select([self._connection], [], [], 0)
            if readable:
                self._read()
            try:
                view = view[self._connection.send(view) :]
            except BlockingIOError:
                select.select([self._connection], [self._connection], [])

    def _read(self) -> None:
        self._connection.setblocking(True)
        data = self._connection.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the server hung up")
        self._confirmed += self._confirms(data)
        self._connection.setblocking(False)


class Latencies:
    """The latency of every message, in milliseconds."""

    def __init__(self) -> None:
        self._found: list[float] = []

    def add(self, stamps: list[bytes]) -> None:
        """These messages have just come."""
        now = time.monotonic_ns()
        self._found += [(now - int(stamp)) / 1e6 for stamp in stamps]

    def figures(self) -> dict[str, float]:
        """Percentiles, the beginning left out."""
        kept = sorted(self._found[int(len(self._found) * WARM_SHARE) :])
        shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
        return {name: percentile(kept, share) for name, share in shares.items()}
