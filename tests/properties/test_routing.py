"""What is advertised by covering against its dumb twin: the set of all that was ever wanted, and is now.

Two edges below a cell of two routers below a pubend's broker, and nothing but their routing tables. Messages
are lost, repeated and overtaken, routers forget everything, and an advertisement has room for few conditions.
At all times a filter must accept whatever the subscriptions want that its epochs speak for, and nothing that
nobody ever wanted; in the end, just what is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.covering.cover import surely_covers
from gapless.model.batch import EventBatch
from gapless.model.epochs import EPOCH_NONE, Epoch, Epochs, first_epoch
from gapless.model.ids import BrokerId, CellId, TopicId
from gapless.protocol import routing
from gapless.protocol.effects import Effect, SendMessage
from gapless.protocol.events import Now
from gapless.protocol.messages import AdvertisementAckMessage, AdvertisementMessage
from gapless.protocol.network import Network
from gapless.protocol.routing import Routing
from tests.conditions import where

TOPIC = TopicId("trades")
ROOT = CellId("P")
COLUMNS = {"price": "int", "size": "int"}
#: Every row that the conditions below can tell apart.
ROWS = EventBatch.of(
    range(30), {"price": [at % 10 for at in range(30)], "size": [at // 10 for at in range(30)]}
)
TEXTS = [
    *(f"price = {price}" for price in (1, 2, 7)),
    *(f"price = {price} AND size = 1" for price in (1, 2)),
    "price BETWEEN 1 AND 3",
    "price < 5",
    "price < 5 AND size < 2",
    "price > 5 OR size = 1",
    "price > 6 OR size = 1 AND price = 2",
    "size = 1",
    "size <= 1",
]
CONDITIONS = [EVERYTHING, *(where(text, **COLUMNS) for text in TEXTS)]
#: By condition, the rows that it accepts: what a price and a size must be, said once more in Python.
ACCEPTS: list[Callable[[int, int], bool]] = [
    lambda price, size: True,
    lambda price, size: price == 1,
    lambda price, size: price == 2,
    lambda price, size: price == 7,
    lambda price, size: price == 1 and size == 1,
    lambda price, size: price == 2 and size == 1,
    lambda price, size: 1 <= price <= 3,
    lambda price, size: price < 5,
    lambda price, size: price < 5 and size < 2,
    lambda price, size: price > 5 or size == 1,
    lambda price, size: price > 6 or (size == 1 and price == 2),
    lambda price, size: size == 1,
    lambda price, size: size <= 1,
]
WANTED = {
    condition: frozenset(at for at in range(30) if accepts(at % 10, at // 10))
    for condition, accepts in zip(CONDITIONS, ACCEPTS, strict=True)
}
EDGES = ("s1", "s2")
ABOVE = {"s1": ("b1", "b2"), "s2": ("b1", "b2"), "b1": ("p",), "b2": ("p",), "p": ()}


def network(conditions_max: int, work: int) -> Network:
    return Network.parse(
        {
            "cells": {"P": ["p"], "B": ["b1", "b2"], "S1": ["s1"], "S2": ["s2"]},
            "links": ["P--B", "B--S1", "B--S2"],
            "topics": {"trades": COLUMNS},
            "pubends": {"nyse": {"topic": "trades", "broker": "p"}},
            "edges": list(EDGES),
            "parameters": {"message_conditions_max": conditions_max, "compare_work_max": work},
        }
    )


@dataclass
class World:
    """The tables of all brokers, the messages between them, and what is true."""

    network: Network
    ms: int = 0
    lives: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Routing] = field(default_factory=dict)
    coming: list[tuple[str, str, object]] = field(default_factory=list)
    epochs: dict[str, Epoch] = field(default_factory=lambda: dict.fromkeys(EDGES, first_epoch(1)))
    #: By edge: the births of the subscriptions that are there, and what each wants.
    live: dict[str, dict[Epoch, Condition]] = field(default_factory=lambda: {edge: {} for edge in EDGES})
    ever: set[Condition] = field(default_factory=set)

    @staticmethod
    def started(conditions_max: int, work: int) -> World:
        world = World(network(conditions_max, work))
        for name in ABOVE:
            world.start(name)
        for edge in EDGES:
            world.changed(edge, [], [])
        return world

    def start(self, name: str) -> None:
        self.lives[name] = life = self.lives.get(name, 0) + 1
        self.tables[name] = Routing(self.network, BrokerId(name), first_epoch(life))
        for neighbour in self.network.neighbours(BrokerId(name)):
            if neighbour in self.tables:
                self.perform(neighbour, self.tables[neighbour].link_up(BrokerId(name)))
                self.perform(name, self.tables[name].link_up(neighbour))

    def changed(self, edge: str, begun: list[Condition], ended: list[Condition]) -> None:
        epochs = Epochs({BrokerId(edge): self.epochs[edge]})
        self.tables[edge].wanted_here([(TOPIC, c) for c in begun], [(TOPIC, c) for c in ended], epochs)

    def subscribe(self, edge: str, condition: Condition) -> None:
        self.epochs[edge] += 1
        self.live[edge][self.epochs[edge]] = condition
        self.ever.add(condition)
        self.changed(edge, [condition], [])

    def unsubscribe(self, edge: str, which: int) -> None:
        births = list(self.live[edge])
        if births:
            self.epochs[edge] += 1
            self.changed(edge, [], [self.live[edge].pop(births[which % len(births)])])

    def perform(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, SendMessage)
            self.coming.append((name, effect.to, effect.message))

    def deliver(self, at: int, *, keep: bool = False, lose: bool = False) -> None:
        if not self.coming:
            return
        at %= len(self.coming)
        sender, to, message = self.coming[at] if keep else self.coming.pop(at)
        if lose:
            return
        if isinstance(message, AdvertisementMessage):
            self.perform(to, self.tables[to].received(BrokerId(sender), message))
        else:
            assert isinstance(message, AdvertisementAckMessage)
            self.tables[to].acknowledged(BrokerId(sender), message)

    def wake(self, ms: int) -> None:
        self.ms += ms
        for name, above in ABOVE.items():
            up = frozenset(map(BrokerId, above))
            self.perform(name, self.tables[name].woken(up, Now(ms=self.ms, clock=0)))

    def filters(self) -> Iterator[tuple[str, tuple[str, ...], frozenset[int], Epochs]]:
        """Every filter: who has it, for which edges, the rows that it accepts, and its epochs."""
        for name, cell, edges in (
            ("p", "B", EDGES),
            *((router, edge.upper(), (edge,)) for router in ("b1", "b2") for edge in EDGES),
        ):
            found = self.tables[name].wants(ROOT, CellId(cell), TOPIC)
            yield name, edges, frozenset(found.accepts.mask(ROWS).nonzero()[0].tolist()), found.epochs

    def check(self) -> None:
        ever = frozenset().union(*(WANTED[condition] for condition in self.ever))
        for name, edges, accepted, epochs in self.filters():
            assert accepted <= ever, f"{name} passes on what nobody ever wanted"
            for edge in edges:
                epoch = epochs.get(BrokerId(edge))
                for birth, condition in self.live[edge].items():
                    if birth <= epoch:
                        assert WANTED[condition] <= accepted, f"{name} rejects '{condition}' of {edge}"

    def healed(self) -> None:
        """Lose nothing any more, and let all be said."""
        for _ in range(60):
            self.wake(500)
            while self.coming:
                self.deliver(0)
                self.wake(0)
        self.check()
        for name, edges, accepted, epochs in self.filters():
            wanted = [WANTED[c] for edge in edges for c in self.live[edge].values()]
            assert accepted == frozenset().union(*wanted), f"{name} has another opinion"
            for edge in edges:
                assert epochs.get(BrokerId(edge)) == self.epochs[edge] > EPOCH_NONE
        told = list(self.tables["p"].wants(ROOT, CellId("B"), TOPIC).accepts.conditions)
        for one in told:
            assert not any(surely_covers(other, one) for other in told if other != one), f"'{one}' is covered"


acts = st.one_of(
    st.tuples(st.just("subscribe"), st.sampled_from(EDGES), st.sampled_from(CONDITIONS)),
    st.tuples(st.just("subscribe"), st.sampled_from(EDGES), st.sampled_from(CONDITIONS)),
    st.tuples(st.just("unsubscribe"), st.sampled_from(EDGES), st.integers(0, 9)),
    st.tuples(st.sampled_from(["deliver", "deliver", "deliver", "keep", "lose"]), st.integers(0, 9)),
    st.tuples(st.just("wake"), st.sampled_from([0, 0, 500])),
    st.tuples(st.just("restart"), st.sampled_from(["b1", "b2", "p"])),
)


def play(conditions_max: int, story: list[tuple], work: int = 10_000) -> None:
    world = World.started(conditions_max, work)
    for act in story:
        match act:
            case ("subscribe", edge, condition):
                world.subscribe(edge, condition)
            case ("unsubscribe", edge, which):
                world.unsubscribe(edge, which)
            case ("wake", ms):
                world.wake(ms)
            case ("restart", name):
                world.start(name)
            case (what, at):
                world.deliver(at, keep=what == "keep", lose=what == "lose")
        world.wake(0)
        world.check()
    world.healed()


@given(st.sampled_from([1, 2, 3, 512]), st.lists(acts, max_size=60))
def test_maximal_conditions_accept_what_all_conditions_accept(
    conditions_max: int, story: list[tuple]
) -> None:
    play(conditions_max, story)


@given(st.sampled_from([1, 512]), st.sampled_from([1, 5, 20]), st.lists(acts, max_size=60))
def test_conditions_not_yet_compared_are_advertised(
    conditions_max: int, work: int, story: list[tuple]
) -> None:
    play(conditions_max, story, work)


@given(st.sampled_from([1, 2, 3, 512]), st.lists(acts, max_size=60))
def test_rebuilt_table_still_covers_everything(conditions_max: int, story: list[tuple]) -> None:
    with mock.patch.object(routing, "REBUILT_MIN", 0):
        play(conditions_max, story)
