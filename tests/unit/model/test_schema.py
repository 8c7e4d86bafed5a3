"""Schemas: what fits is put in order, what does not is refused with one line that says where."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from gapless.errors import SchemaError
from gapless.model.ids import TopicId
from gapless.model.schema import COLUMN_TYPES, COLUMNS_MAX, Column, Schema

TRADES = TopicId("trades")
SCHEMA = Schema.parse(TRADES, {"symbol": "string", "price": "float", "volume": "int?"})


def refusal(rows: pa.RecordBatch, schema: Schema = SCHEMA) -> SchemaError:
    """The error for these rows, after a look at what every refusal promises."""
    before = [str(column) for column in rows.columns]
    with pytest.raises(SchemaError) as caught:
        schema.checked(rows)
    assert [str(column) for column in rows.columns] == before, "the refused rows were changed"
    assert len(str(caught.value).splitlines()) == 1
    assert "'trades'" in str(caught.value)
    return caught.value


def test_a_schema_keeps_the_order_of_its_columns_and_a_question_mark_allows_nulls() -> None:
    assert SCHEMA.columns == (
        Column("symbol", "string"),
        Column("price", "float"),
        Column("volume", "int", nullable=True),
    )
    assert SCHEMA.arrow() == pa.schema(
        [
            pa.field("symbol", pa.string(), nullable=False),
            pa.field("price", pa.float64(), nullable=False),
            pa.field("volume", pa.int64(), nullable=True),
        ]
    )


@pytest.mark.parametrize("kind", sorted(COLUMN_TYPES))
def test_every_kind_of_column_holds_its_values_and_nulls_where_allowed(kind: str) -> None:
    value = {
        "int": 2**63 - 1,
        "float": 0.5,
        "string": "ä",
        "bool": True,
        "timestamp": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "decimal": Decimal("1.000000001"),
        "binary": b"\xff",
        "xml": b"<news/>",
    }[kind]
    rows = pa.RecordBatch.from_pydict({"it": [value, None]}, schema=pa.schema([("it", COLUMN_TYPES[kind])]))
    assert Schema.parse(TRADES, {"it": f"{kind}?"}).checked(rows).column("it").to_pylist() == [value, None]
    error = refusal(rows, Schema.parse(TRADES, {"it": kind}))
    assert (error.code, error.message) == ("E113", "topic 'trades': column 'it' is null in row 1")


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({}, "topic 'trades' has no columns: name at least one"),
        (
            {f"c{n}": "int" for n in range(COLUMNS_MAX + 1)},
            "topic 'trades' has 1001 columns, at most 1000",
        ),
        (
            {"a-b": "int"},
            "topic 'trades': 'a-b' is not a column name: use letters, digits and _",
        ),
        ({"": "int"}, "topic 'trades': '' is not a column name: use letters, digits and _"),
        (
            {"two\nlines": "int"},
            r"topic 'trades': 'two\nlines' is not a column name: use letters, digits and _",
        ),
        (
            {"price": "money"},
            f"topic 'trades': column 'price' has unknown type 'money': use {', '.join(COLUMN_TYPES)}",
        ),
        (
            {"price": "float??"},
            f"topic 'trades': column 'price' has unknown type 'float?': use {', '.join(COLUMN_TYPES)}",
        ),
    ],
)
def test_an_invalid_schema_is_refused(columns: dict[str, str], complaint: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.parse(TRADES, columns)
    assert (caught.value.code, caught.value.message) == ("E110", complaint)


def test_as_many_columns_as_allowed_are_allowed() -> None:
    assert len(Schema.parse(TRADES, {f"c{n}": "int" for n in range(COLUMNS_MAX)}).columns) == COLUMNS_MAX


def test_rows_come_back_in_the_order_and_types_of_the_schema() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"volume": pa.array([7, None], pa.int16()), "price": pa.array([1, 2]), "symbol": ["A", "B"]}
    )
    checked = SCHEMA.checked(rows)
    assert checked.schema == SCHEMA.arrow()
    assert checked.to_pydict() == {"symbol": ["A", "B"], "price": [1.0, 2.0], "volume": [7, None]}


def test_a_nullable_column_that_is_missing_is_null() -> None:
    checked = SCHEMA.checked(pa.RecordBatch.from_pydict({"symbol": ["A"], "price": [1.5]}))
    assert checked.column("volume").to_pylist() == [None]
    assert checked.schema == SCHEMA.arrow()


def test_zero_rows_are_allowed() -> None:
    rows = pa.RecordBatch.from_pydict({"symbol": [], "price": []})
    checked = SCHEMA.checked(rows)
    assert (checked.num_rows, checked.schema) == (0, SCHEMA.arrow())


def test_checking_again_changes_nothing() -> None:
    checked = SCHEMA.checked(pa.RecordBatch.from_pydict({"symbol": ["A"], "price": [1.5]}))
    assert SCHEMA.checked(checked).equals(checked)


def test_a_slice_is_checked_on_its_own() -> None:
    rows = pa.RecordBatch.from_pydict({"symbol": [None, "A", "B", None], "price": [1.0, 2.0, 3.0, 4.0]})
    assert SCHEMA.checked(rows.slice(1, 2)).column("symbol").to_pylist() == ["A", "B"]
    assert refusal(rows.slice(1)).message == "topic 'trades': column 'symbol' is null in row 2"


@pytest.mark.parametrize("name", ["colour", "Price", "two\nlines"])
def test_an_unknown_column_is_refused_by_name(name: str) -> None:
    error = refusal(pa.RecordBatch.from_pydict({"symbol": ["A"], "price": [1.0], name: [1]}))
    assert error.code == "E111"
    assert error.message == f"topic 'trades' has no column {name!r}: it has symbol, price, volume"


@pytest.mark.parametrize("name", ["price", "volume"])
def test_a_column_given_twice_is_refused(name: str) -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.array(["A"]), pa.array([1.0]), pa.array([1]), pa.array([1])], ["symbol", "price", "volume", name]
    )
    error = refusal(rows)
    assert (error.code, error.message) == ("E111", f"topic 'trades': column '{name}' is given twice")


def test_a_column_that_is_missing_and_must_not_be_null_is_refused() -> None:
    error = refusal(pa.RecordBatch.from_pydict({"symbol": ["A"]}))
    assert (error.code, error.message) == ("E112", "topic 'trades': column 'price' is missing")


def test_the_first_null_is_named_where_none_is_allowed() -> None:
    error = refusal(pa.RecordBatch.from_pydict({"symbol": ["A", None, None], "price": [1.0, 2.0, None]}))
    assert (error.code, error.message) == ("E113", "topic 'trades': column 'symbol' is null in row 1")


@pytest.mark.parametrize(
    ("kind", "array", "row"),
    [
        ("int", pa.array([1.0, 2.0, 2.5, 0.5]), 2),
        ("int", pa.array(["1", None, "x"]), 2),
        ("int", pa.array([2**63], pa.uint64()), 0),
        ("float", pa.array([0] * 100 + [2**53 + 1] * 2), 100),
        ("string", pa.array([b"a", b"\xff", b"\xff"]), 1),
        ("decimal", pa.array([1.0, float("nan")]), 1),
        ("bool", pa.array(["true", "false", "perhaps"]), 2),
        ("timestamp", pa.array([0, 1], pa.timestamp("ns", tz="UTC")), 1),
    ],
)
def test_the_first_value_of_another_type_that_does_not_fit_is_named(
    kind: str, array: pa.Array, row: int
) -> None:
    error = refusal(pa.RecordBatch.from_arrays([array], ["it"]), Schema.parse(TRADES, {"it": f"{kind}?"}))
    start = f"topic 'trades': column 'it' must be {kind}, got {array.type} in row {row}: "
    assert error.code == "E114"
    assert error.message.startswith(start)


@pytest.mark.parametrize("kind", sorted(COLUMN_TYPES))
@pytest.mark.parametrize("array", [pa.array([{"a": 1}]), pa.array([[1]]), pa.array([{"a": 1}]).slice(0, 0)])
def test_a_type_that_never_fits_is_refused_without_blaming_a_row(kind: str, array: pa.Array) -> None:
    error = refusal(pa.RecordBatch.from_arrays([array], ["it"]), Schema.parse(TRADES, {"it": kind}))
    assert error.code == "E114"
    assert error.message.startswith(f"topic 'trades': column 'it' must be {kind}, got {array.type}: ")
