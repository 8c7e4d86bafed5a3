"""How do Arrow columns become Python values, and back? As Arrow does it, plus the values that Python lacks.

A timestamp has 64 bits and reaches 292,000 years into the past and the future; Python's calendar ends with
the year 9999. Times beyond it are `numpy.datetime64` in microseconds (the lowest number is its `NaT`), in
every form of delivery. A log written by an older version may hold one decimal with more than 38 digits:
`LEAST_DECIMAL`. It can no longer be published, but is still delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MICROSECONDS = np.dtype("datetime64[us]")

_DECIMAL_BYTES = 16
_SCALE = 9
_DIGITS = 38
#: Enough digits to scale any decimal of 128 bits exactly.
_EXACT = Context(prec=60)
#: 10**38 as two halves of 64 bits, and its negative.
_STOP_HIGH, _STOP_LOW = divmod(10**_DIGITS, 2**64)
_LEAST_HIGH, _LEAST_LOW = divmod(-(10**_DIGITS), 2**64)
#: Arrow accepts it as one of 38 digits: it has no positive counterpart in 128 bits.
LEAST_DECIMAL: Final = Decimal((1, tuple(map(int, str(2**127))), -_SCALE))


def time_of(microseconds: int) -> datetime | np.datetime64:
    """The time this long after 1970; a NumPy time outside Python's calendar.

    >>> str(time_of(0)), str(time_of(2**63 - 1))
    ('1970-01-01 00:00:00+00:00', '294247-01-10T04:00:54.775807')
    """
    try:
        return _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        return np.datetime64(microseconds, "us")


def time_text(value: datetime | np.datetime64) -> str:
    """A time in ISO 8601, with its zone.

    >>> time_text(time_of(0)), time_text(time_of(2**63 - 1))
    ('1970-01-01T00:00:00+00:00', '294247-01-10T04:00:54.775807+00:00')
    """
    return value.isoformat() if isinstance(value, datetime) else f"{value}+00:00"


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, as Python has them."""
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        if not pa.types.is_timestamp(column.type):
            raise
        numbers = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
        values = [None if each is None else time_of(each) for each in numbers]
    return values


def rows_of(columns: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows as mappings from column names to values.

    >>> rows_of(pa.record_batch({"a": [1, 2]}))
    [{'a': 1}, {'a': 2}]
    """
    names = columns.schema.names
    lists = [values_of(column) for column in columns.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of values as returned by `values_of`, or from a row. The inverse of `values_of`."""
    if pa.types.is_timestamp(kind):
        return times_of(values, kind)
    try:
        return pa.array(values, kind)
    except pa.ArrowException:
        if pa.types.is_decimal(kind) and LEAST_DECIMAL in values:
            return _decimals(values, kind)
        raise


def times_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of times, some of which may be NumPy times in microseconds. Raises Arrow's errors."""
    try:
        return pa.array(values, kind)
    except pa.ArrowNotImplementedError:
        return pa.array([_plain(each) for each in values], kind)


def first_unfit_decimal(column: pa.Array) -> int | None:
    """The first row whose decimal has more than 38 digits; None if all fit."""
    buffer = column.buffers()[1]
    if not len(column) or buffer is None:
        return None
    halves = np.frombuffer(buffer, "<i8", 2 * len(column), _DECIMAL_BYTES * column.offset)
    high = halves[1::2]
    if int(high.min()) > _LEAST_HIGH and int(high.max()) < _STOP_HIGH:
        return None
    low = halves[::2].view("<u8")
    fits = (high < _STOP_HIGH) | ((high == _STOP_HIGH) & (low < np.uint64(_STOP_LOW)))
    fits &= (high > _LEAST_HIGH) | ((high == _LEAST_HIGH) & (low > np.uint64(_LEAST_LOW)))
    unfit = ~fits
    if column.null_count:
        unfit &= column.is_valid().to_numpy(zero_copy_only=False)
    return int(unfit.argmax()) if unfit.any() else None


def _plain(value: Any) -> Any:
    """A NumPy time in microseconds as its number; anything else unchanged."""
    is_ours = isinstance(value, np.datetime64) and value.dtype == _MICROSECONDS
    return int(value.view(np.int64)) if is_ours else value


def _decimals(values: Sequence[Decimal | None], kind: pa.DataType) -> pa.Array:
    unscaled = [0 if each is None else int(each.scaleb(_SCALE, _EXACT)) for each in values]
    data = b"".join(each.to_bytes(_DECIMAL_BYTES, "little", signed=True) for each in unscaled)
    present = pa.array([each is not None for each in values])
    return pa.Array.from_buffers(kind, len(values), [present.buffers()[1], pa.py_buffer(data)])
