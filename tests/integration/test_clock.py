"""Real nodes whose clocks are wrong: nobody waits for a clock, and what cannot be is refused."""

import asyncio
import time
from pathlib import Path

import pytest

import gapless
from gapless.errors import UsageError
from gapless.model.epochs import lives_max
from gapless.model.ids import BrokerId, PubendId
from gapless.node.clock import WallClock
from gapless.node.folder import beyond_promises
from gapless.store.recovery import RecoveryDatabase
from tests.integration.nodes import ONE_NODE, PATIENCE_SECONDS, TOPIC, Cluster

HOUR_NS = 3_600 * 10**9
TWO_REPOSITORIES = """
cells = {p = ["p1"], q = ["q1"]}
links = ["p--q"]
edges = ["q1"]
topics.trades = {name = "string", price = "float"}
pubends.trades-p = {topic = "trades", broker = "p1"}
pubends.trades-q = {topic = "trades", broker = "q1"}
"""


def run(story) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(story, 2 * PATIENCE_SECONDS))


def set_clock(cluster: Cluster, broker: str, offset_ns: int) -> WallClock:
    """Move the clock of a running node by so much."""
    clock = cluster.nodes[broker]._host.clock
    clock._wall_ns = lambda: time.time_ns() + offset_ns
    return clock


def test_an_event_an_hour_ahead_does_not_hold_back_total_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster:
            at = {name: f"gapless://{cluster.addresses[BrokerId(name)]}" for name in ("p1", "q1")}
            async with (
                gapless.connect(at["p1"]) as p,
                gapless.connect(at["q1"]) as q,
                q.subscribe(TOPIC, order="total") as events,
            ):
                clock = set_clock(cluster, "p1", HOUR_NS)
                await p.publish(TOPIC, {"name": "ahead", "price": 1.0})
                set_clock(cluster, "p1", 0)
                assert (await anext(events))["name"] == "ahead"
                for number in range(5):
                    await (p if number % 2 else q).publish(TOPIC, {"name": str(number), "price": 1.0})
                    assert (await anext(events))["name"] == str(number)
                assert clock.leaps == 2
            for node in cluster.nodes.values():
                (here,) = [each for each in node.report()["pubends"] if each["here"]]  # type: ignore[attr-defined]
                assert 3_500_000 < here["ticks_ahead_ms"] < 3_700_000

    run(story())


def test_a_leap_of_a_year_is_not_believed(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as client:
            clock = set_clock(cluster, "n1", 365 * 24 * HOUR_NS)
            client.publish([1.0])
            (tick,) = (await client.receipt()).ticks()
            assert abs(tick - time.time_ns() // 1_000) < 60_000_000
            assert clock.held > 0
            assert cluster.nodes["n1"].report()["clock"]["held_s"] > 0  # type: ignore[index]

    run(story())


def test_a_node_whose_log_is_days_ahead_of_its_clock_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster:
            async with cluster.client("n1") as client:
                client.publish([1.0])
                await client.receipt()
            await cluster.stop("n1")
            now_ns = time.time_ns()
            with monkeypatch.context() as patch:
                patch.setattr("gapless.node.node.time.time_ns", lambda: now_ns - 72 * HOUR_NS)
                with pytest.raises(UsageError, match=r"ends 3\.0 days after the clock") as refused:
                    await cluster.start("n1")
            assert refused.value.code == "E117"
            # When the clock is right, it starts: whatever it had opened is closed again.
            await cluster.start("n1")

    run(story())


def test_brokers_in_the_last_life_that_is_believed_go_on(tmp_path: Path) -> None:
    """It may be what a clock gave that was wrong once, or what a broken neighbour told of."""

    async def story() -> None:
        async with Cluster.running(TWO_REPOSITORIES, tmp_path) as cluster:
            for broker in ("p1", "q1"):
                await cluster.stop(broker)
                with RecoveryDatabase.open(tmp_path / broker) as database:
                    database.begin_incarnation(lives_max(time.time_ns() // 1_000))
                await cluster.start(broker)
            at = {name: f"gapless://{cluster.addresses[BrokerId(name)]}" for name in ("p1", "q1")}
            async with (
                gapless.connect(at["p1"]) as p,
                gapless.connect(at["q1"]) as q,
                q.subscribe(TOPIC) as events,
            ):
                await p.publish(TOPIC, {"name": "on", "price": 1.0})
                assert (await anext(events))["name"] == "on"

    run(story())


def test_the_database_knows_of_promises_that_no_clock_bounds(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster.running(ONE_NODE, tmp_path) as cluster, cluster.client("n1") as client:
            node = cluster.nodes["n1"]
            assert node._ticker is not None
            node._ticker.cancel()
            set_clock(cluster, "n1", HOUR_NS)
            client.publish([1.0])
            (tick,) = (await client.receipt()).ticks()
            set_clock(cluster, "n1", 0)
            bound = beyond_promises(cluster.network.parameters)
            assert tick > bound, "an accepted loss of the log would begin too low by the clock alone"
            node._tick()
            assert node._folder is not None
            assert node._database is not None
            facts = node._folder._known(node._database, PubendId("trades-1"))
            assert facts is not None
            assert facts.next_tick > tick

    run(story())
