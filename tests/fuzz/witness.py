"""How is a well-behaved client served meanwhile? A process that publishes and reads, and looks at its clock.

`python -m tests.fuzz.witness PORT PID`: it publishes an event every 20 milliseconds and subscribes to them.
It says "ready" when the first hundred have come. When its standard input ends it publishes a hundred more,
and says as JSON how long the events took, and which did not come exactly once.

An event also waits while the operating system lets the node, or the witness itself, wait for a processor.
That is the machine's doing, so it is told apart: Linux counts it for every thread. And it waits for the disk,
which others may keep busy: the witness syncs a block of its own now and then, and tells how long that took.
"""

from __future__ import annotations

import json
import os
import select
import struct
import sys
import tempfile
import threading
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tests.hostile.raw import KINDS, Raw, frame, publish_rows

TOPIC, PUBEND = "calm", "calm-1"
COLUMNS = {"n": "int"}
PERIOD_SECONDS = 0.020
#: How many events it has the node for itself, before and after the attack.
ALONE_EVENTS = 100
#: An event that takes longer is reported at once.
TOLD_SECONDS = 0.1
#: How often it looks at the disk. A sync that takes less is a quick one.
SYNC_SECONDS, SLOW_SYNC_SECONDS = 0.05, 0.01
#: How long the last events may take to come.
PATIENCE_SECONDS = 30.0
_SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class Waits:
    """How long a thread has waited for a processor, at many moments."""

    def __init__(self, pid: int | str) -> None:
        self._file = Path(f"/proc/{pid}/schedstat")
        self._times: list[float] = []
        self._waited: list[float] = []

    def look(self, now: float) -> None:
        """Read it again. It stays 0 where no such thing is counted."""
        try:
            waited = int(self._file.read_bytes().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            waited = self._waited[-1] if self._waited else 0.0
        self._times.append(now)
        self._waited.append(waited)

    def between(self, start: float, stop: float) -> float:
        """How long it has waited meanwhile: no less than that, and no more than between two looks around."""
        first = max(0, bisect_right(self._times, start) - 1)
        last = min(len(self._times) - 1, bisect_left(self._times, stop))
        return self._waited[last] - self._waited[first] if self._times else 0.0


class Disk:
    """How long somebody else's sync takes, on the disk that the node uses."""

    def __init__(self) -> None:
        #: When each slow one began and ended.
        self._slow: list[tuple[float, float]] = []
        threading.Thread(target=self._watch, name="disk", daemon=True).start()

    def _watch(self) -> None:
        with tempfile.TemporaryFile(prefix="gapless-fuzz-") as file:
            while True:
                began = time.monotonic()
                os.pwrite(file.fileno(), os.urandom(512), 0)
                os.fdatasync(file.fileno())
                ended = time.monotonic()
                if ended - began > SLOW_SYNC_SECONDS:
                    self._slow.append((began, ended))
                # A pace, and not a wait for anything.
                time.sleep(SYNC_SECONDS)

    def between(self, start: float, stop: float) -> float:
        """For how much of this time a slow sync was under way."""
        return sum(max(0.0, min(ended, stop) - max(began, start)) for began, ended in self._slow)


class Witness:
    """One client that behaves."""

    def __init__(self, port: int, node: int) -> None:
        self._waits = [Waits(node), Waits("self")]
        self._disk = Disk()
        self.raw = Raw.welcomed(port, "witness", token="witness")
        self.raw.send(frame("SUBSCRIBE", [1, TOPIC, "", None, "publisher", "now", "guaranteed", None]))
        self.subscription = self.raw.hear_kind("CONFIRMED").head[1]
        self.raw.socket.setblocking(False)
        self._buffer = bytearray()
        self.sent: list[float] = []
        self.came: list[float | None] = []
        self.order: list[int] = []
        self.wrong: list[str] = []
        self._tick: int | None = None

    def play(self) -> None:
        """Publish and read until standard input ends, then a little longer, and until all has come."""
        due = time.monotonic()
        acknowledged = due
        is_ready = False
        last: int | None = None
        ended: float | None = None
        while True:
            now = time.monotonic()
            for waits in self._waits:
                waits.look(now)
            if ended is None and now >= due:
                self._publish(now)
                # What is late is not made up for: after a pause of this process the pace is as before.
                due = max(due + PERIOD_SECONDS, now - PERIOD_SECONDS)
            if now - acknowledged > 1 and self._tick is not None:
                acknowledged = now
                self._write(frame("ACKNOWLEDGE", [self.subscription, {PUBEND: self._tick}]))
            if ended is not None and (len(self.order) >= len(self.sent) or now - ended > PATIENCE_SECONDS):
                return
            if last is not None and ended is None and len(self.sent) >= last:
                ended = now
            if not is_ready and len(self.order) >= ALONE_EVENTS:
                is_ready = True
                sys.stdout.write("ready\n")
                sys.stdout.flush()
            inputs: list[Any] = [self.raw.socket] + ([sys.stdin] if last is None else [])
            ready, _, _ = select.select(inputs, [], [], max(0.0, due - now) if ended is None else 0.1)
            if sys.stdin in ready and not sys.stdin.readline():
                last = len(self.sent) + ALONE_EVENTS
            if self.raw.socket in ready and not self._read():
                self.wrong.append("the node hung up")
                return

    def _publish(self, now: float) -> None:
        self.sent.append(now)
        self.came.append(None)
        number = len(self.sent) - 1
        self._write(publish_rows(TOPIC, COLUMNS, [[number]], first=number, publisher="witness"))

    def _write(self, data: bytes) -> None:
        self.raw.socket.setblocking(True)
        self.raw.socket.sendall(data)
        self.raw.socket.setblocking(False)

    def _read(self) -> bool:
        try:
            data = self.raw.socket.recv(2**18)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        now = time.monotonic()
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 16:
            _, _, kind, length, head, count, _ = struct.unpack_from("<2sBBIIHH", buffer, at)
            if len(buffer) - at < 16 + length:
                break
            self._take(kind, bytes(buffer[at + 16 : at + 16 + length]), head, count, now)
            at += 16 + length
        del buffer[:at]
        return bool(data)

    def _take(self, kind: int, body: bytes, head_bytes: int, count: int, now: float) -> None:
        start = (count + count % 2) * 4
        if kind == KINDS["ROWS"]:
            _, rows = struct.unpack_from("<II", body, start)
            at = start + 8 + 8 * struct.unpack_from("<I", body, start)[0]
            for _ in range(rows):
                tick, _, size = struct.unpack_from("<qII", body, at)
                self._arrived(msgspec.msgpack.decode(body[at + 16 : at + 16 + size])[0], tick, now)
                at += 16 + size + -size % 8
        elif kind == KINDS["COLUMNS"]:
            sizes = struct.unpack_from(f"<{count}I", body)
            at = start + head_bytes + -head_bytes % 8
            ticks = struct.unpack_from(f"<{sizes[0] // 8}q", body, at)
            at += sizes[0]
            rows = pa.ipc.read_record_batch(pa.py_buffer(body[at : at + sizes[1]]), _SCHEMA)
            for number, tick in zip(rows.column(0).to_pylist(), ticks, strict=True):
                self._arrived(number, tick, now)
        elif kind in (KINDS["PUBLISH_REFUSED"], KINDS["REQUEST_REFUSED"], KINDS["REFUSE"]):
            self.wrong.append(f"refused: {msgspec.msgpack.decode(body[start : start + head_bytes])}")

    def _arrived(self, number: int, tick: int, now: float) -> None:
        if self.order and number <= self.order[-1]:
            self.wrong.append(f"event {number} came after {self.order[-1]}")
        if not 0 <= number < len(self.came) or self.came[number] is not None:
            self.wrong.append(f"event {number} came twice, or was never sent")
            return
        self.came[number] = now
        self.order.append(number)
        self._tick = tick
        if now - self.sent[number] > TOLD_SECONDS:
            self._tell_slow(number, now)

    def _tell_slow(self, number: int, now: float) -> None:
        """Say at once that an event was slow: a long attack may be ended before its account is made."""
        for waits in self._waits:
            waits.look(now)
        sent = self.sent[number]
        machine = max(waits.between(sent, now) for waits in self._waits)
        text = (
            f"event {number:,} took {1_000 * (now - sent):.0f} ms, {1_000 * machine:.0f} of the machine; "
            f"the disk was slow for {1_000 * self._disk.between(sent, now):.0f}"
        )
        sys.stderr.write(f"          witness: {text}\n")

    def account(self) -> dict[str, Any]:
        """What was seen."""
        missing = [number for number, came in enumerate(self.came) if came is None]
        if missing:
            self.wrong.append(f"{len(missing)} events did not come, the first is {missing[0]}")
        for waits in self._waits:
            waits.look(time.monotonic())
        took = [
            [
                sent,
                came - sent,
                max(waits.between(sent, came) for waits in self._waits),
                self._disk.between(sent, came) if came - sent > TOLD_SECONDS else 0.0,
            ]
            for sent, came in zip(self.sent, self.came, strict=True)
            if came is not None
        ]
        return {"events": len(self.sent), "took": took, "wrong": self.wrong[:20]}


def main() -> None:
    """Witness until standard input ends."""
    witness = Witness(int(sys.argv[1]), int(sys.argv[2]))
    witness.play()
    json.dump(witness.account(), sys.stdout)


if __name__ == "__main__":
    main()
