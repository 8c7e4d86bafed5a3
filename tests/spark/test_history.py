"""The past of a topic as a table: from files and from the node, each event once, and SQL over it."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import gapless.spark
from gapless.cli import history as command
from gapless.cli.main import main
from gapless.client import sync
from gapless.client.bulk import PubendPast, open_bulk
from gapless.errors import ContentError, StoreError, UsageError
from gapless.node.bulk_reads import server
from tests.spark.nodes import NodeThread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODE = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.trades = {sym = "string", price = "float?", size = "int", sent = "timestamp?", cost = "decimal?"}
topics.quotes = {tick = "int", note = "string?"}
pubends.quotes-1 = {topic = "quotes", broker = "n1"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
pubends.trades-2 = {topic = "trades", broker = "n1"}
pubends.trades-3 = {topic = "trades", broker = "n1"}
retention = {trades = "100kB", quotes = "100kB"}
archive.trades = true
archive.quotes = true
parameters = {ack_delay_ms = 1}
"""
SYMBOLS = ["IBM", "HAL", "DEC"]
EVENTS = 20_000


def rows(first: int, count: int) -> dict[str, list[Any]]:
    sizes = range(first, first + count)
    return {
        "sym": [SYMBOLS[size % 3] for size in sizes],
        "price": [None if size % 10 == 9 else size / 2 for size in sizes],
        "size": list(sizes),
        "sent": [datetime.fromtimestamp(1_700_000_000 + size, UTC) for size in sizes],
        "cost": [None if size % 7 == 6 else size for size in sizes],
    }


def publish(node: NodeThread, first: int, count: int, pubend: str = "trades-1") -> None:
    with sync.connect(node.address) as client, client.publisher("trades", pubend=pubend) as publisher:
        publisher.publish_batch(rows(first, count))


def pasts(node: NodeThread) -> dict[str, PubendPast]:
    with open_bulk(node.address, "trades") as bulk:
        return bulk.describe()


