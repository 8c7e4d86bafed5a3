"""Data frames of pandas and Polars become columns of a topic: nulls, times, decimals, order of columns."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import gapless
from gapless.client.rows import Shape
from gapless.errors import SchemaError, UsageError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

COLUMNS = {
    "sym": "string",
    "price": "float?",
    "volume": "int?",
    "open": "bool?",
    "sent": "timestamp?",
    "cost": "decimal?",
    "raw": "binary?",
}
SENT = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
#: In another order than the topic has them; every column but the first with a null.
FULL: dict[str, list[Any]] = {
    "cost": [Decimal("1.5"), None, Decimal("-0.000000001")],
    "sent": [SENT, None, datetime(1969, 1, 1, tzinfo=UTC)],
    "raw": [b"\0", None, b""],
    "open": [True, None, False],
    "volume": [1, None, 2**53],
    "price": [0.5, None, -1.0],
    "sym": ["IBM", "", "é"],
}
EXPECTED = [
    {name: values[row] for name, values in ((name, FULL[name]) for name in COLUMNS)} for row in range(3)
]


def shape(**columns: str) -> Shape:
    return Shape(Schema.parse(TopicId("trades"), columns or COLUMNS))


def rows(data: object, **columns: str) -> list[dict[str, object]]:
    return [row for batch in shape(**columns).batches(data) for row in batch.to_pylist()]


def test_a_frame_of_pandas_with_its_own_types() -> None:
    frame = pd.DataFrame(FULL)
    assert frame["volume"].dtype == float, "nulls make floats of whole numbers"
    assert rows(frame) == EXPECTED


def test_a_frame_of_pandas_with_types_of_arrow() -> None:
    frame = pd.DataFrame({name: pd.array(values, dtype=_arrow(name)) for name, values in FULL.items()})
    assert rows(frame) == EXPECTED


def _arrow(name: str) -> pd.ArrowDtype:
    return pd.ArrowDtype(Schema.parse(TopicId("trades"), COLUMNS).arrow().field(name).type)


def test_a_frame_of_polars() -> None:
    assert rows(pl.DataFrame(FULL)) == EXPECTED


def test_a_series_of_categories_is_text() -> None:
    texts = ["a", "b", "a"]
    expected = [{"sym": text} for text in texts]
    assert rows(pd.DataFrame({"sym": pd.Categorical(texts)}), sym="string") == expected
    assert rows(pl.DataFrame({"sym": pl.Series(texts, dtype=pl.Categorical)}), sym="string") == expected


def test_not_a_number_is_no_value_in_pandas_and_a_number_in_polars() -> None:
    assert rows(pd.DataFrame({"price": [1.0, float("nan")]}), price="float?") == [
        {"price": 1.0},
        {"price": None},
    ]
    [_, number] = rows(pl.DataFrame({"price": [1.0, float("nan")]}), price="float?")
    assert number["price"] != number["price"]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_times_without_a_zone_are_utc_and_finer_ones_are_not_cut(frame: Any) -> None:
    naive = datetime(2026, 1, 31, 12, 0, 0, 5)  # noqa: DTZ001  # that is what it is about
    assert rows(frame({"sent": [naive]}), sent="timestamp") == [{"sent": naive.replace(tzinfo=UTC)}]
    fine = pa.table({"sent": pa.array([1], pa.timestamp("ns"))})
    data = fine.to_pandas() if frame is pd.DataFrame else pl.from_arrow(fine)
    with pytest.raises(SchemaError, match=r"E114 topic .trades.: column .sent. must be timestamp.*row 0"):
        rows(data, sent="timestamp")


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_what_does_not_fit_is_refused_with_its_column_and_row(frame: Any) -> None:
    wrong: list[tuple[dict[str, list[Any]], dict[str, str], str]] = [
        (
            {"cost": [Decimal(1), Decimal("0.0000000001")]},
            {"cost": "decimal"},
            "E114.*'cost' must be decimal",
        ),
        ({"volume": [1.0, 2.5]}, {"volume": "int"}, "E114.*'volume' must be int.*row 1"),
        ({"sym": ["a", None]}, {"sym": "string"}, "E113.*'sym' is null in row 1"),
        ({"sym": ["a"], "more": [1]}, {"sym": "string"}, "E111.*no column 'more'"),
        ({"sym": ["a"]}, {"sym": "string", "price": "float"}, "E112.*'price' is missing"),
    ]
    for data, columns, message in wrong:
        with pytest.raises(SchemaError, match=message):
            rows(frame(data), **columns)


def test_a_column_of_mixed_things_is_refused() -> None:
    with pytest.raises(UsageError, match="E192"):
        rows(pd.DataFrame({"sym": ["a", 1, object()]}), sym="string")


def test_an_empty_frame_is_no_rows() -> None:
    assert rows(pd.DataFrame({"sym": pd.Series([], dtype="object")}), sym="string") == []
    assert rows(pl.DataFrame({"sym": pl.Series([], dtype=pl.String)}), sym="string") == []


@pytest.mark.slow
def test_frames_are_published_and_delivered() -> None:
    async def story() -> None:
        async with gapless.embedded() as client:
            await client.create_topic("trades", COLUMNS)
            async with client.subscribe("trades") as trades:
                for frame in (pd.DataFrame(FULL), pl.DataFrame(FULL)):
                    assert len(await client.publish_batch("trades", frame)) == 3
                    assert [dict(await anext(trades)) for _ in range(3)] == EXPECTED

    asyncio.run(asyncio.wait_for(story(), 60))
