"""How are ten million inputs sent in minutes, and what became of them?

Several attackers (lanes), each a principal of its own, send a chunk of inputs each, many in one write, and
the next chunks are drawn meanwhile. Their events are of one kind, so that a node stores and matches many at
once. What may end its connection goes over another one. Behind each such input there is a PING: the PONGs
tell how far the node has come. When it hangs up, the input behind the last PONG is to blame, and what it
left unread is sent again over the next connection. So an input counts when the node has read it, and once.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, count
from random import Random
from typing import Any

import msgspec

from tests.fuzz.inputs import EVENTS, PUBENDS, SUBSCRIPTIONS, TOPICS, After, Input, Source, attacker
from tests.hostile.payloads import CONDITIONS, TOPIC
from tests.hostile.raw import KINDS, NAMES, frame, hello

#: So many inputs are drawn at once, at most; of those that may end their connection so many are sent at once.
CHUNK_INPUTS, FEW_INPUTS = 1_000, 4
#: So many connections of a lane get them, each some of them.
HANDS = 4
#: So many chunks go over one connection: it gathers subscriptions, and with them the node's work grows.
CHUNKS_A_CONNECTION = 4
#: So many filters are there at a time on the topic of every type; each changes after so many seconds.
FILTERS, FILTERS_EVERY = 16, 2
#: A node that does not answer for so long has stalled.
STALLED_SECONDS = 30.0
#: So many inputs of each lane are remembered, to be looked at when the node dies.
REMEMBERED = 2 * CHUNK_INPUTS

#: Whatever came is below it.
LAST_TICK = 2**61

_WELCOME, _REFUSE, _PONG = KINDS["WELCOME"], KINDS["REFUSE"], KINDS["PONG"]
#: Refusals after which a connection goes on, and which field of the head is the code.
_REFUSED = {KINDS["PUBLISH_REFUSED"]: 3, KINDS["REQUEST_REFUSED"]: 1}
#: A number of 32 bits in MessagePack, and how all begin that stand for others.
_NUMBER = struct.Struct(">BI")
STANDING_IN = b"\xce\xff\xff\xff"
_HEADER = struct.Struct("<2sBBIIHH")


class StalledError(Exception):
    """The node took too long, or is gone."""


class Wire(asyncio.Protocol):
    """One connection: what comes is counted by its kind, and PONGs are waited for."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        #: The codes of refusals after which it goes on, and the last message of each.
        self.refused: Counter[str] = Counter()
        self.messages: dict[str, str] = {}
        self.pong = 0
        self.refusal: dict[str, Any] | None = None
        self.numbers: list[int] = []
        #: A pubend of each.
        self.pubends: dict[int, str] = {}
        #: The number of the last PING.
        self.pings = 0
        #: How many chunks went over it.
        self.chunks = 0
        self.is_open = False
        self.is_welcome = False
        self._buffer = bytearray()
        self._wanted = 0
        self._waiting: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport | None = None
        #: Called with the kind and the whole body of frames that somebody wants to see.
        self.seen: Callable[[int, bytes, int, int], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at, size = 0, len(buffer)
        while size - at >= 16:
            _, _, kind, length, head, parts, _ = _HEADER.unpack_from(buffer, at)
            if size - at < 16 + length:
                break
            self.answers[kind] += 1
            if kind == _PONG:
                self.pong = msgspec.msgpack.decode(buffer[at + 16 : at + 16 + head])
            elif kind == _REFUSE:
                self.refusal = msgspec.msgpack.decode(buffer[at + 16 : at + 16 + head])
            elif kind == _WELCOME:
                self.is_welcome = True
            elif kind in _REFUSED:
                code, message = msgspec.msgpack.decode(buffer[at + 16 : at + 16 + head])[_REFUSED[kind] :][:2]
                self.refused[code] += 1
                self.messages[code] = message
            elif self.seen is not None:
                self.seen(kind, bytes(buffer[at + 16 : at + 16 + length]), head, parts)
            at += 16 + length
        del buffer[:at]
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._wake()

    def _wake(self) -> None:
        waiting = self._waiting
        is_there = not self.is_open or (self.is_welcome and self.pong >= self._wanted)
        if waiting is not None and not waiting.done() and is_there:
            waiting.set_result(None)

    async def until(self, pong: int) -> bool:
        """Wait for a PONG, 0 for WELCOME; whether it came before the connection ended."""
        self._wanted = pong
        if self.is_open and not (self.is_welcome and self.pong >= pong):
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._waiting, STALLED_SECONDS)
            except TimeoutError:
                raise StalledError(f"no answer within {STALLED_SECONDS:g} seconds") from None
        return self.is_welcome and self.pong >= pong

    def number(self, kind: int, body: bytes, head: int, _: int) -> None:
        """Remember the numbers of the subscriptions that are confirmed."""
        if kind == KINDS["CONFIRMED"]:
            _, number, _, _, pubend, *_ = msgspec.msgpack.decode(body[:head])
            self.numbers.append(number)
            self.pubends[number] = pubend

    def numbered(self, data: bytes) -> bytes:
        """An input with the numbers of subscriptions of this connection, where it has any."""
        if STANDING_IN in data:
            for mark, number in zip(SUBSCRIPTIONS, self.numbers[-len(SUBSCRIPTIONS) :], strict=False):
                data = data.replace(_NUMBER.pack(0xCE, mark), _NUMBER.pack(0xCE, number))
        return data

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@dataclass
class Tally:
    """What became of the inputs."""

    wanted: int
    inputs: int = 0
    connections: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    cut: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    #: How many were refused and the connection went on, by code.
    refused: Counter[str] = field(default_factory=Counter)
    #: Reasons that a node gave for refusing and for hanging up, an example of each code.
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.inputs >= self.wanted


