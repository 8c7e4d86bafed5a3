"""What goes wrong, when, and with what odds?

A profile says how often each kind of fault strikes; some runs have a single kind, some have all, some
none. Every fault is counted under its name when it really happens, so that a set of runs can show that
none was forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from gapless.model.ids import BrokerId
from gapless.sim.connections import SimulatedConnection
from gapless.sim.directed import DIRECTED
from gapless.sim.folders import FolderCopy, copy_of, lose, roll_back
from gapless.sim.network import SimulatedLink
from gapless.sim.nodes import SimulatedNode
from gapless.sim.workload import Workload
from gapless.sim.world import SECOND_US, World

#: The kinds that a profile may switch on, with the mean time between two faults of the whole network.
#: Those of the weather strike single messages, by the odds in `_WEATHER_ODDS`.
STRIKES_US: Mapping[str, int] = {
    "delay_spike": 2 * SECOND_US,
    "link_cut": 2 * SECOND_US,
    "link_stall": 3 * SECOND_US,
    "broker_stall": 5 * SECOND_US,
    "broker_crash": 4 * SECOND_US,
    "pubend_crash": 5 * SECOND_US,
    "disk_full": 4 * SECOND_US,
    "clock_forward": 3 * SECOND_US,
    "clock_backward": 3 * SECOND_US,
    "connection_cut": SECOND_US // 2,
    "connection_stall": 2 * SECOND_US,
    "publisher_kill": SECOND_US,
    "subscriber_kill": SECOND_US,
    "churn": SECOND_US // 4,
    "slow_subscriber": SECOND_US,
    "folder_loss": 4 * SECOND_US,
    "folder_rollback": 4 * SECOND_US,
}
#: They are drawn apart, so that nothing else in a run depends on whether there are such faults.
FOLDER_KINDS = ("folder_loss", "folder_rollback")
_WEATHER_ODDS: Mapping[str, tuple[float, ...]] = {
    "loss": (0.01, 0.05, 0.2),
    "duplication": (0.02, 0.2),
    "reordering": (0.02, 0.2),
}
#: Counted when they happen, as a consequence of the kinds above.
CONSEQUENCES = (
    "unsynced_loss",
    "torn_write",
    "queue_overflow",
    "clock_leap",
    "fell_behind",
    "older_copy_noticed",
)
KINDS = (*_WEATHER_ODDS, *STRIKES_US, *CONSEQUENCES, *DIRECTED)

#: No clock is ever further off than this, ...
CLOCK_OFFSET_MAX = 3 * SECOND_US
#: ... but for that of a repository, now and then: what it publishes then is far ahead of everybody, also when
#: its clock is right again.
CLOCK_LEAP = 3_600 * SECOND_US
#: How far clocks are off that nobody has tampered with.
CLOCK_SKEW = 20_000


@dataclass(frozen=True, slots=True)
class Profile:
    """Which kinds of fault a run has, and how hard."""

    kinds: tuple[str, ...]
    #: The mean times of `STRIKES_US` are divided by this.
    intensity: float

    @staticmethod
    def draw(random: Random, folders: Random | None = None) -> Profile:
        """Nothing, one kind, a few, or everything; with `folders`, every other run loses folders."""
        choices = [*_WEATHER_ODDS, *(kind for kind in STRIKES_US if kind not in FOLDER_KINDS)]
        luck = random.random()
        if luck < 0.05:
            count = 0
        elif luck < 0.3:
            count = 1
        elif luck < 0.75:
            count = random.randint(2, 6)
        else:
            count = len(choices)
        kinds = random.sample(choices, count)
        drawn = [kind for kind in choices if kind in kinds]
        intensity = random.choice((0.7, 1.0, 2.0, 3.0))
        lost: tuple[str, ...] = ()
        if folders is not None:
            lost = folders.choice(((), (), (), ("folder_loss",), ("folder_rollback",), FOLDER_KINDS))
        return Profile((*drawn, *lost), intensity)


class Faults:
    """Strikes a world with the faults of a profile until it is told to stop."""

    def __init__(
        self, world: World, workload: Workload, profile: Profile, random: Random, folders: Random
    ) -> None:
        self._world = world
        self._workload = workload
        self._profile = profile
        self._random = random
        self._folders = folders
        self._on = False
        self._strikes: dict[str, Callable[[], bool]] = {
            "delay_spike": self._delay_spike,
            "link_cut": self._link_cut,
            "link_stall": self._link_stall,
            "broker_stall": self._broker_stall,
            "broker_crash": self._broker_crash,
            "pubend_crash": self._pubend_crash,
            "disk_full": self._disk_full,
            "clock_forward": partial(self._clock_jump, 1),
            "clock_backward": partial(self._clock_jump, -1),
            "connection_cut": self._connection_cut,
            "connection_stall": self._connection_stall,
            "publisher_kill": self._publisher_kill,
            "subscriber_kill": self._subscriber_kill,
            "churn": self._churn,
            "slow_subscriber": self._slow_subscriber,
            "folder_loss": self._folder_loss,
            "folder_rollback": self._folder_rollback,
        }
        assert set(self._strikes) == set(STRIKES_US), "a kind of fault that nobody strikes with"

    def start(self) -> None:
        """Let the faults begin."""
        self._on = True
        for node in self._world.nodes.values():
            node.clock_offset = self._random.randint(-CLOCK_SKEW, CLOCK_SKEW)
        weather = self._world.weather
        for kind, odds in _WEATHER_ODDS.items():
            if kind in self._profile.kinds:
                setattr(weather, kind, self._random.choice(odds))
        for kind in self._profile.kinds:
            if kind in STRIKES_US:
                self._plan(kind)

    def heal(self) -> None:
        """Stop all faults, mend all links, restart all brokers, and let everybody read again."""
        self._on = False
        world = self._world
        world.weather.loss = world.weather.duplication = world.weather.reordering = 0.0
        for link in world.links.values():
            link.extra_us = 0
            if link.stalled:
                world.resume_link(*link.ends)
            world.heal(*link.ends)
        self._workload.read_quickly()
        for node in world.nodes.values():
            node.disk_full = False
            node.clock_offset = 0
            if node.broker is None:
                world.start(node.name)
            elif node.stalled:
                world.resume(node.name)
        for subscriber in world.subscribers():
            world.pause(subscriber, paused=False)

    def _plan(self, kind: str) -> None:
        mean_us = STRIKES_US[kind] / self._profile.intensity
        random = self._folders if kind in FOLDER_KINDS else self._random
        self._world.after(round(random.expovariate(1.0) * mean_us), partial(self._strike, kind))

    def _strike(self, kind: str) -> None:
        if self._on:
            if self._strikes[kind]():
                self._world.faults[kind] += kind != "disk_full"  # which the world counts by record
            self._plan(kind)

    def _later(self, low_s: float, high_s: float, action: Callable[[], None]) -> None:
        """Do something after a while, unless everything is healed by then."""
        delay = round(self._random.uniform(low_s, high_s) * SECOND_US)
        self._world.after(delay, partial(self._if_on, action))

    def _if_on(self, action: Callable[[], None]) -> None:
        if self._on:
            action()

    # ---- links ---------------------------------------------------------------------------------------

    def _some_link(self) -> SimulatedLink | None:
        links = [link for link in self._world.links.values() if link.up and not link.stalled]
        return self._random.choice(links) if links else None

    def _delay_spike(self) -> bool:
        link = self._some_link()
        if link is None:
            return False
        link.extra_us = self._random.randint(50_000, 800_000)
        self._later(0.2, 2.0, partial(setattr, link, "extra_us", 0))
        return True

    def _link_cut(self) -> bool:
        link = self._some_link()
        if link is None:
            return False
        self._world.cut(*link.ends)
        self._later(0.05, 4.0, partial(self._world.heal, *link.ends))
        return True

    def _link_stall(self) -> bool:
        link = self._some_link()
        if link is None:
            return False
        self._world.stall_link(*link.ends)
        self._later(0.3, 3.0, partial(self._end_link_stall, link, link.generation))
        return True

    def _end_link_stall(self, link: SimulatedLink, generation: int) -> None:
        if link.generation != generation:
            return
        if self._random.random() < 0.3:
            self._world.resume_link(*link.ends)
        else:
            self._world.cut(*link.ends)
            self._later(0.05, 4.0, partial(self._world.heal, *link.ends))

    # ---- brokers -------------------------------------------------------------------------------------

    def _some_broker(self, hosts_pubend: bool) -> BrokerId | None:
        up = [
            node.name
            for node in self._world.nodes.values()
            if node.broker is not None and not node.stalled and (node.logs or not hosts_pubend)
        ]
        return self._random.choice(up) if up else None

    def _broker_crash(self) -> bool:
        broker = self._some_broker(hosts_pubend=False)
        if broker is None:
            return False
        self._crash(broker)
        return True

    def _broker_stall(self) -> bool:
        broker = self._some_broker(hosts_pubend=False)
        if broker is None:
            return False
        self._world.stall(broker)
        life = self._world.nodes[broker].lives
        self._later(0.3, 3.0, partial(self._end_broker_stall, broker, life))
        return True

    def _end_broker_stall(self, broker: BrokerId, life: int) -> None:
        node = self._world.nodes[broker]
        if not node.stalled or node.lives != life:
            return
        if self._random.random() < 0.3:
            self._world.resume(broker)
        else:
            self._crash(broker)

    def _pubend_crash(self) -> bool:
        broker = self._some_broker(hosts_pubend=True)
        if broker is None:
            return False
        self._when_unflushed(self._world.nodes[broker], partial(self._crash, broker), 100)
        return True

    def _when_unflushed(self, node: SimulatedNode, strike: Callable[[], None], patience: int) -> None:
        """Wait for a moment when the disk lags behind, because that is when a fault hurts."""
        if patience and not any(log.unflushed for log in node.logs.values()):
            again = partial(self._still_unflushed, node, node.lives, strike, patience - 1)
            self._world.after(self._random.randrange(5_000), again)
        else:
            strike()

    def _still_unflushed(
        self, node: SimulatedNode, life: int, strike: Callable[[], None], patience: int
    ) -> None:
        if self._on and node.broker is not None and node.lives == life:
            self._when_unflushed(node, strike, patience)

    def _crash(self, broker: BrokerId) -> None:
        self._world.crash(broker)
        if "clock_backward" in self._profile.kinds and self._random.random() < 0.5:
            # A machine that comes back with a wrong clock, behind ticks that it gave away before.
            self._world.faults["clock_backward"] += self._jump(self._world.nodes[broker], -1)
        self._later(0.05, 3.0, partial(self._restart, broker))

    def _restart(self, broker: BrokerId) -> None:
        if self._world.nodes[broker].broker is None:
            self._world.start(broker)

    # ---- folders -------------------------------------------------------------------------------------

    def _some_folder(self) -> SimulatedNode | None:
        """Of any broker, but as often as not of one with logs."""
        up = [node for node in self._world.nodes.values() if node.broker is not None and not node.stalled]
        hosts = [node for node in up if node.logs]
        chosen = hosts if hosts and self._folders.random() < 0.5 else up
        return self._folders.choice(chosen) if chosen else None

    def _folder_loss(self) -> bool:
        node = self._some_folder()
        if node is None:
            return False
        self._world.crash(node.name)
        lose(self._world, node, self._folders)
        self._back_later(node)
        return True

    def _folder_rollback(self) -> bool:
        node = self._some_folder()
        if node is None:
            return False
        delay = round(self._folders.uniform(0.3, 3.0) * SECOND_US)
        self._world.after(delay, partial(self._if_on, partial(self._roll_back, node, copy_of(node))))
        return True

    def _roll_back(self, node: SimulatedNode, copy: FolderCopy) -> None:
        both = [pubend for pubend in copy.logs if pubend in node.logs]
        is_same = len(both) == len(copy.logs)
        is_same &= all(node.logs[pubend].log_id == copy.logs[pubend].log_id for pubend in both)
        if node.broker is None or node.stalled or not is_same:
            return
        self._world.crash(node.name)
        roll_back(self._world, node, copy)
        self._back_later(node)

    def _back_later(self, node: SimulatedNode) -> None:
        delay = round(self._folders.uniform(0.05, 3.0) * SECOND_US)
        self._world.after(delay, partial(self._if_on, partial(self._restart, node.name)))

    def _disk_full(self) -> bool:
        broker = self._some_broker(hosts_pubend=True)
        if broker is None:
            return False
        node = self._world.nodes[broker]
        if self._random.random() < 0.5:
            self._when_unflushed(node, partial(self._fill_disk, node, 0.001, 0.01), 100)
        else:
            self._fill_disk(node, 0.05, 0.6)
        return True

    def _fill_disk(self, node: SimulatedNode, low_s: float, high_s: float) -> None:
        """The disk has no room for a while: for one flush, or for many."""
        node.disk_full = True
        self._later(low_s, high_s, partial(setattr, node, "disk_full", False))

    def _clock_jump(self, direction: int) -> bool:
        return self._jump(self._world.nodes[self._random.choice(list(self._world.nodes))], direction)

    def _jump(self, node: SimulatedNode, direction: int) -> bool:
        size = self._random.choice((1_000, 100_000, SECOND_US, 3 * SECOND_US))
        node.clock_offset = max(
            -CLOCK_OFFSET_MAX, min(CLOCK_OFFSET_MAX, node.clock_offset + direction * size)
        )
        if direction > 0 and size == SECOND_US and node.logs:
            node.clock_offset = CLOCK_LEAP
            self._world.faults["clock_leap"] += 1
        # Somebody sets the clock right after a while, which is a jump the other way.
        self._later(0.3, 3.0, partial(setattr, node, "clock_offset", 0))
        return True

    # ---- clients -------------------------------------------------------------------------------------

    def _some_connection(self) -> SimulatedConnection | None:
        connections = self._world.connections()
        return self._random.choice(connections) if connections else None

    def _connection_cut(self) -> bool:
        connection = self._some_connection()
        if connection is not None:
            connection.cut()
        return connection is not None

    def _connection_stall(self) -> bool:
        connection = self._some_connection()
        if connection is None:
            return False
        connection.stall()
        self._world.after(self._random.randrange(3 * SECOND_US), connection.resume)
        return True

    def _publisher_kill(self) -> bool:
        return self._workload.kill_publisher()

    # ---- subscribers ---------------------------------------------------------------------------------

    def _churn(self) -> bool:
        self._workload.churn()
        return True

    def _slow_subscriber(self) -> bool:
        return self._workload.slow_subscriber(self._random.randint(SECOND_US // 2, 4 * SECOND_US))

    def _subscriber_kill(self) -> bool:
        return self._workload.kill_subscriber()
