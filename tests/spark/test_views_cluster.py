"""The same views on a cluster: a master and two workers. Left out of `make test`: `make test-cluster`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.spark.cluster import SparkCluster
from tests.spark.failures import Stage, Strike, kill_driver, survive

pytestmark = pytest.mark.cluster


def run(folder: Path, strikes: Callable[[SparkCluster], list[Strike]]) -> None:
    async def story() -> None:
        async with SparkCluster.running(folder / "spark") as cluster:
            told = await survive(folder, strikes(cluster), master=cluster.address)
            assert told["states"] >= 20
            assert told["changes"] >= 20

    asyncio.run(story())


def killing_an_executor(cluster: SparkCluster) -> Callable[[Stage], Awaitable[None]]:
    async def strike(stage: Stage) -> None:
        pids = [pid for worker in cluster.workers for pid in worker.executors]
        assert pids, "no executor runs"
        os.kill(pids[0], signal.SIGKILL)

    return strike


def killing_a_worker(cluster: SparkCluster) -> Callable[[Stage], Awaitable[None]]:
    async def strike(stage: Stage) -> None:
        await cluster.workers.pop(0).kill()
        await cluster.add_worker()

    return strike


def test_views_on_a_cluster_that_loses_an_executor_a_worker_and_the_driver(tmp_path: Path) -> None:
    run(tmp_path, lambda cluster: [killing_an_executor(cluster), killing_a_worker(cluster), kill_driver])
