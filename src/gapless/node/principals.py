"""How much of a node does one principal use? Its clients, subscriptions and names, and its share of a turn.

A principal is who a client is (`Rights.principal`): a token, a certificate, or everybody who shows neither.
Whatever a principal has is counted, those subscriptions included that are parked after a connection broke,
and what would exceed a quota of `[limits]` is refused before anything has changed (E106).

The event loop is shared, too. What the clients of one principal say is carried out for a part of a turn; the
rest waits until everybody else has had a turn. So thousands of requests at once, over however many
connections, delay nobody but whoever sent them. What the requests cause later, such as matching an event,
counts too. While several principals are there, one that has used the loop for a while leaves it to the others
for as long, and for much longer after a single piece of work that took long.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import TypeAlias

from gapless.content.condition import Condition
from gapless.content.cost import matching_cost
from gapless.errors import UsageError
from gapless.model.ids import TopicId
from gapless.node.config import Limits
from gapless.node.security import ANONYMOUS

#: A condition, and the topic that it is about.
Matched: TypeAlias = tuple[TopicId, Condition]

#: How long the requests of one principal may run in a turn when nobody else is there.
TURN_SECONDS = 0.005
#: And among others: the longer the steps were that the last ones caused, the more of them go together.
SHARED_TURN_SECONDS, SHARED_TURN_SECONDS_MAX, CAUSED_PART = 0.001, 0.004, 1 / 3
#: A principal is among others while somebody else was heard within so many seconds.
AMONG_OTHERS_SECONDS = 0.25
#: Among others a principal waits after each piece of work, for as long as that took. From so long on it waits
#: for longer: once more for each `LONGER_SECONDS`. What cannot be cut into pieces others then meet seldom
#: enough that their 99th percentile does not.
LONG_SECONDS, LONGER_SECONDS = 0.010, 0.003
#: But never longer than this in all: a client that hears no PONG for 10 seconds gives the node up.
REST_SECONDS_MAX = 4.0
#: All clients without a token or certificate are one principal. Their conditions may cost as much as those of
#: this many principals: an open network is one team's, and its readers share the price.
ANONYMOUS_SHARES = 50


class Turns:
    """Who is there. One for all shares of a node."""

    __slots__ = ("_last", "_last_at", "_other_at", "_shared_until", "are_shared")

    def __init__(self) -> None:
        self._last: Share | None = None
        #: When that was heard last, and when anybody else was.
        self._last_at = self._other_at = self._shared_until = -AMONG_OTHERS_SECONDS
        #: Whether several principals were heard of late.
        self.are_shared = False

    def heard(self, share: Share, now: float) -> None:
        """A principal has said something, at this time of `perf_counter`."""
        if share is not self._last:
            if now - self._last_at < AMONG_OTHERS_SECONDS:
                self._shared_until = now + AMONG_OTHERS_SECONDS
            self._last, self._other_at = share, self._last_at
        self._last_at = now
        self.are_shared = now < self._shared_until

    def has_others(self, share: Share, now: float) -> bool:
        """Whether anybody but this one was heard of late."""
        return now - (self._other_at if share is self._last else self._last_at) < AMONG_OTHERS_SECONDS


class Share:
    """The share of the event loop that one principal has. Times are those of `perf_counter`."""

    __slots__ = (
        *("_caused_s", "_cpu_s", "_loop", "_next", "_spent_s", "_turn_s", "_turns", "_until", "_waiting"),
        *("held_bytes", "held_bytes_max"),
    )

    def __init__(self, held_bytes_max: int, turns: Turns) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = turns
        #: What its requests have taken in this turn, and may.
        self._spent_s = 0.0
        self._turn_s = SHARED_TURN_SECONDS
        #: How long this thread had worked when one of its clients was heard last.
        self._cpu_s = 0.0
        #: What they have caused since, and until when others come first.
        self._caused_s = 0.0
        self._until = 0.0
        #: What its clients have sent and was not carried out, such as unfinished frames; and how much may be.
        self.held_bytes = 0
        self.held_bytes_max = held_bytes_max
        self._waiting: deque[Callable[[], None]] = deque()
        #: What calls `_turn`, when that is to be.
        self._next: asyncio.Handle | None = None

    @property
    def is_shared(self) -> bool:
        """Whether there are others."""
        return self._turns.are_shared

    @property
    def is_used_up(self) -> bool:
        """Whether others come first."""
        return self._spent_s >= (self._turn_s if self._turns.are_shared else TURN_SECONDS)

    def heard(self, now: float) -> None:
        """One of its clients has said something."""
        self._turns.heard(self, now)
        if self._turns.are_shared:
            self._cpu_s = thread_time()
            if now >= self._until and self._next is None:
                self._begin()

    def used(self, seconds: float) -> float:
        """How much work a request was that has taken so long, since the client was heard.

        The machine may have been at something else. Nobody rests for that.
        """
        if seconds < LONG_SECONDS or not self._turns.are_shared:
            return seconds
        return min(seconds, thread_time() - self._cpu_s)

    def spent(self, seconds: float, now: float) -> None:
        """A request has taken so long."""
        self._spent_s += seconds
        if self._turns.are_shared:
            self._until = min(max(self._until, now) + _rest(seconds), now + REST_SECONDS_MAX)

    def caused(self, seconds: float, now: float) -> None:
        """A step that its requests have caused took so long."""
        self._caused_s += seconds
        self.spent(seconds, now)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call this when it is the principal's turn again. Whoever waits longest comes first.

        At most one call waits for each connection.
        """
        self._waiting.append(go_on)
        self._call()

    def _begin(self) -> None:
        """A new turn."""
        self._turn_s = min(max(self._caused_s * CAUSED_PART, SHARED_TURN_SECONDS), SHARED_TURN_SECONDS_MAX)
        self._spent_s = self._caused_s = 0.0

    def _turn(self) -> None:
        self._next = None
        now = perf_counter()
        if now < self._until and self._turns.has_others(self, now):
            # Something that it has caused took long.
            self._call()
            return
        self._begin()
        for _ in range(len(self._waiting)):
            if self.is_used_up:
                break
            self._waiting.popleft()()
        if self._waiting:
            self._call()

    def _call(self) -> None:
        if self._next is None:
            now = perf_counter()
            rest_s = self._until - now if self._turns.has_others(self, now) else 0.0
            if rest_s > 0.0:
                # The others may leave meanwhile.
                self._next = self._loop.call_later(min(rest_s, AMONG_OTHERS_SECONDS), self._turn)
            else:
                self._next = self._loop.call_soon(self._turn)