def trim(node: NodeThread, pubend: str) -> None:
    """Publish and have it acknowledged until the log of a pubend has let go of something more."""
    before = pasts(node)[pubend].log_oldest
    with sync.connect(node.address) as client, client.subscribe("trades") as others:
        while pasts(node)[pubend].log_oldest == before:
            publish(node, EVENTS, 100, pubend)
            next(others)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node that has archived much of two pubends, and nothing of the third."""
    with NodeThread.running(NODE, tmp_path_factory.mktemp("node")) as made:
        for first in range(0, EVENTS, 1_000):
            publish(made, first, 1_000, f"trades-{1 + first // 1_000 % 2}")
        publish(made, 5, 5, "trades-3")
        trim(made, "trades-1")
        trim(made, "trades-2")
        yield made


@pytest.fixture(scope="module")
def truth(node: NodeThread) -> pa.Table:
    """All events, read without Spark and without files."""
    with open_bulk(node.address, "trades") as bulk:
        batches = [
            batch
            for past in bulk.describe().values()
            for batch in bulk.read(past.pubend, max(past.oldest, 0), past.known)
        ]
    return pa.Table.from_batches(batches).sort_by([("tick", "ascending"), ("pubend", "ascending")])


def history(spark: SparkSession, node: NodeThread, **options: Any) -> DataFrame:
    return gapless.spark.history(spark, node.address, "trades", **options)


def table(frame: DataFrame) -> pa.Table:
    return frame.toArrow().sort_by([("tick", "ascending"), ("pubend", "ascending")])


def same(found: pa.Table, wanted: pa.Table) -> None:
    assert found.schema.names == wanted.schema.names
    # Spark says of a column from a file that it may be null.
    assert found.cast(wanted.schema).equals(wanted)


def read_from_files(frame: DataFrame) -> bool:
    return len(frame.inputFiles()) > 0


def test_all_events_once_from_files_and_from_the_log(
    spark: SparkSession, node: NodeThread, truth: pa.Table
) -> None:
    frame = history(spark, node)
    assert len(frame.inputFiles()) > 4
    same(table(frame), truth)
    without = history(spark, node, files=False)
    assert not read_from_files(without)
    same(table(without), truth)
    assert [each.dataType for each in without.schema] == [each.dataType for each in frame.schema]


def test_files_of_a_node_elsewhere_are_read_where_they_are_said_to_be(
    spark: SparkSession,
    node: NodeThread,
    truth: pa.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = pasts(node)["trades-1"].folder
    monkeypatch.setattr(server, "is_loopback", lambda _: False)
    assert pasts(node)["trades-1"].folder == "", "it is told to nobody on another machine"
    for files in (None, True, tmp_path):
        assert not read_from_files(history(spark, node, files=files))
    (tmp_path / "shared").symlink_to(folder)
    frame = history(spark, node, files=tmp_path / "shared")
    assert len(frame.inputFiles()) > 4
    same(table(frame), truth)


def test_any_range_has_its_events_and_no_others(
    spark: SparkSession, node: NodeThread, truth: pa.Table
) -> None:
    ticks = truth.column("tick").to_pylist()
    archived = pasts(node)["trades-1"]
    seam = archived.log_oldest
    edges = [0, ticks[1_234], archived.archive[1].start, archived.archive[2].stop, seam, seam + 1, ticks[-1]]
    expected = duckdb.connect()
    expected.register("events", truth)
    for start, stop in ((0, 1), (0, 2), (1, 2), (1, 4), (2, 3), (3, 5), (4, 6), (5, 6), (6, 6)):
        wanted = expected.sql(
            f"FROM events WHERE tick >= {edges[start]} AND tick < {edges[stop]} ORDER BY tick, pubend"
        )
        found = table(history(spark, node, from_=edges[start], to=edges[stop], columns=["size"]))
        assert found.to_pylist() == wanted.project("tick, pubend, size").to_arrow_table().to_pylist()


@pytest.mark.parametrize(
    ("where", "native"),
    [
        ("sym = 'IBM' AND price > 100.5", True),
        ("price IS NULL OR sym LIKE 'D%'", True),
        ("size IN (1, 5, 19999) AND NOT (sym = 'HAL')", True),
        ("sent >= TIMESTAMP '2023-11-15 02:00:00Z'", True),
        ("sym LIKE '_A%' OR size BETWEEN 3 AND 5", True),
        ("price > size", False),
    ],
)
def test_a_condition_means_the_same_on_files_and_in_the_repository(
    spark: SparkSession, node: NodeThread, where: str, native: bool
) -> None:
    frame = history(spark, node, where=where)
    assert read_from_files(frame) or not native
    wanted = table(history(spark, node, where=where, files=False))
    assert 0 < wanted.num_rows < history(spark, node).count() or where == "price > size"
    same(table(frame), wanted)


def test_sql_gives_what_duckdb_gives(spark: SparkSession, node: NodeThread, truth: pa.Table) -> None:
    history(spark, node).createOrReplaceTempView("events")
    expected = duckdb.connect()
    expected.register("events", truth)
    for query in (
        "SELECT sym, count(*) AS n, sum(size) AS s, min(price) AS low FROM events GROUP BY sym ORDER BY sym",
        "SELECT pubend, max(tick) - min(tick) AS span FROM events GROUP BY pubend ORDER BY pubend",
        "SELECT size, cost FROM events WHERE cost > 19990 AND price IS NOT NULL ORDER BY size, tick LIMIT 5",
        "SELECT sum(cost) AS total FROM events",
    ):
        found = [tuple(row) for row in spark.sql(query).collect()]
        assert found == expected.sql(query).fetchall(), query


def test_the_log_may_be_archived_while_a_table_is_there(spark: SparkSession, node: NodeThread) -> None:
    frame = history(spark, node, where="size < 20000")
    before = table(frame)
    trim(node, "trades-1")
    same(table(frame), before)
    again = history(spark, node, where="size < 20000")
    assert len(again.inputFiles()) > len(frame.inputFiles())
    same(table(again), before)


def test_files_that_are_not_here_are_read_through_the_node(
    spark: SparkSession, node: NodeThread, truth: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapless.spark import past

    is_here = past._is_here
    monkeypatch.setattr(past, "_is_here", lambda file, *ends: "trades-1" not in file and is_here(file, *ends))
    frame = history(spark, node, where="size < 20000")
    assert {re.sub(r"\..*", "", Path(file).name) for file in frame.inputFiles()} == {"trades-2"}
    wanted = duckdb.connect().register("events", truth).sql("SELECT count(*) FROM events WHERE size < 20000")
    assert frame.count() == wanted.fetchall()[0][0]


def test_columns_with_our_names_keep_their_values(spark: SparkSession, node: NodeThread) -> None:
    node.publish("quotes", {"tick": [7, 8], "note": ["a", None]})
    frame = gapless.spark.history(spark, node.address, "quotes", where="tick > 7")
    [row] = frame.collect()
    assert (row["tick_"], row["note"], row["pubend"]) == (8, None, "quotes-1")


def test_mistakes_are_named_at_once(spark: SparkSession, node: NodeThread, tmp_path: Path) -> None:
    with pytest.raises(ContentError, match=r"E161 .*no column 'prise'"):
        history(spark, node, where="prise > 3")
    with pytest.raises(UsageError, match="E178 option 'from': must be"):
        history(spark, node, from_="yesterday")
    with pytest.raises(UsageError, match="E191 topic 'trades' has no column 'bid'"):
        history(spark, node, columns=["bid"])
    text = NODE.replace("archive.trades = true", "")
    with NodeThread.running(text, tmp_path) as other:
        for first in range(0, 10_000, 1_000):
            publish(other, first, 1_000)
        trim(other, "trades-1")
        with pytest.raises(StoreError, match="E306 pubend 'trades-1' keeps nothing below tick"):
            history(spark, other, from_=1)
        assert history(spark, other, from_=1, gone=True).count() > 0
        # The range is fixed when the table is made: a trim between that and the reading is an error.
        with contextlib.suppress(PythonException):
            assert history(spark, other).count() > 0


# ---- the command -------------------------------------------------------------------------------------

Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(
    spark: SparkSession,
    node: NodeThread,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs the command in this process, with the session that is there."""
    monkeypatch.setattr("gapless.spark.session.session", lambda *_, **__: spark)
    monkeypatch.setattr("pyspark.sql.SparkSession.stop", lambda _: None)

    def ran(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["gapless", "history", *arguments, "--node", node.address])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return ran


