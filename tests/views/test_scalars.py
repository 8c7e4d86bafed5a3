"""What functions and operators mean at their edges."""

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from gapless.views.expressions import Call, Expression, Literal, Value
from gapless.views.functions import FUNCTIONS, NULL, cast_to, typed
from gapless.views.scalars import value_of

_LARGEST = 2**63 - 1
_FULL = Decimal("99999999999999999999999999999.999999999")
_NOON = datetime(2026, 1, 31, 12, 34, 56, 123456, UTC)


def literal(value: Value) -> Literal:
    kinds: list[tuple[type, str]] = [
        (bool, "bool"),
        (int, "int"),
        (float, "float"),
        (Decimal, "decimal"),
        (str, "string"),
        (datetime, "timestamp"),
        (bytes, "xml"),
    ]
    return Literal(value, next((kind for each, kind in kinds if isinstance(value, each)), NULL))


def called(function: str, *values: Value) -> Any:
    operands: tuple[Expression, ...] = tuple(literal(value) for value in values)
    return value_of(typed(function, operands), {})


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        ("+", (_LARGEST, 1), None),
        ("-", (-_LARGEST, 2), None),
        ("*", (2**62, 2), None),
        ("+", (_FULL, Decimal("0.000000001")), None),
        ("*", (Decimal("0.00005"), Decimal("0.00001")), Decimal("0.000000001")),
        ("+", (1, Decimal("0.5")), Decimal("1.5")),
        ("/", (5, 2), 2.5),
        ("/", (5, 0), None),
        ("/", (Decimal(1), Decimal(3)), 1 / 3),
        ("%", (-7, 3), -1),
        ("%", (7, 0), None),
        ("%", (Decimal("-7.5"), Decimal(2)), Decimal("-1.5")),
        ("neg", (-_LARGEST - 1,), None),
        ("abs", (-_LARGEST - 1,), None),
        ("=", (1, 1.0), True),
        ("=", (math.nan, math.nan), True),
        ("<", (math.inf, math.nan), True),
        ("=", (0.0, -0.0), True),
        ("<", (2**53 + 1, 2.0**53), False),
        ("<", ("a", None), None),
        ("and", (None, False), False),
        ("and", (None, True), None),
        ("or", (None, True), True),
        ("not", (None,), None),
        ("is_null", (None,), True),
        ("is_not_null", (None,), False),
        ("in", (3, 1, None), None),
        ("in", (3, 3, None), True),
        ("like", ("a%b", "a!%_", "!"), True),
        ("like", ("line\nline", "line%"), True),
        ("nullif", (3, 3), None),
        ("greatest", (None, 3, 5), 5),
        ("least", (None, None), None),
        ("round", (2.5,), 3.0),
        ("round", (-2.5,), -3.0),
        ("round", (Decimal("1.25"), 1), Decimal("1.3")),
        ("round", (155, -1), 160),
        ("floor", (-1.5,), -2.0),
        ("ceil", (Decimal("1.1"),), Decimal(2)),
        ("trim", ("  a\t ",), "a\t"),
        ("length", ("äß",), 2),
        ("substring", ("hello", 2, 3), "ell"),
        ("concat", ("a", None), None),
        ("date_trunc", ("hour", _NOON), datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("date_trunc", ("day", _NOON), datetime(2026, 1, 31, tzinfo=UTC)),
        ("xml_text", (b"<a><b>x<c>y</c></b><b>z</b></a>", "/a/b"), "xy"),
        ("xml_text", (b"<a/>", "/a/b"), None),
        ("xml_text", (b"<a", "/a"), None),
        ("xml_number", (b"<a p='1.5'/>", "/a/@p"), 1.5),
        ("xml_number", (b"<a p='x'/>", "/a/@p"), None),
    ],
)
def test_functions_evaluate_to_the_listed_values(
    function: str, values: tuple[Value, ...], expected: Value
) -> None:
    found = called(function, *values)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1.9, "int", 1),
        (-1.9, "int", -1),
        (1e30, "int", None),
        (math.nan, "int", None),
        (math.inf, "decimal", None),
        (0.1, "decimal", Decimal("0.1")),
        (Decimal("2.7"), "int", 2),
        (" 12 ", "int", 12),
        ("12.5", "int", None),
        ("1e2", "float", 100.0),
        ("many", "decimal", None),
        ("2026-01-31 12:34:56.123456", "timestamp", _NOON),
        ("2026-02-31", "timestamp", None),
        (_NOON, "string", "2026-01-31 12:34:56.123456"),
        (datetime(2026, 1, 31, tzinfo=UTC), "string", "2026-01-31 00:00:00"),
        (Decimal("1.5"), "string", "1.500000000"),
        (True, "string", "true"),
        (True, "int", 1),
        (2, "bool", True),
    ],
)
def test_casts_evaluate_to_the_listed_values(value: Value, kind: str, expected: Value) -> None:
    found = value_of(cast_to(literal(value), kind), {})
    assert found == expected
    assert type(found) is type(expected)


def test_every_function_of_the_table_has_a_meaning() -> None:
    for row in FUNCTIONS.values():
        nulls = tuple(Literal(None, "int") for _ in range(row.least))
        # Of nulls alone nothing is known but that they are null.
        assert value_of(Call(row.name, nulls, "int"), {}) in (None, True, False), row.name


def test_a_case_takes_the_first_condition_that_is_true() -> None:
    assert called("case", None, 1, False, 2, True, 3, True, 4, 5) == 3
