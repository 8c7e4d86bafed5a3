"""Which faults have to meet? Crashes, clocks and disks that strike together, where a promise is most at risk.

A fault that is drawn by chance hardly ever hits the moment between a promise and its use. So in some runs
faults are aimed: they wait until a record is on the disk, or keep just that record off it, and then let the
broker crash and come back with its clock set back.

| kind | what meets |
| --- | --- |
| reserve_refused | the disk has no room for reservations, then a crash, then an earlier clock |
| reserve_crash | a crash while silence is told below a reservation, then an earlier clock |
| grant_crash | a crash while a subscription begins below the present |
| grant_orphaned | events that the disk refused, a start tick above them, a crash, then an earlier clock |
| link_burst | links that hold events back and let them go at once, then subscribers from before |
| publish_refused | the disk has no room for events while their publisher sends more of them |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from gapless.model.ids import BrokerId
from gapless.sim.network import SimulatedLink
from gapless.sim.nodes import SimulatedNode
from gapless.sim.observer import Observer
from gapless.sim.subscribers import Subscriber
from gapless.sim.workload import Workload
from gapless.sim.world import SECOND_US, World

#: Kinds that half of all runs draw from, and those that are drawn for some of the others.
_FIRST = ("reserve_refused", "reserve_crash", "grant_crash", "grant_orphaned", "link_burst")
_SECOND = ("publish_refused",)
DIRECTED = (*_FIRST, *_SECOND)

#: The odds of a run to have one of the first kinds, and those of any other run to have one of the second.
ODDS = 0.5
SECOND_ODDS = 0.2
#: The mean time between two of them.
INTERVAL_US = SECOND_US // 2
#: The record that each kind waits for, and how long after it the broker crashes at most.
_AIMED_AT: Mapping[str, tuple[str, int]] = {
    "reserve_crash": ("ReserveRecord", SECOND_US),
    "grant_crash": ("StartRecord", SECOND_US // 20),
    "grant_orphaned": ("StartRecord", SECOND_US // 20),
}


def drawn_kind(random: Random) -> str:
    """The kind of directed fault that a run has; empty when it has none."""
    if random.random() < ODDS:
        return random.choice(_FIRST)
    return random.choice(_SECOND) if random.random() < SECOND_ODDS else ""


class Directed(Observer):
    """Strikes a world with aimed faults until it is told to stop."""

    def __init__(self, world: World, workload: Workload, random: Random) -> None:
        self._world = world
        self._workload = workload
        self._random = random
        #: Empty in a run without directed faults.
        self._kind = drawn_kind(random)
        self._on = False
        #: The broker that waits for the record that the kind is aimed at.
        self._target: BrokerId | None = None
        #: Those who were made to stop reading.
        self._sleeping: list[Subscriber] = []
        world.observers.append(self)

    def start(self) -> None:
        """Let the faults begin."""
        self._on = bool(self._kind)
        self._plan()

    def heal(self) -> None:
        """Stop all faults; the brokers that are down are started by others."""
        self._on = False
        for node in self._world.nodes.values():
            node.refuses = ""

    def flushed(self, pubend: str, written: Sequence[str]) -> None:
        """Crash the broker that waits for this record."""
        node = next(each for each in self._world.nodes.values() if pubend in each.logs)
        if self._kind not in _AIMED_AT or node.name != self._target:
            return
        record, delay_us = _AIMED_AT[self._kind]
        if record in written:
            self._target = None
            self._after(self._random.randrange(delay_us), partial(self._crash, node, node.lives))

    def _plan(self) -> None:
        self._after(round(self._random.expovariate(1.0) * INTERVAL_US), self._strike)

    def _after(self, delay_us: int, action: Callable[[], None]) -> None:
        self._world.after(delay_us, partial(self._if_on, action))

    def _if_on(self, action: Callable[[], None]) -> None:
        if self._on:
            action()

    def _strike(self) -> None:
        hosts = [
            node
            for node in self._world.nodes.values()
            if node.logs and node.broker is not None and not node.stalled
        ]
        if hosts and self._kind == "link_burst":
            self._hold_back(self._random.choice(hosts))
        elif hosts and self._kind == "publish_refused":
            self._refuse(self._random.choice(hosts))
        elif hosts and self._target is None:
            self._aim(self._random.choice(hosts))
        self._plan()

    # ---- brokers -------------------------------------------------------------------------------------

    def _aim(self, node: SimulatedNode) -> None:
        if self._kind in ("reserve_refused", "reserve_crash"):
            self._make_curious(node)
        if self._kind == "reserve_refused":
            node.refuses = "ReserveRecord"
            delay = self._random.randrange(SECOND_US // 5, 2 * SECOND_US)
            self._after(delay, partial(self._crash, node, node.lives))
            return
        self._target = node.name
        self._after(SECOND_US // 2, partial(self._give_up, node))
        if self._kind == "grant_orphaned":
            node.refuses = "BatchRecord"
            self._workload.publish_now()
        if self._kind == "grant_crash":
            self._sleep()
            for _ in range(self._random.randint(1, 3)):
                self._after(self._random.randrange(SECOND_US // 10), self._workload.publish_now)
        self._join_someone(self._world.clock(node.name))

    def _refuse(self, node: SimulatedNode) -> None:
        """Let the disk refuse events, with others of the same publisher close behind."""
        pubend = self._random.choice(sorted(node.logs))
        for _ in range(self._random.randint(4, 12)):
            self._after(self._random.randrange(60_000), partial(self._workload.publish_now, pubend))
        for _ in range(3):
            begin = self._random.randrange(50_000)
            self._after(begin, partial(setattr, node, "refuses", "BatchRecord"))
            self._after(begin + self._random.randint(1_000, 10_000), partial(self._allow, node))

    def _allow(self, node: SimulatedNode) -> None:
        self._world.faults[self._kind] += bool(node.refuses)
        node.refuses = ""

    def _make_curious(self, node: SimulatedNode) -> None:
        """Let the other pubends go on, so that a merge asks a quiet one for its silence."""
        quiet = self._random.choice(sorted(node.logs))
        others = sorted(
            pubend for each in self._world.nodes.values() for pubend in each.logs if pubend != quiet
        )
        for _ in range(8 if others else 0):
            publish = partial(self._workload.publish_now, self._random.choice(others))
            self._after(self._random.randrange(SECOND_US), publish)

    def _give_up(self, node: SimulatedNode) -> None:
        if self._target == node.name:
            self._target, node.refuses = None, ""
            self._wake()

    def _join_someone(self, since: int) -> None:
        """Somebody subscribes, from now on or from before."""
        edge = self._random.choice(sorted(self._workload.clients))
        start = since if self._random.random() < 0.7 else None
        self._after(self._random.randrange(SECOND_US // 5), partial(self._workload.join, edge, start))

    def _crash(self, node: SimulatedNode, life: int) -> None:
        node.refuses = ""
        if node.broker is None or node.lives != life:
            return
        self._world.faults[self._kind] += 1
        self._world.crash(node.name)
        self._wake()
        node.clock_offset = -self._random.choice((SECOND_US // 5, SECOND_US, 3 * SECOND_US))
        self._after(self._random.randrange(20_000, SECOND_US // 2), partial(self._restart, node))

    def _restart(self, node: SimulatedNode) -> None:
        if node.broker is None:
            self._world.start(node.name)
            self._after(self._random.randrange(SECOND_US // 5), self._workload.publish_now)
            self._after(self._random.randrange(SECOND_US), partial(setattr, node, "clock_offset", 0))

    def _sleep(self) -> None:
        """Let somebody hold the past: without that a newcomer is promised nothing of it."""
        self._sleeping = [each for each in self._world.subscribers() if not each.paused]
        for subscriber in self._sleeping:
            self._world.pause(subscriber, paused=True)

    def _wake(self) -> None:
        sleeping, self._sleeping = self._sleeping, []
        for subscriber in sleeping:
            if not subscriber.closed:
                self._world.pause(subscriber, paused=False)

    # ---- links ---------------------------------------------------------------------------------------

    def _hold_back(self, host: SimulatedNode) -> None:
        """Hold back what one pubend tells its neighbours, and let it go at once."""
        pubend = self._random.choice(sorted(host.logs))
        links = [
            link
            for link in self._world.links.values()
            if host.name in link.ends and link.up and not link.stalled
        ]
        for link in links:
            self._world.stall_link(*link.ends)
            self._after(150_000, partial(self._let_go, link, link.generation))
        self._sleep()
        self._after(SECOND_US // 2, self._wake)
        for _ in range(self._random.randint(3, 8)):
            self._after(self._random.randrange(100_000), partial(self._workload.publish_now, pubend))
        since = self._world.clock(host.name)
        for edge in sorted(self._workload.clients):
            delay = self._random.randrange(150_000, SECOND_US // 2)
            self._after(delay, partial(self._workload.join, edge, since))

    def _let_go(self, link: SimulatedLink, generation: int) -> None:
        if link.generation == generation:
            self._world.faults["link_burst"] += 1
            self._world.resume_link(*link.ends)
