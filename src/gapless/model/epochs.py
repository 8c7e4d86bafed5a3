"""Under which subscriptions was this silence made? Epoch stamps and their lattice.

An edge numbers every change of its subscription set with an *epoch*. A broker that turns an event into
silence because a filter rejects it records, per edge, the epoch of that filter. A stamp {s1: 7} on a tick
says: of all subscriptions that s1 had at its epoch 7, none needs this tick. So a subscription of s1 that is
younger than epoch 7 is not covered, and treats the tick as unknown.

Silence that no filter made (nothing was published) is true for everybody, now and later: `ALWAYS`.
Joining two stamps of one tick takes the larger epoch of each edge (both statements are true);
combining the stamps of neighbouring ticks into one takes the smaller (only that is true of all).

Implements docs/protocol.md, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from gapless.model.ids import BrokerId
from gapless.model.ticks import Tick

Epoch: TypeAlias = int

#: An edge we have not heard of: no statement is made about its subscriptions.
EPOCH_NONE: Epoch = -1
#: True for every epoch, now and later.
EPOCH_ALL: Epoch = 2**63 - 1
#: How many changes of its subscriptions an edge can number before it reaches its next incarnation. Hosts keep
#: incarnations further apart than that; see `LIFE_STEP`.
_CHANGE_BITS = 24
#: Minimum difference between the incarnations of two lives: a life may have 16 times as many changes.
LIFE_STEP = 16
#: No life has a higher number: its epochs would not fit below `EPOCH_ALL`.
LIVES_MAX = 2 ** (63 - _CHANGE_BITS) - 2
#: The highest epoch, and the highest version of an advertisement, which counts in the same way.
EPOCH_MAX: Epoch = EPOCH_ALL - 2**_CHANGE_BITS
#: The clock numbers lives from 2024 on, this many per second: a node that starts again every quarter of a
#: second does not get ahead of it.
_FIRST_TICK: Tick = 1_704_067_200_000_000
_LIVES_PER_SECOND = 64
_TICKS_PER_SECOND = 1_000_000
#: A life is believed that is so far ahead of the clock: 136 years. Half of all numbers are for lives that the
#: clock gives, and half for those that a wrong clock gave once.
LIVES_AHEAD_MAX = 2**38
#: A clock that gives a higher number is wrong: it says 2160 or later. What is left is for a million starts.
CLOCK_LIVES_MAX = 2**38 - 2**20 * 2 * LIFE_STEP


def life_at(clock: Tick) -> int:
    """The number of a life that begins now, by the clock.

    >>> life_at(1_800_000_000_500_000)
    6139699232
    """
    return (clock - _FIRST_TICK) * _LIVES_PER_SECOND // _TICKS_PER_SECOND


def clock_at(life: int) -> Tick:
    """When the clock gives this number.

    >>> clock_at(6139699232)
    1800000000500000
    """
    return _FIRST_TICK + life * _TICKS_PER_SECOND // _LIVES_PER_SECOND


def lives_max(clock: Tick) -> int:
    """The highest life that is believed by now. It grows with the clock, faster than anybody starts again.

    So a broker that somebody has told of this very life, and that goes on above it, is believed by its
    neighbours a moment later, as often as that happens. A clock from before 2024 is not asked.

    >>> lives_max(0) == LIVES_AHEAD_MAX, lives_max(2**62) + 2**20 * LIFE_STEP < LIVES_MAX
    (True, True)
    """
    return LIVES_AHEAD_MAX + min(max(life_at(clock), 0), CLOCK_LIVES_MAX)


def first_epoch(incarnation: int) -> Epoch:
    """The epoch of a freshly started edge: above all epochs of its earlier incarnations."""
    return incarnation << _CHANGE_BITS


def incarnation_of(epoch: Epoch) -> int:
    """The life of its edge in which an epoch began.

    >>> incarnation_of(first_epoch(2) + 5)
    2
    """
    return epoch >> _CHANGE_BITS


def epoch_text(epoch: Epoch) -> str:
    """An epoch as people read it: `incarnation.number`.

    >>> epoch_text(first_epoch(2) + 5)
    '2.5'
    """
    if epoch == EPOCH_NONE:
        return "none"
    if epoch == EPOCH_ALL:
        return "all"
    return f"{epoch >> _CHANGE_BITS}.{epoch & (2**_CHANGE_BITS - 1)}"


class Epochs:
    """An immutable stamp: an epoch for every edge, with one default for those not named."""

    __slots__ = ("_by_edge", "_default", "_hash", "newest")

    def __init__(self, by_edge: Mapping[BrokerId, Epoch], default: Epoch = EPOCH_NONE) -> None:
        self._by_edge = {edge: by_edge[edge] for edge in sorted(by_edge) if by_edge[edge] != default}
        self._default = default
        self._hash = hash((tuple(self._by_edge.items()), default))
        #: The highest epoch in it but `EPOCH_ALL`, which is nobody's.
        self.newest = max(
            (each for each in (default, *self._by_edge.values()) if each < EPOCH_ALL), default=EPOCH_NONE
        )

    def get(self, edge: BrokerId) -> Epoch:
        """The epoch of `edge` that this stamp speaks for."""
        return self._by_edge.get(edge, self._default)

    def items(self) -> Iterable[tuple[BrokerId, Epoch]]:
        """The edges that differ from the default, sorted, with their epochs."""
        return self._by_edge.items()

    @property
    def default(self) -> Epoch:
        """The epoch of every edge that `items` does not name."""
        return self._default

    def join(self, other: Epochs) -> Epochs:
        """The larger epoch of each edge: two true statements about the same tick."""
        return self if self is other else _joined(self, other)

    def meet(self, other: Epochs) -> Epochs:
        """The smaller epoch of each edge: what holds for the ticks of both."""
        return self if self is other else _met(self, other)

    def restrict(self, edges: frozenset[BrokerId]) -> Epochs:
        """The same statement, restricted to `edges`. ALWAYS is unchanged: it needs no edge to be true."""
        return _restricted(self, edges)

    def said_by(self, edges: frozenset[BrokerId]) -> Epochs:
        """What this stamp says when only `edges` vouch for it. Even ALWAYS then speaks only for them.

        >>> str(ALWAYS.said_by(frozenset({BrokerId("s1")})))
        's1:all'
        """
        return _said_by(self, edges)

    def covers(self, other: Epochs) -> bool:
        """Whether this stamp says at least as much as `other` about every edge."""
        return self is other or _covers(self, other)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Epochs):
            return NotImplemented
        return self._default == other._default and self._by_edge == other._by_edge

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self == ALWAYS:
            return "always"
        named = [f"{edge}:{epoch_text(epoch)}" for edge, epoch in self._by_edge.items()]
        if self._default != EPOCH_NONE:
            named.append(f"others:{epoch_text(self._default)}")
        return " ".join(named) or "never"

    def __repr__(self) -> str:
        return f"Epochs({self})"


def _edges(a: Epochs, b: Epochs) -> set[BrokerId]:
    return {edge for edge, _ in a.items()} | {edge for edge, _ in b.items()}


@lru_cache(maxsize=4096)
def _joined(a: Epochs, b: Epochs) -> Epochs:
    by_edge = {edge: max(a.get(edge), b.get(edge)) for edge in _edges(a, b)}
    return Epochs(by_edge, max(a.default, b.default))


@lru_cache(maxsize=4096)
def _met(a: Epochs, b: Epochs) -> Epochs:
    by_edge = {edge: min(a.get(edge), b.get(edge)) for edge in _edges(a, b)}
    return Epochs(by_edge, min(a.default, b.default))


@lru_cache(maxsize=4096)
def _restricted(a: Epochs, edges: frozenset[BrokerId]) -> Epochs:
    if a.default == EPOCH_ALL:
        return a
    return Epochs({edge: a.get(edge) for edge in edges})


@lru_cache(maxsize=4096)
def _said_by(a: Epochs, edges: frozenset[BrokerId]) -> Epochs:
    return Epochs({edge: a.get(edge) for edge in edges})


@lru_cache(maxsize=4096)
def _covers(a: Epochs, b: Epochs) -> bool:
    if a.default < b.default:
        return False
    return all(a.get(edge) >= b.get(edge) for edge in _edges(a, b))


#: Nothing was published here: true for every subscription, now and later.
ALWAYS = Epochs({}, EPOCH_ALL)
#: Made under no known subscriptions: worth nothing to anybody.
NEVER = Epochs({})
