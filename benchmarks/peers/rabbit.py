"""RabbitMQ: stream and quorum queues, and a headers exchange, over AMQP 0-9-1.

    python -m benchmarks.peers.rabbit publish|subscribe PORT --count N --kind stream|quorum|classic

Messages are persistent and confirmed. A stream queue confirms from the page cache; a quorum queue after one
fdatasync for all that came together; a classic durable queue sometimes without any.
"""

from __future__ import annotations

import re
import shutil
import socket
import struct
import time
from pathlib import Path

from benchmarks.machine import Process, free_port
from benchmarks.peers.load import MESSAGE_BYTES, READ_BYTES, Latencies, Publisher, body, dialled, options, say

_BODY = re.compile(
    b"\x03\x00\x01"
    + re.escape(struct.pack(">I", MESSAGE_BYTES))
    + rb"(\d{20}).{%d}\xce" % (MESSAGE_BYTES - 20),
    re.DOTALL,
)
_ACK = struct.Struct(">BHIHHQBB")
_END = b"\xce"
#: Deliveries that may be unacknowledged, and how many are acknowledged together.
PREFETCH = 1_000
ACK_EVERY = 100


def start(folder: Path, port: int) -> Process:
    """A node of its own, with its own files and no plugins; it listens."""
    folder.mkdir()
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nvm_memory_high_watermark.relative = 0.4\n"
        "disk_free_limit.absolute = 1GB\nlog.console = false\nlog.file.level = warning\n"
    )
    (folder / "enabled_plugins").write_text("[].")
    program = shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin") or "rabbitmq-server"
    # Erlang has a daemon that tells nodes of each other, and leaves it running: this one is ours alone.
    names_port = free_port()
    server = Process(
        [program],
        after=("epmd", "-port", names_port, "-kill"),
        pid_of=lambda: int((folder / "pid").read_text()),
        environment={
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        },
        log=folder.with_suffix(".log"),
    )
    server.wait_for_port(port)
    return server


def short(text: str) -> bytes:
    """A text of AMQP, up to 255 bytes."""
    return bytes([len(text)]) + text.encode()


def table(entries: dict[str, str | int]) -> bytes:
    """A table of AMQP with texts and numbers."""
    packed = b""
    for key, value in entries.items():
        packed += short(key)
        if isinstance(value, int):
            packed += b"I" + struct.pack(">i", value)
        else:
            packed += b"S" + struct.pack(">I", len(value)) + value.encode()
    return struct.pack(">I", len(packed)) + packed


def method(channel: int, kind: int, number: int, arguments: bytes = b"") -> bytes:
    """A frame that calls a method."""
    return struct.pack(">BHIHH", 1, channel, len(arguments) + 4, kind, number) + arguments + _END


def message(route: bytes, properties: bytes, text: bytes) -> bytes:
    """The three frames of one published message. `route` is the exchange and the routing key."""
    header = struct.pack(">HHQ", 60, 0, len(text)) + properties
    return b"".join(
        [
            method(1, 60, 40, b"\0\0" + route + b"\0"),
            struct.pack(">BHI", 2, 1, len(header)) + header + _END,
            struct.pack(">BHI", 3, 1, len(text)) + text + _END,
        ]
    )


class Connection:
    """As much of the protocol as is needed, on channel 1."""

    def __init__(self, port: int) -> None:
        self.socket = dialled(port)
        self._pending = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.expect(10, 10)
        start_ok = table({}) + short("PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest" + short("en_US")
        self.socket.sendall(method(0, 10, 11, start_ok))
        self.expect(10, 30)
        self.socket.sendall(method(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 0)))
        self.socket.sendall(method(0, 10, 40, short("/") + b"\0\0"))
        self.expect(10, 41)
        self.ask(20, 10, b"\0")

    def expect(self, kind: int, number: int) -> None:
        """Read frames up to the one that answers. Raises RuntimeError when the server refuses."""
        while True:
            while (
                len(self._pending) < 7
                or len(self._pending) < 8 + struct.unpack_from(">I", self._pending, 3)[0]
            ):
                data = self.socket.recv(READ_BYTES)
                if not data:
                    raise ConnectionError("rabbitmq hung up")
                self._pending += data
            size = 8 + struct.unpack_from(">I", self._pending, 3)[0]
            frame, self._pending = self._pending[:size], self._pending[size:]
            found = struct.unpack_from(">HH", frame, 7)
            if found == (kind, number):
                return
            if found in ((10, 50), (20, 40)):
                raise RuntimeError(f"refused: {frame[11:]!r}")

    def ask(self, kind: int, number: int, arguments: bytes) -> None:
        """Call a method, and wait for its answer, whose number is one higher."""
        self.socket.sendall(method(1, kind, number, arguments))
        self.expect(kind, number + 1)

    def rest(self) -> bytes:
        """What came after the last answer."""
        found, self._pending = self._pending, b""
        return found

    def declare_queue(self, name: str, flags: int, arguments: dict[str, str | int]) -> None:
        """`flags`: 2 for durable, 4 for exclusive, 8 for deleted when unused."""
        self.ask(50, 10, b"\0\0" + short(name) + bytes([flags]) + table(arguments))

    def consume(self, queue: str, *, flags: int = 0, arguments: dict[str, str | int] | None = None) -> None:
        """`flags`: 2 for no acknowledgements."""
        self.ask(60, 20, b"\0\0" + short(queue) + short("") + bytes([flags]) + table(arguments or {}))


