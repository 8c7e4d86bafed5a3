"""How is a view written for people? One operator per line, what it takes below it, further in.

>>> from gapless.model.ids import TopicId
>>> from gapless.model.schema import Column
>>> buys = Scan(TopicId("buys"), (Column("item", "int"), Column("qty", "int")))
>>> condition = Call(">", (ColumnRef("qty", "int"), Literal(0, "int")), "bool")
>>> print(relation_text(Where(buys, condition)))
where qty > 0
  buys(item, qty)
"""

from __future__ import annotations

from gapless.content.values import literal
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
)

#: Operators between their operands, and how tightly they bind.
_INFIX = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">="), 4),
    **dict.fromkeys(("+", "-"), 5),
    **dict.fromkeys(("*", "/", "%"), 6),
}
_NOT, _IS, _NEGATIVE, _TIGHTEST = 3, 4, 7, 8


def relation_text(relation: Relation) -> str:
    """The operators of a view, outermost first."""
    return "\n".join(_lines(relation))


def expression_text(expression: Expression) -> str:
    """An expression as SQL has it."""
    return _text(expression)[0]


def outputs_text(outputs: tuple[tuple[str, Expression], ...]) -> str:
    """Columns with what computes them; a column that keeps its name is told once."""
    return ", ".join(
        name if isinstance(each, ColumnRef) and each.name == name else f"{expression_text(each)} AS {name}"
        for name, each in outputs
    )


def aggregate_text(aggregate: Aggregate) -> str:
    """An aggregate without its name."""
    operand = "*" if aggregate.operand is None else expression_text(aggregate.operand)
    return f"{aggregate.function}({operand})"


def order_text(order: tuple[tuple[str, bool], ...], per: tuple[str, ...]) -> str:
    """By which columns rows are in order, and per which."""
    columns = ", ".join(f"{name} DESC" if descending else name for name, descending in order)
    return f"by {columns}" + (f" per {', '.join(per)}" if per else "")


def _lines(relation: Relation) -> list[str]:
    match relation:
        case Scan():
            return [f"{relation.topic}({', '.join(column.name for column in relation.columns)})"]
        case Where():
            return [f"where {expression_text(relation.condition)}", *_below(relation.input)]
        case Project():
            return [f"project {outputs_text(relation.outputs)}", *_below(relation.input)]
        case Merge():
            return ["merge", *(line for each in relation.inputs for line in _below(each))]
        case GroupBy():
            made = ", ".join(f"{aggregate_text(each)} AS {each.name}" for each in relation.aggregates)
            return [f"group by {outputs_text(relation.keys)}: {made}".rstrip(": "), *_below(relation.input)]
        case Join():
            on = " and ".join(f"{left} = {right}" for left, right in relation.on)
            return [f"{relation.kind} join on {on}", *_below(relation.left), *_below(relation.right)]
        case TopK():
            order = order_text(relation.order, relation.per)
            return [f"top {relation.k} {order}", *_below(relation.input)]


def _below(relation: Relation) -> list[str]:
    return [f"  {line}" for line in _lines(relation)]


def _text(expression: Expression) -> tuple[str, int]:
    """The text, and how tightly its outermost operator binds."""
    match expression:
        case ColumnRef():
            return expression.name, _TIGHTEST
        case Literal(value=None):
            return "NULL", _TIGHTEST
        case Literal(value=float() as number):
            return repr(number), _TIGHTEST
        case Literal(value=value):
            assert value is not None
            return literal(value), _TIGHTEST
        case Call():
            return _call(expression)


def _within(expression: Expression, tightness: int) -> str:
    text, here = _text(expression)
    return text if here >= tightness else f"({text})"


def _call(call: Call) -> tuple[str, int]:
    function, operands = call.function, call.operands
    if function in _INFIX:
        tightness = _INFIX[function]
        first, *others = operands
        # Chains of AND, OR, + and * need no brackets; everything else is read from the left.
        right = tightness if function in ("and", "or") else tightness + 1
        left = tightness if tightness != _INFIX["="] else tightness + 1
        texts = [_within(first, left), *(_within(each, right) for each in others)]
        return f" {function.upper()} ".join(texts), tightness
    match function:
        case "not":
            inner = operands[0]
            if isinstance(inner, Call) and inner.function == "is_null":
                return f"{_within(inner.operands[0], _IS + 1)} IS NOT NULL", _IS
            return f"NOT {_within(inner, _NOT)}", _NOT
        case "is_null":
            return f"{_within(operands[0], _IS + 1)} IS NULL", _IS
        case "neg":
            return f"-{_within(operands[0], _TIGHTEST)}", _NEGATIVE
        case "in":
            values = ", ".join(expression_text(each) for each in operands[1:])
            return f"{_within(operands[0], _IS + 1)} IN ({values})", _IS
        case "like":
            escape = f" ESCAPE {expression_text(operands[2])}" if len(operands) == 3 else ""
            return f"{_within(operands[0], _IS + 1)} LIKE {expression_text(operands[1])}{escape}", _IS
        case "case":
            return _case(operands), _TIGHTEST
        case "cast":
            return f"CAST({expression_text(operands[0])} AS {call.kind})", _TIGHTEST
        case _:
            return f"{function.upper()}({', '.join(expression_text(each) for each in operands)})", _TIGHTEST


def _case(operands: tuple[Expression, ...]) -> str:
    texts = [expression_text(each) for each in operands]
    pairs = zip(texts[:-1:2], texts[1:-1:2], strict=True)
    branches = " ".join(f"WHEN {condition} THEN {value}" for condition, value in pairs)
    otherwise = "" if texts[-1] == "NULL" else f" ELSE {texts[-1]}"
    return f"CASE {branches}{otherwise} END"
