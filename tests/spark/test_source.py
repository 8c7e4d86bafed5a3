"""`format("gapless")` on a real node and a real Spark: what is read, by how many tasks, and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless.client import sync
from tests.spark.nodes import NodeThread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.trades = {sym = "string", price = "float?", size = "int"}
pubends.kinds-1 = {topic = "kinds", broker = "n1"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
pubends.trades-2 = {topic = "trades", broker = "n1"}
retention.trades = "1d"
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
tick = "int?"
"""
SYMBOLS = ["IBM", "HAL", "DEC"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeThread]:
    with NodeThread.running(NODE, tmp_path) as made:
        yield made


def publish(node: NodeThread, first: int, count: int, pubend: str = "trades-1") -> list[int]:
    """Events of the sizes first, first + 1, and so on; gives their ticks."""
    sizes = list(range(first, first + count))
    rows = {
        "sym": [SYMBOLS[size % 3] for size in sizes],
        "price": [None if size % 10 == 9 else size / 2 for size in sizes],
        "size": sizes,
    }
    with sync.connect(node.address) as client, client.publisher("trades", pubend=pubend) as publisher:
        return [int(tick) for tick in publisher.publish_batch(rows).ticks]


def read(spark: SparkSession, node: NodeThread, topic: str = "trades", **options: str) -> DataFrame:
    told = {name.rstrip("_"): value for name, value in options.items()}
    return spark.read.format("gapless").options(brokers=node.address, topic=topic, **told).load()


def sizes(frame: DataFrame) -> list[int]:
    return [row["size"] for row in frame.orderBy("tick", "pubend").select("size").collect()]


class Batches:
    """A stream whose batches are kept, for as long as a test asks for more of them."""

    def __init__(self, spark: SparkSession, node: NodeThread, checkpoint: Path, **options: str) -> None:
        self.seen: dict[int, list[int]] = {}
        told = {name.rstrip("_"): value for name, value in options.items()}
        source = spark.readStream.format("gapless").options(brokers=node.address, topic="trades", **told)
        self._query = (
            source.load()
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
        )
        self.progress: list[Any] = []

    def _keep(self, frame: DataFrame, number: int) -> None:
        self.seen[number] = sizes(frame)

    def run(self) -> list[list[int]]:
        """Take everything that is there now; the batches in order."""
        query = self._query.start()
        assert query.awaitTermination(60)
        self.progress = query.recentProgress
        return [self.seen[number] for number in sorted(self.seen)]


def test_every_type_comes_through_and_back(spark: SparkSession, node: NodeThread) -> None:
    time = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    row = {
        "a": 7,
        "b": 1.5,
        "c": "ü",
        "d": True,
        "e": time,
        "f": Decimal("1.500000001"),
        "g": b"\x00\xff",
        "h": b"<a/>",
        "tick": 3,
    }
    [first, second] = node.publish("kinds", {name: [value, None] for name, value in row.items()})
    frame = read(spark, node, "kinds")
    assert [(each.name, each.nullable) for each in frame.schema][:3] == [
        ("tick", False),
        ("pubend", False),
        ("a", True),
    ]
    assert frame.schema.names[-1] == "tick_", "a column of the topic makes room for the tick"
    one, other = frame.orderBy("tick").collect()
    assert (one["tick"], other["tick"]) == (first, second)
    assert one["pubend"] == "kinds-1"
    got = {**one.asDict(), "tick": one["tick_"]}
    # Spark gives times in the zone of this machine, without saying so.
    assert got.pop("e").astimezone(UTC) == time
    assert {name: got[name] for name in row if name != "e"} == {
        name: value for name, value in row.items() if name != "e"
    }
    assert all(other[name] is None for name in "abcdefgh")


def test_a_batch_reads_any_range_of_both_pubends(spark: SparkSession, node: NodeThread) -> None:
    assert read(spark, node).count() == 0, "nothing is no mistake"
    ticks = publish(node, 0, 100)
    publish(node, 100, 100, "trades-2")
    assert sizes(read(spark, node)) == list(range(200))
    assert sizes(read(spark, node, from_=str(ticks[10]), to=str(ticks[20]))) == list(range(10, 20))
    later = datetime.fromtimestamp(ticks[-1] / 1e6, UTC) + timedelta(microseconds=1)
    assert sizes(read(spark, node, from_=later.isoformat())) == list(range(100, 200))
    assert sizes(read(spark, node, from_="now")) == []
    assert sizes(read(spark, node, to="2001-01-01")) == []
    assert sizes(read(spark, node, where="size >= 198 OR price = 0")) == [0, 198, 199]
    frame = read(spark, node, columns="size, price")
    assert frame.schema.names == ["tick", "pubend", "size", "price"]
    assert [row["price"] for row in frame.orderBy("tick").take(2)] == [0.0, 0.5]


