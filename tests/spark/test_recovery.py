"""What goes wrong, and what comes of it: the same answer, and markers that never go back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.client import sync
from gapless.client.bulk import open_bulk
from gapless.spark.relations import covers
from gapless.spark.session import state_settings
from gapless.views.registry import AS_OF, FAILED, KIND, MARKER, RUNNING, STATUS_TOPIC, parsed_as_of
from tests.spark.stories import node, pipeline, published, state_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.spark.pipeline import Pipeline

TOPICS = ("trades:sym=string,desk=string,qty=int", "news:title=string,category=string,score=int")

POSITIONS = "SELECT sym, desk, sum(qty) AS held FROM trades GROUP BY sym, desk"
BY_DESK = "SELECT desk, sum(held) AS held, count(*) AS symbols FROM positions WHERE held <> 0 GROUP BY desk"
BIG = "SELECT sym, desk, held FROM positions ORDER BY held DESC LIMIT 2"
TOP_NEWS = "SELECT title, category, score FROM news WHERE score > 0 ORDER BY score DESC LIMIT 2"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with node(tmp_path_factory.mktemp("node"), *TOPICS) as listens:
        yield listens


def damage(folder: Path) -> None:
    """Cut off the newest file of state rows of every stage."""
    for rows in folder.glob("*/rows"):
        newest = max(rows.glob("*.arrow"), key=lambda each: each.stat().st_mtime_ns)
        newest.write_bytes(newest.read_bytes()[:-10])


def horizons(address: str, topic: str) -> int:
    """How many markers a relation has had, none of which includes less than the one before it."""
    known, count = None, 0
    with open_bulk(address, topic) as bulk:
        [past] = bulk.describe().values()
        for batch in bulk.read(past.pubend, past.oldest, past.known, history=True):
            for row in batch.to_pylist():
                if row[KIND] == MARKER:
                    as_of = parsed_as_of(row[AS_OF])
                    assert known is None or covers(as_of, known)
                    known, count = as_of, count + 1
    return count


def running_again(client: sync.SyncClient, name: str, made: Pipeline) -> str:
    """Wait until a view has failed and runs again; what it said."""
    message = None
    with client.subscribe(STATUS_TOPIC, start="earliest") as rows:
        for row in rows:
            if row["name"] == name and row["state"] == FAILED:
                message = row["message"]
            if row["name"] == name and row["state"] == RUNNING and message is not None:
                return message
    raise AssertionError("the registry has ended")


def test_lost_and_damaged_checkpoints_change_no_answer(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    with sync.connect(address) as client:
        for name, sql in {
            "positions": POSITIONS,
            "by_desk": BY_DESK,
            "big": BIG,
            "top_news": TOP_NEWS,
        }.items():
            client.create_view(name, sql)
        trades = {"sym": ["IBM", "SAP", "IBM"], "desk": ["a", "a", "b"], "qty": [5, 7, 9]}
        published(client, "trades", trades)
        first = published(client, "news", {"title": ["x", "y"], "category": ["c", "c"], "score": [1, 2]})
        with pipeline(spark, address, tmp_path) as made:
            as_of = published(client, "trades", {"sym": ["IBM"], "desk": ["a"], "qty": [-5]})
            assert state_at(client, "view.by_desk", as_of) == {("a", 7, 1), ("b", 9, 1)}
            assert state_at(client, "view.big", as_of) == {("IBM", "b", 9), ("SAP", "a", 7)}
            assert state_at(client, "view.top_news", first) == {("x", "c", 1), ("y", "c", 2)}
            for each in list(made.runner.running.values()):
                assert each.query is not None
                each.query.stop()
            message = running_again(client, "by_desk", made)
            assert message.startswith("E501")
            as_of = published(client, "trades", {"sym": ["SAP"], "desk": ["b"], "qty": [1]})
            assert state_at(client, "view.by_desk", as_of) == {("a", 7, 1), ("b", 10, 2)}
        shutil.rmtree(tmp_path)
        later = published(client, "news", {"title": ["z", "0"], "category": ["d", "d"], "score": [3, 0]})
        with pipeline(spark, address, tmp_path):
            as_of = published(client, "trades", {"sym": ["IBM"], "desk": ["b"], "qty": [1]})
            assert state_at(client, "view.by_desk", as_of) == {("a", 7, 1), ("b", 11, 2)}
            assert state_at(client, "view.top_news", later) == {("z", "d", 3), ("y", "c", 2)}
        damage(tmp_path)
        with pipeline(spark, address, tmp_path):
            as_of = published(client, "trades", {"sym": ["IBM"], "desk": ["b"], "qty": [-10]})
            assert state_at(client, "view.by_desk", as_of) == {("a", 7, 1), ("b", 1, 1)}
            assert state_at(client, "view.big", as_of) == {("SAP", "a", 7), ("SAP", "b", 1)}
        assert horizons(address, "view.by_desk") >= 4


def test_a_stage_goes_on_with_the_store_that_it_began_with(spark: SparkSession, tmp_path: Path) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    rocks, memory = spark.conf.get(provider), state_settings("memory", "local[2]", 1)[provider]
    assert rocks is not None
    data, checkpoints = tmp_path / "node", tmp_path / "checkpoints"
    data.mkdir()
    with node(data, *TOPICS) as address, sync.connect(address) as client:
        client.create_view("positions", POSITIONS)

        def used(held: int) -> str:
            """Run on to so much; what Spark says of the newest batch."""
            with pipeline(spark, address, checkpoints):
                as_of = published(client, "trades", {"sym": ["IBM"], "desk": ["a"], "qty": [2]})
                assert state_at(client, "view.positions", as_of) == {("IBM", "a", held)}
            batches = [each for each in checkpoints.glob("*/spark/offsets/*") if each.name.isdigit()]
            return max(batches, key=lambda each: int(each.name)).read_text(encoding="utf-8")

        try:
            assert rocks in used(2)
            spark.conf.set(provider, memory)
            assert rocks in used(4)
            shutil.rmtree(checkpoints)
            assert memory in used(6)
            kept = list(checkpoints.glob("*/spark/state/0/*/*.delta"))
            assert kept
            for each in kept:
                each.write_bytes(each.read_bytes()[:5])
            assert memory in used(8)
        finally:
            spark.conf.set(provider, rocks)
