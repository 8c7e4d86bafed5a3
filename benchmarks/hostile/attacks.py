"""What can one principal do to a node that serves others? Attacks, each for some seconds, in a process apart.

    python -m benchmarks.hostile.attacks NAME PORT TOKEN --seconds 10

The bytes come from `tests/hostile/raw.py`, which shares no code with the client library. The node may refuse
an attacker, stop reading from it, cut it off or die: an attack goes on with a new connection as long as one
is to be had, and tells in the end what it has sent and what came of it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from benchmarks.hostile.conditions import SHAPES
from tests.hostile.raw import Raw, frame, hello, publish, publish_rows

#: The columns of the topics that are attacked, as the network description has them.
EVIL = {"number": "int", "note": "string?", "doc": "xml?"}
FLAGS = {"up": "bool"}
#: A node that has answered nothing for so long is taken for one that will not.
PATIENCE_S = 2.0
SILENT_MAX = 3_000
SUBSCRIPTIONS_MAX = 100_000
#: Answers are looked for after every so many frames, except by those who never read.
WINDOW = 64

#: An attacker has a machine of its own: here it takes what the node and the good client leave of this one.
NICE = 10

Failed = (OSError, AssertionError)


@dataclass(slots=True)
class Attacker:
    """Who attacks, until when, and what came of it."""

    port: int
    token: str
    end: float
    counts: Counter[str] = field(default_factory=Counter)
    names: Iterator[int] = field(default_factory=itertools.count)

    @property
    def goes_on(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self.end

    def dial(self) -> Raw | None:
        """A connection that was welcomed, or None after a short pause."""
        try:
            raw = Raw(self.port)
            raw.socket.settimeout(PATIENCE_S)
            raw.send(hello(f"mallory-{next(self.names)}", token=self.token))
            heard = raw.hear()
        except Failed:
            heard = None
        if heard is not None and heard.kind == "WELCOME":
            self.counts["connections"] += 1
            return raw
        self.counts["turned away" if heard is None else f"refused {heard.head.get('code', '')}"] += 1
        time.sleep(0.1)
        return None

    def send(self, raw: Raw, *frames: bytes) -> bool:
        """Send; False when the node does not take it, or has hung up."""
        try:
            raw.send(*frames)
        except TimeoutError:
            self.counts["not read by the node"] += 1
            return False
        except OSError:
            self.counts["cut off"] += 1
            return False
        self.counts["frames"] += len(frames)
        return True

    def hear(self, raw: Raw, wait_s: float = 0.0) -> bool:
        """Take what has been answered; False when the node has hung up."""
        while select.select([raw.socket], [], [], wait_s)[0]:
            try:
                heard = raw.hear()
            except TimeoutError:
                return True
            except OSError:
                heard = None
            if heard is None:
                self.counts["cut off"] += 1
                return False
            code = heard.head[3] if heard.kind == "PUBLISH_REFUSED" else ""
            code = heard.head[1] if heard.kind == "REQUEST_REFUSED" else code
            self.counts[f"{heard.kind.lower()} {code}".strip()] += 1
            wait_s = 0.0
        return True

    def rounds(self) -> Iterator[Raw]:
        """A connection, again and again while there is time; each is closed when its round is over."""
        while self.goes_on:
            raw = self.dial()
            if raw is not None:
                with contextlib.closing(raw):
                    yield raw

    def flood(self, frames: Iterator[Sequence[bytes]], *, read: bool = True) -> None:
        """Send frames on one connection after the other; take the answers, or never."""
        for raw in self.rounds():
            for number, each in enumerate(frames):
                if not (self.goes_on and self.send(raw, *each)):
                    break
                if read and not self.hear(raw, PATIENCE_S if number % WINDOW == WINDOW - 1 else 0.0):
                    break


def _subscribe(request: int, topic: str, where: str = "", name: str | None = None) -> bytes:
    return frame("SUBSCRIBE", [request, topic, where, name, "publisher", "now", "guaranteed", None])


def _evil_rows(**columns: Sequence[object]) -> pa.RecordBatch:
    kinds = {"number": pa.int64(), "note": pa.string(), "doc": pa.binary()}
    count = max(len(values) for values in columns.values())
    schema = pa.schema([pa.field(name, kind, nullable=name != "number") for name, kind in kinds.items()])
    arrays = [pa.array(columns.get(name) or [None] * count, kind) for name, kind in kinds.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ---- conditions --------------------------------------------------------------------------------------


def conditions(shape: Callable[[int], str]) -> Callable[[Attacker], None]:
    """Subscribe to what the good client publishes, with a large condition after the other."""

    def attack(attacker: Attacker) -> None:
        for raw in attacker.rounds():
            for request in range(1, 100_000):
                where = shape(next(attacker.names))
                if not (attacker.goes_on and attacker.send(raw, _subscribe(request, "bench", where))):
                    break
                if not attacker.hear(raw, PATIENCE_S):
                    break

    return attack


# ---- documents ---------------------------------------------------------------------------------------


def _attributes(count: int) -> bytes:
    return b"<a " + b" ".join(b'a%d="%d"' % (number, number) for number in range(count)) + b"/>"


#: The quotas of documents: what is above them is refused at the door.
DOCUMENT_BYTES_MAX, DOCUMENT_PARTS_MAX = 2**20, 5_000


def _deep(head: bytes, text: bytes) -> bytes:
    """As much text as may be, below as many elements as may be."""
    bottom = DOCUMENT_BYTES_MAX - 256 * (len(head) + 4)
    return head * 256 + (text * (bottom // len(text))) + b"</a>" * 256


#: Larger than a node takes, in some way.
LARGE_DOCUMENTS: dict[str, bytes] = {
    "attributes": _attributes(80_000),
    "depth": b"<a>" * 250_000 + b"</a>" * 250_000,
    "siblings": b"<a>" + b"<b/>" * 99_000 + b"</a>",
    "namespaces": b"<a>" + b"".join(b'<b xmlns:n%d="u%d"/>' % (n, n) for n in range(60_000)) + b"</a>",
    "text": b"<a>" + b"x" * 4_000_000 + b"</a>",
    "entities": b"<a>" + b"&lt;&amp;" * 400_000 + b"</a>",
    "doctype": b'<!DOCTYPE a [<!ENTITY b "' + b"x" * 100_000 + b'">]><a>' + b"&b;" * 10_000 + b"</a>",
    "levels": b"<a>" * 200 + b"<b>1</b>" * 90_000 + b"</a>" * 200,
}
#: As nasty as the quotas allow: these are taken and matched.
LEGAL_DOCUMENTS: dict[str, bytes] = {
    "deep spaces": _deep(b"<a>", b" "),
    "deep digits": _deep(b"<a>1", b"1"),
    "deep text": _deep(b"<a>y", b"yx"),
    "chains": b"<r>"
    + (b"<a>1" * 200 + b"1" * 300 + b"</a>" * 200) * (DOCUMENT_PARTS_MAX // 200 - 1)
    + b"</r>",
    "sibling texts": b"<a>" * 200
    + b"".join(b"<b>%d</b>" % at for at in range(DOCUMENT_PARTS_MAX - 200))
    + b"</a>" * 200,
    "distinct siblings": b"<a>" + b"".join(b"<n%d/>" % at for at in range(DOCUMENT_PARTS_MAX - 1)) + b"</a>",
    "crowds of attributes": b"<r>" + _attributes(1_000) * (DOCUMENT_PARTS_MAX // 1_002) + b"</r>",
    "one namespace": b'<a xmlns="' + b"u" * 65_000 + b'">' + b"<b/>" * (DOCUMENT_PARTS_MAX - 3) + b"</a>",
    "many namespaces": b"".join(
        b"<a " + b" ".join(b'xmlns:n%d_%d="u%d"' % (depth, at, at) for at in range(36)) + b">"
        for depth in range(255)
    )
    + b"<n0_0:b/>" * (DOCUMENT_PARTS_MAX - 37 * 255)
    + b"</a>" * 255,
    "comments": b"<a>" * 255 + b"x<!--y-->" * (DOCUMENT_PARTS_MAX - 255) + b"</a>" * 255,
    "short entities": b"<a>" + b"&lt;" * (DOCUMENT_BYTES_MAX // 4 - 2) + b"</a>",
    "signs in a section": b"<a><![CDATA[" + (b"<b " + b"=" * 1_100) * 9 + b"]]>" + b"y" * 900_000 + b"</a>",
}
DOCUMENTS: dict[str, bytes] = LARGE_DOCUMENTS | LEGAL_DOCUMENTS


def documents(attacker: Attacker) -> None:
    """Publish nasty documents, for a pattern of its own that looks everywhere in them."""
    patterns = ["//a//b[.//c]", "//*[@a79999]", "//a[not(.//z)]//b[. > 5]", "//b[contains(., 'y')]"]
    patterns += ["//*[. < 5]", "//*[contains(., 'yz')]", "//*[text() = 'q']", "//*[@*[contains(., 'yz')]]"]
    numbers = itertools.count()
    for raw in attacker.rounds():
        frames = [_subscribe(at, "evil", pattern) for at, pattern in enumerate(patterns, 1)]
        if not (attacker.send(raw, *frames) and attacker.hear(raw, PATIENCE_S)):
            continue
        while True:
            document = list(DOCUMENTS.values())[next(numbers) % len(DOCUMENTS)]
            rows = _evil_rows(number=[1], doc=[document])
            # A publisher that was refused would have to send the same again first.
            sent = publish("evil", EVIL, rows, publisher=f"mallory-{next(attacker.names)}")
            if not (attacker.goes_on and attacker.send(raw, sent) and attacker.hear(raw, PATIENCE_S)):
                break


# ---- connections -------------------------------------------------------------------------------------


def silent(attacker: Attacker) -> None:
    """Thousands of connections that never say who they are; each that is cut off comes again."""
    held: list[socket.socket] = []
    while attacker.goes_on:
        while len(held) < SILENT_MAX and attacker.goes_on:
            try:
                held.append(socket.create_connection(("127.0.0.1", attacker.port), timeout=PATIENCE_S))
                attacker.counts["connections"] += 1
            except OSError:
                attacker.counts["turned away"] += 1
                time.sleep(0.05)
                break
        poller = select.poll()
        by_file = {each.fileno(): each for each in held}
        for each in by_file:
            poller.register(each, select.POLLIN)
        for ended, _ in poller.poll(50):
            by_file.pop(ended).close()
            attacker.counts["cut off"] += 1
        held = list(by_file.values())
    attacker.counts["held in the end"] = len(held)


def greeted(attacker: Attacker) -> None:
    """Thousands of connections that say who they are, and nothing more."""
    held: list[Raw] = []
    while attacker.goes_on:
        if len(held) < SILENT_MAX and (raw := attacker.dial()) is not None:
            held.append(raw)
        elif len(held) >= SILENT_MAX:
            time.sleep(0.1)
    attacker.counts["held in the end"] = len(held)


# ---- memory ------------------------------------------------------------------------------------------


def unread(attacker: Attacker) -> None:
    """Ask for everything, and read nothing of it."""
    requests = itertools.count(1)
    frames = (
        [frame("LIST_TOPICS", [next(requests)]) for _ in range(100)]
        + [frame("ASK_STATUS", [next(requests)]) for _ in range(100)]
        for _ in itertools.repeat(None)
    )
    attacker.flood(frames, read=False)


def invented_topics(attacker: Attacker) -> None:
    """Subscribe and publish to topics that nobody has heard of, each name once and as long as it may be."""
    names = (f"{number:0250x}" for number in itertools.count())
    requests = itertools.count(1)
    frames = (
        [_subscribe(next(requests), next(names)) for _ in range(50)]
        + [publish_rows(next(names), EVIL, [[1, "x", None]]) for _ in range(50)]
        for _ in itertools.repeat(None)
    )
    attacker.flood(frames)


def invented_publishers(attacker: Attacker) -> None:
    """Every event from a publisher of its own, so that each has to be remembered."""
    names = (f"publisher-{number:0200x}" for number in itertools.count())
    row = _evil_rows(number=[1], note=["x"])
    frames = (
        [publish("evil", EVIL, row, publisher=next(names)) for _ in range(50)] for _ in itertools.repeat(None)
    )
    attacker.flood(frames)


def subscriptions(attacker: Attacker) -> None:
    """As many subscriptions as may be, up to 100,000, to what the good client publishes; then leave."""
    # Some time is left, so that leaving falls into what is measured.
    end = time.monotonic() + (attacker.end - time.monotonic()) * 0.7
    raw = attacker.dial()
    made = 0
    while raw is not None and made < SUBSCRIPTIONS_MAX and time.monotonic() < end:
        wanted = range(made + 1, made + 101)
        frames = [_subscribe(at, "bench", f"key = {-at - 2} OR name = 'n{at}'") for at in wanted]
        if not attacker.send(raw, *frames) or not attacker.hear(raw, PATIENCE_S):
            raw = attacker.dial()
            made = 0
            continue
        made += len(frames)
    attacker.counts["held in the end"] = made
    if raw is not None:
        raw.close()


# ---- floods ------------------------------------------------------------------------------------------


def tiny_rows(attacker: Attacker) -> None:
    """Batches of a million rows of one bit each, for a subscription of its own."""
    rows = pa.RecordBatch.from_arrays(
        [pa.array([True] * 2**20)], schema=pa.schema([pa.field("up", pa.bool_(), nullable=False)])
    )
    message = rows.serialize().to_pybytes()
    for raw in attacker.rounds():
        if not (attacker.send(raw, _subscribe(1, "flags")) and attacker.hear(raw, PATIENCE_S)):
            continue
        while attacker.goes_on:
            # A publisher that was refused would have to send the same again first.
            sent = publish("flags", FLAGS, message, publisher=f"mallory-{next(attacker.names)}")
            if not (attacker.send(raw, sent) and attacker.hear(raw, 0.05)):
                break


def large_frames(attacker: Attacker) -> None:
    """Events of several megabytes, one after the other, on several connections."""
    row = _evil_rows(number=[1], note=["x" * 7_000_000])
    message = row.serialize().to_pybytes()
    held: list[Raw | None] = [attacker.dial() for _ in range(4)]
    while attacker.goes_on:
        for at, raw in enumerate(held):
            if raw is None:
                held[at] = attacker.dial()
                continue
            sent = publish("evil", EVIL, message, publisher=f"mallory-{next(attacker.names)}")
            if not (attacker.send(raw, sent) and attacker.hear(raw)):
                raw.close()
                held[at] = None


def slow_readers(attacker: Attacker) -> None:
    """Twenty subscribers that read a byte now and then, while somebody publishes for them at full speed."""
    readers: list[Raw] = []
    rows = _evil_rows(number=list(range(200)), note=["x" * 1_000] * 200)
    message = rows.serialize().to_pybytes()
    publisher = f"mallory-{next(attacker.names)}"
    raw = attacker.dial()
    first = 0
    while attacker.goes_on:
        if raw is None:
            raw, first, publisher = attacker.dial(), 0, f"mallory-{next(attacker.names)}"
            continue
        while len(readers) < 20 and (reader := attacker.dial()) is not None:
            if attacker.send(reader, _subscribe(1, "evil"), _subscribe(2, "evil"), _subscribe(3, "bench")):
                readers.append(reader)
        for reader in list(readers):
            try:
                reader.socket.setblocking(False)
                gone = not reader.socket.recv(1)
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                attacker.counts["cut off"] += 1
                readers.remove(reader)
        sent = publish("evil", EVIL, message, first=first, publisher=publisher)
        first += rows.num_rows
        if not (attacker.send(raw, sent) and attacker.hear(raw)):
            raw.close()
            raw = None


def multiplied(attacker: Attacker) -> None:
    """Ten thousand subscriptions to everything, and batches of thousands of rows that nobody reads."""
    message = _evil_rows(number=list(range(8_000))).serialize().to_pybytes()
    for raw in attacker.rounds():
        made = 0
        while made < 10_000 and attacker.goes_on:
            if not attacker.send(raw, *(_subscribe(made + at, "evil") for at in range(1, 101))):
                break
            attacker.hear(raw, PATIENCE_S)
            made += 100
        with contextlib.closing(attacker.dial() or raw) as publisher:
            while attacker.goes_on:
                sent = publish("evil", EVIL, message, publisher=f"mallory-{next(attacker.names)}")
                if not (attacker.send(publisher, sent) and attacker.hear(publisher, PATIENCE_S)):
                    break


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack, and what it is about."""

    run: Callable[[Attacker], None]
    #: The point of the list of attacks that it belongs to.
    point: str
    #: The most descriptors that the node may have; 0 for as many as usual.
    descriptors: int = 0


