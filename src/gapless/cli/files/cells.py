"""What is the type of a column in a file, and how do its values become those of our types?

Types are taken from the file: from Arrow's for Parquet and CSV, from the values themselves for JSON. A type
may be said instead (`--column sent=timestamp`); then texts are read as that type, too.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from gapless.cli.output.terminal import CONTROLS
from gapless.errors import UsageError
from gapless.model.python_values import time_text
from gapless.model.schema import COLUMN_TYPES

#: How much of a value that does not fit an error shows.
SHOWN_CHARACTERS_MAX = 40

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_EXPECTED = {
    "int": "a whole number of 64 bits",
    "float": "a number",
    "string": "a text",
    "bool": "true or false",
    "timestamp": "a time such as 2026-01-31T12:00:00Z",
    "decimal": "a number with at most 29 digits before the point and 9 behind",
    "binary": "bytes as base64, such as aGVsbG8=",
    "xml": "a text",
}


def parse_columns(settings: Iterable[str]) -> dict[str, str]:
    """The columns of `--column name=type`. Raises UsageError E159.

    >>> parse_columns(["sent=timestamp", "a=b=int"])
    {'sent': 'timestamp', 'a=b': 'int'}
    """
    found: dict[str, str] = {}
    for text in settings:
        name, is_pair, kind = text.rpartition("=")
        if not is_pair or not name:
            raise UsageError("E159", f"--column takes name=type, got {text!r}: write it as sent=timestamp")
        if kind not in COLUMN_TYPES:
            names = ", ".join(COLUMN_TYPES)
            raise UsageError("E159", f"--column {text}: there is no type {kind!r}: use {names}")
        if found.get(name, kind) != kind:
            raise UsageError(
                "E159", f"--column gives {name!r} two types, {found[name]} and {kind}: choose one"
            )
        found[name] = kind
    return found


def kind_of_arrow(kind: pa.DataType) -> str | None:
    """Our type for one of Arrow's; None when we have none."""
    if pa.types.is_dictionary(kind):
        return kind_of_arrow(kind.value_type)
    for ours, is_one in _ARROW_KINDS:
        if is_one(kind):
            return ours
    return None


_ARROW_KINDS: tuple[tuple[str, Any], ...] = (
    ("int", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("bool", pa.types.is_boolean),
    ("decimal", pa.types.is_decimal),
    ("timestamp", pa.types.is_timestamp),
    ("timestamp", pa.types.is_date),
    ("string", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind)),
    ("string", pa.types.is_string_view),
    ("binary", lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind)),
    ("binary", lambda kind: pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind)),
)


def kind_of_values(kinds: set[type]) -> str | None:
    """Our type for values as JSON has them, null aside; None when they go together in no type."""
    if kinds and kinds <= {int, float, Decimal}:
        return "int" if kinds == {int} else "float"
    names: dict[type, str] = {str: "string", bool: "bool"}
    return names.get(next(iter(kinds))) if len(kinds) == 1 else None


def fitted(array: pa.Array, kind: str) -> pa.Array:
    """An Arrow column in one of our types. Raises ValueError for the first value that does not fit."""
    wanted = COLUMN_TYPES[kind]
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if array.type == wanted:
        return array
    source = kind_of_arrow(array.type)
    if source == "string" and kind != "string":
        return cells(array.to_pylist(), kind)
    if source == "timestamp" and kind == "timestamp":
        # Finer than microseconds is cut off; a time without a zone is in UTC.
        return array.cast(wanted, safe=False)
    return array.cast(wanted)


def first_unfit(array: pa.Array, kind: str) -> tuple[int, str]:
    """The place of the first value that does not fit, and why. There must be one."""
    for at in range(len(array)):
        try:
            fitted(array.slice(at, 1), kind)
        except (pa.ArrowException, ValueError) as error:
            return at, reason_of(error)
    raise AssertionError(f"every value is {kind}")


def reason_of(error: Exception) -> str:
    """What is wrong, in one line."""
    return (str(error).splitlines() or ["no reason given"])[0]


def cells(values: Sequence[Any], kind: str) -> pa.Array:
    """Plain values as a column. Raises ValueError when one of them does not fit."""
    return pa.array([cell(value, kind) for value in values], COLUMN_TYPES[kind])


def cell(value: Any, kind: str) -> Any:
    """One value as a column of that type has it. Raises ValueError saying what was expected."""
    if value is None:
        return None
    try:
        found = _cell(value, kind)
    except (ValueError, InvalidOperation, OverflowError):
        found = None
    if found is None:
        raise ValueError(f"{shown(value)} is not {_EXPECTED[kind]}")
    return found


def _cell(value: Any, kind: str) -> Any:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    match kind:
        case "int":
            return _whole(value) if is_number or isinstance(value, str) else None
        case "float":
            return float(value) if is_number or isinstance(value, str) else None
        case "decimal":
            return _decimal(value) if is_number or isinstance(value, str) else None
        case "bool":
            words = {"true": True, "false": False}
            return (
                words.get(value.lower())
                if isinstance(value, str)
                else (value if value in (True, False) else None)
            )
        case "timestamp":
            return _time(value) if isinstance(value, str) else None
        case "string":
            return value if isinstance(value, str) else None
        case "binary":
            # The way that `row_text` prints them.
            return base64.b64decode(value, validate=True) if isinstance(value, str) else _bytes(value)
        case _:
            return value.encode() if isinstance(value, str) else _bytes(value)


def _bytes(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _whole(value: Any) -> int | None:
    number = int(value)
    if not isinstance(value, str) and number != value:
        return None
    return number if _INT64_MIN <= number <= _INT64_MAX else None


def _decimal(value: Any) -> Decimal | None:
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    scaled = number.scaleb(9)
    return number if scaled == scaled.to_integral_value() and abs(scaled) < 10**38 else None


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text.strip())
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def shown(value: Any) -> str:
    """A value for an error: as JSON, and not too long."""
    text = row_text(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "..."


def row_text(row: Any) -> str:
    """A row of a file that is no JSON, as JSON on one line.

    >>> row_text({"at": datetime(2026, 1, 31, tzinfo=UTC), "price": Decimal("1.50"), "key": b"\\x0a"})
    '{"at": "2026-01-31T00:00:00+00:00", "price": "1.50", "key": "Cg=="}'
    """
    text = json.dumps(_plain(row), ensure_ascii=False, allow_nan=False)
    # JSON lets some of these pass, and a terminal obeys them.
    return CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], text)


def bytes_text(value: bytes) -> str:
    """Bytes where nobody says what they are: a document as it is, which begins with `<`, all else as base64.

    >>> bytes_text(b"<a/>"), bytes_text(b"\\x00\\xff")
    ('<a/>', 'AP8=')
    """
    if value.lstrip().startswith(b"<"):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return base64.b64encode(value).decode()


def _plain(value: Any) -> Any:
    """A value with what JSON has no word for as text: times, decimals, bytes (base64), NaN."""
    match value:
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case np.datetime64():
            return time_text(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(value)
        case Decimal() | timedelta():
            return str(value)
        case _:
            return value