def test_the_command_prints_tables_json_and_csv(run: Run, truth: pa.Table) -> None:
    query = "SELECT sym, count(*) AS n FROM events WHERE size < 20000 GROUP BY sym ORDER BY sym"
    code, out, _ = run("trades", "--sql", query)
    assert code == 0
    [header, *lines] = [line.split() for line in out.splitlines() if line.strip() and "─" not in line]
    assert header == ["sym", "n"]
    assert [line[0] for line in lines] == sorted(SYMBOLS)
    code, out, _ = run("trades", "--sql", query, "--csv")
    assert out.splitlines() == ["sym,n", *(",".join(line) for line in lines)]
    code, out, _ = run("trades", "--limit", "3", "--columns", "size,price", "--json")
    wanted = truth.select(["tick", "pubend", "size", "price"]).slice(0, 3).to_pylist()
    assert [json.loads(line) for line in out.splitlines()] == wanted
    code, out, err = run("trades", "--columns", "size")
    assert len([line for line in out.splitlines() if "trades-" in line]) == command.TABLE_ROWS
    assert err == "notice: there are more than these 100 rows: --limit says how many to show\n"


def test_the_command_writes_a_parquet_file(run: Run, truth: pa.Table, tmp_path: Path) -> None:
    file = tmp_path / "some.parquet"
    code, out, _ = run("trades", "--where", "size < 100", "--parquet", str(file))
    assert (code, out) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["some.parquet"]
    found = duckdb.sql(f"SELECT tick, pubend, size FROM '{file}'").fetchall()
    wanted = duckdb.connect().register("events", truth)
    assert (
        found == wanted.sql("SELECT tick, pubend, size FROM events WHERE size < 100 ORDER BY 1, 2").fetchall()
    )


def test_mistakes_of_the_command_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, text in (
        (["news"], "error: E141 there is no topic 'news'"),
        (["trades", "--from", "soon"], "error: E178 option 'from': must be 'earliest', 'now', a tick"),
        (["trades", "--columns", "bid"], "error: E191 topic 'trades' has no column 'bid'"),
        (["trades", "--to", "gapless://a:1"], "error: E151 --to says where the history ends: name the node"),
        (["trades", "--json", "--csv"], "error: E151 choose one of --json, --csv and --parquet"),
        (["trades", "--parquet", "/nowhere/x"], "error: E156 /nowhere/x: cannot be written"),
        (["trades", "--sql", "SELECT bid FROM events"], "error: E178 --sql: [UNRESOLVED_COLUMN"),
        (["trades", "--sql", "SELEKT"], "error: E178 --sql: [PARSE_SYNTAX_ERROR]"),
        (["trades", "--sql", "CREATE TABLE t AS SELECT 1 AS n"], "error: E134 --sql takes a query that"),
        (["trades", "--sql", "INSERT INTO t SELECT 1"], "error: E134 --sql takes a query that"),
        (["trades", "--sql", "SET x = 1"], "error: E134 --sql takes a query that"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith(text), err
        assert len(err.splitlines()) == 1, err
    code, _, err = run("trades", "--where", "prise > 3")
    assert (code, err.splitlines()[-2:]) == (2, ["prise > 3", "^"])
    monkeypatch.setattr("gapless.spark.session.find_spec", lambda _: None)
    assert run("trades")[2].startswith("error: E174 PySpark is not installed")
