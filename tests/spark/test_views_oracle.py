"""Random views over random events, computed by Spark: every state that a client sees is the right one.

Many views are computed at once by one application, which is stopped and started again: with its checkpoints,
without them, and with damaged ones. To look for new failures, set GAPLESS_SEED to another number.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from gapless.client import Client, connect
from gapless.fleet import Fleet
from tests.spark.oracle import ONE_NODE, SEED, Drawn, World, draw, judge, watched
from tests.spark.stories import pipeline
from tests.views.drawn import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What happens to the checkpoints while the application is stopped.
Mishap = Callable[[Path, Random], None]


@asynccontextmanager
async def computing(spark: SparkSession, address: str, folder: Path) -> AsyncIterator[None]:
    """The application, beside the loop of this test."""
    running = pipeline(spark, address, folder)
    await asyncio.to_thread(running.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


def untouched(folder: Path, chance: Random) -> None:
    """The application was only stopped."""


def deleted(folder: Path, chance: Random) -> None:
    """All checkpoints are lost."""
    shutil.rmtree(folder)


def damaged(folder: Path, chance: Random) -> None:
    """Of each stage something is lost: rows, or what Spark has written down."""
    for stage in sorted(folder.iterdir()):
        files = [each for each in stage.rglob("*") if each.parent.name in ("rows", "commits", "offsets")]
        if not files:
            continue  # no event has come to it yet
        chosen = chance.choice(sorted(files))
        if chance.random() < 0.5:
            chosen.unlink()
        else:
            chosen.write_bytes(chosen.read_bytes()[:-10])


async def story(
    spark: SparkSession,
    client: Client,
    address: str,
    folder: Path,
    *,
    views: int,
    mishaps: list[Mishap],
) -> int:
    """Publish and compute, with a mishap before each start but the first; how many states were judged."""
    drawn, rows = draw(SEED, views)
    topics = await client.topics()
    world = World(client, rows, {pubend: name for name in SCHEMAS for pubend in topics[name].pubends})
    chance = Random(SEED)
    for view in drawn:
        await client.create_view(view.name, view.relation)
    late: list[Drawn] = []
    await world.publish(chance, 3)
    async with watched(client, drawn) as watches:
        for round_, mishap in enumerate([None, *mishaps]):
            if mishap is not None:
                await asyncio.to_thread(mishap, folder, chance)
                await world.publish(chance, 2)
            async with computing(spark, address, folder):
                await world.publish(chance, 4)
                if round_ == 0:
                    # A view over a view shares its stages, while they run.
                    late = [replace(each, name=f"{each.name}_late") for each in drawn[:2]]
                    for view, of in zip(late, drawn, strict=False):
                        await client.create_view(view.name, f"SELECT * FROM {of.name}")
                await world.publish(chance, 2)
                await asyncio.gather(*(each.reach(world) for each in watches))
        async with watched(client, late) as others:
            await asyncio.gather(*(each.reach(world) for each in others))
            return judge([*watches, *others], world)


@pytest.mark.parametrize(
    ("views", "mishaps", "states"),
    [
        pytest.param(3, [damaged], 6, id="damaged checkpoints"),
        pytest.param(8, [untouched, deleted, damaged], 20, id="all mishaps", marks=pytest.mark.long),
    ],
)
def test_random_views_show_what_they_mean_whatever_happens_to_spark(
    spark: SparkSession, tmp_path: Path, views: int, mishaps: list[Mishap], states: int
) -> None:
    async def run() -> int:
        async with Fleet(ONE_NODE, tmp_path / "nodes") as fleet, connect(fleet.address("n1")) as client:
            return await story(
                spark, client, fleet.address("n1"), tmp_path / "checkpoints", views=views, mishaps=mishaps
            )

    assert asyncio.run(run()) > states
