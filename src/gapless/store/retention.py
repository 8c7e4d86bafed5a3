"""Which released events may be deleted? A topic may keep more than the protocol needs.

Nothing is ever deleted that is not released: an event that some subscription still needs stays, whatever
its age and however large the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gapless.errors import ParameterError
from gapless.model.ticks import TICK_MAX, TICK_MIN, TICKS_PER_MS, Tick


class Keep(Enum):
    """How long released events are kept."""

    ACKNOWLEDGED = "acknowledged"
    TIME = "time"
    SIZE = "size"
    FOREVER = "forever"
    #: The newest event of each key, for ever; those that it supersedes may go.
    NEWEST = "newest"
    #: The same for the rows of a relation: a newer row counts when the marker after it is durable.
    RELATION = "relation"


#: Retention by time deletes events at least once in this many ticks.
STEP_TICKS_MAX = 60_000 * TICKS_PER_MS
#: What keeps the newest event of each key.
KEYED = frozenset({Keep.NEWEST, Keep.RELATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long released events are kept, and the number that goes with it.

    >>> Retention(keep=Keep.TIME, keep_ms=60_000).below(before=90_000_000, now=100_000_000)
    40000000
    """

    keep: Keep = Keep.ACKNOWLEDGED
    #: For Keep.TIME: how long events are kept, by the clock that gave them their ticks.
    keep_ms: int = 0
    #: For Keep.SIZE: maximum number of bytes of the log.
    keep_bytes: int = 0
    #: For Keep.NEWEST and Keep.RELATION: events that are equal in these columns have the same key.
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.keep is Keep.TIME and self.keep_ms <= 0:
            raise ParameterError("E121", "retention by time needs 'keep_ms' above 0")
        if self.keep is Keep.SIZE and self.keep_bytes <= 0:
            raise ParameterError("E121", "retention by size needs 'keep_bytes' above 0")
        if (self.keep in KEYED) != bool(self.columns):
            raise ParameterError(
                "E121", "retention of the newest, and no other, needs the columns of its key"
            )
        if self.keep is Keep.RELATION and len(self.columns) != 1:
            raise ParameterError("E121", "a relation has one column for its key")

    def __str__(self) -> str:
        """As people write it.

        >>> print(Retention(keep=Keep.TIME, keep_ms=60_000), Retention(keep=Keep.FOREVER))
        60s forever
        >>> print(Retention(keep=Keep.NEWEST, columns=("user", "item")))
        newest(user, item)
        """
        match self.keep:
            case Keep.TIME:
                return f"{self.keep_ms / 1_000:g}s"
            case Keep.SIZE:
                return f"{self.keep_bytes}B"
            case Keep.NEWEST | Keep.RELATION:
                return f"{self.keep.value}({', '.join(self.columns)})"
            case Keep.ACKNOWLEDGED | Keep.FOREVER:
                return str(self.keep.value)

    def below(self, *, before: Tick, now: Tick) -> Tick:
        """Events below this tick may be deleted, as far as ticks decide; `before` is what is released."""
        match self.keep:
            case Keep.ACKNOWLEDGED | Keep.SIZE:
                return before
            case Keep.TIME:
                return min(before, now - self.keep_ms * TICKS_PER_MS)
            case Keep.FOREVER | Keep.NEWEST | Keep.RELATION:
                return -TICK_MAX

    def kept_from(self, now: Tick) -> Tick:
        """The tick from which events are kept although all subscribers have them, as far as ticks decide.

        >>> Retention(keep=Keep.TIME, keep_ms=60_000).kept_from(now=100_000_000)
        40000000
        """
        match self.keep:
            case Keep.ACKNOWLEDGED:
                return TICK_MAX
            case Keep.TIME:
                return now - self.keep_ms * TICKS_PER_MS
            case Keep.SIZE | Keep.FOREVER | Keep.NEWEST | Keep.RELATION:
                return TICK_MIN

    @property
    def step(self) -> int:
        """Minimum number of ticks by which `kept_from` moves: a hundredth of what is kept, at most a minute.

        >>> Retention(keep=Keep.TIME, keep_ms=60_000).step, Retention(keep=Keep.FOREVER).step
        (600000, 1)
        """
        if self.keep is not Keep.TIME:
            return 1
        return max(1, min(self.keep_ms * TICKS_PER_MS // 100, STEP_TICKS_MAX))

    def fits(self, log_bytes: int) -> bool:
        """Whether a log of this size is within the limit."""
        return self.keep is Keep.SIZE and log_bytes <= self.keep_bytes
