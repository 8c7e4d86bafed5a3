"""Random schemas, rows and SQL conditions, as trees that can be written for us and for DuckDB.

A tree is written twice because the two dialects differ in spelling, never in meaning: DuckDB calls a UTC
time of ours a TIMESTAMP, gives infinity for a division by zero unless told otherwise, and types small
literals more narrowly. Numbers stay small enough that nothing overflows and that floats are exact where
DuckDB goes through floats; what we do on overflow is tested by itself.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from gapless.content.values import literal
from gapless.model.ids import TopicId
from gapless.model.schema import COLUMN_TYPES, Schema

NUMBERS = ("int", "float", "decimal")
#: Names of two columns of each type; some are words of SQL, and some need quotes.
NAMES = {
    "int": ("volume", "order"),
    "float": ("price", "Left"),
    "decimal": ("cost", "d"),
    "string": ("loc", "date"),
    "bool": ("open", "is"),
    "timestamp": ("sent", "timestamp"),
    "binary": ("raw", "x"),
}
RESERVED = frozenset({"is", "order", "timestamp"})

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "aXc",
    "A",
    "50%",
    "a_c",
    "a\\c",
    "it's",
    "é",
    "aéc",
    "\U0001f600",
    "a\nc",
    " ",
]
_PATTERNS = ["%", "_", "", "a%", "%c", "a_c", "%b%", "a%c", "_%_", "ab", "é", "a%b%c", "%é_", "__", "it's%"]
_ESCAPED = ["50!%", "a!_c", "!!%", "%!%", "a!_%", "!%!_!!", "a!%c%"]
_FLOATS = [0.0, -0.0, 0.5, 1.0, -1.5, 2.25, 3.0, 10.0, math.nan, math.inf, -math.inf, 1e-3, 100.0]


@dataclass(frozen=True)
class Operand:
    """A column, a literal, NULL, arithmetic or a sign before one."""

    kind: str
    name: str = ""
    value: Any = None
    operator: str = ""
    parts: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Node:
    """A condition: what is asked, of which operands and conditions."""

    ask: str
    operator: str = ""
    operands: tuple[Operand, ...] = ()
    nodes: tuple[Node, ...] = ()
    negated: bool = False


Row: TypeAlias = dict[str, Any]


class Generator:
    """Random trees over one random schema."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chosen = [
            (name, kind)
            for kind, names in NAMES.items()
            for name in self.random.sample(names, self.random.choice([1, 2]))
        ]
        self.kinds = dict(chosen)
        self.schema = Schema.parse(
            TopicId("random"),
            {name: kind + self.random.choice(["", "?", "?"]) for name, kind in chosen},
        )

    def rows(self, count: int) -> pa.RecordBatch:
        """Random rows of the schema."""
        arrays = []
        for column in self.schema.columns:
            values = [
                None if column.nullable and self.random.random() < 0.2 else self.value(column.type)
                for _ in range(count)
            ]
            arrays.append(pa.array(values, COLUMN_TYPES[column.type]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow())

    def value(self, kind: str) -> Any:
        """A random value of a type, often one that was drawn before."""
        match kind:
            case "int":
                return self.random.choice([0, 1, 2, 3, -1, -5, 7, 10, self.random.randrange(-100, 100)])
            case "float":
                return self.random.choice(_FLOATS)
            case "decimal":
                return self.random.choice(
                    [Decimal("0.00"), Decimal("1.50"), Decimal(3), Decimal("-2.25")]
                ) + (Decimal(self.random.randrange(-200, 200)) / 100 if self.random.random() < 0.3 else 0)
            case "string":
                return self.random.choice(_TEXTS)
            case "bool":
                return self.random.random() < 0.5
            case "timestamp":
                return _EPOCH + timedelta(microseconds=self.random.choice([0, 1, 2, 10**6, 86_400 * 10**6]))
            case _:
                return self.random.choice([b"", b"\x00", b"\x00\x01", b"a", b"ab", b"\xff", b"\xff\xff"])

    def literal_value(self, kind: str) -> Any:
        """A value that can be written."""
        while True:
            value = self.value(kind)
            if not isinstance(value, float) or math.isfinite(value):
                return value

    def operand(self, kind: str, depth: int = 0) -> Operand:
        """A column or literal of that type, or for numbers of another number type; sometimes arithmetic."""
        if self.random.random() < 0.03:
            return Operand("null")
        if kind in NUMBERS:
            if depth < 2 and self.random.random() < 0.3:
                return self.arithmetic(depth)
            kind = self.random.choice(NUMBERS) if self.random.random() < 0.5 else kind
        if self.random.random() < 0.5:
            return self.column(kind)
        return Operand(kind, value=self.literal_value(kind))

    def column(self, kind: str) -> Operand:
        """A column of that type."""
        return Operand(kind, name=self.random.choice([n for n, k in self.kinds.items() if k == kind]))

    def arithmetic(self, depth: int) -> Operand:
        """Arithmetic of at most three numbers."""
        kind = self.random.choice(NUMBERS)
        if self.random.random() < 0.2:
            return Operand(kind, operator="neg", parts=(self.operand(kind, 2),))
        operator = self.random.choice("++--**/")
        parts = (self.operand(kind, depth + 1), self.operand(kind, 2))
        return Operand(kind, operator=operator, parts=parts if self.random.random() < 0.7 else parts[::-1])

    def condition(self, depth: int = 3) -> Node:
        """A random condition, so deep at most."""
        if depth and self.random.random() < 0.6:
            if self.random.random() < 0.25:
                return Node("not", nodes=(self.condition(depth - 1),))
            count = self.random.choice([2, 2, 3, 4])
            nodes = tuple(self.condition(depth - 1) for _ in range(count))
            return Node(self.random.choice(["and", "or"]), nodes=nodes)
        return self.leaf()

    def leaf(self) -> Node:
        """One comparison, or what stands in its place."""
        kind = self.random.choice([*NAMES, *NUMBERS, "string"])
        negated = self.random.random() < 0.4
        first = self.column(kind) if self.random.random() < 0.7 else self.operand(kind)
        ask = self.random.choice(["compare"] * 4 + ["between", "in", "in", "null", "like", "bare", "true"])
        match ask:
            case "between" if kind != "bool":
                return Node(ask, operands=(first, self.operand(kind), self.operand(kind)), negated=negated)
            case "in":
                count = self.random.choice([1, 2, 3, 6])
                return Node(
                    ask, operands=(first, *(self.operand(kind) for _ in range(count))), negated=negated
                )
            case "null":
                return Node(ask, operands=(first,), negated=negated)
            case "like":
                escaped = self.random.random() < 0.4
                pattern = Operand("string", value=self.random.choice(_ESCAPED if escaped else _PATTERNS))
                text = self.operand("string") if self.random.random() < 0.2 else self.column("string")
                return Node(ask, "!" if escaped else "", (text, pattern), negated=negated)
            case "bare":
                known = Operand("bool", value=self.random.random() < 0.5)
                return Node(ask, operands=(self.column("bool") if self.random.random() < 0.8 else known,))
            case "true":
                value = Operand("bool", value=self.random.random() < 0.5)
                return Node(ask, operands=(self.column("bool"), value), negated=negated)
            case _:
                signs = ["=", "<>"] if kind == "bool" else ["=", "<>", "!=", "<", "<=", ">", ">="]
                return Node("compare", self.random.choice(signs), (first, self.operand(kind)))


def write(node: Node, *, duckdb: bool = False) -> str:
    """A condition as text. Everything that is not a leaf stands in parentheses."""
    operands = [write_operand(each, duckdb=duckdb) for each in node.operands]
    no = "NOT " if node.negated else ""
    match node.ask:
        case "and" | "or":
            return f" {node.ask.upper()} ".join(_wrapped(each, duckdb=duckdb) for each in node.nodes)
        case "not":
            return f"NOT {_wrapped(node.nodes[0], duckdb=duckdb)}"
        case "compare":
            return f"{operands[0]} {node.operator} {operands[1]}"
        case "between":
            return f"{operands[0]} {no}BETWEEN {operands[1]} AND {operands[2]}"
        case "in":
            return f"{operands[0]} {no}IN ({', '.join(operands[1:])})"
        case "null":
            return f"{operands[0]} IS {no}NULL"
        case "like":
            escape = f" ESCAPE '{node.operator}'" if node.operator else ""
            return f"{operands[0]} {no}LIKE {operands[1]}{escape}"
        case "bare":
            return operands[0]
        case _:
            return f"{operands[0]} IS {no}{operands[1]}"


def _wrapped(node: Node, *, duckdb: bool) -> str:
    text = write(node, duckdb=duckdb)
    return f"({text})" if node.nodes else text


def write_operand(operand: Operand, *, duckdb: bool) -> str:
    """An operand as text, arithmetic in parentheses."""
    if operand.kind == "null":
        return "NULL"
    if operand.name:
        return f'"{operand.name}"' if duckdb or operand.name in RESERVED else operand.name
    parts = [write_operand(each, duckdb=duckdb) for each in operand.parts]
    if operand.operator == "neg":
        return f"(- {parts[0]})"
    if operand.operator == "/" and duckdb:
        return f"({parts[0]} / nullif({parts[1]}, 0))"
    if operand.operator:
        return f"({parts[0]} {operand.operator} {parts[1]})"
    text = literal(operand.value)
    if not duckdb:
        return text
    if operand.kind in ("int", "decimal"):
        return f"CAST({text} AS {'BIGINT' if operand.kind == 'int' else 'DECIMAL(38, 2)'})"
    if operand.kind == "binary":
        return "'" + "".join(f"\\x{byte:02X}" for byte in operand.value) + "'::BLOB"
    return text


_MIRRORED = {"=": "=", "<>": "!=", "!=": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {"=": "<>", "<>": "=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def variant(node: Node, chance: random.Random) -> Node:
    """The same condition, said differently: it must have the same identity."""
    nodes = tuple(variant(each, chance) for each in node.nodes)
    node = replace(node, nodes=tuple(chance.sample(nodes, len(nodes))))
    other = _said_differently(node) if chance.random() < 0.6 else node
    if chance.random() < 0.2:
        return Node("not", nodes=(Node("not", nodes=(other,)),))
    return other


def _said_differently(node: Node) -> Node:
    operands, no = node.operands, node.negated
    match node.ask:
        case "compare":
            mirrored = replace(node, operator=_MIRRORED[node.operator], operands=operands[::-1])
            if len(operands[0].name) % 2:
                return mirrored
            return Node("not", nodes=(replace(node, operator=_OPPOSITE[node.operator]),))
        case "between":
            first = Node("compare", "<" if no else ">=", operands[:2])
            second = Node("compare", ">" if no else "<=", (operands[0], operands[2]))
            return Node("or" if no else "and", nodes=(second, first))
        case "in":
            each = [Node("compare", "<>" if no else "=", (operands[0], other)) for other in operands[1:]]
            return each[0] if len(each) == 1 else Node("and" if no else "or", nodes=tuple(each[::-1]))
        case "and" | "or":
            negated = tuple(Node("not", nodes=(each,)) for each in node.nodes)
            return Node("not", nodes=(Node("or" if node.ask == "and" else "and", nodes=negated),))
        case _:
            return Node("not", nodes=(replace(node, negated=not no),)) if node.ask == "null" else node
