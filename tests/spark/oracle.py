"""Random views and what they must show: every state that a client sees against `views.evaluate`.

A `World` publishes events and remembers where they stand; `watched` records every state of every view. A
state says of which events it is the answer, so it can be judged when everything is over: `judge` computes
each of them from those very events, from nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from gapless.client import Client
from gapless.client.view import View as Table
from gapless.errors import ViewError
from gapless.model.ids import PubendId
from gapless.spark.compile import leaves, readers
from gapless.spark.relations import covers
from gapless.views.analysis.check import check
from gapless.views.planning.plan import plan
from gapless.views.planning.stages import Events, Keyed, Paired, Reduced, Stage, ViewPlan
from gapless.views.registry import AsOf
from gapless.views.relation import Relation
from tests.views.drawn import SCHEMAS, histories, views
from tests.views.evaluate import Event, Row, evaluate
from tests.views.rows import bag

#: Nothing waits this long unless it waits for ever.
PATIENCE_SECONDS = 300.0
#: Every way to compute a view is among the drawn ones.
SHAPES = ("events", "keyed", "branches", "reduced", "paired", "top")

#: What is drawn; see `test_views_oracle`.
SEED = int(os.environ.get("GAPLESS_SEED", "1"))


def network(text: str, brokers: str) -> str:
    """A network in which each topic has one pubend at each of these brokers."""
    lines = [text]
    for topic, schema in SCHEMAS.items():
        kinds = ", ".join(
            f"{each.name} = '{each.type}{'?' if each.nullable else ''}'" for each in schema.columns
        )
        lines += [f"topics.{topic} = {{{kinds}}}", f"retention.{topic} = 'forever'"]
        lines += [f"pubends.{topic}-{at} = {{topic = '{topic}', broker = '{at}'}}" for at in brokers.split()]
    return "\n".join(lines)


ONE_NODE = network("cells = {n = ['n1']}\nedges = ['n1']\nrepositories = ['n1']", "n1")
ROUTERS = network(
    "cells = {p = ['p1'], q = ['p2'], b = ['b1', 'b2'], s = ['s1']}\n"
    "links = ['p--b', 'q--b', 'b--s']\nedges = ['s1']\nrepositories = ['p1', 'p2']",
    "p1 p2",
)

Bag = Counter[tuple[tuple[str, str], ...]]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Drawn:
    """A view that can be maintained."""

    name: str
    relation: Relation
    plan: ViewPlan

    @property
    def topics(self) -> set[str]:
        """What it is computed from."""
        return {str(leaf.topic) for root in roots(self.plan.shown.stage) for leaf in leaves(root)}

    @property
    def shapes(self) -> set[str]:
        """How it is computed."""
        found = {"top"} if self.plan.top is not None else set()
        for stage in _stages(self.plan.shown.stage):
            found.add(type(stage).__name__.lower())
            if isinstance(stage, Keyed) and len(stage.branches) > 1:
                found.add("branches")
        return found

    @property
    def is_exact(self) -> bool:
        """Whether no topic is read by two stages, which Spark runs each at its own pace."""
        read = [topic for root in roots(self.plan.shown.stage) for topic in readers(root)]
        return len(read) == len(set(read))


def _stages(stage: Stage) -> Iterator[Stage]:
    yield stage
    match stage:
        case Reduced():
            yield from _stages(stage.input.stage)
        case Paired():
            yield from _stages(stage.left.stage)
            yield from _stages(stage.right.stage)
        case _:
            pass


def roots(stage: Stage) -> list[Keyed | Events]:
    """The stages that Spark runs, each once."""
    return list(dict.fromkeys(each for each in _stages(stage) if isinstance(each, Keyed | Events)))


def draw(number: int, count: int) -> tuple[list[Drawn], dict[str, list[Row]]]:
    """So many views, of all shapes, and rows of their topics, from a seed."""
    relations = _examples(views(), number, 150)
    Random(number).shuffle(relations)
    rows = {
        topic: [event.row for events in _examples(histories(), number, 8) for event in events[topic]]
        for topic in SCHEMAS
    }
    told = {
        topic: [Event(f"{topic}.p", tick, row) for tick, row in enumerate(each)]
        for topic, each in rows.items()
    }
    chosen: list[Drawn] = []
    able = (made for each in relations if (made := _able(f"v{len(chosen)}", each, told)) is not None)
    waiting = list(SHAPES * count)[:count]
    while waiting:
        # A view of several shapes is taken for that of which there are none yet.
        made = next(able, None)
        assert made is not None, f"no more views with {waiting} were drawn: draw more"
        wanted = [shape for shape in waiting if shape in made.shapes]
        if wanted:
            waiting.remove(wanted[-1])
            chosen.append(made)
    return chosen, rows


def _examples(strategy: st.SearchStrategy[Made], number: int, count: int) -> list[Made]:
    found: list[Made] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: Made) -> None:
        found.append(example)

    collect()
    return found


def _able(name: str, relation: Relation, events: Mapping[str, Sequence[Event]]) -> Drawn | None:
    """A view that can be maintained, and has something to show."""
    try:
        check(relation)
        made = plan(relation)
    except ViewError:
        return None
    return Drawn(name, relation, made) if evaluate(relation, events) else None


class World:
    """What was published, and what every client has seen of it."""

    def __init__(self, client: Client, rows: Mapping[str, Sequence[Row]], pubends: Mapping[str, str]) -> None:
        """`pubends` gives the topic of each."""
        self._client = client
        self._rows = {topic: list(each) for topic, each in rows.items()}
        self._publishers = {
            pubend: client.publisher(topic, pubend=pubend) for pubend, topic in pubends.items()
        }
        self._topics = pubends
        self.events: dict[str, list[Event]] = {topic: [] for topic in pubends.values()}
        #: One past the last event of each pubend.
        self.ends: dict[str, int] = {}

    async def publish(self, chance: Random, batches: int, rows_max: int = 8) -> None:
        """Some rows of some topics."""
        for _ in range(batches):
            pubend = chance.choice(sorted(self._topics))
            topic = self._topics[pubend]
            rows = [chance.choice(self._rows[topic]) for _ in range(chance.randint(1, rows_max))]
            receipt = await self._publishers[pubend].publish_batch(rows)
            [(name, ticks)] = receipt.parts
            assert name == pubend
            pairs = zip(ticks.tolist(), rows, strict=True)
            self.events[topic] += [Event(pubend, tick, row) for tick, row in pairs]
            self.ends[pubend] = int(ticks[-1]) + 1

    def below(self, as_of: AsOf) -> dict[str, list[Event]]:
        """The events that a horizon includes."""
        return {
            topic: [event for event in events if event.tick < _horizon(as_of, topic, event.pubend)]
            for topic, events in self.events.items()
        }

    def horizon(self, topics: set[str]) -> dict[PubendId, int]:
        """Everything that was published to these topics."""
        return {PubendId(name): end for name, end in self.ends.items() if self._topics[name] in topics}


def _horizon(as_of: Mapping[Any, Mapping[Any, int]], topic: str, pubend: str) -> int:
    return as_of.get(topic, {}).get(pubend, 0)


@dataclass
class Watch:
    """What one client has seen of one view."""

    view: Drawn
    table: Table
    states: list[tuple[AsOf, Bag]] = field(default_factory=list)

    async def run(self) -> None:
        shown: Bag = Counter()
        async for change in self.table.changes():
            shown = shown - bag(change.removed.to_pylist()) + bag(change.added.to_pylist())
            self.states.append((change.as_of, shown))

    async def reach(self, world: World) -> None:
        """Wait until everything that was published is accounted for."""
        wanted = world.horizon(self.view.topics)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.table.wait_until(wanted)
        except TimeoutError:
            raise AssertionError(
                f"{self.view.name} is as of {self.table.as_of}, and not of {wanted}"
            ) from None


@asynccontextmanager
async def watched(client: Client, views: Sequence[Drawn]) -> AsyncIterator[list[Watch]]:
    """Watch views from now on."""
    async with AsyncExitStack() as stack:
        watches = [Watch(each, await stack.enter_async_context(client.view(each.name))) for each in views]
        tasks = [asyncio.create_task(each.run()) for each in watches]
        try:
            yield watches
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def judge(watches: Sequence[Watch], world: World) -> int:
    """Every state is the view of the events that it says; horizons only grow. How many states there were."""
    count = 0
    for watch in watches:
        view = watch.view
        known: AsOf = {}
        for as_of, shown in watch.states:
            assert covers(as_of, known), f"{view.name}: as of {known}, and then of {as_of}"
            known = as_of
            if view.is_exact:
                _compare(view, shown, world.below(as_of), f"as of {as_of}")
                count += 1
        _compare(view, bag(watch.table.rows()), world.events, "in the end")
    return count


def _compare(view: Drawn, shown: Bag, events: Mapping[str, Sequence[Event]], when: str) -> None:
    expected = bag(evaluate(view.relation, events))
    assert shown == expected, (
        f"{view.name} {when}: missing {expected - shown}, wrong {shown - expected}\n{view.relation}"
    )