def test_a_large_range_is_read_by_several_tasks(spark: SparkSession, node: NodeThread) -> None:
    for first in range(0, 10_000, 1_000):
        publish(node, first, 1_000, f"trades-{1 + first // 1_000 % 2}")
    frame = read(spark, node, rows_per_partition="2000")
    assert frame.rdd.getNumPartitions() >= 5
    assert sorted(sizes(frame)) == list(range(10_000))
    assert read(spark, node).rdd.getNumPartitions() == 1, "what is small is one task, whatever the pubends"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """Spark pushes filters only where it was told to."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("pushing")
def test_filters_of_spark_give_what_they_give_without_pushing_them(
    spark: SparkSession, node: NodeThread
) -> None:
    publish(node, 0, 100)
    frame = read(spark, node)
    everything = spark.createDataFrame(frame.collect(), frame.schema)
    for condition in (
        "price <= 1.5 or price is null",
        "price <= 1.5 and size in (1, 3, 99) and size <> 3",
        "sym like 'I%' and sym like '%B%' and not (sym = 'HAL') and size % 7 = 1",
    ):
        wanted = sizes(everything.where(condition))
        assert wanted
        assert sizes(read(spark, node, pushdown="true").where(condition)) == wanted
        assert sizes(frame.where(condition)) == wanted, "and the same DataFrame may be asked again"


@pytest.mark.usefixtures("pushing")
def test_ticks_bound_what_is_read_at_all(spark: SparkSession, node: NodeThread) -> None:
    ticks = publish(node, 0, 1_000)
    frame = read(spark, node, rows_per_partition="100", pushdown="true")
    few = frame.where(f"tick >= {ticks[500]} and tick < {ticks[600]}")
    assert few.rdd.getNumPartitions() == 1
    assert sizes(few) == list(range(500, 600))


def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, node: NodeThread, tmp_path: Path
) -> None:
    publish(node, 0, 50)
    stream = Batches(spark, node, tmp_path / "checkpoint", from_="earliest")
    assert stream.run() == [list(range(50))]
    publish(node, 50, 30, "trades-2")
    node.stop()
    node.start()
    publish(node, 80, 20)
    assert stream.run() == [list(range(50)), list(range(50, 100))]
    assert stream.run() == [list(range(50)), list(range(50, 100))], "there is nothing new"


def test_a_batch_that_is_run_again_has_the_same_rows(
    spark: SparkSession, node: NodeThread, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    publish(node, 0, 50)
    first = Batches(spark, node, checkpoint, from_="earliest", max_rows="20").run()
    assert [len(batch) for batch in first] == [20, 20, 10]
    # As if the last batch had never been committed; meanwhile there is more to read.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (checkpoint / "commits").glob(f"*{commits[-1].name}*"):
        path.unlink()
    publish(node, 50, 10)
    again = Batches(spark, node, checkpoint, from_="earliest", max_rows="20").run()
    assert again == [first[2], list(range(50, 60))]


def test_max_rows_bounds_every_batch_and_serves_all_pubends(
    spark: SparkSession, node: NodeThread, tmp_path: Path
) -> None:
    publish(node, 0, 500)
    publish(node, 1_000, 30, "trades-2")
    stream = Batches(spark, node, tmp_path / "checkpoint", from_="earliest", max_rows="100")
    batches = stream.run()
    assert all(len(batch) <= 100 for batch in batches)
    assert sum(len(batch) for batch in batches) == 530
    assert any(size >= 1_000 for size in batches[0]), "the second pubend does not wait for the first"
    assert sorted(size for batch in batches for size in batch) == [*range(500), *range(1_000, 1_030)]
    latest = stream.progress[0]["sources"][0]["latestOffset"]
    assert latest == stream.progress[-1]["sources"][0]["endOffset"], "the lag is told from the first batch on"


def test_a_stream_begins_now_unless_it_is_told_otherwise(
    spark: SparkSession, node: NodeThread, tmp_path: Path
) -> None:
    publish(node, 0, 10)
    stream = Batches(spark, node, tmp_path / "checkpoint", where="sym = 'IBM'", columns="size")
    assert stream.run() == [[]], "Spark's first batch is empty when there is nothing"
    publish(node, 10, 10)
    assert stream.run() == [[], [12, 15, 18]]


def until(node: NodeThread, told: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Publish until the first pubend's status is as told: acknowledgements go along with what happens."""
    while True:
        [pubend] = [each for each in node.report()["pubends"] if each["pubend"] == "kinds-1"]
        if told(pubend):
            return pubend
        node.publish("kinds", {"a": [1]})


