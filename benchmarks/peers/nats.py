"""NATS JetStream with file storage.

    python -m benchmarks.peers.nats publish|subscribe PORT --count N [--kind explicit|none]

It confirms from the page cache: no fsync comes before the confirmation (version 2.9 syncs every two
minutes, and has no option to sync each time).
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from pathlib import Path

from benchmarks.machine import Process
from benchmarks.peers.load import MESSAGE_BYTES, READ_BYTES, Latencies, Publisher, body, dialled, options, say

#: A delivered message: where to acknowledge it, and when it was sent.
_MESSAGE = re.compile(
    rb"MSG \S+ \d+ (\S+) %d\r\n(\d{20}).{%d}\r\n" % (MESSAGE_BYTES, MESSAGE_BYTES - 20), re.DOTALL
)
#: The acknowledgements that a consumer may owe.
ACKS_PENDING_MAX = 10_000


def start(folder: Path, port: int) -> Process:
    """A server; it listens."""
    folder.mkdir()
    config = folder / "nats.conf"
    store = f'jetstream {{ store_dir: "{folder}", max_file_store: 8GB }}'
    config.write_text(f"listen: 127.0.0.1:{port}\nmax_pending: 256MB\n{store}\n")
    server = Process(["nats-server", "-c", config], log=folder.with_suffix(".log"))
    server.wait_for_port(port)
    return server


class Connection:
    """As much of the protocol as is needed."""

    def __init__(self, port: int) -> None:
        self.socket = dialled(port)
        self._pending = b""
        self._until(b"\r\n")
        self.socket.sendall(b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\nPING\r\n')
        self._until(b"PONG\r\n")

    def _until(self, end: bytes) -> bytes:
        while end not in self._pending:
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("nats-server hung up")
            self._pending += data
        found, self._pending = self._pending, b""
        return found

    def ask(self, subject: str, request: dict[str, object]) -> None:
        """A request to JetStream, answered before this returns. Raises RuntimeError when it is refused."""
        text = json.dumps(request).encode()
        self.socket.sendall(
            b"SUB _INBOX.ask 9\r\nPUB %s _INBOX.ask %d\r\n%s\r\n" % (subject.encode(), len(text), text)
        )
        answer = self._until(b"}\r\n")
        if b'"error"' in answer:
            raise RuntimeError(answer.decode())
        self.socket.sendall(b"UNSUB 9\r\n")


def make_stream(port: int) -> None:
    """The stream that everything is published to."""
    config: dict[str, object] = {"name": "B", "subjects": ["b.x"], "storage": "file", "num_replicas": 1}
    Connection(port).ask("$JS.API.STREAM.CREATE.B", config)


def publish(port: int, count: int, window: int, rate: float) -> None:
    """Be a publisher: each message has an inbox of its own for its confirmation."""
    connection = Connection(port)
    connection.socket.sendall(b"SUB _INBOX.p.* 1\r\n")

    def message(number: int) -> bytes:
        return b"PUB b.x _INBOX.p.%d %d\r\n%s\r\n" % (number, MESSAGE_BYTES, body())

    rest = b""

    def confirms(data: bytes) -> int:
        nonlocal rest
        data = rest + data
        # What follows the last line end may be half of a confirmation.
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        return data.count(b'"seq":', 0, end)

    Publisher(connection.socket, message, confirms).run(count, window, rate)


def subscribe(port: int, count: int, subscriptions: int, kind: str) -> None:
    """Be so many durable push consumers, each on a connection of its own."""
    waiting = selectors.DefaultSelector()
    for number in range(subscriptions):
        connection = Connection(port)
        connection.socket.sendall(b"SUB d.%d 1\r\n" % number)
        config: dict[str, object] = {
            "durable_name": f"d{number}",
            "deliver_subject": f"d.{number}",
            "ack_policy": kind,
            "deliver_policy": "all",
        }
        if kind == "explicit":
            config["max_ack_pending"] = ACKS_PENDING_MAX
        connection.ask(f"$JS.API.CONSUMER.DURABLE.CREATE.B.d{number}", {"stream_name": "B", "config": config})
        waiting.register(connection.socket, selectors.EVENT_READ, bytearray())
    say(ready=True)
    latencies = Latencies()
    wanted, taken = count * subscriptions, 0
    while taken < wanted:
        for key, _ in waiting.select():
            assert isinstance(key.fileobj, socket.socket)
            taken += _take(key.fileobj, key.data, latencies if subscriptions == 1 else None, kind)
    say(ended=time.monotonic(), taken=taken, cpu_s=time.process_time(), **latencies.figures())


def _take(connection: socket.socket, rest: bytearray, latencies: Latencies | None, kind: str) -> int:
    """Read what has come for one consumer, acknowledge it, and say how many messages it was."""
    data = connection.recv(READ_BYTES)
    if not data:
        raise ConnectionError("nats-server hung up")
    rest += data
    if kind == "none" and latencies is None:
        # Nobody looks at these: they end with their filling.
        end = rest.rfind(b"x\r\n") + 3
        found = rest.count(b"x\r\n", 0, end) if end > 2 else 0
        del rest[: end if end > 2 else 0]
        return found
    matches = list(_MESSAGE.finditer(rest))
    if not matches:
        return 0
    if latencies is not None:
        latencies.add([match[2] for match in matches])
    if kind == "explicit":
        connection.sendall(b"".join([b"PUB %s 4\r\n+ACK\r\n" % match[1] for match in matches]))
    end, found = matches[-1].end(), len(matches)
    # A match holds on to the bytes, which cannot be cut while anybody does.
    matches.clear()
    del rest[:end]
    return found


def main() -> None:
    """Be the load client that the arguments ask for."""
    given = options(__doc__).parse_args()
    if given.role == "publish":
        publish(given.port, given.count, given.window, given.rate)
    else:
        make_stream(given.port)
        subscribe(given.port, given.count, given.subscriptions, given.kind or "explicit")


if __name__ == "__main__":
    main()
