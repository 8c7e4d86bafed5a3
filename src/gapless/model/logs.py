"""Which log do these ticks belong to? The name of a log, and of the life of its host that speaks of it.

A pubend whose disk was lost begins a new log. Its ticks say nothing about those of the old log, so whatever
is told about a log names it. Of two names, the one from the later life of the host is right.

Implements docs/protocol.md, section 14.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick


@dataclass(frozen=True, slots=True)
class LogLife:
    """A log, in one life of the broker that hosts it."""

    #: Made by the host when the log began, and never used for another log. Empty if the host names no logs.
    id: str
    #: The incarnation of the host.
    life: int
    #: In earlier lives nothing was told at or above the tick `floor`, and no event at or above `events`.
    #: A broker that knows more has heard from a longer log, of which this one is an older copy.
    floor: Tick
    events: Tick
    #: The log was begun at this tick: what is below belongs to an earlier log, if there was one.
    began: Tick

    def __str__(self) -> str:
        return f"log {self.id} life {self.life}" if self.id else "unnamed log"


#: The log of a host that names no logs.
UNNAMED = LogLife("", 0, TICK_MAX, TICK_MAX, TICK_MIN)
