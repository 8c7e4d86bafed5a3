"""What does one step of a broker collect, and how much does a broker hold?"""

from __future__ import annotations

from dataclasses import dataclass, field

from gapless.model.ids import PubendId
from gapless.protocol.effects import Effect
from gapless.protocol.events import Now


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How much one broker holds, for bounds."""

    #: How many streams (istreams) it has.
    streams: int
    rows: int
    row_bytes: int
    runs: int


@dataclass(slots=True)
class Step:
    """What one step collects."""

    now: Now
    #: Whether the timer of the broker is due, or was never set.
    is_due: bool = True
    effects: list[Effect] = field(default_factory=list)
    #: The pubends whose streams or readers changed.
    touched: set[PubendId] = field(default_factory=set)
    #: The pubends that changed, and of which nothing is left to settle.
    straight: set[PubendId] = field(default_factory=set)
    #: The pubends that live here and were asked something: when they want to be woken may have changed.
    used: set[PubendId] = field(default_factory=set)