class Lane:
    """One attacker, with a connection for what goes on, and some for what may end it."""

    def __init__(self, port: int, seed: int, number: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally
        self._token = attacker(number)
        self._source = Source(seed, number)
        self._addresses = count(number)
        #: Number 0 is for what goes on.
        self._wires: dict[int, Wire] = {}
        self.last: deque[Input] = deque(maxlen=REMEMBERED)

    def draw(self, size: int, event: str) -> list[Input]:
        """The next chunk, with events of one kind."""
        return self._source.draw(size, event)

    async def play(self, drawn: list[Input]) -> None:
        """Send a chunk, and return when all of it was read."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._go_on([each for each in drawn if each.after is After.OPEN]))
            harmful = [each for each in drawn if each.after is not After.OPEN]
            # Those about subscriptions follow each other: only they need a connection that has some.
            harmful.sort(key=lambda each: STANDING_IN not in each.data)
            share = -(-len(harmful) // HANDS)
            for hand in range(HANDS):
                group.create_task(self._harm(harmful[hand * share : (hand + 1) * share], 1 + hand))

    def leave(self) -> None:
        """End all connections."""
        for number in list(self._wires):
            self._leave(number)

    async def _go_on(self, chunk: list[Input]) -> None:
        """Send what surely goes on."""
        wire = await self._welcomed(0)
        await self._subscribe(wire)
        await self._attack(chunk, 0)
        wire.chunks += 1
        if wire.chunks >= CHUNKS_A_CONNECTION and self._wires.get(0) is wire:
            await self._acknowledge(wire)
            self._leave(0)

    async def _acknowledge(self, wire: Wire) -> None:
        """Acknowledge all that came. Else each that comes back by a name is sent the whole past again."""
        for number, pubend in wire.pubends.items():
            wire.write(frame("ACKNOWLEDGE", [number, {pubend: LAST_TICK}]))
        wire.pings += 1
        wire.write(frame("PING", wire.pings))
        await wire.until(wire.pings)

    async def _harm(self, drawn: list[Input], number: int) -> None:
        """Send what may end the connection, over as many as it takes."""
        left = [each for each in drawn if each.after is After.EITHER]
        while left:
            left = await self._attack(left[:FEW_INPUTS], number) + left[FEW_INPUTS:]
        # A reader that finds a wrong header drops what came before it in the same piece: those come alone.
        for each in drawn:
            if each.kind == "handshakes":
                await self._greet(each)
            elif each.after is After.LAST:
                await self._attack([each], number)

    async def _dial(self) -> Wire:
        dialling = socket.socket()
        dialling.setblocking(False)
        dialling.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Ports of a connection that ended are not given out again for a while: so the address changes.
        dialling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        dialling.bind((f"127.0.{1 + next(self._addresses) % 200}.1", 0))
        loop = asyncio.get_running_loop()
        await loop.sock_connect(dialling, ("127.0.0.1", self._port))
        _, wire = await loop.create_connection(Wire, sock=dialling)
        self._tally.connections += 1
        return wire

    async def _greet(self, drawn: Input) -> None:
        """An input that is the first frame of a connection."""
        self.last.append(drawn)
        wire = await self._dial()
        wire.write(drawn.data)
        if wire.transport is not None and wire.transport.can_write_eof():
            wire.transport.write_eof()
        await wire.until(0)
        self._count([drawn], wire if not wire.is_welcome else None)
        self._ended(wire)

    async def _subscribe(self, wire: Wire) -> None:
        """Begin a connection with a few subscriptions, whose numbers inputs are about, unless it has some."""
        if wire.seen is None:
            wire.seen = wire.number
            wire.write(self._source.subscribed())
            # They are confirmed when the disk has them, which is soon; how soon does not matter.
            while len(wire.numbers) < 2 and wire.pings < 50:
                wire.pings += 1
                wire.write(frame("PING", wire.pings))
                if not await wire.until(wire.pings):
                    return

    async def _welcomed(self, number: int) -> Wire:
        """The connection of a number, or a new one."""
        wire = self._wires.get(number)
        if wire is None or not wire.is_open:
            wire = self._wires[number] = await self._dial()
            wire.write(hello("mallory", token=self._token))
            if not await wire.until(0):
                raise StalledError(f"a client was not let in: {wire.refusal}")
        return wire

    async def _attack(self, chunk: list[Input], number: int) -> list[Input]:
        """Send inputs; gives those that were not read, because one before them ended the connection."""
        wire = await self._welcomed(number)
        if number and any(STANDING_IN in drawn.data for drawn in chunk):
            await self._subscribe(wire)
        first = wire.pings
        data: list[bytes] = []
        for drawn in chunk:
            data.append(wire.numbered(drawn.data))
            wire.pings += 1
            if drawn.after is After.EITHER:
                data.append(frame("PING", wire.pings))
        if not number:
            data.append(frame("PING", wire.pings))
        is_last = chunk[-1].after is After.LAST
        self.last.extend(chunk)
        wire.write(b"".join(data))
        if is_last:
            assert wire.transport is not None
            wire.transport.write_eof()
        if await wire.until(wire.pings + is_last):
            self._count(chunk, None)
            return []
        read = max(0, wire.pong - first)
        culprit = next(
            (at for at in range(read, len(chunk)) if chunk[at].after is not After.OPEN), len(chunk) - 1
        )
        self._count(chunk[: culprit + 1], wire)
        self._leave(number)
        return chunk[culprit + 1 :]

    def _count(self, chunk: list[Input], ended: Wire | None) -> None:
        """Inputs that were read; the last of them ended the connection, if it is given."""
        tally = self._tally
        tally.inputs += len(chunk)
        tally.sent.update(drawn.kind for drawn in chunk)
        if ended is not None:
            code = "hung up" if ended.refusal is None else str(ended.refusal.get("code"))
            tally.cut[chunk[-1].kind, code] += 1
            if ended.refusal is not None and code not in tally.examples:
                tally.examples[code] = str(ended.refusal.get("message"))[:150]

    def _leave(self, number: int) -> None:
        self._ended(self._wires.pop(number))

    def _ended(self, wire: Wire) -> None:
        self._tally.answers.update({NAMES.get(kind, hex(kind)): n for kind, n in wire.answers.items()})
        self._tally.refused.update(wire.refused)
        for code, message in wire.messages.items():
            self._tally.examples.setdefault(code, message[:150])
        wire.end()


class Readers:
    """A connection with subscriptions of every type of filter, which reads all and acknowledges what it must.

    So many at once that all ways of matching are used, and not so many that a node does nothing else: each
    changes its filter now and then, to another of its type.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.wire = Wire()
        self._ticks: dict[str, int] = {}
        self._sources: dict[int, str] = {}
        #: The number of the subscription that each request was for, and the requests of those that
        #: acknowledge.
        self._numbers: dict[int, int] = {}
        self._guaranteed: dict[str, int] = {}
        #: Conditions of one type follow each other, so each run of them is of one type or two.
        size = -(-len(CONDITIONS) // FILTERS)
        self._filters = [CONDITIONS[at : at + size] for at in range(0, len(CONDITIONS), size)]

    async def start(self) -> None:
        """Subscribe, and return when the node has read it."""
        loop = asyncio.get_running_loop()
        _, self.wire = await loop.create_connection(Wire, "127.0.0.1", self._port)
        self.wire.seen = self._seen
        self.wire.write(hello("readers", token="readers"))
        await self.wire.until(0)
        asked = [(str(TOPIC), wheres[0], "best-effort") for wheres in self._filters]
        asked += [(topic, "", "guaranteed") for topic in TOPICS]
        asked += [
            ("few", where, "best-effort") for where in ("a > 5", "b < 1e0 OR b IS NULL", "c LIKE 'a%'", "d")
        ]
        asked += [("few", "e >= X'61' AND a * 2 > 3", "best-effort")]
        asked += [
            ("documents", f"XPATH(x, '{path}')", "best-effort")
            for path in ("/a", "//c[@x > 1]", "/a[not(b)]")
        ]
        for request, (topic, where, mode) in enumerate(asked):
            if mode == "guaranteed":
                self._guaranteed[topic] = request
            self.wire.write(frame("SUBSCRIBE", [request, topic, where, None, "publisher", "now", mode, None]))
        self.wire.write(frame("PING", 1))
        await self.wire.until(1)

    async def go_on(self) -> None:
        """Acknowledge what came, and change some filters, once a second, for ever."""
        for turn in count(1):
            await asyncio.sleep(1)
            if not self.wire.is_open:
                return
            for topic, pubend in PUBENDS.items():
                subscription = self._numbers.get(self._guaranteed[topic])
                if pubend in self._ticks and subscription is not None:
                    self.wire.write(frame("ACKNOWLEDGE", [subscription, {pubend: self._ticks[pubend]}]))
            for request in range(turn % FILTERS_EVERY, len(self._filters), FILTERS_EVERY):
                if request in self._numbers:
                    wheres = self._filters[request]
                    where = wheres[turn // FILTERS_EVERY % len(wheres)]
                    self.wire.write(frame("CHANGE_FILTER", [10_000, self._numbers[request], where]))

    def _seen(self, kind: int, body: bytes, head: int, parts: int) -> None:
        start = (parts + parts % 2) * 4
        if kind == KINDS["CONFIRMED"]:
            request, subscription, source, _, pubend, *_ = msgspec.msgpack.decode(body[start : start + head])
            self._numbers.setdefault(request, subscription)
            self._sources[source] = pubend
        elif kind == KINDS["ROWS"]:
            pairs, rows = struct.unpack_from("<II", body, start)
            at = start + 8 + 8 * pairs
            for _ in range(rows):
                tick, source, size = struct.unpack_from("<qII", body, at)
                self._ticks[self._sources[source]] = tick
                at += 16 + size + -size % 8
        elif kind == KINDS["COLUMNS"]:
            sizes = struct.unpack_from(f"<{parts}I", body)
            sources = msgspec.msgpack.decode(body[start : start + head])[0]
            at = start + head + -head % 8 + sizes[0] - 8
            self._ticks[self._sources[sources[0]]] = struct.unpack_from("<q", body, at)[0]


@dataclass
class Watched:
    """How much memory the node took."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    async def watch(self, look: Callable[[], int]) -> None:
        """Look twice a second, for ever."""
        while True:
            self.samples.append((time.monotonic(), look()))
            await asyncio.sleep(0.5)


async def attack(
    port: int, seed: int, lanes: int, tally: Tally, *, look: Callable[[], int], say: Callable[[str], None]
) -> tuple[Watched, list[Lane], str | None]:
    """Send all inputs. Gives what was seen of the memory, the lanes, and what went wrong."""
    readers = Readers(port)
    await readers.start()
    watched = Watched()
    attackers = [Lane(port, seed, number, tally) for number in range(lanes)]
    background = [
        asyncio.create_task(watched.watch(look)),
        asyncio.create_task(readers.go_on()),
        asyncio.create_task(_progress(tally, look, say)),
    ]
    wrong: str | None = None
    try:
        await _rounds(attackers, tally, Random(f"{seed}/rounds"))
    except* (StalledError, OSError) as errors:
        wrong = "; ".join(str(error) or repr(error) for error in _leaves(errors)[:2])
    if wrong is None and not readers.wire.is_open:
        wrong = f"the readers were cut off: {readers.wire.refusal}"
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    watched.samples.append((time.monotonic(), look()))
    tally.answers.update(
        {f"to readers: {NAMES.get(kind, hex(kind))}": n for kind, n in readers.wire.answers.items()}
    )
    readers.wire.end()
    return watched, attackers, wrong


async def _rounds(lanes: list[Lane], tally: Tally, random: Random) -> None:
    """Chunk after chunk; the next ones are drawn while the node is busy with these."""
    # Each kind of event has its turn, also in a short attack.
    events = chain(dict.fromkeys(EVENTS), iter(lambda: random.choice(EVENTS), None))
    size = max(1, min(CHUNK_INPUTS, tally.wanted // (8 * len(lanes))))
    event = next(events)
    chunks = [lane.draw(size, event) for lane in lanes]
    while not tally.is_done:
        async with asyncio.TaskGroup() as group:
            for lane, chunk in zip(lanes, chunks, strict=True):
                group.create_task(lane.play(chunk))
            event = next(events)
            for at, lane in enumerate(lanes):
                for _ in range(3):
                    await asyncio.sleep(0)
                chunks[at] = lane.draw(size, event)
    for lane in lanes:
        lane.leave()


def _leaves(errors: BaseExceptionGroup[Exception]) -> list[Exception]:
    """The errors of a group, and of the groups in it."""
    found: list[Exception] = []
    for error in errors.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def _progress(tally: Tally, look: Callable[[], int], say: Callable[[str], None]) -> None:
    began = before_at = time.monotonic()
    before = 0
    while True:
        await asyncio.sleep(10)
        now = time.monotonic()
        rate = (tally.inputs - before) / (now - before_at)
        before, before_at = tally.inputs, now
        left = (tally.wanted - tally.inputs) / max(1.0, tally.inputs / (now - began))
        told = f"{tally.inputs:,} inputs, {rate:,.0f}/s, {tally.connections:,} connections"
        say(f"{told}, {look() >> 20} MB, {left / 60:.1f} min left")
