"""What becomes of a broker whose folder is lost, or replaced by an older copy of itself?

Its logs are gone, or shorter than others know them. Its named subscriptions are gone, or behind. The number
of its life falls back, unless the clock of its host keeps it up.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from random import Random

from gapless.model.epochs import LIFE_STEP
from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.protocol.creations import Creation
from gapless.sim.disk import SimulatedLog
from gapless.sim.nodes import SimulatedNode
from gapless.sim.publishing import PublisherDatabase
from gapless.sim.subscribers import Subscribers
from gapless.sim.subscribing import SubscriberDatabase
from gapless.sim.world import World


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """What was on a disk at some time."""

    incarnation: int
    logs: dict[PubendId, SimulatedLog]
    created: frozenset[Creation]
    #: Of each durable subscription its positions, and the logs that they are in.
    subscriptions: dict[str, tuple[dict[PubendId, Tick], dict[PubendId, str]]]
    #: What is known of publishers.
    database: PublisherDatabase
    #: What is known of named subscriptions.
    names: SubscriberDatabase


def copy_of(node: SimulatedNode) -> FolderCopy:
    """A copy of what is durable now."""
    return FolderCopy(
        node.incarnation,
        {pubend: log.copied() for pubend, log in node.logs.items()},
        frozenset(node.created),
        {
            name: (dict(each.kept), dict(each.logs))
            for name, each in node.desk.by_name.items()
            if each.durable
        },
        deepcopy(node.database),
        deepcopy(node.names),
    )


def lose(world: World, node: SimulatedNode, random: Random) -> None:
    """A broker that is down loses its folder."""
    _replace(world, node, FolderCopy(0, {}, frozenset(), {}, PublisherDatabase(), SubscriberDatabase()))
    if random.random() < 0.5:
        # Its clock was set back as well: the number of its next life is below some that others have seen.
        node.incarnation = _unused(node, random.randrange(1, max(node.highest, 2))) - LIFE_STEP
    else:
        node.incarnation = node.highest


def roll_back(world: World, node: SimulatedNode, copy: FolderCopy) -> None:
    """A broker that is down gets an older copy of its folder in place of the newest."""
    _replace(world, node, copy)
    node.incarnation = _unused(node, copy.incarnation + LIFE_STEP) - LIFE_STEP


def _unused(node: SimulatedNode, life: int) -> int:
    """A number near that one which no life has had: those of hosts come from clocks, and differ."""
    while life in node.numbers:
        life += 1
    return life


def _replace(world: World, node: SimulatedNode, copy: FolderCopy) -> None:
    assert node.broker is None, f"{node.name} is up"
    known = {each for other in world.nodes.values() if other is not node for each in other.created}
    # A creation that nobody else has heard of would be gone for good, and its topic with it.
    node.created = set(copy.created) | {each for each in node.created if each not in known}
    described = (world.network.described or world.network).extended(node.created)
    for pubend in list(node.logs):
        if pubend in copy.logs:
            node.logs[pubend] = copy.logs[pubend].copied()
            kept, noticeable = node.logs[pubend].ticks, False
        else:
            del node.logs[pubend]
            kept, noticeable = [], True
        for observer in world.observers:
            observer.log_lost(pubend, kept, noticeable=noticeable)
        if pubend not in node.logs and pubend in described.pubends:
            node.logs[pubend] = world.new_log(node.name)
            world.log_began(pubend, node.logs[pubend])
    desk = Subscribers()
    for name, subscriber in node.desk.by_name.items():
        if name in copy.subscriptions:
            # Where it began at a pubend that confirmed it since, the subscriber itself knows.
            kept_positions, logs = copy.subscriptions[name]
            subscriber.kept = subscriber.kept | kept_positions
            subscriber.logs = subscriber.logs | logs
            desk.by_name[name] = subscriber
        else:
            subscriber.closed = True
            for observer in world.observers:
                observer.ended(name)
    node.desk = desk
    node.database = deepcopy(copy.database)
    for name in node.names.records:
        for observer in world.observers:
            observer.name_lost(name, is_gone=name not in copy.names.records)
    node.names = deepcopy(copy.names)
