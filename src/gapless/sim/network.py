"""What happens to a message between two brokers? Delay, loss, repetition, reordering, stalls and cuts.

A link keeps the order of its messages, as a connection does, unless the weather says otherwise. A
stalled link accepts messages and keeps them: they go on when the stall ends, or are lost with the link.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from gapless.model.ids import BrokerId
from gapless.protocol.messages import KnowledgeMessage, Message

#: The two ends of a link, sorted.
Ends: TypeAlias = tuple[BrokerId, BrokerId]


def ends(one: BrokerId, other: BrokerId) -> Ends:
    """The name of the link between two brokers."""
    return (one, other) if one < other else (other, one)


@dataclass(slots=True)
class Weather:
    """The odds of each message to be treated badly. Faults change it."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    delay_us_min: int = 300
    delay_us_max: int = 3_000


@dataclass(slots=True)
class SimulatedLink:
    """One connection. Both ends see the same state."""

    ends: Ends
    up: bool = False
    #: A fault holds the link down; otherwise it is up whenever both brokers are.
    cut: bool = False
    stalled: bool = False
    #: Counts the connections: what was sent on an earlier one never arrives.
    generation: int = 0
    #: Every message takes this much longer, for the length of a delay spike.
    extra_us: int = 0
    #: Accepted during a stall, not forwarded yet: (receiver, message).
    held: list[tuple[BrokerId, Message]] = field(default_factory=list)
    #: When the last message to each end arrives.
    _last_us: dict[BrokerId, int] = field(default_factory=dict)

    def connect(self) -> None:
        """A new connection, on which nothing was sent yet."""
        self.up = True
        self.generation += 1
        self._last_us = {}

    def disconnect(self) -> None:
        """The connection is gone, with everything on it."""
        self.up = False
        self.stalled = False
        self.generation += 1
        self.held = []

    def arrivals(
        self, receiver: BrokerId, now_us: int, weather: Weather, random: Random, counts: Counter[str]
    ) -> list[int]:
        """When the copies of a message that is sent now arrive: none, one or two of them."""
        if weather.loss and random.random() < weather.loss:
            counts["loss"] += 1
            return []
        copies = 1
        if weather.duplication and random.random() < weather.duplication:
            counts["duplication"] += 1
            copies = 2
        return [self._arrival(receiver, now_us, weather, random, counts) for _ in range(copies)]

    def _arrival(
        self, receiver: BrokerId, now_us: int, weather: Weather, random: Random, counts: Counter[str]
    ) -> int:
        delay = random.randint(weather.delay_us_min, weather.delay_us_max) + self.extra_us
        if weather.reordering and random.random() < weather.reordering:
            counts["reordering"] += 1
            return now_us + delay + random.randint(0, 20 * weather.delay_us_max)
        arrival = max(now_us + delay, self._last_us.get(receiver, 0) + 1)
        self._last_us[receiver] = arrival
        return arrival


def handed_over(
    held: list[tuple[BrokerId, Message]],
) -> list[tuple[BrokerId, Message, list[KnowledgeMessage]]]:
    """What was held back, as a host finds it: knowledge right behind knowledge is handed over with it."""
    found: list[tuple[BrokerId, Message, list[KnowledgeMessage]]] = []
    for to, message in held:
        behind = found and found[-1][0] == to and isinstance(found[-1][1], KnowledgeMessage)
        if behind and isinstance(message, KnowledgeMessage):
            found[-1][2].append(message)
        else:
            found.append((to, message, []))
    return found
