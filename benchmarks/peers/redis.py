"""Redis Streams with a consumer group and an append-only file.

    python -m benchmarks.peers.redis publish|subscribe PORT --count N

With `appendfsync always` it answers after one fdatasync for all commands that came together: the honest
peer. With `everysec` it answers before the sync.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from benchmarks.machine import Process
from benchmarks.peers.load import MESSAGE_BYTES, READ_BYTES, Latencies, Publisher, body, dialled, options, say

#: An entry of a stream in an answer: its id, and when it was sent.
_ENTRY = re.compile(
    rb"\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nd\r\n\$%d\r\n(\d{20}).{%d}\r\n"
    % (MESSAGE_BYTES, MESSAGE_BYTES - 20),
    re.DOTALL,
)
_ENTRIES = re.compile(rb"\*1\r\n\*2\r\n\$1\r\ns\r\n\*(\d+)\r\n")
_ADD = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%%s\r\n" % MESSAGE_BYTES
_READ = b"XREADGROUP GROUP g c COUNT 500 BLOCK 60000 STREAMS s >\r\n"


def start(folder: Path, port: int, sync: str) -> Process:
    """A server that syncs its file `always` or `everysec`; it listens."""
    folder.mkdir()
    server = Process(
        [
            *("redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", folder, "--save", ""),
            *("--appendonly", "yes", "--appendfsync", sync, "--logfile", folder / "redis.log"),
        ],
        log=folder.with_suffix(".log"),
    )
    server.wait_for_port(port)
    return server


def publish(port: int, count: int, window: int, rate: float) -> None:
    """Be a publisher of pipelined XADDs."""
    lines = 0

    def confirms(data: bytes) -> int:
        # An answer is two lines; the end of one may come alone.
        nonlocal lines
        before = lines // 2
        lines += data.count(b"\n")
        return lines // 2 - before

    Publisher(dialled(port), lambda _: _ADD % body(), confirms).run(count, window, rate)


def subscribe(port: int, count: int) -> None:
    """Be the only consumer of a group: read, acknowledge and read on, as one request."""
    connection = dialled(port)
    connection.sendall(b"XGROUP CREATE s g $ MKSTREAM\r\n")
    connection.recv(READ_BYTES)
    say(ready=True)
    latencies = Latencies()
    taken = 0
    connection.sendall(_READ)
    while taken < count:
        data = b""
        while True:
            data += connection.recv(READ_BYTES)
            told = _ENTRIES.search(data)
            if told and len(found := _ENTRY.findall(data)) == int(told[1]):
                break
        latencies.add([stamp for _, stamp in found])
        taken += len(found)
        ids = b"".join([b"$%d\r\n%s\r\n" % (len(each), each) for each, _ in found])
        connection.sendall(
            b"*%d\r\n$4\r\nXACK\r\n$1\r\ns\r\n$1\r\ng\r\n%s%s"
            % (3 + len(found), ids, _READ if taken < count else b"")
        )
    ended = time.monotonic()
    connection.recv(READ_BYTES)
    say(ended=ended, taken=taken, cpu_s=time.process_time(), **latencies.figures())


def main() -> None:
    """Be the load client that the arguments ask for."""
    given = options(__doc__).parse_args()
    if given.role == "publish":
        publish(given.port, given.count, given.window, given.rate)
    else:
        subscribe(given.port, given.count)


if __name__ == "__main__":
    main()
