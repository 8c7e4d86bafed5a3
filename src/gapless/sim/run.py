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
from gapless.protocol.parameters import Parameters
from gapless.protocol.trace import Entry, describe
from gapless.protocol.trace import story as tick_story
from gapless.sim.checkers import Checkers, Violation
from gapless.sim.cost import Cost
from gapless.sim.creating import Creating
from gapless.sim.directed import Directed
from gapless.sim.faults import Faults, Profile
from gapless.sim.nodes import Pace
from gapless.sim.plan import Plan
from gapless.sim.session_checkers import SessionCheckers
from gapless.sim.session_workload import SessionWorkload
from gapless.sim.topologies import random_network
from gapless.sim.workload import Workload
from gapless.sim.world import SECOND_US, World

#: Runs with these seeds may lose folders, too. Regressions and tests with other seeds are older than such
#: faults, and keep their stories.
FOLDER_SEEDS = range(2_000_000, 100_000_000)
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
#: In some runs a principal may have only so many publisher identities at a broker.
IDENTITIES_FEW = 2
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
    sessions: bool | None = None,
) -> RunResult:
    """Simulate one seed; a network or a profile that is not given is drawn from it.

    In a `plain` run all subscriptions are for everything, one value or one range, do not change, and end with
    their edge; no topic is created, and no fault is aimed. With `sessions` subscribers come over connections,
    through the session machines; unless it is given, every other run is like that. Folders are lost only in
    runs of `FOLDER_SEEDS`.
    """
    random = Random(seed)
    network = network or random_network(random, brokers_max)
    is_aimed = profile is None and not plain
    folders = Random(f"folders of {seed}")
    profile = profile or Profile.draw(random, folders if seed in FOLDER_SEEDS else None)
    chance = Random(f"topics of {seed}")
    creating = Creating((), chance) if plain else Creating.draw(network, chance)
    if sessions is None:
        sessions = not plain and Random(f"sessions of {seed}").random() < 0.5
    plan = plan_of(network.extended(creating.creations))
    checkers = SessionCheckers(plan) if sessions else Checkers(plan)
    identities_max = IDENTITIES_FEW if Random(f"quotas of {seed}").random() < 0.1 else Pace().identities_max
    world = World(network, random, [checkers], Pace(identities_max=identities_max, sessions=sessions))
    cost = _cost(plan, world)
    tastes = None if plain else Random(f"tastes of {seed}")
    workload = (SessionWorkload if sessions else Workload)(world, checkers, random, tastes)
    if isinstance(workload, SessionWorkload) and not plain:
        workload.changes = Random(f"changes of {seed}")
    faults = Faults(world, workload, profile, random, folders)
    directed = Directed(world, workload, Random(f"directed faults of {seed}")) if is_aimed else None
    marks_before = Counter(marks.counts)
    violation: Violation | None = None
    try:
        creating.start(world, workload)
        if directed is not None:
            directed.start()
        _strike(world, workload, faults, faults_seconds)
        if directed is not None:
            directed.heal()
        _heal(world, workload, faults, checkers, cost)
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


def _cost(plan: Plan, world: World) -> Cost:
    """The checker for waste, listening to a world."""
    parameters, usual = world.network.parameters, Parameters()
    cost = Cost(
        plan,
        lambda: world.time_us,
        repeat_min_ms=parameters.nack_repeat_min_ms,
        is_roomy=parameters.stream_runs_max >= usual.stream_runs_max
        and parameters.stream_bytes_max >= usual.stream_bytes_max,
        is_thorough=parameters.compare_work_max >= usual.compare_work_max,
    )
    world.observers.append(cost)
    return cost


def _heal(world: World, workload: Workload, faults: Faults, checkers: Checkers, cost: Cost) -> None:
    faults.heal()
    world.run_until(world.time_us + SECOND_US)
    workload.stop_publishing()
    _wait(world, checkers)
    world.run_until(world.time_us + round(SETTLING_SECONDS * SECOND_US))
    # A condition that was replaced is wanted until its subscriber has taken all before the change: of a quiet
    # pubend it has to ask for the silence there, and may have backed off.
    _wait(world, cost)
    checkers.settled = True
    workload.publish_now()
    world.run_until(world.time_us + SECOND_US // 10)
    _wait(world, checkers)


def _wait(world: World, checkers: Checkers | Cost) -> None:
    """Let time pass until nothing is unfinished. Raises the violation when it takes too long."""
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
        row_bytes_max={
            b: min(n * parameters.stream_bytes_max, parameters.broker_bytes_max) + n * message_bytes
            for b, n in streams.items()
        },
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
