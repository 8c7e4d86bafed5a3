"""Do failures look as they do in the paper? The three experiments of its section 4.2, in virtual time.

Ten brokers (Figure 3), four pubends with 25 messages a second each, one subscriber to everything per
edge. A link or broker is stalled for 2.5 seconds, so that messages are lost, before it is failed.
Recorded are the latency of every message at every edge, and every nack that a broker sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TypeAlias

from gapless.model.ids import BrokerId, PubendId
from gapless.protocol.trace import Entry
from gapless.sim.checkers import Checkers, Violation
from gapless.sim.conditions import Everything, Row
from gapless.sim.nodes import Pace
from gapless.sim.observer import Observer, Wish
from gapless.sim.run import plan_of
from gapless.sim.topologies import FIGURE3_PUBENDS, figure3
from gapless.sim.translate import columns_of
from gapless.sim.world import SECOND_US, World

#: GCT, NRT, AET and DCT of the paper; everything else is as we ship it.
PAPER_PARAMETERS: Mapping[str, object] = MappingProxyType(
    {
        "gap_curiosity_ms": 200,
        "nack_repeat_min_ms": 600,
        "ack_expected_ms": 10_000,
        "delay_curiosity_ms": "infinite",
    }
)
MESSAGE_INTERVAL_US = SECOND_US // 25
PUBLISHING_STARTS_US = 2 * SECOND_US
STALL_US = 5_500_000
FAIL_US = 8 * SECOND_US
#: Long enough after the repair for everything to be delivered and acknowledged.
AFTERMATH_US = 6 * SECOND_US
#: How often whoever watches an experiment is told how far it is.
WATCH_US = SECOND_US // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One message as one subscriber got it."""

    pubend: str
    sent_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Nack:
    """One nack message, as it was sent."""

    time_s: float
    to: str
    pubend: str
    start: int
    stop: int

    @property
    def range_ms(self) -> float:
        """The paper's metric: how many milliseconds of ticks were asked for."""
        return (self.stop - self.start) / 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How far an experiment is. Its mappings are those of the recording, and go on to grow."""

    time_s: float
    end_s: float
    published: int
    latencies: Mapping[str, Sequence[Latency]]
    nacks: Mapping[str, Sequence[Nack]]


Watch: TypeAlias = Callable[[Moment], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperResult:
    """What one experiment showed."""

    name: str
    #: The promise that was broken, which ended the experiment.
    violation: Violation | None
    #: When the stall began, the failure came, and the repair, in seconds.
    stalled_s: float
    failed_s: float
    repaired_s: float
    #: Per edge, every message that its subscriber took, in the order of taking.
    latencies: Mapping[str, Sequence[Latency]]
    #: Per broker, every nack that it sent.
    nacks: Mapping[str, Sequence[Nack]]
    #: The pubends whose messages flowed to IB1 through b1 before the failure.
    pubends_of_b1: Sequence[str]
    published: int
    #: Accepted messages that a subscriber never took, and those that it took again, over all edges.
    lost: int
    duplicated: int
    trace: Sequence[Entry] = field(repr=False)


class _Recorder(Observer):
    """Writes down what the paper plots."""

    def __init__(self, edges: Sequence[str]) -> None:
        self.world: World | None = None
        self.sent_us: dict[int, int] = {}
        self.latencies: dict[str, list[Latency]] = {edge: [] for edge in edges}
        self.nacks: dict[str, list[Nack]] = {}
        self.through_b1: set[str] = set()
        self._accepted: set[tuple[str, int]] = set()
        self._taken: dict[str, list[tuple[str, int]]] = {edge: [] for edge in edges}

    def _now_us(self) -> int:
        assert self.world is not None, "the recorder listens to no world"
        return self.world.time_us

    def durable(self, pubend: str, ticks: Sequence[int], rows: Sequence[Row]) -> None:  # noqa: ARG002
        """A logged message counts as published, whether its publisher was told or not."""
        self._accepted.update((pubend, tick) for tick in ticks)

    def rows_sent(self, sender: str, receiver: str, cell: str, pubend: str, ticks: Sequence[int]) -> None:  # noqa: ARG002
        """See which way a pubend's messages take before the failure."""
        if (sender, receiver) == ("p1", "b1") and self._now_us() < STALL_US:
            self.through_b1.add(pubend)

    def nack_sent(self, sender: str, receiver: str, pubend: str, start: int, stop: int) -> None:
        """Write down a nack."""
        nack = Nack(time_s=self._now_us() / SECOND_US, to=receiver, pubend=pubend, start=start, stop=stop)
        self.nacks.setdefault(sender, []).append(nack)

    def taken(self, subscription: str, pubend: str, tick: int, row_id: int) -> None:
        """Write down a latency; the subscriptions are named after their edges."""
        sent_us = self.sent_us[row_id]
        latency = Latency(
            pubend=pubend, sent_s=sent_us / SECOND_US, latency_s=(self._now_us() - sent_us) / SECOND_US
        )
        self.latencies[subscription].append(latency)
        self._taken[subscription].append((pubend, tick))

    def lost(self) -> int:
        """Messages that some subscriber never took."""
        return sum(len(self._accepted.difference(taken)) for taken in self._taken.values())

    def duplicated(self) -> int:
        """Messages that some subscriber took again."""
        return sum(len(taken) - len(set(taken)) for taken in self._taken.values())


