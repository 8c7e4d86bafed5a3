"""`gapless history --sql` computes rows from events, and neither reads nor writes nor runs anything else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.errors import UsageError
from gapless.spark.queries import answer
from gapless.spark.query_functions import FUNCTIONS, TABLE_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALLOWED = {
    "SELECT count(*) FROM events": [(3,)],
    "TABLE events": [("a", 1), ("a", 2), ("b", 3)],
    "SELECT sym, sum(size) AS s FROM EVENTS GROUP BY ALL HAVING s > 2 ORDER BY 1": [("a", 3), ("b", 3)],
    "WITH q AS (SELECT size * 2 AS n FROM events), r AS (SELECT max(n) AS m FROM q) SELECT m FROM r": [(6,)],
    "WITH events AS (SELECT 7 AS x) SELECT x FROM events": [(7,)],
    "SELECT max(size) FROM events WHERE size IN (SELECT size - 1 FROM events)": [(2,)],
    "SELECT (SELECT max(size) FROM events) - min(size) FROM events e WHERE EXISTS (SELECT 1)": [(2,)],
    "SELECT size, row_number() OVER (PARTITION BY sym ORDER BY size DESC) FROM events ORDER BY ALL": [
        (1, 2),
        (2, 1),
        (3, 1),
    ],
    "SELECT x FROM events LATERAL VIEW explode(array(size, 10)) t AS x WHERE x > 2 LIMIT 1": [(10,)],
    "SELECT sum(e.size * r.id) FROM events e JOIN range(2) r": [(6,)],
    "SELECT a.size FROM events a LEFT ANTI JOIN (VALUES (1), (2)) AS b(n) ON a.size = b.n": [(3,)],
    "SELECT * FROM events PIVOT (sum(size) FOR sym IN ('a', 'b'))": [(3, 3)],
    "FROM events |> WHERE size > 1 |> AGGREGATE count(*) AS n": [(2,)],
    "SELECT size FROM events UNION SELECT 9 EXCEPT SELECT 1 INTERSECT SELECT 1 ORDER BY 1": [
        (2,),
        (3,),
        (9,),
    ],
    "SELECT transform(array(1, 2), x -> x + 1), right('abc', 2), luhn_check('0')": [([2, 3], "bc", True)],
    "SELECT xpath_string('<a><b>1</b></a>', 'a/b'), CAST('1' AS INT), 'x' LIKE 'x%'": [("1", 1, True)],
    "SELECT sym, grouping(sym) AS g, count(DISTINCT size) FROM events GROUP BY CUBE(sym) HAVING g = 1": [
        (None, 1, 3)
    ],
}


@pytest.fixture(autouse=True)
def events(spark: SparkSession) -> None:
    spark.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "sym STRING, size INT").createOrReplaceTempView(
        "events"
    )


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_query_over_events_is_answered(spark: SparkSession, sql: str) -> None:
    assert [tuple(row) for row in answer(spark, sql, "events").collect()] == ALLOWED[sql]


REFUSED = {
    "SELECT * FROM text.`{file}`": "it reads 'text.",
    "SELECT * FROM events JOIN csv.`{file}`": "it reads 'csv.",
    "SELECT (SELECT max(value) FROM text.`{file}`)": "it reads 'text.",
    "WITH q AS (SELECT * FROM text.`{file}`) SELECT * FROM q": "it reads 'text.",
    "SELECT * FROM IDENTIFIER('text.`{file}`')": "it reads 'text.",
    "SELECT * FROM elsewhere": "it reads 'elsewhere'",
    "SELECT * FROM other": "it reads 'other'",
    "SELECT * FROM spark_catalog.default.events": "it reads 'spark_catalog.default.events'",
    "INSERT OVERWRITE DIRECTORY '{folder}' USING csv SELECT 1": "it has InsertIntoDir",
    "INSERT OVERWRITE LOCAL DIRECTORY '{folder}' SELECT 1": "it has InsertIntoDir",
    "CREATE TABLE t AS SELECT 1 AS n": "it has ",
    "EXECUTE IMMEDIATE 'SELECT * FROM text.`{file}`'": "it has UnresolvedExecuteImmediate",
    "SELECT TRANSFORM(sym) USING 'cat' FROM events": "it has ScriptTransformation",
    "BEGIN SELECT 1; END": "it has CompoundBody",
    "SELECT reflect('java.lang.System', 'setProperty', 'gapless.hacked', 'yes')": "it calls the function",
    "SELECT java_method('java.lang.System', 'getProperty', 'user.home')": "it calls the function",
    "SELECT try_reflect('java.lang.System', 'getProperty', 'user.home')": "it calls the function",
    "SELECT system.builtin.reflect('java.lang.System', 'exit', 1)": "it calls the function",
    "SELECT `reflect`('java.lang.System', 'exit', 1)": "it calls the function",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'exit', 1)": "it calls",
    "SELECT * FROM events WHERE size > (SELECT length(reflect('a', 'b')))": "it calls the function",
    "VALUES (reflect('java.lang.System', 'getProperty', 'user.home'))": "it calls the function",
    "SELECT transform(array(1), x -> reflect('java.lang.System', 'exit', x))": "it calls the function",
    "SELECT max(size) FILTER (WHERE reflect('a', 'b') = 'x') FROM events": "it calls the function",
    "SELECT size FROM events ORDER BY reflect('a', 'b')": "it calls the function",
    "SELECT from_xml('<a>1</a>', 'a INT', map('rowValidationXSDPath', '{file}'))": "it calls the function",
    "SELECT from_protobuf(x'00', 'm', '{file}')": "it calls the function",
    "SELECT * FROM read_files('{file}')": "it calls the function 'read_files'",
    "SELECT shout(sym) FROM events": "it calls the function 'shout'",
    "SHOW TABLES": "it has ",
    "SET x = 1": "it has ",
    "ADD JAR '{file}'": "it has ",
    "EXPLAIN SELECT 1": "it has ",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_no_query_over_events_is_refused(spark: SparkSession, tmp_path: Path, sql: str) -> None:
    file, folder = tmp_path / "secret.txt", tmp_path / "written"
    file.write_text("secret\n")
    spark.range(1).createOrReplaceTempView("other")
    spark.udf.register("shout", lambda text: text.upper())
    with pytest.raises(UsageError, match="E134") as refused:
        answer(spark, sql.format(file=file, folder=folder), "events")
    assert REFUSED[sql] in refused.value.message
    assert not folder.exists()
    jvm = spark._jvm
    assert jvm is not None
    assert jvm.java.lang.System.getProperty("gapless.hacked") is None


def test_every_allowed_function_is_one_of_sparks(spark: SparkSession) -> None:
    known = {row.function for row in spark.sql("SHOW ALL FUNCTIONS").collect()}
    assert known >= FUNCTIONS | TABLE_FUNCTIONS
