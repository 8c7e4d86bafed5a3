"""What a condition means, one claim at a time: three-valued logic, arithmetic, documents."""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from gapless.content.evaluate import mask
from gapless.content.index.index import Index
from gapless.content.language import parse_condition
from gapless.content.rows import Rows, column_numbers
from gapless.model.batch import EventBatch
from gapless.model.ids import TopicId
from gapless.model.schema import Schema

SCHEMA = Schema.parse(
    TopicId("t"),
    {"i": "int?", "j": "int?", "f": "float?", "s": "string?", "d": "decimal?", "x": "xml?"},
)


def accepted(text: str, **columns: list[object]) -> list[bool]:
    """Which rows a condition accepts, evaluated alone and by the index; other columns are null."""
    count = len(next(iter(columns.values())))
    arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in SCHEMA.arrow()]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow())
    condition = parse_condition(text, SCHEMA)
    found = mask(condition, Rows(batch)).tolist()
    index = Index()
    index.add(3, condition)
    rows, slots = index.match(batch)
    assert rows.tolist() == np.flatnonzero(found).tolist()
    assert set(slots.tolist()) <= {3}
    return found


@pytest.mark.parametrize(
    "text", ["i < 3", "NOT i < 3", "i = i", "NOT (i = 1 AND j = 2)", "i <> 3", "i IN (1)"]
)
def test_nothing_but_is_null_is_true_of_null(text: str) -> None:
    assert accepted(text, i=[None]) == [False]


def test_an_unknown_beside_a_truth_does_not_matter_to_or() -> None:
    assert accepted("i = 1 OR j = 2", i=[None, None], j=[2, 3]) == [True, False]
    assert accepted("NOT (i = 1 AND j = 2)", i=[None, None], j=[3, 2]) == [True, False]


def test_integers_are_compared_exactly_with_fractions_and_beyond_floats() -> None:
    assert accepted("i > 2.5", i=[2, 3]) == [False, True]
    assert accepted("i = 2.5", i=[2, 3]) == [False, False]
    assert accepted("i = 9007199254740993", i=[2**53, 2**53 + 1]) == [False, True]
    assert accepted("i < 9223372036854775808", i=[2**63 - 1, None]) == [True, False]


def test_the_least_integer_is_not_null() -> None:
    least = -(2**63)
    assert accepted("i = -9223372036854775808", i=[least, least + 1, None]) == [True, False, False]
    assert accepted("i <= -9223372036854775807", i=[least, least + 1, least + 2]) == [True, True, False]
    assert accepted("i IS NULL", i=[least, None]) == [False, True]


def test_nan_is_above_everything_and_equal_to_itself() -> None:
    assert accepted("f > 3", f=[math.nan, math.inf, 3.0]) == [True, True, False]
    assert accepted("NOT f > 3", f=[math.nan, -math.inf]) == [False, True]
    assert accepted("f = 0", f=[-0.0, 0.0]) == [True, True]


def test_decimals_are_exact_with_any_number_of_digits() -> None:
    great = Decimal("99999999999999999999999999999.999999999")
    below = Decimal("99999999999999999999999999999.999999998")
    assert accepted(f"d = {great}", d=[great, below]) == [True, False]
    assert accepted("d > 9223372036.854775807", d=[Decimal("9223372036.854775808"), great, Decimal(1)]) == [
        True,
        True,
        False,
    ]


def test_what_overflows_is_unknown() -> None:
    assert accepted("i + 1 > 0", i=[2**63 - 1, 5]) == [False, True]
    assert accepted("NOT i + 1 > 0", i=[2**63 - 1, -5]) == [False, True]
    assert accepted("i * j = 4", i=[2**62, 2], j=[4, 2]) == [False, True]


def test_division_is_exact_and_by_zero_unknown() -> None:
    assert accepted("i / j = 0.5", i=[1, 1, 1], j=[2, 0, 1]) == [True, False, False]
    assert accepted("NOT i / j = 0.5", i=[1, 1], j=[0, 1]) == [False, True]


def test_nothing_is_true_of_a_document_that_cannot_be_read() -> None:
    documents: list[object] = [b"<a/>", b"<b/>", b"<broken>", None]
    assert accepted("XPATH(x, '/a')", x=documents) == [True, False, False, False]
    assert accepted("NOT XPATH(x, '/a')", x=documents) == [False, True, False, False]


def test_documents_and_columns_are_asked_together() -> None:
    documents: list[object] = [b"<a/>", b"<a/>", b"<b/>"]
    assert accepted("XPATH(x, '/a') AND i > 3", x=documents, i=[5, 1, 5]) == [True, False, False]
    assert accepted("XPATH(x, '/a') OR i > 3", x=documents, i=[1, 5, 5]) == [True, True, True]


def test_a_batch_computes_its_rows_once() -> None:
    batch = EventBatch.of([1, 2], {"i": [1, 2]})
    assert batch.derived(Rows) is batch.derived(Rows)


@pytest.mark.parametrize("pattern", ["%" + "a%" * 400, "_" * 900, "%a_" * 300, "a" * 900 + "%b"])
def test_hostile_patterns_cost_no_more_than_their_length_times_the_text(pattern: str) -> None:
    text = "a" * 20_000
    assert accepted(f"s LIKE '{pattern}'", s=[text, None]) in ([True, False], [False, False])


@pytest.mark.parametrize("copies", [1, 100])
def test_long_lists_of_texts_are_looked_up_and_null_is_in_none(copies: int) -> None:
    """In few rows and in many, with fewer values than rows and with more."""
    texts: list[object] = ["a", "b", "zz", "", None]
    for count in (6, 1_000):
        listed = ", ".join(f"'{text}'" for text in ["a", "zz", *(f"v{at}" for at in range(count))])
        inside = [True, False, True, False, False] * copies
        outside = [False, True, False, True, False] * copies
        assert accepted(f"s IN ({listed})", s=texts * copies) == inside
        assert accepted(f"s NOT IN ({listed})", s=texts * copies) == outside
        assert accepted(f"s NOT IN ({listed}) OR s IS NULL", s=texts * copies) == [
            not each for each in inside
        ]


def test_numbers_of_a_part_of_a_column_are_those_of_its_rows_whatever_stands_at_nulls() -> None:
    junk = np.array([7, -(2**63), 3, 2**63 - 1] * 5, dtype=np.int64)
    bitmap = np.packbits([1, 0, 1, 0] * 5, bitorder="little")
    for kind, told in (
        ("int", pa.int64()),
        ("float", pa.float64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ):
        whole = pa.Array.from_buffers(told, 20, [pa.py_buffer(bitmap), pa.py_buffer(junk)])
        for array in (whole, whole.slice(3, 9), whole.slice(19), whole.slice(4, 0)):
            numbers = column_numbers(array, kind)
            assert len(numbers.values) == len(array)
            if numbers.valid is not None:
                assert numbers.valid.tolist() == [each.is_valid for each in array]
                assert not numbers.values[~numbers.valid].any()
    flags = pa.array([True, None, False, True] * 5).slice(5, 11)
    numbers = column_numbers(flags, "bool")
    assert numbers.values.tolist() == [int(bool(each.as_py())) for each in flags]