def test_a_name_holds_the_log_and_commits_release_it(
    spark: SparkSession, node: NodeThread, tmp_path: Path
) -> None:
    def stream(checkpoint: str) -> None:
        frame = (
            spark.readStream.format("gapless")
            .options(brokers=node.address, topic="kinds", name="spark job", **{"from": "earliest"})
            .load()
        )
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    stream("checkpoint")
    first = node.publish("kinds", {"a": [1, 2, 3]})
    with sync.connect(node.address) as client, client.subscribe("kinds") as others:
        for _ in range(20):
            node.publish("kinds", {"a": [0]})
            next(others)
    [pubend] = [each for each in node.report()["pubends"] if each["pubend"] == "kinds-1"]
    assert pubend["released"] <= first[0], "the job has not read it yet"
    stream("checkpoint")
    [held] = [each for each in node.report()["subscriptions"]["list"] if each["name"] == "spark job"]
    assert held["mode"] == "holding"
    # A batch is committed when the next one begins.
    node.publish("kinds", {"a": [4]})
    stream("checkpoint")
    until(node, lambda pubend: pubend["released"] > first[-1])


def test_what_is_gone_fails_with_one_line_and_can_be_allowed(spark: SparkSession, tmp_path: Path) -> None:
    text = NODE.replace('retention.trades = "1d"', 'retention.trades = "100kB"')
    with NodeThread.running(text, tmp_path) as node:
        for first in range(0, 60_000, 1_000):
            publish(node, first, 1_000)
        [pubend] = [each for each in node.report()["pubends"] if each["pubend"] == "trades-1"]
        with sync.connect(node.address) as client, client.subscribe("trades") as others:
            while pubend["oldest_tick"] <= 0:
                publish(node, 0, 100)
                next(others)
                [pubend] = [each for each in node.report()["pubends"] if each["pubend"] == "trades-1"]
        with pytest.raises(Exception, match=r"E306 pubend 'trades-1' keeps nothing below tick"):
            read(spark, node, from_="0").count()
        kept = read(spark, node, from_="0", gone="allow").count()
        assert 0 < kept < 60_000
        # The earliest that there is; more of it may have been let go of meanwhile.
        assert 0 < read(spark, node).count() <= kept


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": ""}, "E178 option 'topic': is missing"),
        ({"topik": "trades"}, "E178 option 'topik': there is no such option: did you mean 'topic'?"),
        ({"columns": "size,,price"}, "E178 option 'columns': write the names of columns"),
        ({"from": "yesterday"}, "E178 option 'from': must be 'earliest', 'now', a tick or a time"),
        ({"max_rows": "0"}, "E178 option 'max_rows': must be a whole number from 1 on, got '0'"),
        ({"gone": "yes"}, "E178 option 'gone': must be 'allow' or 'error', got 'yes'"),
        ({"columns": "bid"}, "E191 topic 'trades' has no column 'bid': it has sym, price, size"),
        ({"topic": "news"}, "E141 there is no topic 'news'"),
    ],
)
def test_options_that_make_no_sense_are_named(
    spark: SparkSession, node: NodeThread, options: dict[str, str], text: str
) -> None:
    told = {"brokers": node.address, "topic": "trades", **options}
    with pytest.raises(Exception, match="E1") as caught:
        spark.read.format("gapless").options(**told).load()
    assert text in str(caught.value)


def test_a_damaged_log_fails_the_query_and_names_the_file(
    spark: SparkSession, node: NodeThread, tmp_path: Path
) -> None:
    publish(node, 0, 20_000)
    [segment] = (tmp_path / "data" / "n1" / "log" / "trades-1").glob("*.segment")

    def flip(at: int) -> None:
        # In place: the node goes on writing to the file.
        with segment.open("r+b") as file:
            file.seek(at)
            [byte] = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 0xFF]))

    # Well within the events: the log takes room in advance.
    at = segment.stat().st_size // 4
    flip(at)
    with pytest.raises(Exception, match=r"E301 .*\.segment is damaged at offset"):
        read(spark, node).count()
    flip(at)
    assert read(spark, node).count() == 20_000
