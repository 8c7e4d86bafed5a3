"""A view as DuckDB's SQL, and its answer: the oracle of the oracle."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from gapless.model.schema import Schema
from gapless.views.expressions import Call, ColumnRef, Expression, Literal
from gapless.views.relation import (
    Aggregate,
    GroupBy,
    Join,
    Merge,
    Project,
    Relation,
    Scan,
    TopK,
    Where,
    columns,
)
from tests.views.evaluate import Event, place_of

TYPES = {
    "int": "BIGINT",
    "float": "DOUBLE",
    "decimal": "DECIMAL(38, 9)",
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "timestamp": "TIMESTAMPTZ",
}

#: Where a row stands in the history, as long as it is an event.
_PLACE = ("gapless_tick", "gapless_pubend")


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """One for all views: to connect takes longer than to answer."""
    return duckdb.connect()


def answer(
    relation: Relation, schemas: Mapping[str, Schema], events: Mapping[str, Sequence[Event]]
) -> list[dict[str, Any]]:
    """The rows of the view as DuckDB computes them."""
    connection = _connection()
    for topic, schema in schemas.items():
        rows = [
            {**event.row, _PLACE[0]: event.tick, _PLACE[1]: place_of(event.tick, event.pubend)[1]}
            for event in events.get(topic, ())
        ]
        fields = [*schema.arrow(), pa.field(_PLACE[0], pa.int64()), pa.field(_PLACE[1], pa.int64())]
        connection.register(topic, pa.Table.from_pylist(rows, schema=pa.schema(fields)))
    found = connection.sql(sql(relation)).to_arrow_table().to_pylist()
    names = [column.name for column in columns(relation)]
    return [{name: row[name] for name in names} for row in found]


def sql(relation: Relation) -> str:
    """The query. The place of an event is carried along below aggregations and joins."""
    match relation:
        case Scan():
            return f'SELECT * FROM "{relation.topic}"'
        case Where():
            return f"SELECT * FROM ({sql(relation.input)}) WHERE {text(relation.condition)}"
        case Project():
            outputs = [f'{text(each)} AS "{name}"' for name, each in relation.outputs]
            return f"SELECT {', '.join([*outputs, *_placed(relation)])} FROM ({sql(relation.input)})"
        case Merge():
            return " UNION ALL ".join(f"({sql(each)})" for each in relation.inputs)
        case GroupBy():
            return _grouped(relation)
        case Join():
            on = " AND ".join(f'l."{left}" = r."{right}"' for left, right in relation.on) or "TRUE"
            names = [f'l."{c.name}"' for c in columns(relation.left)]
            names += [f'r."{c.name}"' for c in columns(relation.right)]
            kind = relation.kind.upper()
            sides = f"({sql(relation.left)}) l {kind} JOIN ({sql(relation.right)}) r ON {on}"
            return f"SELECT {', '.join(names)} FROM {sides}"
        case TopK():
            return _topmost(relation)


def _placed(relation: Relation) -> tuple[str, ...]:
    """The columns of the place, if the rows are still events."""
    match relation:
        case Scan():
            return _PLACE
        case Where() | Project():
            return _placed(relation.input)
        case Merge():
            return _PLACE if all(_placed(each) for each in relation.inputs) else ()
        case _:
            return ()


def _grouped(relation: GroupBy) -> str:
    keys = [f'{text(key)} AS "{name}"' for name, key in relation.keys]
    operands = [
        f'{text(each.operand)} AS "operand{at}"'
        for at, each in enumerate(relation.aggregates)
        if each.operand is not None
    ]
    below = ", ".join([*keys, *operands, *_placed(relation.input)]) or "1 AS nothing"
    outputs = [f'"{name}"' for name, _ in relation.keys]
    made = [
        f'{_aggregated(each, f"operand{at}")} AS "{each.name}"' for at, each in enumerate(relation.aggregates)
    ]
    group = f" GROUP BY {', '.join(outputs)}" if outputs else " HAVING count(*) > 0"
    return f"SELECT {', '.join([*outputs, *made])} FROM (SELECT {below} FROM ({sql(relation.input)})){group}"


def _aggregated(aggregate: Aggregate, operand: str) -> str:
    place = f"({', '.join(_PLACE)})"
    match aggregate.function:
        case "count":
            return "count(*)" if aggregate.operand is None else f"count({operand})"
        case "first":
            return f"arg_min_null({operand}, {place})"
        case "last":
            return f"arg_max_null({operand}, {place})"
        case "avg":
            return f"CAST(sum({operand}) AS DOUBLE) / nullif(count({operand}), 0)"
        case "sum":
            return f"CAST(sum({operand}) AS {TYPES[aggregate.kind]})"
        case _:
            return f"{aggregate.function}({operand})"


def _topmost(relation: TopK) -> str:
    order = [f'"{name}" {"DESC" if down else "ASC"} NULLS LAST' for name, down in relation.order]
    ordered = {name for name, _ in relation.order}
    order += [f'"{each.name}" ASC NULLS LAST' for each in columns(relation) if each.name not in ordered]
    groups = ", ".join(f'"{name}"' for name in relation.per)
    per = f"PARTITION BY {groups} " if groups else ""
    return (
        f"SELECT * FROM (SELECT *, row_number() OVER ({per}ORDER BY {', '.join(order)}) AS place "
        f"FROM ({sql(relation.input)})) WHERE place <= {relation.k}"
    )


def text(expression: Expression) -> str:
    """An expression as DuckDB reads it; every number has its type written out."""
    match expression:
        case ColumnRef():
            return f'"{expression.name}"'
        case Literal():
            return f"CAST({_literal(expression.value)} AS {TYPES[expression.kind]})"
        case Call():
            return _call(expression)


def _literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value)
        case str():
            return "'" + value.replace("'", "''") + "'"
        case float() | Decimal():
            return f"'{value}'"
        case _:
            return str(value)


#: How each function is written that is not `name(operand, ...)`.
_FORMS = {
    "not": "(NOT {0})",
    "is_null": "({0} IS NULL)",
    "is_not_null": "({0} IS NOT NULL)",
    "like": "({0} LIKE {1})",
    "/": "(CAST({0} AS DOUBLE) / nullif(CAST({1} AS DOUBLE), 0))",
    "neg": "(-{0})",
    **{sign: f"CAST({{0}} {sign} {{1}} AS {{kind}})" for sign in ("+", "-", "*")},
    **{sign: f"({{0}} {sign} {{1}})" for sign in ("=", "<>", "<", "<=", ">", ">=")},
    "cast": "TRY_CAST({0} AS {kind})",
}


def _call(call: Call) -> str:
    texts = [text(operand) for operand in call.operands]
    match call.function:
        case "and" | "or" as word:
            return "(" + f" {word.upper()} ".join(texts) + ")"
        case "in":
            return f"({texts[0]} IN ({', '.join(texts[1:])}))"
        case "case":
            pairs = zip(texts[:-1:2], texts[1:-1:2], strict=True)
            return f"(CASE {' '.join(f'WHEN {a} THEN {b}' for a, b in pairs)} ELSE {texts[-1]} END)"
        case "concat":
            return f"({' || '.join(texts)})"
        case function if function in _FORMS:
            return _FORMS[function].format(*texts, kind=TYPES[call.kind])
        case function:
            return f"{function}({', '.join(texts)})"
