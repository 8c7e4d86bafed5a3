"""Filters of Spark as conditions: what means the same goes to the repository, everything else stays."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from gapless.content.language import parse_condition
from gapless.errors import UsageError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.spark.options import parse_options
from gapless.spark.pushdown import pushed

SCHEMA = Schema.parse(
    TopicId("trades"),
    {"sym": "string", "price": "float", "size": "int", "at": "timestamp", "sum": "decimal", "tick": "int"},
)
TIME = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (EqualTo(("sym",), "O'Neil"), "sym = 'O''Neil'"),
        (GreaterThan(("price",), 1.5), "price > 1.5"),
        (LessThanOrEqual(("size",), 3), "size <= 3"),
        (Not(EqualTo(("size",), 3)), "size <> 3"),
        (In(("size",), (1, 2)), "size IN (1, 2)"),
        (GreaterThanOrEqual(("at",), TIME), "at >= TIMESTAMP '2026-01-31 12:00:00.000000'"),
        (LessThan(("sum",), Decimal("1.50")), "sum < 1.50"),
        (StringStartsWith(("sym",), "I_"), "sym LIKE 'I!_%' ESCAPE '!'"),
        (StringEndsWith(("sym",), "M"), "sym LIKE '%M'"),
        (StringContains(("sym",), "B"), "sym LIKE '%B%'"),
        (IsNull(("sym",)), "sym IS NULL"),
        (Not(IsNull(("sym",))), "sym IS NOT NULL"),
        (IsNotNull(("sym",)), "sym IS NOT NULL"),
        (EqualTo(("tick_",), 7), "tick = 7"),
    ],
)
def test_what_means_the_same_becomes_a_condition(given: Filter, text: str) -> None:
    found, rest = pushed([given], SCHEMA)
    assert found.where == text
    assert rest == []
    parse_condition(text, SCHEMA)


@pytest.mark.parametrize(
    "given",
    [
        EqualNullSafe(("sym",), "IBM"),
        EqualTo(("sym", "part"), "IBM"),
        EqualTo(("price",), float("nan")),
        EqualTo(("size",), 1.5),
        EqualTo(("pubend",), "trades-1"),
        In(("size",), (1, None)),
        In(("size",), ()),
        Not(In(("size",), (1, 2))),
        StringContains(("size",), "1"),
        Not(EqualTo(("tick",), 3)),
    ],
)
def test_everything_else_stays_with_spark(given: Filter) -> None:
    found, rest = pushed([given], SCHEMA)
    assert found.where == ""
    assert rest == [given]


def test_ticks_are_the_range() -> None:
    found, rest = pushed(
        [GreaterThan(("tick",), 9), LessThanOrEqual(("tick",), 19), GreaterThanOrEqual(("tick",), 3)], SCHEMA
    )
    assert (found.start, found.stop, found.where, rest) == (10, 20, "", [])


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({}, "E178 option 'brokers': is missing: both 'brokers' and 'topic' are needed"),
        ({"path": "/x"}, "E178 option 'path': a topic has no path"),
        ({"rows_per_partition": "many"}, "E178 option 'rows_per_partition': must be a whole number"),
        ({"history": "perhaps"}, "E178 option 'history': must be 'true' or 'false', got 'perhaps'"),
        ({"to": "2026-13-01"}, "E178 option 'to': must be 'earliest', 'now', a tick or a time"),
        ({"from": str(2**63)}, "E178 option 'from': must be"),
    ],
)
def test_options_are_refused_in_one_line_that_names_them(told: dict[str, str], line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options({**({"brokers": "gapless://b", "topic": "t"} if told else {}), **told})
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_options_are_read_whatever_their_case() -> None:
    options = parse_options(
        {"Brokers": "gapless://b", "TOPIC": "t", "columns": "a, tick", "from": "Earliest", "max_rows": "7"}
    )
    assert (options.columns, options.start, options.max_rows) == (("a",), "earliest", 7)
    assert "secret" not in repr(parse_options({"brokers": "b", "topic": "t", "token": "secret"}))
