"""What can be known about a tick, and what can be wanted of it? The two lattices of the papers.

These enums are the definition; they are small, obvious and tested exhaustively. The streams that
brokers hold (`gapless.model.stream`) are a run-length form of the same thing and are tested
against them tick by tick.

Implements docs/protocol.md, section 2.
"""

from enum import Enum


class Knowledge(Enum):
    """What a stream knows of one tick. Accumulating moves up the lattice, forgetting moves down.

    ::

              E            error: data where there was silence
            /   \\
          D*     S         delivered to all who need it; silence
          / \\   /
         D    F            data; final: no data is needed here any more
          \\  /
           Q               nothing is known
    """

    UNKNOWN = "Q"
    DATA = "D"
    FINAL = "F"
    DELIVERED = "D*"
    SILENCE = "S"
    ERROR = "E"

    def join(self, other: "Knowledge") -> "Knowledge":
        """The least value that is above both."""
        return _least_above(self, other)

    def __le__(self, other: "Knowledge") -> bool:
        return other in _ABOVE[self]

    def lowered(self) -> "Knowledge":
        """What a stream keeps: S and D* become F at once, because nobody needs the difference."""
        if self in (Knowledge.SILENCE, Knowledge.DELIVERED):
            return Knowledge.FINAL
        return self

    def accumulate(self, other: "Knowledge") -> "Knowledge":
        """What a stream that holds `self` holds after it learned `other`."""
        joined = self.join(other).lowered()
        assert joined is not Knowledge.ERROR, f"a tick cannot be both {self.value} and {other.value}"
        return joined

    def forgotten(self) -> "Knowledge":
        """What is left after forgetting. Every stream but a pubend's may forget at any time."""
        return Knowledge.UNKNOWN


class Curiosity(Enum):
    """How much a stream wants to know a tick."""

    NEUTRAL = "N"
    CURIOUS = "C"
    ACKED = "A"

    def join(self, other: "Curiosity") -> "Curiosity":
        """N < C < A: what is not needed stays not needed, no matter who asks."""
        return max(self, other, key=_CURIOSITY_ORDER.index)

    def folded(self, other: "Curiosity") -> "Curiosity":
        """What a stream above two ostreams wants: C if either asks, A only if neither needs the tick."""
        if self is other:
            return self
        return Curiosity.CURIOUS if Curiosity.CURIOUS in (self, other) else Curiosity.NEUTRAL


_CURIOSITY_ORDER = [Curiosity.NEUTRAL, Curiosity.CURIOUS, Curiosity.ACKED]

_ABOVE: dict[Knowledge, frozenset[Knowledge]] = {
    Knowledge.UNKNOWN: frozenset(Knowledge),
    Knowledge.DATA: frozenset({Knowledge.DATA, Knowledge.DELIVERED, Knowledge.ERROR}),
    Knowledge.FINAL: frozenset({Knowledge.FINAL, Knowledge.SILENCE, Knowledge.DELIVERED, Knowledge.ERROR}),
    Knowledge.DELIVERED: frozenset({Knowledge.DELIVERED, Knowledge.ERROR}),
    Knowledge.SILENCE: frozenset({Knowledge.SILENCE, Knowledge.ERROR}),
    Knowledge.ERROR: frozenset({Knowledge.ERROR}),
}


def _least_above(a: Knowledge, b: Knowledge) -> Knowledge:
    common = _ABOVE[a] & _ABOVE[b]
    return next(value for value in common if common <= _ABOVE[value])
