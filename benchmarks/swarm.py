"""How are thousands of subscribers played? One process, one epoll, one connection for each of them.

    python -m benchmarks.swarm HOST:PORT --connections N [--where "key = {key}"] [--keys K] [--first I]
                               [--mode guaranteed|best-effort] [--named PREFIX]

A client of the library for each connection would cost more than the node that is to be measured. This one
says what the library says (hello, subscribe, acknowledge when the node asks for it or after a while, credit),
and looks at a delivery only as far as it must: how many rows, when the first of them was sent, and, when an
acknowledgement is due, the last tick.

It says how long connecting and subscribing took. Then every line on standard input is answered: `begin`
starts to count, `end` tells the rows and the latency since then, anything else ends the process.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import socket
import struct
import sys
import time
from collections import defaultdict

from benchmarks.machine import raise_limits
from benchmarks.report import percentile
from gapless.client.options import DEFAULTS
from gapless.model.ids import PubendId, TopicId
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ColumnsDelivery,
    Confirmed,
    Credit,
    Mode,
    RequestRefused,
    Subscribe,
)
from gapless.protocol.sessions.subscriber import ACK_SHARE_MIN, FIRST_ACK_SHARE_MIN
from gapless.wire.client_codec import NodeDecoder, encode_client
from gapless.wire.frames import FROM_DIALED_NODE, HEADER_BYTES, FrameReader, Kind
from gapless.wire.handshake import LINK_KINDS, Hello, Ping, Pong, Refuse, Role, decode_link, encode_link

READ_BYTES = 256 * 2**10
#: So many connections are looked at between two looks for acknowledgements that are due.
EVENTS_MAX = 4_096
#: So many may be between their hello and the welcome, or between asking and the confirmation, at a time.
GREETING_MAX = 64
ASKING_MAX = 512
_HEADER = struct.Struct("<HBBI")
_COUNTS = struct.Struct("<II")
_ENTRY = struct.Struct("<qII")
#: A row begins with its length as a list of four, and the time at which it was sent.
_ROW = struct.Struct("<2s8s")
_ROW_BEGINS = b"\x94\xcf"
_ROWS = int(Kind.ROWS)
#: A delivery of one row: kind, length and pairs; its pair is left out; its tick and its beginning.
_LONE = struct.Struct("<3xBI8xI4x8xq8x2s8s")
#: Acknowledgements are due at moments of so many seconds.
DUE_S = 0.05
#: After a turn the swarm sleeps so long. A process that is woken for every message costs those who send them
#: as much as it costs itself, and thousands of subscribers elsewhere would not. Latencies are longer by that.
PAUSE_S = 0.001


class Member:
    """One subscriber."""

    __slots__ = (
        "ack_share_min",
        "due",
        "last",
        "number",
        "partial",
        "pubend",
        "receive",
        "regrant",
        "socket",
    )

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.receive = connection.recv_into
        self.number = 0
        self.pubend = PubendId("")
        #: The beginning of a frame whose end has not come.
        self.partial = b""
        #: The newest delivery, while it is not acknowledged; or the tick itself.
        self.last: bytes | int | None = None
        self.due = False
        self.ack_share_min = FIRST_ACK_SHARE_MIN
        self.regrant = 0


class Swarm:
    """All subscribers."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        host, _, port = given.address.rpartition(":")
        self._address = (host, int(port))
        self._poll = select.epoll()
        self._members: dict[int, Member] = {}
        self._decoder = NodeDecoder()
        #: Who has to acknowledge, by the moment when it is due; and the next moment to look at.
        self._dues: defaultdict[int, list[Member]] = defaultdict(list)
        self._looked = int(time.monotonic() / DUE_S)
        self._ack_s = DEFAULTS.ack_named_s if given.named else DEFAULTS.ack_s
        self._is_guaranteed = given.mode == "guaranteed"
        self._credit_rows = DEFAULTS.credit_rows // 2
        self._room = memoryview(bytearray(READ_BYTES))
        self._greeting = self._confirmed = 0
        self.rows = self.frames = self.reads = self.acks = 0
        self.latencies_ns: list[int] = []
        self.counting = False
        self.seconds: dict[str, float] = {}

    # Coming.

    def connect(self) -> None:
        """Open all connections and wait until each was welcomed."""
        began = time.monotonic()
        wanted = self._given.connections
        while len(self._members) < wanted or self._greeting:
            if len(self._members) < wanted and self._greeting < GREETING_MAX:
                self._dial(len(self._members))
            else:
                self.turn(1.0)
        self.seconds["connecting_s"] = time.monotonic() - began

    def _dial(self, index: int) -> None:
        connection = socket.create_connection(self._address, 60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = Hello(role=Role.CLIENT, name=f"swarm-{self._given.first + index}")
        connection.sendall(b"".join(encode_link(hello)))
        connection.setblocking(False)
        member = Member(connection)
        self._members[connection.fileno()] = member
        self._greeting += 1
        self._poll.register(connection, select.EPOLLIN)

    def subscribe(self) -> None:
        """Subscribe with all of them, and wait for the confirmations."""
        began = time.monotonic()
        given = self._given
        members = list(self._members.values())
        asked = 0
        while self._confirmed < len(members):
            while asked < len(members) and asked - self._confirmed < ASKING_MAX:
                index = given.first + asked
                mode: Mode = given.mode
                request = Subscribe(
                    request=1,
                    topic=TopicId(given.topic),
                    where=given.where.format(key=index % given.keys, index=index),
                    name=f"{given.named}-{index}" if given.named else None,
                    mode=mode,
                    credit_rows=DEFAULTS.credit_rows,
                )
                members[asked].socket.sendall(b"".join(encode_client(request)))
                asked += 1
            self.turn(1.0)
        self.seconds["subscribing_s"] = time.monotonic() - began

    # Living.

    def turn(self, patience_s: float, also: int | None = None) -> bool:
        """Handle what has come; says whether `also` can be read."""
        ready = False
        members, room = self._members, self._room
        for fd, _ in self._poll.poll(min(patience_s, DUE_S) if self._dues else patience_s, EVENTS_MAX):
            if fd == also:
                ready = True
                continue
            member = members[fd]
            try:
                size = member.receive(room)
            except BlockingIOError:
                continue
            if not size:
                raise ConnectionError(f"the node hung up on {member.number}")
            self.reads += 1
            if size < _LONE.size or member.partial or not self._take_lone(member, size):
                self._take(member, room[:size].tobytes())
        self._acknowledge_due()
        return ready

    def _take_lone(self, member: Member, size: int) -> bool:
        """Take what was read if it is one delivery of one row, as nearly always; says whether it is."""
        kind, length, pairs, tick, begins, sent_ns = _LONE.unpack_from(self._room)
        if kind != _ROWS or pairs != 1 or HEADER_BYTES + length != size:
            return False
        self.frames += 1
        self.rows += 1
        if self.counting and begins == _ROW_BEGINS:
            self.latencies_ns.append(time.monotonic_ns() - int.from_bytes(sent_ns, "big"))
        member.last = tick
        self._owe(member, 1)
        return True

    def watch(self, fd: int) -> None:
        """Have `turn` look at a file descriptor that is no subscriber's."""
        self._poll.register(fd, select.EPOLLIN)

    def _take(self, member: Member, data: bytes) -> None:
        if member.partial:
            data = member.partial + data
            member.partial = b""
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            _, _, kind, length = _HEADER.unpack_from(data, at)
            end = at + HEADER_BYTES + length
            if end > size:
                break
            if kind == Kind.ROWS:
                self._take_rows(member, data, at, end)
            else:
                self._take_other(member, data[at:end])
            at = end
        if at < size:
            member.partial = data[at:]

    def _take_rows(self, member: Member, data: bytes, at: int, end: int) -> None:
        pairs, _ = _COUNTS.unpack_from(data, at + HEADER_BYTES)
        self.frames += 1
        self.rows += pairs
        if self.counting:
            first = at + HEADER_BYTES + 8 + 8 * pairs + _ENTRY.size
            begins, sent_ns = _ROW.unpack_from(data, first)
            if begins == _ROW_BEGINS:
                self.latencies_ns.append(time.monotonic_ns() - int.from_bytes(sent_ns, "big"))
        member.last = data if not at and end == len(data) else data[at:end]
        self._owe(member, pairs)

    def _owe(self, member: Member, rows: int) -> None:
        if not member.due and self._is_guaranteed:
            member.due = True
            wait_s = self._ack_s * random.uniform(member.ack_share_min, 1.0)
            member.ack_share_min = ACK_SHARE_MIN
            self._dues[int((time.monotonic() + wait_s) / DUE_S)].append(member)
        member.regrant += rows
        if member.regrant >= self._credit_rows:
            frames = encode_client(Credit(subscription=member.number, rows=member.regrant))
            member.socket.sendall(b"".join(frames))
            member.regrant = 0
            self._acknowledge(member)

    def _take_other(self, member: Member, data: bytes) -> None:
        """What is rare: read it with the library."""
        [frame] = FrameReader(FROM_DIALED_NODE).feed(data)
        if frame.kind in LINK_KINDS:
            said = decode_link(frame)
            if isinstance(said, Refuse):
                raise ConnectionError(f"{said.code} {said.message}")
            if isinstance(said, Ping):
                member.socket.sendall(b"".join(encode_link(Pong(number=said.number))))
            else:
                self._greeting -= 1
            return
        match self._decoder.decode(frame):
            case Confirmed(subscription=number, pubend=pubend):
                member.number, member.pubend = number, pubend
                self._confirmed += 1
            case RequestRefused(code=code, message=message):
                raise ConnectionError(f"{code} {message}")
            case ColumnsDelivery(batch=batch, to=to):
                rows = to[member.number]
                count = len(batch) if rows is None else len(rows)
                self.frames += 1
                self.rows += count
                member.last = int(batch.ticks[-1 if rows is None else rows[-1]])
                self._owe(member, count)
            case other:
                raise ConnectionError(f"the node says {other}")

    def _acknowledge_due(self) -> None:
        now = int(time.monotonic() / DUE_S)
        for moment in range(self._looked, now):
            for member in self._dues.pop(moment, ()):
                member.due = False
                self._acknowledge(member)
        self._looked = now

    def _acknowledge(self, member: Member) -> None:
        if member.last is None:
            return
        tick = member.last if isinstance(member.last, int) else _last_tick(member.last)
        member.last = None
        said = Acknowledge(subscription=member.number, positions={member.pubend: tick + 1})
        member.socket.sendall(b"".join(encode_client(said)))
        self.acks += 1

    # Telling.

    def begin(self) -> None:
        """Count from now on."""
        self.rows = self.frames = self.reads = self.acks = 0
        self.latencies_ns = []
        self.counting = True
        self._cpu_s = time.process_time()

    def figures(self) -> dict[str, float]:
        """What was counted."""
        self.counting = False
        ordered = sorted(self.latencies_ns)
        shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
        return {
            "rows": self.rows,
            "frames": self.frames,
            "reads": self.reads,
            "acks": self.acks,
            "cpu_s": time.process_time() - self._cpu_s,
            **{name: percentile(ordered, share) / 1e6 for name, share in shares.items()},
        }


def _last_tick(frame: bytes) -> int:
    """The tick of the last row of a delivery of rows."""
    pairs, rows = _COUNTS.unpack_from(frame, HEADER_BYTES)
    at = HEADER_BYTES + _COUNTS.size + 8 * pairs
    tick = 0
    for _ in range(rows):
        tick, _, size = _ENTRY.unpack_from(frame, at)
        at += _ENTRY.size + size + -size % 8
    return tick


def main() -> None:
    """Be so many subscribers until told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--where", default="key = {key}")
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mode", choices=("guaranteed", "best-effort"), default="guaranteed")
    parser.add_argument("--named", default="")
    given = parser.parse_args()
    raise_limits()
    swarm = Swarm(given)
    swarm.connect()
    swarm.subscribe()
    print(json.dumps({"ready": True, **swarm.seconds}), flush=True)
    stdin = sys.stdin.fileno()
    swarm.watch(stdin)
    while True:
        if not swarm.turn(1.0, stdin):
            time.sleep(PAUSE_S)
            continue
        match sys.stdin.readline().strip():
            case "begin":
                swarm.begin()
                print(json.dumps({"began": time.monotonic()}), flush=True)
            case "rows":
                print(json.dumps({"rows": swarm.rows, "now": time.monotonic()}), flush=True)
            case "end":
                print(json.dumps(swarm.figures()), flush=True)
            case _:
                return


if __name__ == "__main__":
    main()
