"""Which topics are created during a run? In half of the runs one or two, at any broker that can host them.

The news travels under the same faults as everything else, and clients subscribe to a new topic as soon as
their edge has heard of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.protocol.creations import Creation, pubend_name
from gapless.protocol.network import Network
from gapless.sim.topologies import COLUMNS

if TYPE_CHECKING:
    from gapless.sim.workload import Workload
    from gapless.sim.world import World

#: Topics are created within this time, and whoever subscribes to one does so about as long after.
CREATED_US_MAX = 3_000_000
#: A broker that is down is asked again after this time.
AGAIN_US = 100_000
CLIENTS_MAX = 3


@dataclass(slots=True)
class Creating:
    """The creations of one run, and chance for whatever comes with them."""

    creations: tuple[Creation, ...]
    random: Random

    @staticmethod
    def draw(network: Network, random: Random) -> Creating:
        """What is created in a run. `random` is apart, so that nothing else depends on it."""
        alone = sorted(members[0] for members in network.cells.values() if len(members) == 1)
        made: list[Creation] = []
        for number in range(random.choice((0, 0, 1, 2))):
            topic, broker = TopicId(f"new{number}"), random.choice(alone)
            pubend = pubend_name(topic, broker, network.pubends)
            schema = Schema.parse(topic, COLUMNS)
            made.append(Creation(schema=schema, pubend=pubend, broker=broker, made=number))
        return Creating(tuple(made), random)

    def start(self, world: World, workload: Workload) -> None:
        """Let everything be created in its time."""
        for creation in self.creations:
            delay = self.random.randrange(CREATED_US_MAX)
            world.after(delay, partial(self._create, world, workload, creation))

    def _create(self, world: World, workload: Workload, creation: Creation) -> None:
        node = world.nodes[creation.broker]
        if creation in node.created:
            workload.publish_to(creation.pubend)
            for _ in range(self.random.randint(1, CLIENTS_MAX)):
                edge = self.random.choice(sorted(workload.clients))
                world.after(self.random.randrange(CREATED_US_MAX), partial(workload.join, edge))
            return
        # It may crash before the creation is on its disk; then it is asked again.
        world.create(creation)
        world.after(AGAIN_US, partial(self._create, world, workload, creation))
