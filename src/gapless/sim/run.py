"""Does a network drawn from this seed keep its promises? One run: first faults, then healing.

Safety: faults strike, clients come and go, and every checker watches. Liveness: all faults stop, and within
a bound of virtual time everybody has got everything and the logs are released. Then, with nobody
coming or going any more, a last round of events may only travel to those who want it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gapless.model.ids import PubendId
from gapless.protocol import marks
from gapless.protocol.network import Network
from gapless.protocol.trace import Entry, describe
from gapless.protocol.trace import story as tick_story
from gapless.sim.checkers import Checkers, Plan, Violation
from gapless.sim.creating import Creating
from gapless.sim.faults import Faults, Profile
from gapless.sim.topologies import random_network
from gapless.sim.workload import Workload
from gapless.sim.world import SECOND_US, Pace, World

#: The largest network that a seed may draw; most have fewer than 16 brokers.
BROKERS_MAX = 200
FAULTS_SECONDS = 6.0
#: How long healing may take. Doubt can last a clock's offset, a stall and several backed-off repetitions.
LIVENESS_SECONDS = 60.0
#: How long the network is left alone before only live subscriptions may attract rows.
SETTLING_SECONDS = 2.0
#: The longest row that the workload makes, with its tick and offsets, is far below this.
ROW_BYTES_MAX = 256
BATCH_ROWS_MAX = 20
#: How many last lines a story has when no single tick is to blame.
STORY_LINES_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What became of one seed."""

    seed: int
    violation: Violation | None
    network: Network
    profile: Profile
    #: How often each kind of fault really happened.
    faults: Counter[str]
    #: How often each mark of the protocol was reached.
    marks: Counter[str]
    published: int
    delivered: int
    virtual_seconds: float
    brokers: int
    steps: int
    #: Equal for equal runs, and hardly ever otherwise.
    fingerprint: int
    #: The last events and effects, for the story of what went wrong.
    trace: Sequence[Entry]

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return self.violation is None

    def __str__(self) -> str:
        verdict = "ok" if self.violation is None else str(self.violation)
        return (
            f"seed {self.seed:#x}: {self.brokers} brokers, {self.published} events published, "
            f"{self.delivered} delivered, {self.steps} steps, {self.virtual_seconds:.1f} s: {verdict}"
        )


def run(
    seed: int,
    *,
    network: Network | None = None,
    profile: Profile | None = None,
    faults_seconds: float = FAULTS_SECONDS,
    brokers_max: int = BROKERS_MAX,
    plain: bool = False,
) -> RunResult:
    """Simulate one seed; a network or a profile that is not given is drawn from it.

    In a `plain` run all subscriptions are for everything, one value or one range, do not change, and end with
    their edge; and no topic is created.
    """
    random = Random(seed)
    network = network or random_network(random, brokers_max)
    profile = profile or Profile.draw(random)
    chance = Random(f"topics of {seed}")
    creating = Creating((), chance) if plain else Creating.draw(network, chance)
    checkers = Checkers(plan_of(network.extended(creating.creations)))
    world = World(network, random, [checkers], Pace())
    workload = Workload(world, checkers, random, None if plain else Random(f"tastes of {seed}"))
    faults = Faults(world, workload, profile, random)
    marks_before = Counter(marks.counts)
    violation: Violation | None = None
    try:
        creating.start(world, workload)
        _strike(world, workload, faults, faults_seconds)
        _heal(world, workload, faults, checkers)
    except Violation as found:
        violation = found
    return RunResult(
        seed=seed,
        violation=violation,
        network=network,
        profile=profile,
        faults=+world.faults,
        marks=marks.counts - marks_before,
        published=checkers.published,
        delivered=checkers.delivered,
        virtual_seconds=world.time_us / SECOND_US,
        brokers=len(world.nodes),
        steps=world.steps,
        fingerprint=world.fingerprint,
        trace=world.trace,
    )


def _strike(world: World, workload: Workload, faults: Faults, seconds: float) -> None:
    for broker in world.nodes:
        world.start(broker)
    workload.start_clients()
    workload.start_publishing()
    faults.start()
    world.run_until(round(seconds * SECOND_US))


def _heal(world: World, workload: Workload, faults: Faults, checkers: Checkers) -> None:
    faults.heal()
    world.run_until(world.time_us + SECOND_US)
    workload.stop_publishing()
    _wait(world, checkers)
    world.run_until(world.time_us + round(SETTLING_SECONDS * SECOND_US))
    checkers.settled = True
    workload.publish_now()
    world.run_until(world.time_us + SECOND_US // 10)
    _wait(world, checkers)


def _wait(world: World, checkers: Checkers) -> None:
    """Let time pass until nothing is owed to anybody. Raises the violation when it takes too long."""
    limit_us = world.time_us + round(LIVENESS_SECONDS * SECOND_US)
    while True:
        owed = checkers.unfinished()
        if owed is None:
            return
        if world.time_us >= limit_us:
            raise owed
        world.run_until(world.time_us + SECOND_US // 10)


def plan_of(network: Network) -> Plan:
    """What the checkers may know of a network, in plain names."""
    parameters = network.parameters
    message_bytes = max(BATCH_ROWS_MAX, parameters.message_rows_max) * ROW_BYTES_MAX
    # One stream as it comes in, one for each cell that it may leave to, and one for the subends.
    streams = {
        broker: len(network.pubends) * (2 + len(network.adjacent[cell]))
        for broker, cell in network.cell_of.items()
    }
    return Plan(
        topic_of={str(pubend): str(place.topic) for pubend, place in network.pubends.items()},
        root_of={str(p): str(network.cell_of[place.broker]) for p, place in network.pubends.items()},
        cell_of={str(broker): str(cell) for broker, cell in network.cell_of.items()},
        links=[(str(one), str(other)) for one, other in network.links],
        edges=frozenset(str(edge) for edge in network.edges),
        row_bytes_max={b: n * (parameters.stream_bytes_max + message_bytes) for b, n in streams.items()},
        runs_max={b: n * (4 * parameters.stream_runs_max + 64) for b, n in streams.items()},
    )


def story(result: RunResult) -> str:
    """What led to the violation of a run, as `tell` tells it."""
    return "nothing went wrong" if result.violation is None else tell(result.violation, result.trace)


def tell(found: Violation, trace: Sequence[Entry]) -> str:
    """What led to a violation: all about the tick that broke, or the last lines of the run."""
    if found.pubend is not None and found.tick is not None:
        return tick_story(trace, PubendId(found.pubend), found.tick)
    last = list(trace)[-STORY_LINES_MAX:]
    return "\n".join(f"{time_ms:>8}  {broker:<6}  {describe(item)}" for time_ms, broker, item in last)
