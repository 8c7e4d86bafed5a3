"""Who publishes in a simulation? Programs that host the client session, and whose connections break.

A program has rows, numbered from 0 on as in a file, and publishes them in order: over one connection at a
time, a window of them at once. It may be killed and started again. One with a *stable* identity goes on with
the same rows: from where it last wrote down how far it was, or, without a memory, from the very first. Any
other program is gone for good, and a new one takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import assert_never

from gapless.errors import LinkError, UsageError
from gapless.model.ids import BrokerId, PubendId
from gapless.protocol.sessions.client_publishing import (
    ClientPublishing,
    FindPubend,
    GiveUpQueued,
    Outgoing,
    PublishingEffect,
    Settle,
    StartPause,
    Transmission,
)
from gapless.protocol.sessions.messages import Publish, PublishReceipt, PublishRefused
from gapless.sim.conditions import Row
from gapless.sim.connections import Side
from gapless.sim.translate import columns_of
from gapless.sim.world import World
from gapless.wire.client_codec import NodeDecoder, encode_client
from gapless.wire.codec import schema_fingerprint
from gapless.wire.frames import Frame, Kind
from gapless.wire.handshake import Ping, encode_link

#: How often a program that waits for answers asks whether its broker is there.
PATIENCE_US = 700_000
#: The pause after a refusal, and the longest one.
PAUSE_US, PAUSE_US_MAX = 10_000, 300_000
#: About how many bytes a row has.
ROW_BYTES = 40
#: How many bytes are written at once.
WRITE_BYTES_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Temper:
    """How one program behaves."""

    #: It comes back under the same identity, with the same rows.
    is_stable: bool
    #: Whose it is, for the node.
    principal: str
    #: How many events may be without a receipt.
    window: int
    #: How often it sends what is refused for the time being.
    retries_max: int
    #: The odds that it dials any broker first, and not the one that hosts its pubend.
    stray_odds: float


@dataclass(slots=True, eq=False)
class Program:
    """One publishing program, over all of its lives."""

    world: World
    random: Random
    name: str
    identity: str
    pubend: PubendId
    temper: Temper
    #: All rows that it has, by number.
    rows: list[Row] = field(default_factory=list)
    #: Numbers with an outcome, in some life; all below `settled` have one.
    done: set[int] = field(default_factory=set)
    settled: int = 0
    #: How far it knows that it was, should it be killed now.
    remembered: int = 0
    #: Counts its lives; 0 when it is dead for good.
    life: int = 1
    #: Who it talks to, or dials.
    broker: BrokerId = field(init=False)
    machine: ClientPublishing[Outgoing] = field(init=False)
    side: Side | None = None
    _decoder: NodeDecoder = field(default_factory=NodeDecoder)
    _is_dialling: bool = False
    _is_watching: bool = False
    #: When something was heard last.
    _heard_us: int = 0
    #: Counts pauses: one that was ended early does not end the next.
    _pauses: int = 0

    def __post_init__(self) -> None:
        self._begin(0)

    # ---- what the workload asks ----------------------------------------------------------------------

    def publish(self, rows: list[Row]) -> None:
        """Publish more rows."""
        for row in rows:
            row_id = row["id"]
            assert isinstance(row_id, int)
            for observer in self.world.observers:
                observer.numbered(self.name, self.identity, len(self.rows), row_id)
            self.rows.append(row)
        self._pump()

    def kill(self, *, has_memory: bool) -> None:
        """The process dies; what it wrote may still arrive. A stable one is started again at once."""
        self._hang_up()
        self.life += 1
        self._pauses += 1
        self._is_dialling = self._is_watching = False
        first = self.remembered if has_memory else 0
        for observer in self.world.observers:
            observer.program_restarted(self.name, first)
        self._begin(first)

    def end(self) -> None:
        """The process dies, and nobody starts it again."""
        self._hang_up()
        self.life = 0

    # ---- connections ---------------------------------------------------------------------------------

    def _begin(self, first: int) -> None:
        self.machine = ClientPublishing(
            self.identity, wish=self.pubend, first=first, retries_max=self.temper.retries_max
        )
        self.broker = self._place()
        if self.random.random() < self.temper.stray_odds:
            self.broker = self.random.choice(sorted(self.world.nodes))
        self._dial()

    def _place(self) -> BrokerId:
        return self.world.network.pubends[self.pubend].broker

    def _later(self, delay_us: int, action: partial[None]) -> None:
        self.world.after(delay_us, partial(self._in_life, self.life, action))

    def _in_life(self, life: int, action: partial[None]) -> None:
        if self.life == life:
            action()

    def _dial(self) -> None:
        if not self._is_dialling and self.side is None:
            self._is_dialling = True
            self._later(self.random.randint(500, 50_000), partial(self._dialled))

    def _dialled(self) -> None:
        self._is_dialling = False
        node = self.world.nodes[self.broker]
        if node.publishing is None:
            self._is_dialling = True
            self._later(self.random.randint(20_000, 300_000), partial(self._dialled))
            return
        peer = node.publishing.welcome(self.temper.principal)
        connection = self.world.connect(self.broker, self, peer)
        peer.side, self.side = connection.node, connection.client
        self._decoder = NodeDecoder()
        self._heard_us = self.world.time_us
        self._perform(self.machine.linked(self._now_ms()))
        self._pump()

    def _hang_up(self) -> None:
        side, self.side = self.side, None
        if side is not None:
            side.drop()

    def lost(self) -> None:
        """The connection is gone."""
        self.side = None
        self.machine.unlinked()
        self._dial()

    def received(self, frame: Frame) -> None:
        """The broker says something."""
        self._heard_us = self.world.time_us
        if frame.kind is Kind.PONG:
            return
        message = self._decoder.decode(frame)
        match message:
            case PublishReceipt():
                self._perform(self.machine.receipt(message, self._now_ms()))
            case PublishRefused():
                error = UsageError(message.code, message.message, retry=message.retry)
                self._perform(self.machine.refused(message, error, self._now_ms()))
            case _:
                raise AssertionError(f"a publisher was sent {message}")
        self._pump()

    def _now_ms(self) -> int:
        return self.world.time_us // 1_000

    def _watch(self) -> None:
        """Ask a silent broker whether it is there, and hang up if it does not say so."""
        self._is_watching = False
        if self.side is None or not self.machine.sent:
            return
        if self.world.time_us - self._heard_us >= 2 * PATIENCE_US:
            self._hang_up()
            self.lost()
            return
        self.side.write(encode_link(Ping(number=0)))
        self._start_watch()

    def _start_watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._later(PATIENCE_US, partial(self._watch))

    # ---- sending -------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what may be sent now."""
        machine = self.machine
        if self.side is None or not machine.is_sending:
            return
        if not machine.is_chosen:
            machine.choose(self.pubend)
        again, more = machine.resends(WRITE_BYTES_MAX)
        for transmission in again:
            self._transmit(transmission)
        if more:
            self._later(self.random.randint(0, 1_000), partial(self._pump))
            return
        outstanding = sum(stop - start for each in machine.sent for start, stop in each.open)
        while (waiting := len(self.rows) - machine.next) and machine.has_window(waiting):
            count = min(waiting, self.temper.window - outstanding, self.random.choice((1, 5, 100)))
            if count <= 0:
                break
            outstanding += count
            self._transmit(machine.send(Outgoing(count, count * ROW_BYTES), self._now_ms()))
        machine.check()

    def _transmit(self, transmission: Transmission[Outgoing]) -> None:
        """Write the frames of a transmission, sometimes two."""
        outgoing, start, stop, before = transmission
        cut = self.random.randint(start + 1, stop)
        for low, high in ((start, cut), (cut, stop)):
            if low < high:
                self._write(outgoing.first + low, outgoing.first + high, before)
                before = outgoing.first + high - 1
        self._start_watch()

    def _write(self, first: int, stop: int, before: int) -> None:
        schema = self.world.network.topics[self.world.network.pubends[self.pubend].topic]
        message = Publish(
            topic=schema.topic,
            pubend=self.machine.pubend,
            publisher=self.identity,
            first_catenation=first,
            schema=schema_fingerprint(schema),
            rows=columns_of(self.rows[first:stop]),
            given_up=self.machine.given_up(),
            before=before,
            is_temporary=not self.temper.is_stable,
        )
        assert self.side is not None
        self.side.write(encode_client(message))

    # ---- effects -------------------------------------------------------------------------------------

    def _perform(self, effects: list[PublishingEffect[Outgoing]]) -> None:
        for effect in effects:
            match effect:
                case Settle():
                    self._settle(effect)
                case StartPause(attempts=attempts):
                    self._pauses += 1
                    pause_us = min(PAUSE_US * 2**attempts, PAUSE_US_MAX)
                    self._later(self.random.randint(1, pause_us), partial(self._paused, self._pauses))
                case FindPubend():
                    self._later(self.random.randint(1, 30_000), partial(self._find))
                case GiveUpQueued():
                    raise AssertionError(f"{self.name} gave up looking for {self.pubend}")
                case _:
                    assert_never(effect)
        self.machine.check()

    def _settle(self, effect: Settle[Outgoing]) -> None:
        first, stop = effect.outgoing.first + effect.start, effect.outgoing.first + effect.stop
        receipt, error = effect.receipt, effect.error
        ticks: list[int] = []
        if receipt is not None and receipt.runs:
            ticks = receipt.ticks().tolist()[first - receipt.first_catenation :]
        for number in range(first, stop):
            self.done.add(number)
            for observer in self.world.observers:
                if receipt is not None:
                    tick = ticks[number - first] if ticks else None
                    observer.receipted(self.name, number, receipt.pubend, tick)
                elif error is not None:
                    observer.unpublished(self.name, number, error.code, retry=error.retry)
        while self.settled in self.done:
            self.settled += 1
        if self.random.random() < 0.3:
            self.remembered = self.settled

    def _paused(self, pause: int) -> None:
        if self._pauses == pause:
            self._perform(self.machine.pause_over())
            self._pump()

    def _find(self) -> None:
        """Look for the broker that hosts the pubend: sometimes it cannot be found yet."""
        place = self._place()
        if self.world.nodes[place].broker is None or self.random.random() < 0.2:
            error = LinkError("E401", f"{place} does not answer", retry=True)
            self._perform(self.machine.not_found(error, self._now_ms()))
            return
        self.machine.found(self.pubend)
        if place != self.broker:
            self._hang_up()
            self.broker = place
            self._dial()
        elif self.side is not None:
            self._perform(self.machine.linked(self._now_ms()))
            self._pump()
