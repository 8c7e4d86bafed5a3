"""A run of views in which real processes are killed, one after the other, and the account of it.

The Spark application is what a node would start: a process that is started again whenever it dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from gapless.client import connect
from gapless.client.bulk import open_bulk
from gapless.fleet import Fleet
from gapless.node.config import Spark
from gapless.node.spark.process import PipelineProcess, command
from gapless.views.registry import AS_OF, KEY, KIND, MARKER, STAMP
from tests.spark.oracle import ROUTERS, SEED, World, draw, judge, watched
from tests.views.drawn import SCHEMAS
from tests.views.evaluate import Event
from tests.views.rows import bag

EDGE, REPOSITORY, ROUTER = "s1", "p1", "b1"

#: What is other in each row of a relation, though it says the same.
_OF_THE_TELLING = ("tick", "pubend", AS_OF, STAMP)

#: Breaks something, and mends it.
Strike = Callable[["Stage"], Awaitable[None]]


class Stage:
    """The network and the application."""

    def __init__(self, fleet: Fleet, application: PipelineProcess) -> None:
        self.fleet = fleet
        self.application = application

    @staticmethod
    @asynccontextmanager
    async def running(folder: Path, master: str) -> AsyncIterator[Stage]:
        async with Fleet(ROUTERS, folder / "nodes") as fleet:
            spark = Spark(broker=EDGE, master=master, checkpoints=folder / "checkpoints")
            told = command(fleet.address(EDGE), spark, folder)
            application = PipelineProcess(told, folder / "pipeline.log", {"SPARK_LOCAL_IP": "127.0.0.1"})
            application.want(True)
            try:
                yield Stage(fleet, application)
            finally:
                await application.close()


async def kill_driver(stage: Stage) -> None:
    """The application and its virtual machine; a new one comes by itself."""
    assert stage.application.pid is not None
    os.killpg(stage.application.pid, signal.SIGKILL)


async def kill_router(stage: Stage) -> None:
    """The other one of its cell takes over."""
    await stage.fleet.kill(ROUTER)
    await stage.fleet.start(ROUTER)


async def kill_repository(stage: Stage) -> None:
    """It hosts topics and relations; what it said to be durable is."""
    await stage.fleet.kill(REPOSITORY)
    await stage.fleet.start(REPOSITORY)


async def survive(
    folder: Path, strikes: Sequence[Strike], *, master: str = "local[2]", views: int = 6
) -> Counter[str]:
    """Views of every shape, with these strikes in turn while events are published; what was counted."""
    drawn, rows = draw(SEED, views)
    chance = Random(SEED)
    async with Stage.running(folder, master) as stage, connect(stage.fleet.address(EDGE)) as client:
        topics = await client.topics()
        world = World(client, rows, {pubend: name for name in SCHEMAS for pubend in topics[name].pubends})
        made = [await client.create_view(each.name, each.relation) for each in drawn]
        async with watched(client, drawn) as watches:
            await world.publish(chance, 4)
            await asyncio.gather(*(each.reach(world) for each in watches))
            for strike in strikes:
                publishing = asyncio.create_task(world.publish(chance, 6))
                await strike(stage)
                await publishing
                await world.publish(chance, 2)
                await asyncio.gather(*(each.reach(world) for each in watches))
            address = stage.fleet.address(EDGE)
            for topic in SCHEMAS:
                await asyncio.to_thread(_check_base, address, topic, world.events[topic])
            told = [await asyncio.to_thread(_check_relation, address, each.topic) for each in made]
            return Counter(states=judge(watches, world), changes=sum(told), starts=stage.application.starts)


def _check_base(address: str, topic: str, published: Sequence[Event]) -> None:
    """Every event is there once, where its receipt said."""
    stored = Counter((row["pubend"], row["tick"]) for row in _all_rows(address, topic))
    assert stored == Counter((event.pubend, event.tick) for event in published)


def _check_relation(address: str, topic: str) -> int:
    """No row was told again as it was, nor one gone twice; how many changes there were."""
    newest: dict[str, tuple[int, Counter[Any]]] = {}
    rows = _all_rows(address, topic)
    for row in rows:
        if row[KIND] != MARKER:
            told = {name: value for name, value in row.items() if name not in _OF_THE_TELLING}
            version = (row[KIND], bag([told]))
            assert newest.get(row[KEY]) != version, f"{topic}: {json.dumps(row, default=str)} again"
            newest[row[KEY]] = version
    return len(rows)


def _all_rows(address: str, topic: str) -> list[dict[str, Any]]:
    with open_bulk(address, topic) as bulk:
        return [
            row
            for past in bulk.describe().values()
            for batch in bulk.read(past.pubend, past.oldest, past.known, history=True)
            for row in batch.to_pylist()
        ]