@dataclass(frozen=True, slots=True)
class _Experiment:
    stall: Callable[[World], None]
    fail: Callable[[World], None]
    repair: Callable[[World], None]
    outage_us: int


def _link_stall(world: World) -> None:
    world.stall_link(BrokerId("b1"), BrokerId("s1"))


def _link_fail(world: World) -> None:
    world.cut(BrokerId("b1"), BrokerId("s1"))


def _link_repair(world: World) -> None:
    world.heal(BrokerId("b1"), BrokerId("s1"))


def _b1_stall(world: World) -> None:
    world.stall(BrokerId("b1"))


def _p1_stall(world: World) -> None:
    # The publishing broker goes on to log, but nothing that it sends arrives any more.
    for link in world.links.values():
        if "p1" in link.ends:
            world.stall_link(*link.ends)


def _crash(broker: str, world: World) -> None:
    world.crash(BrokerId(broker))


def _start(broker: str, world: World) -> None:
    world.start(BrokerId(broker))


EXPERIMENTS: Mapping[str, _Experiment] = MappingProxyType(
    {
        "b1-s1-link": _Experiment(_link_stall, _link_fail, _link_repair, 10 * SECOND_US),
        "b1-crash": _Experiment(_b1_stall, partial(_crash, "b1"), partial(_start, "b1"), 30 * SECOND_US),
        "p1-crash": _Experiment(_p1_stall, partial(_crash, "p1"), partial(_start, "p1"), 20 * SECOND_US),
    }
)


def run_paper(
    name: str,
    *,
    parameters: Mapping[str, object] | None = None,
    seed: int = 1,
    outage_s: float | None = None,
    watch: Watch | None = None,
) -> PaperResult:
    """Run one of `EXPERIMENTS`, with the paper's parameters and outage unless told otherwise."""
    experiment = EXPERIMENTS[name]
    network = figure3(PAPER_PARAMETERS if parameters is None else parameters)
    edges = sorted(str(edge) for edge in network.edges)
    recorder = _Recorder(edges)
    pace = Pace(flush_us_min=1_000, flush_us_max=3_000, torn_odds=0.0, steps_per_check=20)
    world = World(network, Random(seed), [Checkers(plan_of(network)), recorder], pace)
    recorder.world = world
    world.weather.delay_us_min, world.weather.delay_us_max = 1_000, 2_000
    repair_us = FAIL_US + (experiment.outage_us if outage_s is None else round(outage_s * SECOND_US))
    end_us = repair_us + AFTERMATH_US
    for broker in world.nodes:
        world.start(broker)
    for edge in edges:
        wish = Wish(
            subscription=edge, edge=edge, topic="trades", condition=Everything(), total=False, wanted=None
        )
        world.subscribe(wish, queue_max=100_000, take_us_max=200)
    _publish_steadily(world, recorder, end_us - 2 * SECOND_US)
    for at_us, action in (
        (STALL_US, experiment.stall),
        (FAIL_US, experiment.fail),
        (repair_us, experiment.repair),
    ):
        world.after(at_us, partial(action, world))
    violation = _run_watched(world, recorder, end_us, watch)
    return PaperResult(
        name=name,
        violation=violation,
        stalled_s=STALL_US / SECOND_US,
        failed_s=FAIL_US / SECOND_US,
        repaired_s=repair_us / SECOND_US,
        latencies=recorder.latencies,
        nacks=recorder.nacks,
        pubends_of_b1=sorted(recorder.through_b1),
        published=len(recorder.sent_us),
        lost=recorder.lost(),
        duplicated=recorder.duplicated(),
        trace=world.trace,
    )


def _run_watched(world: World, recorder: _Recorder, end_us: int, watch: Watch | None) -> Violation | None:
    """Let everything happen up to `end_us`, or up to the first broken promise, which is returned."""
    try:
        while world.time_us < end_us:
            world.run_until(min(end_us, world.time_us + WATCH_US))
            if watch is not None:
                watch(
                    Moment(
                        time_s=world.time_us / SECOND_US,
                        end_s=end_us / SECOND_US,
                        published=len(recorder.sent_us),
                        latencies=recorder.latencies,
                        nacks=recorder.nacks,
                    )
                )
    except Violation as found:
        return found
    return None


def _publish_steadily(world: World, recorder: _Recorder, until_us: int) -> None:
    """Every pubend gets a message each 40 ms, the pubends one after the other."""
    count = len(FIGURE3_PUBENDS)
    for at, pubend in enumerate(FIGURE3_PUBENDS):
        first_us = PUBLISHING_STARTS_US + at * MESSAGE_INTERVAL_US // count
        for number, at_us in enumerate(range(first_us, until_us, MESSAGE_INTERVAL_US)):
            world.after(at_us, partial(_publish_one, world, recorder, PubendId(pubend), number * count + at))


def _publish_one(world: World, recorder: _Recorder, pubend: PubendId, row_id: int) -> None:
    row: Row = {"id": row_id, "group": row_id % 10, "price": float(row_id % 100), "name": "x" * 60}
    if world.publish(pubend, columns_of([row])):
        recorder.sent_us[row_id] = world.time_us