ATTACKS: dict[str, Attack] = {
    **{f"conditions: {name}": Attack(conditions(shape), "9") for name, shape in SHAPES.items()},
    "documents": Attack(documents, "10"),
    "silent connections": Attack(silent, "11"),
    "silent, 1,024 files": Attack(silent, "11", descriptors=1_024),
    "greeted connections": Attack(greeted, "11"),
    "unread answers": Attack(unread, "12"),
    "invented topics": Attack(invented_topics, "12"),
    "invented publishers": Attack(invented_publishers, "12"),
    "subscriptions": Attack(subscriptions, "12"),
    "rows times subscriptions": Attack(multiplied, "12"),
    "rows of one bit": Attack(tiny_rows, "16"),
    "large frames": Attack(large_frames, "12"),
    "slow readers": Attack(slow_readers, "12"),
}


def main() -> None:
    """Be one attacker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(ATTACKS))
    parser.add_argument("port", type=int)
    parser.add_argument("token")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(NICE)
    say(ready=True)
    sys.stdin.readline()
    attacker = Attacker(given.port, given.token, time.monotonic() + given.seconds)
    ATTACKS[given.name].run(attacker)
    say(counts=dict(attacker.counts))


def say(**found: Any) -> None:
    """One line for whoever started this process."""
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
