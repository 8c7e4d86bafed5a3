"""Which functions and operators may a view use, on which types, and what do they return?

One table. `typed` looks a call up in it, checks the operands and derives the type of the result, so SQL and
the fluent algebra cannot disagree; `spark.compile` and `views.evaluate` implement each entry.

No event may make a view fail, so no function fails: overflow, division by zero and failed conversions give
null. Nothing depends on when or where it is computed: a view can always be recomputed.

Operands that must have one type (those of CASE, COALESCE, NULLIF, GREATEST, LEAST) are cast to it here, so
that `Call("coalesce", ...)` has operands of its own kind. Comparisons and arithmetic take mixed numbers: they
go by float when one operand is a float, and are exact otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import NoReturn, cast

from gapless.content.sql.like import parse_like
from gapless.content.sql.operands import timestamp
from gapless.content.sql.scanner import TokenLeaf
from gapless.errors import ContentError, ViewError
from gapless.views.expressions import Call, ColumnRef, Expression, Literal
from gapless.views.relation import Aggregate, AggregateFunction

#: From narrow to wide: what two numbers of different types become.
NUMBERS = ("int", "decimal", "float")
#: The type of a bare NULL, until its context is known.
NULL = "null"

#: The kinds that an operand may have, by the word that the table uses.
OPERANDS: MappingProxyType[str, frozenset[str]] = MappingProxyType(
    {
        "number": frozenset(NUMBERS),
        "int": frozenset({"int"}),
        "string": frozenset({"string"}),
        "bool": frozenset({"bool"}),
        "timestamp": frozenset({"timestamp"}),
        "xml": frozenset({"xml"}),
        "ordered": frozenset({*NUMBERS, "string", "timestamp", "binary"}),
        "value": frozenset({*NUMBERS, "string", "timestamp", "binary", "bool"}),
        "any": frozenset({*NUMBERS, "string", "timestamp", "binary", "bool", "xml"}),
    }
)


@dataclass(frozen=True, slots=True)
class Function:
    """One row of the table."""

    #: As in `Call.function`.
    name: str
    #: How it is written in SQL.
    form: str
    #: What each operand may be, a word of `OPERANDS`; the last stands for all further ones.
    operands: tuple[str, ...]
    #: How many operands there may be.
    least: int
    most: int | None
    #: A type; `number`: the widest of the operands'; `first`: the first operand's; `common`: all are cast
    #: to one type, and that is it.
    result: str
    #: When it is null: `never`; when an `operand` is; when `all` operands are; also when it `overflows`,
    #: which floats do not; or `any` time.
    null: str
    #: Whether the operands must be comparable with each other.
    alike: bool = False
    meaning: str = ""


_NUMBERS = ("number", "number")
_ROWS = (
    Function("+", "a + b", _NUMBERS, 2, 2, "number", "overflows"),
    Function("-", "a - b", _NUMBERS, 2, 2, "number", "overflows"),
    Function("*", "a * b", _NUMBERS, 2, 2, "number", "overflows"),
    Function("/", "a / b", _NUMBERS, 2, 2, "float", "any", meaning="always a float; null when b is 0"),
    Function("%", "a % b", _NUMBERS, 2, 2, "number", "any", meaning="the sign of a; null when b is 0"),
    Function("neg", "-a", ("number",), 1, 1, "number", "overflows"),
    Function("=", "a = b", ("value",), 2, 2, "bool", "operand", alike=True),
    Function("<>", "a <> b", ("value",), 2, 2, "bool", "operand", alike=True),
    *(
        Function(sign, f"a {sign} b", ("ordered",), 2, 2, "bool", "operand", alike=True)
        for sign in ("<", "<=", ">", ">=")
    ),
    Function("and", "a AND b", ("bool",), 2, None, "bool", "operand", meaning="any number of operands"),
    Function("or", "a OR b", ("bool",), 2, None, "bool", "operand", meaning="any number of operands"),
    Function("not", "NOT a", ("bool",), 1, 1, "bool", "operand"),
    Function("is_null", "a IS NULL", ("any",), 1, 1, "bool", "never"),
    Function("is_not_null", "a IS NOT NULL", ("any",), 1, 1, "bool", "never"),
    Function("in", "a IN (b, ...)", ("value",), 2, None, "bool", "operand", alike=True),
    Function(
        "like",
        "a LIKE 'pattern' [ESCAPE 'c']",
        ("string",),
        2,
        3,
        "bool",
        "operand",
        meaning="% any text, _ one character; no escape character unless given",
    ),
    Function(
        "case",
        "CASE WHEN a THEN b ... ELSE z END",
        ("any",),
        3,
        None,
        "common",
        "any",
        meaning="operands: condition, value, condition, value, ..., value otherwise",
    ),
    Function("coalesce", "COALESCE(a, ...)", ("value",), 1, None, "common", "all"),
    Function("nullif", "NULLIF(a, b)", ("value",), 2, 2, "common", "any"),
    Function("greatest", "GREATEST(a, ...)", ("ordered",), 1, None, "common", "all"),
    Function("least", "LEAST(a, ...)", ("ordered",), 1, None, "common", "all"),
    Function("abs", "ABS(a)", ("number",), 1, 1, "number", "overflows"),
    Function(
        "round",
        "ROUND(a [, digits])",
        ("number", "int"),
        1,
        2,
        "first",
        "overflows",
        meaning="halves away from zero; digits is a literal",
    ),
    Function("floor", "FLOOR(a)", ("number",), 1, 1, "number", "overflows", meaning="keeps the type"),
    Function("ceil", "CEIL(a)", ("number",), 1, 1, "number", "overflows", meaning="keeps the type"),
    Function("lower", "LOWER(s)", ("string",), 1, 1, "string", "operand"),
    Function("upper", "UPPER(s)", ("string",), 1, 1, "string", "operand"),
    Function("trim", "TRIM(s)", ("string",), 1, 1, "string", "operand", meaning="spaces at both ends"),
    Function("length", "LENGTH(s)", ("string",), 1, 1, "int", "operand", meaning="in characters"),
    Function(
        "substring",
        "SUBSTRING(s, start [, length])",
        ("string", "int"),
        2,
        3,
        "string",
        "operand",
        meaning="start (from 1) and length are literals",
    ),
    Function("concat", "a || b, CONCAT(a, ...)", ("string",), 1, None, "string", "operand"),
    Function("cast", "CAST(a AS type)", ("any",), 1, 1, "", "any", meaning="the type is the call's kind"),
    Function(
        "date_trunc",
        "DATE_TRUNC('unit', t)",
        ("string", "timestamp"),
        2,
        2,
        "timestamp",
        "operand",
        meaning="unit: minute, hour or day, in UTC",
    ),
    Function(
        "xml_text",
        "XML_TEXT(doc, '/path')",
        ("xml", "string"),
        2,
        2,
        "string",
        "any",
        meaning="the text of the first such node; null without one",
    ),
    Function(
        "xml_number",
        "XML_NUMBER(doc, '/path')",
        ("xml", "string"),
        2,
        2,
        "float",
        "any",
        meaning="that text as a number; null if it is not one",
    ),
)


#: Every function and operator of an expression, by `Call.function`.
FUNCTIONS: MappingProxyType[str, Function] = MappingProxyType({each.name: each for each in _ROWS})

#: What each aggregate takes.
AGGREGATES: MappingProxyType[str, str] = MappingProxyType(
    {
        "sum": "number",
        "count": "any",
        "min": "ordered",
        "max": "ordered",
        "avg": "number",
        "first": "any",
        "last": "any",
    }
)

DATE_UNITS = ("minute", "hour", "day")
#: From which types to which `cast` goes, apart from the type itself.
CASTS: MappingProxyType[str, frozenset[str]] = MappingProxyType(
    {
        "int": frozenset({"float", "decimal", "string", "bool"}),
        "float": frozenset({"int", "decimal"}),
        "decimal": frozenset({"int", "float", "string"}),
        "string": frozenset({"int", "float", "decimal", "timestamp"}),
        "bool": frozenset({"int", "string"}),
        "timestamp": frozenset({"string"}),
        "binary": frozenset(),
        "xml": frozenset(),
    }
)
#: Casts that give null for no value but null.
_TOTAL_CASTS = frozenset({"int float", "int decimal", "int string", "int bool", "decimal float", "bool int"})

_NAME = r"[^\W\d][\w.\-]*"
_PATH = re.compile(rf"(?://?{_NAME})*(?://?(?:{_NAME}|@{_NAME}))(?:/text\(\))?")

_COUNTED = {1: "one operand", 2: "two operands", 3: "three operands"}


def typed(
    function: str, operands: tuple[Expression, ...], *, at: int | None = None, text: str = ""
) -> Expression:
    """A call of a function of the table, with its type; `text` and `at` are for the message.

    Equivalent forms are unified: chains of AND and of OR are one call, minus a number is a number, and NOT
    ... IS NULL is IS NOT NULL.

    >>> print(typed("+", (ColumnRef("a", "int", nullable=False), Literal(Decimal("0.5"), "decimal"))).kind)
    decimal

    Raises ViewError E167 when the operands do not fit.
    """
    row = FUNCTIONS[function]
    assert function != "cast", "casts are made by `cast_to`"
    if len(operands) < row.least or (row.most is not None and len(operands) > row.most):
        _refuse(f"{row.form} {_takes(row)}, got {len(operands)}", text, at)
    match function, operands:
        case "case", _:
            return _case(operands, at, text)
        case "neg", (Literal(value=int() | float() | Decimal() as value, kind=kind),) if kind in NUMBERS:
            return Literal(-value, kind, at) if kind != "int" or -value < 2**63 else Literal(None, kind, at)
        case "not", (Call(function="is_null") as inner,):
            return Call("is_not_null", inner.operands, "bool", False, at)
        case "and" | "or", _:
            operands = tuple(part for each in operands for part in _parts(function, each))
    if function in ("date_trunc", "xml_text", "xml_number", "like", "substring", "round"):
        _check_constants(row, operands, text)
    if row.alike or row.result == "common":
        operands = _alike(row, operands, text)
    operands = tuple(_given(row, place, each, text) for place, each in enumerate(operands))
    kind = _result(row, operands)
    if row.result == "common":
        operands = tuple(coerced(each, kind) for each in operands)
    return Call(function, operands, kind, _nullable(row, operands, kind), at)


def _parts(function: str, operand: Expression) -> tuple[Expression, ...]:
    """The operands of a chain; those of a chain were flat when it was made."""
    return operand.operands if isinstance(operand, Call) and operand.function == function else (operand,)


def cast_to(operand: Expression, kind: str, *, at: int | None = None, text: str = "") -> Expression:
    """The operand as another type. Raises ViewError E167 when there is no such conversion."""
    if operand.kind in (kind, NULL):
        return coerced(operand, kind)
    if kind not in CASTS[operand.kind]:
        possible = ", ".join(sorted(CASTS[operand.kind])) or "no other type"
        way_out = f"{operand.kind} goes to {possible}"
        if (operand.kind, kind) == ("float", "string"):
            way_out = "a float has no one spelling; cast it to decimal first"
        if operand.kind == "xml":
            way_out = "write XML_TEXT(doc, '/path') or XML_NUMBER(doc, '/path')"
        if (operand.kind, kind) == ("string", "bool"):
            way_out = "compare it, as in s = 'true'"
        _refuse(f"no cast from {operand.kind} to {kind}: {way_out}", text, at)
    total = f"{operand.kind} {kind}" in _TOTAL_CASTS
    return Call("cast", (operand,), kind, operand.nullable or not total, at)


def coerced(operand: Expression, kind: str) -> Expression:
    """The operand as a type that it fits without loss: a wider number, a time, or anything for NULL."""
    if operand.kind == kind:
        return operand
    if isinstance(operand, Literal):
        match kind, operand.value:
            case _, None:
                return replace(operand, kind=kind)
            case "float", int() | Decimal() as value:
                return Literal(float(value), kind, operand.at)
            case "decimal", int() as value:
                return Literal(Decimal(value), kind, operand.at)
    return Call("cast", (operand,), kind, operand.nullable, operand.at)


def common_kind(kinds: list[str]) -> str | None:
    """The type that values of all these types fit into; None when there is none.

    >>> common_kind(["int", "null", "decimal"]), common_kind(["int", "string"])
    ('decimal', None)
    """
    found = [kind for kind in dict.fromkeys(kinds) if kind != NULL]
    if all(kind in NUMBERS for kind in found) and found:
        return max(found, key=NUMBERS.index)
    return (found or [NULL])[0] if len(found) < 2 else None


def aggregate(
    name: str, function: str, operand: Expression | None, *, at: int | None = None, text: str = ""
) -> Aggregate:
    """An aggregate with its type. Raises ViewError E167 when the operand does not fit."""
    takes = AGGREGATES[function]
    known = cast("AggregateFunction", function)
    if operand is None:
        if function != "count":
            _refuse(f"{function}() needs a column: only count(*) counts rows", text, at)
        return Aggregate(name, known, None, "int", False, at)
    if operand.kind == NULL:
        _refuse(f"{function}(NULL) has no type: write CAST(NULL AS int)", text, operand.at)
    if operand.kind not in OPERANDS[takes]:
        _refuse(f"{function}() takes {_spoken(takes)}, not {described(operand)}", text, operand.at)
    match function:
        case "count":
            return Aggregate(name, known, operand, "int", False, at)
        case "avg":
            return Aggregate(name, known, operand, "float", operand.nullable, at)
        case "sum":
            return Aggregate(
                name, known, operand, operand.kind, operand.nullable or operand.kind != "float", at
            )
        case _:
            return Aggregate(name, known, operand, operand.kind, operand.nullable, at)


def described(operand: Expression) -> str:
    """An operand for a message: what it is, and its type."""
    match operand:
        case ColumnRef():
            return f"column {operand.name} ({operand.kind})"
        case Literal():
            return "NULL" if operand.value is None else f"{_article(operand.kind)} value"
        case Call():
            return f"{_article(operand.kind)} expression"


def _article(kind: str) -> str:
    return f"{'an' if kind in ('int', 'xml') else 'a'} {kind}"


def _spoken(word: str) -> str:
    match word:
        case "number":
            return "a number"
        case "ordered":
            return "what has an order (a number, string, timestamp or binary)"
        case "value":
            return "anything but xml"
        case "bool":
            return "a condition"
        case _:
            return _article(word)


def _takes(row: Function) -> str:
    if row.most is None:
        return f"takes at least {_COUNTED[row.least]}"
    if row.least == row.most:
        return f"takes {_COUNTED[row.least]}"
    return f"takes {row.least} to {row.most} operands"


def _refuse(message: str, text: str, at: int | None) -> NoReturn:
    raise ViewError("E167", message, text=text, at=at)


def _wanted(row: Function, place: int) -> str:
    return row.operands[min(place, len(row.operands) - 1)]


def _given(row: Function, place: int, operand: Expression, text: str) -> Expression:
    """The operand, if it may stand there; a bare NULL takes a type that may."""
    wanted = _wanted(row, place)
    if operand.kind == NULL:
        kinds = OPERANDS[wanted]
        return coerced(operand, "int" if "int" in kinds else min(kinds))
    if operand.kind not in OPERANDS[wanted]:
        way_out = ""
        if wanted == "string" and operand.kind in ("int", "decimal", "bool", "timestamp"):
            way_out = ": write CAST(... AS string)"
        elif operand.kind == "xml":
            way_out = ": write XML_TEXT(doc, '/path')"
        elif wanted == "bool":
            way_out = ": compare it with something, as in column = 3"
        _refuse(f"{row.form} takes {_spoken(wanted)}, not {described(operand)}{way_out}", text, operand.at)
    return operand


def _alike(row: Function, operands: tuple[Expression, ...], text: str) -> tuple[Expression, ...]:
    """Operands that can be compared with each other: a string literal beside a time is a time."""
    if any(each.kind == "timestamp" for each in operands):
        operands = tuple(_as_time(each, text) for each in operands)
    first = operands[0]
    for each in operands:
        kind = common_kind([first.kind, each.kind])
        if kind is None:
            way_out = "cast one of them"
            if isinstance(each, Literal) and first.kind == "string":
                way_out = "put the value in quotes"
            elif isinstance(each, Literal) and each.kind == "string" and first.kind in NUMBERS:
                way_out = "leave out the quotes"
            _refuse(f"{described(first)} and {described(each)} are incompatible: {way_out}", text, each.at)
        first = first if first.kind != NULL else each
    if first.kind == NULL:
        return operands
    kind = common_kind([each.kind for each in operands])
    assert kind is not None, f"{row.name} of {operands}"
    return tuple(coerced(each, kind) if each.kind == NULL else each for each in operands)


def _as_time(operand: Expression, text: str) -> Expression:
    if not isinstance(operand, Literal) or not isinstance(operand.value, str):
        return operand
    return Literal(read_time(operand.value, operand.at, text), "timestamp", operand.at)


def read_time(written: str, at: int | None, text: str) -> datetime:
    """The time that a literal stands for. Raises ViewError E167."""
    try:
        return timestamp(TokenLeaf("timestamp", written, 0), "")
    except ContentError as error:
        _refuse(error.message.removeprefix("at 1: "), text, at)


def _result(row: Function, operands: tuple[Expression, ...]) -> str:
    match row.result:
        case "number":
            return max((each.kind for each in operands), key=NUMBERS.index)
        case "first":
            return operands[0].kind
        case "common":
            kind = common_kind([each.kind for each in operands])
            assert kind is not None, f"{row.name} of {operands}"
            return kind
        case _:
            return row.result


def _nullable(row: Function, operands: tuple[Expression, ...], kind: str) -> bool:
    match row.null:
        case "never":
            return False
        case "operand":
            return any(each.nullable for each in operands)
        case "all":
            return all(each.nullable for each in operands)
        case "overflows":
            return kind != "float" or any(each.nullable for each in operands)
        case _:
            assert row.null == "any", row
            return True


def _case(operands: tuple[Expression, ...], at: int | None, text: str) -> Call:
    assert len(operands) % 2 == 1, "a CASE ends with the value of ELSE"
    row = FUNCTIONS["case"]
    conditions = []
    for each in operands[:-1:2]:
        if each.kind not in ("bool", NULL):
            _refuse(f"WHEN takes a condition, not {described(each)}", text, each.at)
        conditions.append(coerced(each, "bool"))
    values = _alike(row, (*operands[1:-1:2], operands[-1]), text)
    kind = common_kind([each.kind for each in values])
    assert kind is not None
    if kind == NULL:
        _refuse("every value of this CASE is NULL: write CAST(NULL AS int)", text, at)
    values = tuple(coerced(each, kind) for each in values)
    pairs = [each for pair in zip(conditions, values[:-1], strict=True) for each in pair]
    return Call("case", (*pairs, values[-1]), kind, any(each.nullable for each in values), at)


def _check_constants(row: Function, operands: tuple[Expression, ...], text: str) -> None:
    """Checks operands that must be known when the view is created."""
    first, *rest = operands
    match row.name:
        case "date_trunc":
            unit = first.value if isinstance(first, Literal) else None
            if unit not in DATE_UNITS:
                _refuse(
                    f"{row.form} takes one of the units {', '.join(DATE_UNITS)} in quotes", text, first.at
                )
        case "xml_text" | "xml_number":
            path = rest[0].value if isinstance(rest[0], Literal) else None
            if not isinstance(path, str) or not _PATH.fullmatch(path):
                message = f"{row.form} takes a plain path in quotes, such as '/item/price' or '//item/@id'"
                _refuse(message, text, rest[0].at)
        case "like":
            if any(not isinstance(each, Literal) or not isinstance(each.value, str) for each in rest):
                _refuse("the pattern of LIKE is a text in quotes", text, rest[0].at)
            values = [
                each.value for each in rest if isinstance(each, Literal) and isinstance(each.value, str)
            ]
            try:
                parse_like(values[0], values[1] if len(values) == 2 else None)
            except ContentError as error:
                _refuse(error.message, text, rest[-1].at)
        case _:
            lowest = {"substring": 1, "round": -38}[row.name]
            for place, each in enumerate(rest):
                least = 0 if row.name == "substring" and place == 1 else lowest
                value = each.value if isinstance(each, Literal) else None
                if type(value) is not int or not least <= value <= 2**31 - 1:
                    _refuse(f"{row.form} takes a whole number from {least} there", text, each.at)