class Confirms:
    """Counts the messages that a publisher's confirmations name, in any order."""

    def __init__(self) -> None:
        self._below = 0
        self._single: set[int] = set()
        self._rest = b""

    def __call__(self, data: bytes) -> int:
        """How many messages these bytes confirm for the first time."""
        before = self._below + len(self._single)
        data = self._rest + data
        whole = len(data) - len(data) % _ACK.size
        self._rest = data[whole:]
        for _, _, _, kind, number, tag, several, _ in _ACK.iter_unpack(data[:whole]):
            assert (kind, number) == (60, 80), f"rabbitmq says {kind}.{number}: {data[:200]!r}"
            if several:
                self._below = max(self._below, tag)
                self._single = {each for each in self._single if each > tag}
            elif tag == self._below + 1:
                self._below = tag
                while self._below + 1 in self._single:
                    self._below += 1
                    self._single.remove(self._below)
            elif tag > self._below:
                self._single.add(tag)
        return self._below + len(self._single) - before


def publish(port: int, count: int, window: int, rate: float) -> None:
    """Be a publisher of persistent messages with confirmations."""
    connection = Connection(port)
    connection.ask(85, 10, b"\0")
    route = short("") + short("q")
    persistent = struct.pack(">HB", 1 << 12, 2)
    Publisher(connection.socket, lambda _: message(route, persistent, body()), Confirms()).run(
        count, window, rate
    )


def subscribe(port: int, count: int, kind: str, *, paced: bool) -> None:
    """Be the only consumer of a queue."""
    connection = Connection(port)
    connection.declare_queue("q", 2, {"x-queue-type": kind})
    connection.ask(60, 10, struct.pack(">IHB", 0, PREFETCH, 0))
    connection.consume("q", arguments={"x-stream-offset": "first"} if kind == "stream" else {})
    say(ready=True)
    _take(connection, count, 1 if paced else ACK_EVERY)


def _take(connection: Connection, count: int, every: int) -> None:
    latencies = Latencies()
    taken = acknowledged = 0
    data = connection.rest()
    while taken < count:
        stamps = _BODY.findall(data)
        if stamps:
            latencies.add(stamps)
            taken += len(stamps)
            data = data[data.rfind(_END) + 1 :] if data.endswith(_END) else data[_last_end(data) :]
        if taken - acknowledged >= every or taken == count:
            acknowledged = taken
            connection.socket.sendall(method(1, 60, 80, struct.pack(">QB", taken, 1)))
        if taken < count:
            data += _read(connection.socket)
    say(ended=time.monotonic(), taken=taken, cpu_s=time.process_time(), **latencies.figures())


def _last_end(data: bytes) -> int:
    """Where the last whole message ends."""
    end = 0
    for match in _BODY.finditer(data):
        end = match.end()
    return end


def _read(connection: socket.socket) -> bytes:
    data = connection.recv(READ_BYTES)
    if not data:
        raise ConnectionError("rabbitmq hung up")
    return data


def main() -> None:
    """Be the load client that the arguments ask for."""
    given = options(__doc__).parse_args()
    if given.role == "publish":
        publish(given.port, given.count, min(given.window, 2_000), given.rate)
    else:
        subscribe(given.port, given.count, given.kind or "quorum", paced=bool(given.rate))


if __name__ == "__main__":
    main()
