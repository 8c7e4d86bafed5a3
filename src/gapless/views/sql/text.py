"""How is a relation written as SQL? In a form that `parse_view` reads back as the same relation.

Every operator is one SELECT, named in a WITH: however deep a view is, its text is flat, and a part that is
used twice is written once. Views made in Python are registered as this text.
"""

# ruff: noqa: S608
# This is the one place that makes SQL: names are quoted and literals escaped here.

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from gapless.views.expressions import Call, ColumnRef, Expression, Literal
from gapless.views.relation import GroupBy, Join, Merge, Project, Relation, Scan, TopK, Where, inputs
from gapless.views.sql.tokens import is_plain_name

_INFIX = frozenset({"+", "-", "*", "/", "%", "=", "<>", "<", "<=", ">", ">=", "and", "or"})
_OTHER_OPERATORS = frozenset({"not", "neg", "is_null", "is_not_null", "in", "like"})


def view_sql(relation: Relation) -> str:
    """The text of a relation.

    >>> from gapless.model.ids import TopicId
    >>> from gapless.model.schema import Column
    >>> buys = Scan(TopicId("buys"), (Column("item", "string"), Column("qty", "int")))
    >>> print(view_sql(Where(buys, Call(">", (ColumnRef("qty", "int"), Literal(0, "int")), "bool"))))
    SELECT * FROM buys WHERE qty > 0
    """
    names: dict[Relation, str] = {}
    taken = _topics(relation)
    texts: list[str] = []

    def name_of(each: Relation) -> str:
        """The name of a relation, which is written first if it has none."""
        if isinstance(each, Scan):
            return name_text(str(each.topic))
        if each not in names:
            text = _select(each, [name_of(below) for below in inputs(each)])
            number = len(names) + 1
            while f"r{number}" in taken:
                number += 1
            names[each] = f"r{number}"
            taken.add(f"r{number}")
            texts.append(f"{names[each]} AS ({text})")
        return names[each]

    last = _select(relation, [name_of(below) for below in inputs(relation)])
    return f"WITH {', '.join(texts)} {last}" if texts else last


def _select(relation: Relation, below: list[str]) -> str:
    """One operator over relations that have these names."""
    source = below[0] if below else ""
    match relation:
        case Scan():
            return f"SELECT * FROM {name_text(str(relation.topic))}"
        case Where():
            return f"SELECT * FROM {source} WHERE {expression_sql(relation.condition)}"
        case Project():
            return f"SELECT {_listed(relation.outputs)} FROM {source}"
        case Merge():
            return " UNION ALL ".join(f"SELECT * FROM {each}" for each in below)
        case GroupBy():
            return _grouped(relation, source)
        case Join():
            word = {"inner": "JOIN", "left": "LEFT JOIN", "full": "FULL JOIN"}[relation.kind]
            on = " AND ".join(f"a.{name_text(one)} = b.{name_text(other)}" for one, other in relation.on)
            return f"SELECT * FROM {below[0]} AS a {word} {below[1]} AS b ON {on}"
        case TopK():
            order = ", ".join(f"{name_text(name)}{' DESC' if down else ''}" for name, down in relation.order)
            if not relation.per:
                return f"SELECT * FROM {source} ORDER BY {order} LIMIT {relation.k}"
            per = ", ".join(map(name_text, relation.per))
            window = f"ROW_NUMBER() OVER (PARTITION BY {per} ORDER BY {order})"
            return f"SELECT * FROM {source} QUALIFY {window} <= {relation.k}"


def _listed(outputs: tuple[tuple[str, Expression], ...]) -> str:
    return ", ".join(
        name_text(name)
        if isinstance(each, ColumnRef) and each.name == name
        else f"{expression_sql(each)} AS {name_text(name)}"
        for name, each in outputs
    )


def _grouped(relation: GroupBy, source: str) -> str:
    shown = [_listed(relation.keys)] if relation.keys else []
    for each in relation.aggregates:
        operand = "*" if each.operand is None else expression_sql(each.operand)
        shown.append(f"{each.function}({operand}) AS {name_text(each.name)}")
    # By position: a name could also be that of a column below.
    places = ", ".join(str(at + 1) for at in range(len(relation.keys)))
    return f"SELECT {', '.join(shown)} FROM {source}{f' GROUP BY {places}' if places else ''}"


def _topics(relation: Relation) -> set[str]:
    if isinstance(relation, Scan):
        return {str(relation.topic)}
    return {name for each in inputs(relation) for name in _topics(each)}


def name_text(name: str) -> str:
    """A name, in quotes if it could be read as something else.

    >>> name_text("item"), name_text("order"), name_text("news.feed")
    ('item', '"order"', '"news.feed"')
    """
    return name if is_plain_name(name) else '"' + name.replace('"', '""') + '"'


def expression_sql(expression: Expression) -> str:
    """The text of an expression."""
    match expression:
        case ColumnRef():
            return name_text(expression.name)
        case Literal():
            return _literal(expression)
        case Call():
            return _call(expression)


def _inner(expression: Expression) -> str:
    """An operand of an operator, in parentheses if it is an operator itself."""
    text = expression_sql(expression)
    is_operator = isinstance(expression, Call) and expression.function in _INFIX | _OTHER_OPERATORS
    return f"({text})" if is_operator else text


def _call(call: Call) -> str:
    first, *rest = call.operands
    match call.function:
        case function if function in _INFIX:
            return f" {function.upper()} ".join(_inner(each) for each in call.operands)
        case "not":
            return f"NOT {_inner(first)}"
        case "neg":
            return f"-{_inner(first)}"
        case "is_null":
            return f"{_inner(first)} IS NULL"
        case "is_not_null":
            return f"{_inner(first)} IS NOT NULL"
        case "in":
            return f"{_inner(first)} IN ({', '.join(map(expression_sql, rest))})"
        case "like":
            escape = f" ESCAPE {expression_sql(rest[1])}" if len(rest) == 2 else ""
            return f"{_inner(first)} LIKE {expression_sql(rest[0])}{escape}"
        case "case":
            return _case(call)
        case "cast":
            return f"CAST({expression_sql(first)} AS {call.kind})"
        case _:
            return f"{call.function.upper()}({', '.join(map(expression_sql, call.operands))})"


def _case(call: Call) -> str:
    *pairs, last = call.operands
    whens = [
        f"WHEN {expression_sql(pairs[at])} THEN {_value(pairs[at + 1])}" for at in range(0, len(pairs), 2)
    ]
    return f"CASE {' '.join(whens)} ELSE {_value(last)} END"


def _value(expression: Expression) -> str:
    """A value of a CASE: a bare NULL takes its type from the others, and not all types have a CAST."""
    is_null = isinstance(expression, Literal) and expression.value is None
    return "NULL" if is_null else expression_sql(expression)


def _literal(literal: Literal) -> str:
    value = literal.value
    match value:
        case None:
            return f"CAST(NULL AS {literal.kind})"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value) if value >= 0 else f"({value})"
        case float():
            text = repr(value) if "e" in repr(value) else f"{value!r}e0"
            return f"({text})" if text.startswith("-") else text
        case Decimal():
            text = f"{value:f}"
            text = text if "." in text else f"{text}."
            return f"({text})" if text.startswith("-") else text
        case str():
            return "'" + value.replace("'", "''") + "'"
        case datetime():
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        case bytes():
            return f"X'{value.hex()}'"
