"""How does a client stay enrolled at its edge? It asks on one connection after another, and keeps its place.

Here are what subscriptions and holds have in common, the hold itself, and what both ask of their host.

Implements docs/protocol.md, section 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gapless.errors import GaplessError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import Tick
from gapless.protocol.sessions.gaps import Gap
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ClientMessage,
    Confirmed,
    RequestRefused,
    Subscribe,
)

# ---- what the host is asked to do --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """There is something to say: call `say` when there is a connection that can take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAckTimer:
    """Call `ack_at_once` after a random share, from `share_min` to 1, of the time an ack may wait.

    Thousands of clients that got the same event must not all answer at the same moment.
    """

    share_min: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAckTimer:
    """The ack is sent: forget the timer, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRetryTimer:
    """Call `retry` after the pause before the n-th attempt. Replaces the one before."""

    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRetryTimer:
    """Nothing is to be tried again: forget the timer, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAwaitTimer:
    """Call `begin` after a while: one pubend has confirmed it, and others may be away. It is stopped and
    replaced as the timer for retries is.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GoLive:
    """All pubends that are there have confirmed it for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """It has failed: nothing more will arrive."""

    error: GaplessError | RequestRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishChange:
    """The filter has changed at these ticks, or has not, for that reason."""

    ticks: Mapping[PubendId, Tick]
    error: GaplessError | RequestRefused | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGap:
    """Something that was asked for is no longer kept, or is lost."""

    gap: Gap
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The program that waits for rows can have some, or is to hear why there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unregister:
    """The answers to this request have all come."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SayNow:
    """Send this at once, whatever else waits."""

    message: ClientMessage


ClientEffect: TypeAlias = (
    Wake
    | StartAckTimer
    | StopAckTimer
    | StartRetryTimer
    | StopRetryTimer
    | StartAwaitTimer
    | GoLive
    | Fail
    | FinishChange
    | ReportGap
    | Offer
    | Unregister
    | SayNow
)


def name_elsewhere(name: str, edge: str, here: str) -> UsageError:
    """The error for a named subscription whose client now reaches another edge than the one that keeps it."""
    return UsageError(
        "E109",
        f"subscription '{name}' lives at edge '{edge}', and the connection now leads to '{here}': "
        f"connect to '{edge}' and subscribe again",
    )


# ---- the machines ------------------------------------------------------------------------------------


class Enrolment:
    """Something that a client has asked a node to keep, on one connection after another."""

    def __init__(self, name: str | None, retries_max: int) -> None:
        """One with a name lives at the edge where it was first asked for."""
        self._name = name
        self._retries_max = retries_max
        #: On this connection: its request, its number, and the pubends that have confirmed it.
        self.request: int | None = None
        self.number: int | None = None
        self._confirmed: set[PubendId] = set()
        self._edge: str | None = None
        self._attempts = 0
        #: It was refused for now, and waits before it asks again.
        self._is_waiting = False
        self.is_live = False
        self.error: GaplessError | RequestRefused | None = None
        self.is_ended = False

    def _enrol(self, edge: str, numbers: Iterator[int]) -> tuple[int | None, list[ClientEffect]]:
        """Begin to ask at an edge: the number of the request; None when nothing is to be asked now."""
        if self._is_waiting:
            return None, []
        here = self._edge = self._edge or edge
        if self._name is not None and here != edge:
            return None, self.fail(name_elsewhere(self._name, here, edge))
        self.request = next(numbers)
        return self.request, []

    def _is_enrolled(self, confirmed: Confirmed) -> list[ClientEffect] | None:
        """One pubend has confirmed it; None when others have not."""
        self.number = confirmed.subscription
        self._confirmed.add(confirmed.pubend)
        if len(self._confirmed) < confirmed.pubends:
            return None
        self._attempts = 0
        return [Unregister(request=confirmed.request), *self.begin(), Wake()]

    def begin(self) -> list[ClientEffect]:
        """All pubends have confirmed it, or those that have are enough for now."""
        if self.is_live or self.is_ended or self.error is not None:
            return []
        self.is_live = True
        return [StopRetryTimer(), GoLive()]

    def linked(self) -> list[ClientEffect]:
        """There is a new connection: ask again, at the exact position."""
        return [Wake()]

    def unlinked(self) -> list[ClientEffect]:
        """The connection is lost."""
        self.request = self.number = None
        self._confirmed = set()
        self._is_waiting = False
        return [StopRetryTimer()]

    def refused(self, refused: RequestRefused) -> list[ClientEffect]:
        """The node refuses it, or another client has taken its name."""
        if refused.request != self.request:
            return []
        self._attempts += 1
        if not refused.retry or self._attempts > self._retries_max:
            return self.fail(refused)
        self.request = None
        self._is_waiting = True
        return [StartRetryTimer(attempts=self._attempts)]

    def retry(self) -> list[ClientEffect]:
        """The time has come to ask again."""
        self._is_waiting = False
        return [Wake()]

    def fail(self, error: GaplessError | RequestRefused) -> list[ClientEffect]:
        """It has failed for good."""
        if self.error is None:
            self.error = error
        self._is_waiting = False
        return [StopRetryTimer(), Fail(error=error)]

    def is_of(self, request: int) -> bool:
        """Whether this is its request on this connection."""
        return self.request == request


class ClientHold(Enrolment):
    """A durable subscription without deliveries: a name, and the positions that its program has come to."""

    def __init__(
        self, topic: TopicId, name: str, start: Mapping[PubendId, Tick], where: str, retries_max: int
    ) -> None:
        super().__init__(name, retries_max)
        self._topic = topic
        self._where = where
        #: Where it starts if the name is new, and then the acknowledged positions.
        self._positions = dict(start)
        self._ack_due = False

    def acknowledge(self, positions: Mapping[str, Tick]) -> list[ClientEffect]:
        """The program is done with everything below these ticks."""
        for name, tick in positions.items():
            pubend = PubendId(name)
            self._positions[pubend] = max(self._positions.get(pubend, tick), tick)
        self._ack_due = True
        return [Wake()]

    def confirmed(self, confirmed: Confirmed) -> list[ClientEffect]:
        """One pubend has confirmed the hold."""
        # Acknowledgements of an earlier connection may be lost.
        self._ack_due |= self.is_live
        return self._is_enrolled(confirmed) or []

    def say(self, edge: str, numbers: Iterator[int]) -> tuple[list[ClientMessage], list[ClientEffect]]:
        """What to send: the subscription itself, then acknowledgements."""
        if self.is_ended or self.error is not None:
            return [], []
        if self.request is None:
            request, effects = self._enrol(edge, numbers)
            if request is None:
                return [], effects
            subscribe = Subscribe(
                request=request,
                topic=self._topic,
                where=self._where,
                name=self._name,
                start=self._positions,
                mode="holding",
            )
            return [subscribe], []
        return self.due(), []

    def due(self) -> list[ClientMessage]:
        """The acknowledgement to send, if there is one."""
        if self.number is None or not self._ack_due:
            return []
        self._ack_due = False
        return [Acknowledge(subscription=self.number, positions=self._positions)]
