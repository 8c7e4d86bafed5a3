"""Who publishes and subscribes to what? Publishers of all tempers, and clients that come and go.

A client is a person or program outside the network: when its broker crashes, its subscription is over,
and it comes back with a new one once the broker is up again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random

from gapless.model.ids import BrokerId, PubendId
from gapless.sim.checkers import Checkers
from gapless.sim.conditions import (
    Begins,
    Between,
    Both,
    Condition,
    Contains,
    Different,
    Either,
    Equal,
    Everything,
    Missing,
    Row,
)
from gapless.sim.observer import Observer, Wish
from gapless.sim.publishers import Program, Temper
from gapless.sim.subscribers import Subscriber
from gapless.sim.world import SECOND_US, World

NAMES = ("Ada", "Grace", "Barbara", "Edsger", None)
GROUPS = 6
PRICE_MAX = 100.0
CLIENTS_PER_EDGE_MAX = 5
#: How often one subscription changes its condition: always fewer than an edge takes at once.
CHANGES_MAX = 6
#: How long a client that is in a hurry leaves its queue alone.
QUICK_US = 2_000


@dataclass(slots=True, eq=False)
class PubendLoad:
    """How one pubend is published to: by one program at a time."""

    pubend: PubendId
    #: The mean time between two requests.
    interval_us: int
    rows_max: int
    #: The odds that a request is followed at once by another one.
    burst: float
    program: Program


@dataclass(slots=True, eq=False)
class SimulatedClient:
    """A subscriber over all of its subscriptions, of which it has one at a time."""

    edge: str
    topic: str
    condition: Condition
    total: bool
    queue_max: int
    take_us_max: int
    #: Its subscription outlives its broker.
    durable: bool = False
    subscriber: Subscriber | None = None


class Workload(Observer):
    """All publishers and clients of one run."""

    def __init__(
        self, world: World, checkers: Checkers, random: Random, tastes: Random | None = None
    ) -> None:
        self._world = world
        self._checkers = checkers
        self._random = random
        #: Draws what makes a plain condition a richer one, and changes of conditions; None leaves all of
        #: them plain and as they are. It is apart, so that the two kinds of run draw the same network, the
        #: same faults and the same clients.
        self._tastes = tastes
        self._ids = 0
        #: Counts the programs that publish.
        self._programs = 0
        self._sources: list[PubendLoad] = []
        self._subscriptions = 0
        self._publishing = False
        #: Clients by edge; those of a crashed edge wait for it.
        self.clients: dict[str, list[SimulatedClient]] = {edge: [] for edge in sorted(world.network.edges)}
        world.observers.append(self)

    # ---- publishers ----------------------------------------------------------------------------------

    def _random_source(self, pubend: PubendId) -> PubendLoad:
        random = self._random
        # Many pubends share the load, so that the length of a run hardly depends on their number.
        share = 1 + len(self._world.network.pubends) // 3
        interval = share * random.choice((50_000, 150_000, 500_000, 1_000_000, 4_000_000))
        burst = random.choice((0.0, 0.0, 0.3, 0.7))
        return PubendLoad(
            pubend,
            interval_us=round(interval / (1 - burst)),
            rows_max=random.choice((1, 3, 10, 20)),
            burst=burst,
            program=self._random_program(pubend),
        )

    def _random_program(self, pubend: PubendId, identity: str = "") -> Program:
        """A program that publishes under an identity of its own, or under that of another program."""
        random = self._random
        self._programs += 1
        name = f"program{self._programs}"
        temper = Temper(
            is_stable=bool(identity) or random.random() < 0.7,
            principal="thief" if identity else "owner",
            window=random.choice((1, 10, 1_000, 1_000)),
            retries_max=random.choice((2, 5, 1_000)),
            stray_odds=random.choice((0.0, 0.3)),
        )
        return Program(self._world, random, name, identity or name, pubend, temper)

    def start_publishing(self) -> None:
        """Let every pubend be published to, at its own pace."""
        self._publishing = True
        self._sources = [self._random_source(pubend) for pubend in sorted(self._world.network.pubends)]
        for source in self._sources:
            self._world.after(self._random.randrange(source.interval_us), partial(self._publish, source))
        if self._random.random() < 0.2:
            # Somebody uses an identity that belongs to another principal.
            victim = self._random.choice(self._sources)
            thief = self._random_program(victim.pubend, victim.program.identity)
            self._world.after(self._random.randrange(3 * SECOND_US), partial(self._steal, thief))

    def _steal(self, thief: Program) -> None:
        thief.publish([self._random_row() for _ in range(self._random.randint(1, 20))])

    def publish_to(self, pubend: PubendId) -> None:
        """A topic was created: somebody publishes to it from now on."""
        source = self._random_source(pubend)
        self._sources.append(source)
        self._publish(source)

    def kill_publisher(self) -> bool:
        """A publishing program dies, and is started again; or another one takes its place."""
        if not self._publishing:
            return False
        source = self._random.choice(self._sources)
        if source.program.temper.is_stable:
            source.program.kill(has_memory=self._random.random() < 0.7)
        else:
            source.program.end()
            for observer in self._world.observers:
                observer.program_ended(source.program.name)
            source.program = self._random_program(source.pubend)
        return True

    def stop_publishing(self) -> None:
        """Let all publishers fall silent."""
        self._publishing = False

    def publish_now(self, pubend: PubendId | None = None) -> None:
        """One request to each pubend, or to this one, whatever its pace."""
        for source in self._sources:
            if pubend in (None, source.pubend):
                self._publish_rows(source)

    def _publish(self, source: PubendLoad) -> None:
        if not self._publishing:
            return
        self._publish_rows(source)
        if self._random.random() < source.burst:
            delay = self._random.randrange(2_000)
        else:
            delay = round(self._random.expovariate(1.0) * source.interval_us)
        self._world.after(delay, partial(self._publish, source))

    def _publish_rows(self, source: PubendLoad) -> None:
        count = self._random.randint(1, source.rows_max)
        source.program.publish([self._random_row() for _ in range(count)])

    def _random_row(self) -> Row:
        self._ids += 1
        random = self._random
        return {
            "id": self._ids,
            "group": random.randrange(GROUPS),
            "price": None if random.random() < 0.05 else round(random.random() * PRICE_MAX, 2),
            "name": random.choice(NAMES),
        }

    # ---- clients -------------------------------------------------------------------------------------

    def start_clients(self) -> None:
        """A few clients at most edges, within the first half second; in most runs they change their minds."""
        for edge in self.clients:
            for _ in range(self._random.choice((0, 1, 1, 2, 3))):
                self._world.after(self._random.randrange(SECOND_US // 2), partial(self.join, edge))
        if self._tastes is not None and self._tastes.random() < 0.7:
            interval_us = self._tastes.choice((50_000, 300_000, 1_000_000))
            self._change_someone(self._tastes, interval_us, ready=False)

    def _change_someone(self, tastes: Random, interval_us: int, *, ready: bool = True) -> None:
        """Somebody wants other events from now on; after a while somebody else does."""
        if ready and not self._publishing:
            return
        subscribed = [
            client.subscriber
            for clients in self.clients.values()
            for client in clients
            if client.subscriber is not None and not client.subscriber.closed
        ]
        changeable = [each for each in subscribed if len(each.changes) < CHANGES_MAX]
        if ready and changeable:
            chosen = tastes.choice(changeable)
            if chosen.durable and tastes.random() < 0.3:
                if self._world.go_away(chosen):
                    back = partial(self._world.come_back, chosen)
                    self._world.after(tastes.randrange(2 * SECOND_US), back)
            else:
                self._world.change(chosen, self._changed_mind(tastes))
        delay = round(tastes.expovariate(1.0) * interval_us)
        self._world.after(delay, partial(self._change_someone, tastes, interval_us))

    def _changed_mind(self, tastes: Random) -> Condition:
        luck = tastes.random()
        if luck < 0.2:
            return Everything()
        if luck < 0.7:
            return Equal("group", tastes.randrange(GROUPS))
        return random_taste(tastes)

    def join(self, edge: str, since: int | None = None) -> None:
        """A new client subscribes, from this tick on if there is one."""
        if len(self.clients[edge]) >= CLIENTS_PER_EDGE_MAX:
            return
        random = self._random
        client = SimulatedClient(
            edge=edge,
            topic=random.choice(self._world.topics_at(BrokerId(edge))),
            condition=self._tasted(self._random_condition()),
            total=random.random() < 0.3,
            queue_max=random.choice((10, 50, 1_000, 1_000)),
            take_us_max=random.choice((1_000, 20_000, 200_000)),
            durable=self._tastes is not None and self._tastes.random() < 0.4,
        )
        self.clients[edge].append(client)
        self._subscribe(client, self._random_start(client) if since is None else since)

    def leave(self, edge: str) -> None:
        """Some client goes away for good."""
        if not self.clients[edge]:
            return
        client = self._random.choice(self.clients[edge])
        self.clients[edge].remove(client)
        if client.subscriber is not None and not client.subscriber.closed:
            self._world.unsubscribe(client.subscriber)

    def churn(self) -> None:
        """Somebody comes, or somebody goes."""
        edge = self._random.choice(list(self.clients))
        if self._random.random() < 0.5:
            self.leave(edge)
        else:
            self.join(edge)

    def kill_subscriber(self) -> bool:
        """Only subscribers that come over connections can be killed."""
        return False

    def slow_subscriber(self, delay_us: int) -> bool:
        """A subscriber takes nothing for a while."""
        awake = [each for each in self._world.subscribers() if not each.paused]
        if not awake:
            return False
        subscriber = self._random.choice(awake)
        self._world.pause(subscriber, paused=True)
        self._world.after(delay_us, partial(self._wake, subscriber))
        return True

    def _wake(self, subscriber: Subscriber) -> None:
        if not subscriber.closed:
            self._world.pause(subscriber, paused=False)

    def read_quickly(self) -> None:
        """From now on every client comes back to its queue at once, so that catching up is not up to it."""
        for clients in self.clients.values():
            for client in clients:
                client.take_us_max = min(client.take_us_max, QUICK_US)
                if client.subscriber is not None:
                    client.subscriber.take_us_max = client.take_us_max

    def restarted(self, broker: str) -> None:
        """The clients of an edge come back, some at once and some later."""
        for client in self.clients.get(broker, ()):
            self._world.after(self._random.randrange(SECOND_US // 2), partial(self._resubscribe, client))
            if client.subscriber is not None and client.subscriber.durable:
                back = partial(self._world.come_back, client.subscriber)
                self._world.after(self._random.randrange(2 * SECOND_US), back)

    def _resubscribe(self, client: SimulatedClient) -> None:
        before = client.subscriber
        if client not in self.clients[client.edge] or (before is not None and not before.closed):
            return
        wanted = None
        if before is not None and before.positions and self._random.random() < 0.5:
            wanted = min(before.positions.values())
        self._subscribe(client, wanted)

    def _subscribe(self, client: SimulatedClient, wanted: int | None) -> None:
        self._subscriptions += 1
        wish = Wish(
            subscription=f"{client.edge}-{self._subscriptions}",
            edge=client.edge,
            topic=client.topic,
            condition=client.condition,
            total=client.total,
            wanted=wanted,
        )
        client.subscriber = self._world.subscribe(
            wish, client.queue_max, client.take_us_max, durable=client.durable
        )

    def _random_condition(self) -> Condition:
        random = self._random
        luck = random.random()
        if luck < 0.25:
            return Everything()
        if luck < 0.6:
            return Equal("group", random.randrange(GROUPS))
        if luck < 0.75:
            return Equal("name", random.choice([name for name in NAMES if name]))
        low = random.randrange(int(PRICE_MAX))
        return Between("price", low, low + random.randint(1, 50))

    def _tasted(self, plain: Condition) -> Condition:
        """The condition itself, or another one in its place or beside it."""
        tastes = self._tastes
        if tastes is None:
            return plain
        luck = tastes.random()
        if luck < 0.4:
            return plain
        other = random_taste(tastes)
        if luck < 0.7:
            return other
        return Either(plain, other) if luck < 0.85 else Both(plain, other)

    def _random_start(self, client: SimulatedClient) -> int | None:
        random = self._random
        if random.random() < 0.7:
            return None
        ticks = self._checkers.ticks_of(client.topic)[-200:]
        if ticks and random.random() < 0.7:
            return random.choice(ticks) + random.choice((0, 1))
        return self._world.clock(BrokerId(client.edge)) - random.randrange(3 * SECOND_US)


def random_taste(random: Random) -> Condition:
    """A condition of the kinds that plain ones are not."""
    name = random.choice([name for name in NAMES if name])
    start = random.randrange(len(name))
    kinds: tuple[Condition, ...] = (
        Different("group", random.randrange(GROUPS)),
        Different("name", name),
        Begins("name", name[: start + 1]),
        Contains("name", name[start : start + 2]),
        Missing("name"),
        Missing("price"),
    )
    return random.choice(kinds)
