"""Columns as Python values: times beyond the calendar, and the decimal that Arrow overlooks."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from gapless.model.python_values import LEAST_DECIMAL, column_of, first_unfit_decimal, rows_of, values_of
from gapless.model.schema import COLUMN_TYPES

TIME, DECIMAL = COLUMN_TYPES["timestamp"], COLUMN_TYPES["decimal"]
#: Around the ends of Python's calendar, and of 64 bits.
EDGES = [
    -(2**63) + 1,
    -62135596800000001,
    -62135596800000000,
    0,
    253402300799999999,
    253402300800000000,
    2**63 - 1,
]


def decimals(numbers: list[int | None], offset: int = 0) -> pa.Array:
    """A column of unscaled numbers, whatever their digits."""
    data = b"".join((each or 0).to_bytes(16, "little", signed=True) for each in [*[0] * offset, *numbers])
    present = pa.array([True] * offset + [each is not None for each in numbers], pa.bool_())
    whole = pa.Array.from_buffers(DECIMAL, len(present), [present.buffers()[1], pa.py_buffer(data)])
    return whole.slice(offset)


def test_times_beyond_the_calendar_survive_conversion() -> None:
    column = pa.array([*EDGES, None], pa.int64()).view(TIME)
    values = values_of(column)
    assert values[0] == np.datetime64(EDGES[0], "us")
    assert values[2] == datetime(1, 1, 1, tzinfo=UTC)
    assert values[-2] == np.datetime64(2**63 - 1, "us")
    assert values[-1] is None
    assert column_of(values, TIME).equals(column)
    assert rows_of(pa.record_batch({"sent": column}))[-2] == {"sent": values[-2]}


def test_the_least_time_is_nat_and_survives_conversion() -> None:
    column = pa.array([-(2**63), 0], pa.int64()).view(TIME)
    values = values_of(column)
    assert np.isnat(values[0])
    assert column_of(values, TIME).equals(column)


def test_the_least_decimal_survives_conversion() -> None:
    column = decimals([-(2**127), 5, None])
    assert values_of(column) == [LEAST_DECIMAL, Decimal("0.000000005"), None]
    assert column_of(values_of(column), DECIMAL).equals(column)
    with pytest.raises(pa.ArrowInvalid):
        column_of([Decimal(10) ** 29], DECIMAL)


@pytest.mark.parametrize("offset", [0, 1, 9])
def test_a_decimal_fits_exactly_below_ten_to_the_power_of_its_digits(offset: int) -> None:
    bound = 10**38
    fitting = [0, 1, -1, bound - 1, 1 - bound, 2**64, -(2**64), 2**63, -(2**63)]
    assert first_unfit_decimal(decimals(fitting, offset)) is None
    for unfit in (bound, -bound, bound + 2**64, -bound - 2**64, 2**127 - 1, -(2**127), bound + 1, -bound - 1):
        assert first_unfit_decimal(decimals([*fitting, unfit, unfit], offset)) == len(fitting), unfit
    assert first_unfit_decimal(decimals([], offset)) is None


def test_bytes_behind_a_null_are_not_a_decimal() -> None:
    present = pa.array([False, True])
    data = (-(2**127)).to_bytes(16, "little", signed=True) + bytes(16)
    column = pa.Array.from_buffers(DECIMAL, 2, [present.buffers()[1], pa.py_buffer(data)])
    assert first_unfit_decimal(column) is None