def _rest(seconds: float) -> float:
    """For how long others come first after a piece of work.

    >>> [round(_rest(ms / 1_000) * 1_000) for ms in (1, 10, 16, 40, 100)]
    [1, 10, 48, 440, 3100]
    """
    return seconds * (1.0 + max(0.0, seconds - LONG_SECONDS) / LONGER_SECONDS)


@dataclass(slots=True, eq=False)
class Principal:
    """What one principal has at this node."""

    name: str
    share: Share
    #: Its connections.
    clients: int = 0
    #: Its subscriptions, parked and named ones included, and the characters of their conditions.
    subscriptions: int = 0
    condition_bytes: int = 0
    #: Its named subscriptions.
    names: int = 0
    #: How often each condition that costs something with every event is asked for, and what they all cost.
    matched: Counter[Matched] = field(default_factory=Counter)
    matching_cost: int = 0

    def match(self, matched: Matched, sign: int) -> None:
        """A condition is asked for once more, or once less. One that is asked for twice is evaluated once."""
        cost = matching_cost(matched[1])
        if not cost:
            return
        before = self.matched[matched]
        self.matched[matched] = before + sign
        if not before:
            self.matching_cost += cost
        elif not before + sign:
            del self.matched[matched]
            self.matching_cost -= cost

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self.clients or self.subscriptions or self.names)


class Principals:
    """Everybody who has something at this node. Whoever has nothing any more is forgotten."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._turns = Turns()
        self._known: dict[str, Principal] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, name: str) -> Principal:
        """A principal; call `left` when it may have nothing any more."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = Principal(
                name, Share(self.limits.principal_backlog_bytes_max, self._turns)
            )
        return found

    def left(self, principal: Principal) -> None:
        """Something of a principal is gone."""
        if principal.is_empty and self._known.get(principal.name) is principal:
            del self._known[principal.name]

    def check_client(self, name: str) -> None:
        """Raise UsageError if a principal has as many connections as it may."""
        found = self._known.get(name)
        has = 0 if found is None else found.clients
        if has >= self.limits.principal_clients_max:
            raise _exceeded(name, f"{has:,} connections", "principal_clients_max")

    def check_subscription(self, principal: Principal, of_client: int, where: str, *, named: bool) -> None:
        """Raise UsageError if one more subscription exceeds a quota; its client has `of_client`."""
        limits, name = self.limits, principal.name
        if of_client >= limits.client_subscriptions_max:
            raise _exceeded(
                name, f"{of_client:,} subscriptions on one connection", "client_subscriptions_max"
            )
        if principal.subscriptions >= limits.principal_subscriptions_max:
            told = f"{principal.subscriptions:,} subscriptions, those of lost connections included"
            raise _exceeded(name, told, "principal_subscriptions_max")
        self.check_condition(principal, where)
        if named and principal.names >= limits.principal_names_max:
            raise _exceeded(
                name, f"{principal.names:,} named subscriptions", "principal_names_max", retry=False
            )

    def check_condition(self, principal: Principal, where: str) -> None:
        """Raise UsageError if one more condition would be too much."""
        if principal.condition_bytes + len(where) > self.limits.principal_condition_bytes_max:
            told = f"conditions of {principal.condition_bytes:,} characters together"
            raise _exceeded(principal.name, told, "principal_condition_bytes_max")

    def check_matching(self, principal: Principal, topic: TopicId, condition: Condition) -> None:
        """Raise UsageError if one more condition would make events too expensive."""
        cost = matching_cost(condition)
        if cost and (topic, condition) not in principal.matched:
            total, most = principal.matching_cost + cost, self.limits.principal_matching_cost_max
            if principal.name == ANONYMOUS:
                most *= ANONYMOUS_SHARES
            if total > most:
                raise UsageError(
                    "E125",
                    f"the conditions of {principal.name} would cost {total:,} units an event, at most "
                    f"{most:,}: use fewer LIKE '%...', calculations and NOT XPATH, or raise "
                    "limits.principal_matching_cost_max",
                )


def _exceeded(principal: str, has: str, limit: str, *, retry: bool = True) -> UsageError:
    return UsageError(
        "E106", f"{principal} has {has} at this node: end some of them, or raise limits.{limit}", retry=retry
    )
