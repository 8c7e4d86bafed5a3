"""How much of a node may one principal use? Quotas for what it keeps there, and a share of the event loop.

A principal is who a client is (`Rights.principal`): a token, a certificate, or everybody who shows neither.
Everything a principal has is counted, including subscriptions parked after a lost connection. A request that
would exceed a quota of `[limits]` is refused before anything has changed (E106).

The event loop is shared, too. In each turn, the requests of one principal run for a limited time; the rest
wait until every other principal has had its turn. So a client that sends thousands of requests at once, over
any number of connections, delays only its own principal. Work that a request causes later, such as matching
an event, is charged as well. While several principals are active, each one rests after its work for as long
as the work took, and much longer after a single long piece of work.
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
from gapless.protocol.sessions.identities import ANONYMOUS

#: A condition, and the topic that it is about.
Matched: TypeAlias = tuple[TopicId, Condition]

#: How long the requests of one principal may run in a turn while no other principal is active.
TURN_SECONDS = 0.005
#: The same while others are active. The longer the steps that its last requests caused, the longer its turn,
#: so that more requests share a step.
SHARED_TURN_SECONDS, SHARED_TURN_SECONDS_MAX, CAUSED_PART = 0.001, 0.004, 1.0
#: Turns are shared while two principals were heard from within this many seconds.
AMONG_OTHERS_SECONDS = 0.25
#: While turns are shared, a principal rests after each piece of work for as long as the work took. Beyond
#: `LONG_SECONDS` it rests longer: as long again for each further `LONGER_SECONDS`. Work that cannot be split
#: is then rare enough to stay out of the others' 99th percentile.
LONG_SECONDS, LONGER_SECONDS = 0.010, 0.003
#: Upper bound of a rest: a client that hears no PONG for 10 seconds gives up on the node.
REST_SECONDS_MAX = 8.0
#: All clients without a token or certificate are one principal, whose conditions may cost as much as those of
#: this many others: an open network belongs to one team, which bears the cost together.
ANONYMOUS_SHARES = 50


class Turns:
    """Tells whether several principals are active. All shares of a node have the same one."""

    __slots__ = ("_last", "_last_at", "_other_at", "_shared_until", "are_shared")

    def __init__(self) -> None:
        self._last: Share | None = None
        #: When that one was heard from last, and when anybody else was.
        self._last_at = self._other_at = self._shared_until = -AMONG_OTHERS_SECONDS
        #: Whether several principals were heard from recently.
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
        """Whether anybody else was heard from recently."""
        return now - (self._other_at if share is self._last else self._last_at) < AMONG_OTHERS_SECONDS


class Share:
    """One principal's share of the event loop. All times are those of `perf_counter`."""

    __slots__ = (
        *("_caused_s", "_cpu_s", "_loop", "_next", "_spent_s", "_turn_s", "_turns", "_until", "_waiting"),
        *("held_bytes", "held_bytes_max"),
    )

    def __init__(self, held_bytes_max: int, turns: Turns) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = turns
        #: How long its requests have run in this turn, and how long they may.
        self._spent_s = 0.0
        self._turn_s = SHARED_TURN_SECONDS
        #: CPU time of this thread when one of its clients was last heard from.
        self._cpu_s = 0.0
        #: How long the steps were that they have caused since, and until when the principal rests.
        self._caused_s = 0.0
        self._until = 0.0
        #: Bytes from its clients that are not processed yet, such as unfinished frames; and their maximum.
        self.held_bytes = 0
        self.held_bytes_max = held_bytes_max
        self._waiting: deque[Callable[[], None]] = deque()
        #: The scheduled call of `_turn`, if there is one.
        self._next: asyncio.Handle | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other principals are active."""
        return self._turns.are_shared

    @property
    def is_used_up(self) -> bool:
        """Whether its time in this turn is used up."""
        return self._spent_s >= (self._turn_s if self._turns.are_shared else TURN_SECONDS)

    def heard(self, now: float) -> None:
        """One of its clients has said something."""
        self._turns.heard(self, now)
        if self._turns.are_shared:
            self._cpu_s = thread_time()
            if now >= self._until and self._next is None:
                self._begin()

    def used(self, seconds: float) -> float:
        """CPU time of a request that took `seconds`. Nobody rests because the machine was busy elsewhere."""
        if seconds < LONG_SECONDS or not self._turns.are_shared:
            return seconds
        return min(seconds, thread_time() - self._cpu_s)

    def spent(self, seconds: float, now: float) -> None:
        """A request took this long."""
        self._spent_s += seconds
        if self._turns.are_shared:
            self._until = min(max(self._until, now) + rest_after(seconds), now + REST_SECONDS_MAX)

    def caused(self, seconds: float, now: float) -> None:
        """A step that its requests caused took this long."""
        self._caused_s += seconds
        self.spent(seconds, now)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is the principal's turn again; first come, first served.

        Each connection has at most one call waiting.
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
            # A step that it caused took long, so it still rests.
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


def rest_after(seconds: float) -> float:
    """How long a principal rests after a piece of work, or a log after a document.

    >>> [round(rest_after(ms / 1_000) * 1_000) for ms in (1, 10, 16, 40, 100)]
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
    #: How many subscriptions use each condition that costs something per event, and the total cost.
    matched: Counter[Matched] = field(default_factory=Counter)
    matching_cost: int = 0

    def match(self, matched: Matched, sign: int) -> None:
        """Count one more or one less use of a condition. However often it is used, it is evaluated once."""
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
    """The principals that have something at this node. One that has nothing left is forgotten."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._turns = Turns()
        self._known: dict[str, Principal] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, name: str) -> Principal:
        """The principal of this name; call `left` when it may have nothing left."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = Principal(
                name, Share(self.limits.principal_backlog_bytes_max, self._turns)
            )
        return found

    def left(self, principal: Principal) -> None:
        """Forget a principal if it has nothing left."""
        if principal.is_empty and self._known.get(principal.name) is principal:
            del self._known[principal.name]

    def check_client(self, name: str) -> None:
        """Raise UsageError if a principal has no connection left in its quota."""
        found = self._known.get(name)
        has = 0 if found is None else found.clients
        if has >= self.limits.principal_clients_max:
            raise _exceeded(name, f"{has:,} connections", "principal_clients_max")

    def check_subscription(self, principal: Principal, of_client: int, where: str, *, named: bool) -> None:
        """Raise UsageError if one more subscription exceeds a quota; its connection has `of_client`."""
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
        """Raise UsageError if one more condition exceeds the quota of characters."""
        most = self.limits.principal_condition_bytes_max
        if len(where) > most:
            raise UsageError(
                "E106",
                f"the condition has {len(where):,} characters, {principal.name} may have {most:,}: shorten "
                "it, or raise limits.principal_condition_bytes_max",
            )
        if principal.condition_bytes + len(where) > most:
            told = f"conditions of {principal.condition_bytes:,} characters together"
            raise _exceeded(principal.name, told, "principal_condition_bytes_max")

    def check_matching(self, principal: Principal, topic: TopicId, condition: Condition) -> None:
        """Raise UsageError if one more condition makes matching an event too expensive."""
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
