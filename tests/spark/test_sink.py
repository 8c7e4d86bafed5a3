"""Writing with `format("gapless")`: every row once, whatever Spark does again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless.client.bulk import open_bulk
from tests.spark.nodes import NodeThread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.made = {name = "string", value = "int?"}
topics.taken = {name = "string", value = "int?"}
pubends.kinds-1 = {topic = "kinds", broker = "n1"}
pubends.made-1 = {topic = "made", broker = "n1"}
pubends.taken-1 = {topic = "taken", broker = "n1"}
pubends.taken-2 = {topic = "taken", broker = "n1"}
retention = {made = "forever", taken = "forever", kinds = "forever"}
parameters = {ack_delay_ms = 1}

[topics.kinds]
a = "int?"
b = "float?"
c = "string?"
d = "bool?"
e = "timestamp?"
f = "decimal?"
g = "binary?"
h = "xml?"
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeThread]:
    with NodeThread.running(NODE, tmp_path) as made:
        yield made


def kept(node: NodeThread, topic: str = "taken") -> list[dict[str, Any]]:
    """All events of a topic, in the order of their ticks; read without Spark."""
    with open_bulk(node.address, topic) as bulk:
        batches = [batch for pubend in bulk.pubends for batch in bulk.read(pubend, 0)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["tick"], row["pubend"]))


def values(node: NodeThread, topic: str = "taken") -> list[int]:
    return [row["value"] for row in kept(node, topic)]


def write(frame: DataFrame, node: NodeThread, topic: str = "taken", **options: str) -> None:
    frame.write.format("gapless").options(brokers=node.address, topic=topic, **options).mode("append").save()


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("concat('n', id % 7) AS name", "id AS value")


def test_every_type_is_published(spark: SparkSession, node: NodeThread) -> None:
    row = {
        "a": 7,
        "b": 1.5,
        "c": "ü",
        "d": True,
        "e": datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
        "f": Decimal("1.500000001"),
        "g": b"\x00\xff",
        "h": b"<a/>",
    }
    schema = "a long, b double, c string, d boolean, e timestamp, f decimal(38, 9), g binary, h binary"
    write(spark.createDataFrame([tuple(row.values()), (None,) * 8], schema), node, "kinds", job="kinds")
    write(spark.createDataFrame([(None,) * 8, tuple(row.values())], schema), node, "kinds", job="kinds")
    one, other = kept(node, "kinds")
    found = one if one["a"] is not None else other
    assert {name: found[name] for name in row} == row
    assert all((other if found is one else one)[name] is None for name in row)


@pytest.mark.parametrize("publish", ["commit", "tasks"])
def test_a_batch_write_publishes_every_row_once(spark: SparkSession, node: NodeThread, publish: str) -> None:
    write(numbers(spark, 1_000, 4), node, publish=publish)
    assert sorted(values(node)) == list(range(1_000))
    write(numbers(spark, 10), node, publish=publish)
    assert len(values(node)) == 1_010, "another write is another one"
    write(numbers(spark, 0), node, publish=publish)
    assert len(values(node)) == 1_010, "nothing is no mistake"


def test_a_job_is_published_once_however_often_it_runs(spark: SparkSession, node: NodeThread) -> None:
    write(numbers(spark, 200, 2), node, job="monday")
    write(numbers(spark, 200, 5).repartition(3, "name"), node, job="monday")
    assert sorted(values(node)) == list(range(200)), "the same rows, whatever their partitions"
    write(numbers(spark, 200), node, job="tuesday")
    assert len(values(node)) == 400
    write(numbers(spark, 201), node, job="monday")
    assert len(values(node)) == 601, "other rows are not swallowed because of a name"


def test_rows_keep_their_order_if_that_is_asked_for(spark: SparkSession, node: NodeThread) -> None:
    frame = numbers(spark, 150_000, 3).orderBy("value", ascending=False)
    write(frame, node, order="given")
    assert values(node) == list(range(149_999, -1, -1))


def test_all_rows_go_to_one_pubend(spark: SparkSession, node: NodeThread) -> None:
    write(numbers(spark, 10), node)
    write(numbers(spark, 10), node, pubend="taken-2")
    assert [row["pubend"] for row in kept(node)] == ["taken-1"] * 10 + ["taken-2"] * 10


def test_a_task_that_fails_and_runs_again_is_published_once(spark: SparkSession, node: NodeThread) -> None:
    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        yield from batches
        if task.attemptNumber() == 0 and task.partitionId() == 1:
            raise ValueError("the first time")

    for publish in ("commit", "tasks"):
        frame = numbers(spark, 1_000, 3).mapInArrow(fail_once, "name string, value long")
        write(frame, node, publish=publish)
    assert sorted(values(node)) == sorted([*range(1_000), *range(1_000)])


# ---- streams -----------------------------------------------------------------------------------------


class Stream:
    """From topic `made` to topic `taken`, each time until nothing is left to do."""

    def __init__(self, spark: SparkSession, node: NodeThread, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self._node = node
        self._checkpoint = checkpoint
        self._options = options

    def run(self, partitions: int = 2, **reading: str) -> None:
        told = {"brokers": self._node.address, "topic": "made", "from": "earliest", **reading}
        frame = self._spark.readStream.format("gapless").options(**told).load()
        query = (
            frame.drop("tick", "pubend")
            .repartition(partitions)
            .writeStream.format("gapless")
            .options(brokers=self._node.address, topic="taken", **self._options)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    def forget_last_commit(self) -> None:
        """As if the driver had died before it wrote down that the last batch is done."""
        commits = self._checkpoint / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        for path in commits.glob(f"*{last}*"):
            path.unlink()


def publish(node: NodeThread, start: int, stop: int) -> None:
    numbers = range(start, stop)
    node.publish("made", {"name": [f"n{each % 7}" for each in numbers], "value": list(numbers)})


@pytest.mark.parametrize("by", ["commit", "tasks"])
def test_a_batch_that_is_run_again_changes_nothing(
    spark: SparkSession, node: NodeThread, tmp_path: Path, by: str
) -> None:
    stream = Stream(spark, node, tmp_path / "checkpoint", publish=by)
    publish(node, 0, 500)
    stream.run()
    publish(node, 500, 800)
    stream.run()
    before = kept(node)
    assert sorted(row["value"] for row in before) == list(range(800))
    stream.forget_last_commit()
    stream.run()
    assert kept(node) == before, "nothing was published twice"
    stream.forget_last_commit()
    node.stop()
    node.start()
    publish(node, 800, 900)
    stream.run()
    assert kept(node)[:800] == before, "nor after the node has restarted"
    assert sorted(values(node)) == list(range(900)), "and what is new comes after it"


def test_a_batch_may_be_run_again_with_other_partitions(
    spark: SparkSession, node: NodeThread, tmp_path: Path
) -> None:
    stream = Stream(spark, node, tmp_path / "checkpoint")
    # More than one message holds, so that the order of the rows matters.
    publish(node, 0, 150_000)
    stream.run(partitions=2)
    before = kept(node)
    assert sorted(row["value"] for row in before) == list(range(150_000))
    stream.forget_last_commit()
    stream.run(partitions=5, rows_per_partition="20000")
    assert kept(node) == before


def test_a_new_checkpoint_is_a_new_query(spark: SparkSession, node: NodeThread, tmp_path: Path) -> None:
    publish(node, 0, 10)
    Stream(spark, node, tmp_path / "one").run()
    Stream(spark, node, tmp_path / "two").run()
    assert sorted(values(node)) == sorted([*range(10), *range(10)])


# ---- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("'a' AS name", {"topic": ""}, "E178 option 'topic': is missing"),
        ("'a' AS name", {"tpoic": "taken"}, "E178 option 'tpoic': there is no such option: did you mean"),
        (
            "'a' AS name",
            {"publish": "both"},
            "E178 option 'publish': must be 'commit' or 'tasks', got 'both'",
        ),
        ("'a' AS name", {"publish": "tasks", "job": "x"}, "E178 option 'job': needs publish=commit"),
        ("'a' AS name", {"order": "up"}, "E178 option 'order': must be 'any' or 'given', got 'up'"),
        ("'a' AS name", {"topic": "news"}, "E141 there is no topic 'news': there is kinds, made, taken"),
        ("'a' AS name", {"pubend": "made-1"}, "E143 topic 'taken' has no pubend 'made-1': it has taken-1,"),
        ("'a' AS nam", {}, "E111 topic 'taken' has no column 'nam': it has name, value"),
        ("'a' AS name; 1 AS tick", {}, "E111 topic 'taken' has no column 'tick': an event gets its tick"),
        ("1 AS value", {}, "E112 topic 'taken': column 'name' is missing"),
        ("'a' AS name; array(1) AS value", {}, "E114 topic 'taken': column 'value' must be int, got list"),
        ("if(id < 3, 'a', null) AS name", {}, "E113 topic 'taken': column 'name' is null in row"),
        ("'a' AS name; if(id < 3, '1', 'x') AS value", {}, "E114 topic 'taken': column 'value' must be int"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_published(
    spark: SparkSession, node: NodeThread, columns: str, options: dict[str, str], text: str
) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr(*columns.split("; "))
    with pytest.raises(Exception, match=r"E1\d\d") as caught:
        write(frame, node, **{"topic": "taken", **options})
    assert text in str(caught.value)
    assert kept(node) == []


def test_a_topic_is_not_overwritten(spark: SparkSession, node: NodeThread) -> None:
    writer = numbers(spark, 3).write.format("gapless").options(brokers=node.address, topic="taken")
    with pytest.raises(Exception, match="E178 option 'mode': a topic cannot be overwritten"):
        writer.mode("overwrite").save()
    assert kept(node) == []
