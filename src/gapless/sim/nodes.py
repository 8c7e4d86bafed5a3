"""What does a host keep for a broker, and how fast is it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gapless.model.ids import BrokerId, PubendId
from gapless.model.ticks import Tick
from gapless.protocol.broker import Broker
from gapless.protocol.creations import Creation
from gapless.sim.connections import SimulatedConnection
from gapless.sim.disk import SimulatedLog
from gapless.sim.publishing import PublisherDatabase, PublishingHost
from gapless.sim.subscribers import Subscribers
from gapless.sim.subscribing import SubscriberDatabase, SubscribingHost


@dataclass(slots=True)
class SimulatedNode:
    """One broker and what its host keeps for it, some of it longer than the broker lives."""

    name: BrokerId
    #: None while the broker is down.
    broker: Broker | None = None
    #: The number of its last life, as its disk knows it.
    incarnation: int = 0
    #: How often it was started, whatever its disk says: what was meant for one life is void in the next.
    lives: int = 0
    #: The numbers that its lives had.
    numbers: set[int] = field(default_factory=set)
    logs: dict[PubendId, SimulatedLog] = field(default_factory=dict)
    #: The creations that are on its disk.
    created: set[Creation] = field(default_factory=set)
    desk: Subscribers = field(default_factory=Subscribers)
    #: It accepts everything and does nothing.
    stalled: bool = False
    inbox: list[Callable[[], None]] = field(default_factory=list)
    #: How far its wall clock is off.
    clock_offset: Tick = 0
    #: Its monotonic clock starts anywhere.
    base_ms: int = 0
    #: Counts the timers asked for: only the last one fires.
    timer: int = 0
    disk_full: bool = False
    #: The name of a kind of record that the disk has no room for, nor for what is written with it.
    refuses: str = ""
    steps: int = 0
    steps_per_check: int = 1
    #: The connections of clients to this life of the broker.
    connections: list[SimulatedConnection] = field(default_factory=list)
    #: What it does for publishers; None while the broker is down.
    publishing: PublishingHost | None = None
    #: What it does for subscribers; None while the broker is down. And what it has written down of them.
    subscribing: SubscribingHost | None = None
    names: SubscriberDatabase = field(default_factory=SubscriberDatabase)
    #: What it has written down of publishers.
    database: PublisherDatabase = field(default_factory=PublisherDatabase)
    #: The ids of the rows of each request of an experiment that is not answered yet.
    requests: dict[int, list[int]] = field(default_factory=dict)

    @property
    def highest(self) -> int:
        """The highest number of a life that others may have seen."""
        return max(self.numbers, default=0)


@dataclass(slots=True, kw_only=True)
class Pace:
    """How fast the parts of a host are."""

    flush_us_min: int = 300
    flush_us_max: int = 8_000
    read_us_max: int = 3_000
    #: The odds that the record after the surviving ones is half written when a broker crashes.
    torn_odds: float = 0.3
    #: A broker's invariants are checked once in so many steps, or less often when it holds many rows.
    steps_per_check: int = 1
    #: Whether subscribers come over connections, through the session machines.
    sessions: bool = False
    #: How many publisher identities each principal may have at a broker.
    identities_max: int = 1_000
