"""What Spark computes is what views mean: random expressions and random stages against the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls them

from gapless.spark.compile import PUBEND, TICK, compiled, key_text, shown
from gapless.spark.expressions import column
from gapless.views.expressions import ColumnRef, Expression, Literal
from gapless.views.functions import typed
from gapless.views.planning.stages import Leaf, Reduced, Shown
from gapless.views.registry import KEY
from gapless.views.relation import Relation
from gapless.views.scalars import value_of
from tests.budget import examples
from tests.views.drawn import KINDS, SCHEMAS, exact, expression, histories, scan, views
from tests.views.evaluate import Event
from tests.views.interpret import Interpreter
from tests.views.rows import bag
from tests.views.test_plan_meaning import planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW = settings(
    examples(8),
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
        HealthCheck.too_slow,
    ],
)


@st.composite
def expressions(draw: Any) -> list[tuple[str, Expression]]:
    """Many expressions over the columns of all topics: one job of Spark computes them all."""
    found = []
    for at in range(80):
        topic = draw(st.sampled_from(sorted(SCHEMAS)))
        kind = draw(st.sampled_from(KINDS))
        found.append((topic, expression(draw, exact(scan(topic)), kind, depth=1 + at % 3)))
    return found


@FEW
@given(expressions(), histories())
def test_spark_computes_expressions_as_the_oracle_does(
    spark: SparkSession, drawn: list[tuple[str, Expression]], events: Mapping[str, Sequence[Event]]
) -> None:
    for topic, schema in SCHEMAS.items():
        rows = [event.row for event in events[topic]]
        mine = [each for name, each in drawn if name == topic]
        if not rows or not mine:
            continue
        frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema.arrow())).coalesce(1)
        table = frame.select(*(column(each).alias(f"c{at}") for at, each in enumerate(mine))).toArrow()
        for at, each in enumerate(mine):
            found = [{"value": value} for value in table.column(f"c{at}").to_pylist()]
            wanted = [{"value": value_of(each, row)} for row in rows]
            assert bag(found) == bag(wanted), each


def test_malformed_documents_have_no_values(spark: SparkSession) -> None:
    documents = [b"<n><p>3.5</p><p>4</p></n>", b"<n><p>x</p></n>", b"<n/>", b"<n>", b"<!DOCTYPE n><n/>", None]
    frame = spark.createDataFrame(pa.table({"doc": pa.array(documents, pa.binary())})).coalesce(1)
    document = ColumnRef("doc", "xml")
    calls = [typed(name, (document, Literal("/n/p", "string"))) for name in ("xml_text", "xml_number")]
    table = frame.select(*(column(each).alias(f"c{at}") for at, each in enumerate(calls))).toArrow()
    assert table.column("c0").to_pylist() == ["3.5", "x", None, None, None, None]
    assert table.column("c1").to_pylist() == [3.5, None, None, None, None, None]


def reader(spark: SparkSession, interpreter: Interpreter) -> Any:
    """Reads the events of a leaf as a table: what the brokers leave, and the columns that are read."""

    def read(leaf: Leaf) -> DataFrame:
        schema = interpreter.schemas[leaf.topic].arrow()
        plain = Leaf(leaf.topic, leaf.where, tuple(schema.names), None, ())
        kept = {(event.pubend, event.tick) for event in interpreter.leaf(plain)}
        events = [e for e in interpreter.events.get(leaf.topic, ()) if (e.pubend, e.tick) in kept]
        table = pa.Table.from_pylist([event.row for event in events], schema=schema).select(leaf.columns)
        table = table.append_column(TICK, pa.array([event.tick for event in events], pa.int64()))
        table = table.append_column(PUBEND, pa.array([event.pubend for event in events], pa.string()))
        return spark.createDataFrame(table)

    return read


def roots(plan_shown: Shown) -> list[Shown]:
    stage = plan_shown.stage
    if isinstance(stage, Reduced):
        return roots(stage.input)
    if hasattr(stage, "left"):
        return [*roots(stage.left), *roots(stage.right)]
    return [plan_shown]


@FEW
@given(views(), histories())
def test_spark_computes_stages_as_the_oracle_does(
    spark: SparkSession, relation: Relation, events: Mapping[str, Sequence[Event]]
) -> None:
    interpreter = Interpreter(SCHEMAS, events)
    for each in roots(planned(relation).shown):
        frame = compiled(each.stage, reader(spark, interpreter))  # type: ignore[arg-type]
        table = shown(frame, [("0", each)], [KEY]).toArrow()
        keys = table.column(KEY).to_pylist()
        assert len(set(keys)) == len(keys)
        found = [
            {name: row[f"0.{name}"] for name, _ in each.outputs} for row in table.to_pylist() if row["0."]
        ]
        assert bag(found) == bag(interpreter.shown(each))


def test_a_key_of_numbers_has_the_text_that_spark_writes(spark: SparkSession) -> None:
    rows = pa.table({"a": [1, None, -(2**63)], 'b "c"': [True, None, False]})
    named = [(name, F.col(f"`{name}`")) for name in rows.schema.names]
    plain = key_text([(name, kind, each) for (name, each), kind in zip(named, ("int", "bool"), strict=True)])
    written = F.to_json(F.struct(*(each.alias(name) for name, each in named)), {"ignoreNullFields": "false"})
    found = spark.createDataFrame(rows).select(plain.alias("plain"), written.alias("written")).collect()
    assert [row.plain for row in found] == [row.written for row in found]
    assert len({row.plain for row in found}) == 3
