"""What lies between a client and its broker? A connection of bytes, which may break at any of them.

Each end writes encoded frames of the real wire codec. They arrive in order, after a delay, chopped up
anywhere. When the connection breaks, a random prefix of the bytes under way still arrives in each direction,
and then each end hears of the loss in its own time: one may go on for a while after the other knows. An end
that is dropped (its process died) hears nothing more, but what it wrote may still arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from gapless.wire.frames import FROM_CLIENT, FROM_NODE, Frame, FrameReader, Part


class Clock(Protocol):
    """Virtual time: the world."""

    time_us: int

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do something `delay_us` from now."""


class End(Protocol):
    """Whoever holds one end of a connection."""

    def received(self, frame: Frame) -> None:
        """A whole frame has arrived."""

    def lost(self) -> None:
        """The connection is gone. Called once, unless this end was dropped before."""


@dataclass(slots=True)
class ConnectionPace:
    """How fast bytes travel, and how long an end may take to notice that the other is gone."""

    delay_us_min: int = 200
    delay_us_max: int = 3_000
    #: The odds that a write arrives in two pieces, cut at any byte.
    chop_odds: float = 0.2
    notice_us_max: int = 50_000


@dataclass(slots=True, eq=False)
class Side:
    """One end of a connection: what its holder writes to, and what has to arrive here."""

    connection: SimulatedConnection
    end: End
    reader: FrameReader
    #: Pieces on their way to this end, each with the time of its arrival, in order.
    coming: deque[tuple[int, bytes]] = field(default_factory=deque)
    #: When the last piece that was written to this end arrives.
    last_us: int = 0
    #: Whether this end still listens.
    is_open: bool = True

    def write(self, parts: Sequence[Part]) -> None:
        """Send bytes to the other end. They are lost once the connection is broken."""
        self.connection.send(self, b"".join(parts))

    def drop(self) -> None:
        """This end is gone and hears nothing more. The other gets a prefix of the bytes, and is told."""
        self.is_open = False
        self.coming.clear()
        self.connection.cut()


class SimulatedConnection:
    """One connection of a client to a broker, from its beginning to its end."""

    def __init__(
        self, clock: Clock, random: Random, client: End, node: End, pace: ConnectionPace | None = None
    ) -> None:
        self._clock = clock
        self._random = random
        self._pace = ConnectionPace() if pace is None else pace
        #: The client's end, which hears what nodes say; and the node's.
        self.client = Side(self, client, FrameReader(FROM_NODE))
        self.node = Side(self, node, FrameReader(FROM_CLIENT))
        #: Nothing that is written now arrives.
        self.is_broken = False
        #: Bytes are accepted, and none arrives until it ends.
        self._is_stalled = False

    def send(self, sender: Side, data: bytes) -> None:
        """Let bytes travel from one end to the other."""
        if self.is_broken or not data:
            return
        receiver = self._other(sender)
        pieces = [data]
        if len(data) > 1 and self._random.random() < self._pace.chop_odds:
            at = self._random.randrange(1, len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            delay_us = self._random.randint(self._pace.delay_us_min, self._pace.delay_us_max)
            receiver.last_us = max(self._clock.time_us + delay_us, receiver.last_us + 1)
            receiver.coming.append((receiver.last_us, piece))
            self._clock.after(receiver.last_us - self._clock.time_us, partial(self._arrive, receiver))

    def cut(self) -> None:
        """Break it: a prefix of the bytes under way arrives, in each direction; then each end is told."""
        if self.is_broken:
            return
        self.is_broken = True
        for side in (self.client, self.node):
            if side.is_open:
                self._lose_tail(side)
                notice_us = self._random.randint(1, self._pace.notice_us_max)
                at_us = max(side.last_us, self._clock.time_us) + notice_us
                self._clock.after(at_us - self._clock.time_us, partial(self._notice, side))

    def stall(self) -> None:
        """From now on bytes are accepted, and none arrives."""
        self._is_stalled = True

    def resume(self) -> None:
        """What was held back arrives."""
        self._is_stalled = False
        for side in (self.client, self.node):
            self._arrive(side)

    def _other(self, side: Side) -> Side:
        return self.node if side is self.client else self.client

    def _lose_tail(self, side: Side) -> None:
        """Keep a random prefix of the bytes on their way to this end."""
        kept = self._random.randint(0, sum(len(piece) for _, piece in side.coming))
        left: deque[tuple[int, bytes]] = deque()
        for at_us, piece in side.coming:
            if kept <= 0:
                break
            left.append((at_us, piece[:kept]))
            kept -= len(piece)
        side.coming = left
        side.last_us = left[-1][0] if left else self._clock.time_us

    def _arrive(self, side: Side) -> None:
        """Hand over what has arrived by now, frame by frame."""
        while side.coming and not self._is_stalled and side.coming[0][0] <= self._clock.time_us:
            _, piece = side.coming.popleft()
            for frame in side.reader.feed(piece):
                if side.is_open:
                    side.end.received(frame)

    def _notice(self, side: Side) -> None:
        if side.is_open:
            # A stalled connection that breaks brings nothing any more.
            side.coming.clear()
            side.is_open = False
            side.end.lost()
