"""How are values of every type ordered? Each value has a key, and keys of one type compare.

Conditions compare columns with constants. Done naively, that goes wrong at the edges: an integer column
against 3.5, a float column with NaN in it, a decimal with 38 digits in a float. So every value is first
turned into a *key*: a Python int, str or bytes whose natural order is the order of the values, and in which
each key has a successor. Then `x > 3.5` on integers is `x >= 4`, and open and closed bounds are the same
thing: a half-open interval of keys.

| type | key | order |
| --- | --- | --- |
| int | the number | of numbers |
| bool | 0 or 1 | false before true |
| timestamp | microseconds since 1970, UTC | of time |
| decimal | the number times 10**9 | of numbers |
| float | its bits, turned so that they ascend | -inf .. inf, then NaN, equal to itself; -0 is 0 |
| string | the text | by code point, which is also the order of its UTF-8 bytes |
| binary, xml | the bytes | by byte |

NaN is above everything and equal to itself, as in PostgreSQL, DuckDB and Spark; so `NOT (x < 3)` is the same
as `x >= 3`, as everywhere else.

Implements docs/content.md, section 2.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from types import MappingProxyType
from typing import TypeAlias

Key: TypeAlias = int | str | bytes
Value: TypeAlias = int | float | str | bool | datetime | Decimal | bytes

#: Digits after the point of a decimal column.
DECIMAL_SCALE = 9
#: Enough digits for all our arithmetic on decimals to be exact.
DECIMAL_DIGITS = 200

_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """All keys of a type: `least <= key < stop`; None as `stop` means there is no greatest."""

    least: Key
    stop: Key | None


def float_key(value: float) -> int:
    """The rank of a float among all floats.

    >>> float_key(-1.5) < float_key(-0.0) == float_key(0.0) < float_key(math.inf) < float_key(math.nan)
    True
    >>> float_key(math.nextafter(1.0, 2.0)) - float_key(1.0)
    1
    """
    if math.isnan(value):
        return _NAN_KEY
    bits: int = struct.unpack("<q", struct.pack("<d", value + 0.0))[0]
    return bits if bits >= 0 else -(bits & (_SIGN - 1))


def float_of(key: int) -> float:
    """The float with that key."""
    if key >= _NAN_KEY:
        return math.nan
    bits = key if key >= 0 else (-key | _SIGN)
    value: float = struct.unpack("<d", struct.pack("<Q", bits & _MASK))[0]
    return value


_NAN_KEY: int = struct.unpack("<q", struct.pack("<d", math.inf))[0] + 1

INT64 = KeyRange(-(2**63), 2**63)

#: The keys of every type of column.
KEYS: Mapping[str, KeyRange] = MappingProxyType(
    {
        "int": INT64,
        "bool": KeyRange(0, 2),
        "timestamp": INT64,
        "decimal": KeyRange(-(10**38) + 1, 10**38),
        "float": KeyRange(float_key(-math.inf), _NAN_KEY + 1),
        "string": KeyRange("", None),
        "binary": KeyRange(b"", None),
        "xml": KeyRange(b"", None),
    }
)

NUMBERS = frozenset({"int", "float", "decimal"})


def next_key(key: Key) -> Key:
    """The least key above `key`.

    >>> next_key(3), next_key("ab")
    (4, 'ab\\x00')
    """
    if isinstance(key, int):
        return key + 1
    return key + "\0" if isinstance(key, str) else key + b"\0"


def key_of(kind: str, value: Value) -> Key:
    """The key of a value that a column of this type can hold.

    >>> key_of("decimal", Decimal("1.5"))
    1500000000
    """
    match kind:
        case "float":
            assert isinstance(value, int | float | Decimal)
            return float_key(float(value))
        case "decimal":
            low, high = key_bounds(kind, value)
            assert low == high, f"{value!r} has more digits than a decimal column"
            return low
        case "timestamp":
            assert isinstance(value, datetime)
            return (value - _EPOCH) // _MICROSECOND
        case "string" | "binary" | "xml":
            assert isinstance(value, str | bytes)
            return value
        case _:
            assert isinstance(value, int)
            return int(value)


def key_bounds(kind: str, value: Value) -> tuple[Key, Key]:
    """The greatest key not above a value and the least not below it; equal when the type has the value.

    Numbers that do not fit, such as 3.5 for an integer column, lie between two keys. A float column
    takes the nearest float, as SQL does.

    >>> key_bounds("int", Decimal("3.5")), key_bounds("int", 7)
    ((3, 4), (7, 7))
    """
    if kind in ("int", "decimal") and isinstance(value, int | float | Decimal):
        if isinstance(value, float) and not math.isfinite(value):
            end = KEYS[kind].stop if value > 0 or math.isnan(value) else KEYS[kind].least
            assert isinstance(end, int)
            return (end, end) if value > 0 or math.isnan(value) else (end - 1, end - 1)
        with localcontext(prec=DECIMAL_DIGITS, Emax=10**6, Emin=-(10**6)):
            # A float means its shortest decimal: 1e-1 is 0.1, not the nearest fraction.
            exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
            scaled = exact.scaleb(DECIMAL_SCALE if kind == "decimal" else 0)
            low = int(scaled.to_integral_value(ROUND_FLOOR))
            return low, int(scaled.to_integral_value(ROUND_CEILING))
    key = key_of(kind, value)
    return key, key


def value_of(kind: str, key: Key) -> Value:
    """The value with that key. Raises OverflowError for a time outside the years 1 to 9999.

    >>> value_of("decimal", 1_500_000_000), value_of("bool", 1)
    (Decimal('1.5'), True)
    """
    if isinstance(key, str | bytes):
        return key
    match kind:
        case "float":
            return float_of(key)
        case "decimal":
            with localcontext(prec=DECIMAL_DIGITS):
                return Decimal(key).scaleb(-DECIMAL_SCALE).normalize()
        case "timestamp":
            return _EPOCH + key * _MICROSECOND
        case "bool":
            return bool(key)
        case _:
            return key


def literal(value: Value) -> str:
    """A value as SQL text; the text parses to the same value.

    >>> literal("it's"), literal(Decimal("1.50")), literal(True), literal(0.1)
    ("'it''s'", '1.50', 'TRUE', '1e-1')
    """
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case float():
            return _float_literal(value)
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case Decimal():
            return f"{value:f}"
        case datetime():
            text = value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
            return f"TIMESTAMP '{text}'"


def _float_literal(value: float) -> str:
    """The shortest text that is a float and not a decimal: a float literal has an exponent."""
    assert math.isfinite(value), "infinity and NaN cannot be written"
    text = repr(value)
    if "e" in text:
        return text.replace("e+", "e")
    digits, _, fraction = text.partition(".")
    if fraction == "0":
        return f"{digits}e0"
    sign = "-" if digits.startswith("-") else ""
    all_digits = (digits.lstrip("-") + fraction).lstrip("0")
    return f"{sign}{all_digits}e-{len(fraction)}"
