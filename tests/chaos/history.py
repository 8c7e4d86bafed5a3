"""What really happened? Every client writes down what it did and saw, and this reads it back.

A client writes one line per happening, at once and unbuffered, so that what it has seen survives its own
death by SIGKILL; a client that comes back reads its own lines and goes on from there. All clients and the
conductor are on one machine, so their monotonic clocks agree.

| line | written |
| --- | --- |
| `pub` | before an event is handed to the client library |
| `receipt`, `refused` | when the library says what became of it |
| `wish` | before a subscription is made |
| `start` | when it is confirmed, with the first tick of each pubend |
| `resume` | when a client that came back is confirmed again |
| `got` | when the program has an event, before it is acknowledged |
| `asks`, `change` | when a change is asked for, and when the new condition decides: from which ticks on |
| `gap` | when the client library says that the network no longer keeps something |
| `broke` | when a subscription or publisher fails |
| `clock` | by the conductor, once: what time it is, for whoever reads the logs of the nodes |
| `fault`, `mended` | by the conductor |
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.wishes import decode


class Recorder:
    """Writes lines to one file, each with one system call."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, **values: Any) -> None:
        """Write down that something happens now."""
        line = json.dumps({"kind": kind, "at": time.monotonic(), **values}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def digest(row: Mapping[str, Any]) -> int:
    """What tells two contents apart. Documents are published as texts and delivered as bytes."""
    plain = {name: value.decode() if isinstance(value, bytes) else value for name, value in row.items()}
    return zlib.crc32(json.dumps(sorted(plain.items())).encode())


@dataclass(slots=True)
class Published:
    """One event, as its publisher knows it."""

    id: int
    publisher: str
    #: Its place among the events of the publisher.
    number: int
    at: float
    topic: str
    row: dict[str, Any]
    #: When the receipt or the refusal came, and what it said.
    receipt_at: float | None = None
    pubend: str | None = None
    tick: int | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """One event, as a subscriber got it."""

    at: float
    pubend: str
    tick: int
    id: int
    digest: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Ticks that the network no longer kept when a subscription came back for them."""

    at: float
    pubend: str
    start: int
    stop: int


@dataclass(slots=True)
class Stretch:
    """A part of a subscription's life without a gap: from these starts on, everything."""

    at: float
    starts: dict[str, int]
    taken: list[Taken] = field(default_factory=list)
    #: The gap that it began after.
    after: Gap | None = None


@dataclass(slots=True)
class Subscribed:
    """One subscription, over all connections and lives of its client."""

    name: str
    topic: str
    total: bool
    #: It has a name at the nodes, which remember how far it is.
    is_durable: bool
    #: It takes its time, whatever the network does.
    is_slow: bool
    turns: list[tuple[Any, dict[str, int]]]
    stretches: list[Stretch] = field(default_factory=list)
    #: Per pubend the first tick that has not come.
    positions: dict[str, int] = field(default_factory=dict)
    #: How many changes of the condition were asked for and not confirmed.
    asked: int = 0

    def begin(self, stretch: Stretch) -> None:
        """From these starts on, everything is owed again."""
        self.stretches.append(stretch)
        self.positions.update(stretch.starts)

    def take(self, taken: Taken) -> None:
        """An event came."""
        stretch = self.stretches[-1]
        if len(self.stretches) > 1 and taken.tick < stretch.starts.get(taken.pubend, 0):
            # It was here before the gap was found.
            self.stretches[-2].taken.append(taken)
            return
        stretch.taken.append(taken)
        self.positions[taken.pubend] = taken.tick + 1

    def resume(self, ticks: dict[str, int]) -> None:
        """A client that came back without a memory is owed again what it had not acknowledged."""
        for stretch in self.stretches:
            stretch.taken = [
                each for each in stretch.taken if each.tick < ticks.get(each.pubend, each.tick + 1)
            ]
        self.positions.update(ticks)


@dataclass(slots=True)
class Fault:
    """Something that was done to the network."""

    number: int
    what: str
    target: str
    at: float
    mended_at: float | None = None


@dataclass(slots=True)
class History:
    """Everything that all clients of a run wrote down so far."""

    folder: Path
    published: dict[int, Published] = field(default_factory=dict)
    subscribed: dict[str, Subscribed] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    #: Publishers and subscriptions that failed, and why.
    broken: list[tuple[str, str]] = field(default_factory=list)
    #: Seconds since 1970 when the monotonic clock was zero.
    epoch: float = 0.0
    _read: dict[Path, int] = field(default_factory=dict)

    def refresh(self) -> None:
        """Read what was written since."""
        for file in sorted(self.folder.glob("*.jsonl")):
            self.refresh_file(file)

    def refresh_file(self, file: Path) -> None:
        """Read what was written since to one file, if there is one."""
        if not file.exists():
            return
        with file.open("rb") as lines:
            lines.seek(self._read.get(file, 0))
            data = lines.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._read[file] = self._read.get(file, 0) + len(whole) + len(newline)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        kind, at = line["kind"], line["at"]
        if kind in ("pub", "receipt", "refused"):
            self._take_publishing(kind, at, line)
        elif kind == "clock":
            self.epoch = line["now"] - at
        elif kind == "fault":
            self.faults[line["number"]] = Fault(line["number"], line["what"], line["target"], at)
        elif kind == "mended":
            self.faults[line["number"]].mended_at = at
        elif kind == "wish":
            kind_of = (line["topic"], line["total"], line["durable"], line["slow"])
            self.subscribed[line["of"]] = Subscribed(line["of"], *kind_of, [(decode(line["wants"]), {})])
        elif kind == "broke":
            self.broken.append((line["of"], line["why"]))
        else:
            self._take_subscribing(kind, at, line)

    def _take_publishing(self, kind: str, at: float, line: dict[str, Any]) -> None:
        if kind == "pub":
            # A publisher that came back publishes what has no receipt again: the first time counts.
            event = Published(line["id"], line["by"], line["number"], at, line["topic"], line["row"])
            self.published.setdefault(event.id, event)
            return
        event = self.published[line["id"]]
        event.receipt_at = at
        if kind == "refused":
            event.refused = line["why"]
        else:
            event.pubend, event.tick = line["pubend"], line["tick"]

    def _take_subscribing(self, kind: str, at: float, line: dict[str, Any]) -> None:
        subscribed = self.subscribed[line["of"]]
        if kind == "start":
            subscribed.begin(Stretch(at, line["ticks"]))
        elif kind == "resume":
            subscribed.resume(line["ticks"])
        elif kind == "got":
            subscribed.take(Taken(at, line["pubend"], line["tick"], line["id"], line["digest"]))
        elif kind == "change":
            subscribed.asked -= 1
            subscribed.turns.append((decode(line["wants"]), line["ticks"]))
        elif kind == "asks":
            subscribed.asked += 1
        else:
            assert kind == "gap", f"what is {line}?"
            gap = Gap(at, line["pubend"], line["start"], line["stop"])
            subscribed.begin(Stretch(at, {**subscribed.positions, gap.pubend: gap.stop}, after=gap))
