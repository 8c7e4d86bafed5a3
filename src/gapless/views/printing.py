"""How is a view printed? One operator per line, with its inputs indented below it.

>>> from gapless.model.ids import TopicId
>>> from gapless.model.schema import Column
>>> from gapless.views.expressions import Call, Literal
>>> buys = Scan(TopicId("buys"), (Column("item", "int"), Column("qty", "int")))
>>> condition = Call(">", (ColumnRef("qty", "int"), Literal(0, "int")), "bool")
>>> print(relation_text(Where(buys, condition)))
where qty > 0
  buys(item, qty)
"""

from __future__ import annotations

from gapless.views.expressions import ColumnRef, Expression
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
from gapless.views.sql.text import expression_sql


def relation_text(relation: Relation) -> str:
    """The operators of a view, outermost first."""
    return "\n".join(_lines(relation))


def outputs_text(outputs: tuple[tuple[str, Expression], ...]) -> str:
    """Columns with what computes them; a column that keeps its name is told once."""
    return ", ".join(
        name if isinstance(each, ColumnRef) and each.name == name else f"{expression_sql(each)} AS {name}"
        for name, each in outputs
    )


def aggregate_text(aggregate: Aggregate) -> str:
    """An aggregate without its name."""
    operand = "*" if aggregate.operand is None else expression_sql(aggregate.operand)
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
            return [f"where {expression_sql(relation.condition)}", *_below(relation.input)]
        case Project():
            return [f"project {outputs_text(relation.outputs)}", *_below(relation.input)]
        case Merge():
            return ["merge", *(line for each in relation.inputs for line in _below(each))]
        case GroupBy():
            made = ", ".join(f"{aggregate_text(each)} AS {each.name}" for each in relation.aggregates)
            by = f"group by {outputs_text(relation.keys)}" if relation.keys else "one group"
            return [f"{by}: {made}" if made else by, *_below(relation.input)]
        case Join():
            on = " and ".join(f"{left} = {right}" for left, right in relation.on)
            return [f"{relation.kind} join on {on}", *_below(relation.left), *_below(relation.right)]
        case TopK():
            order = order_text(relation.order, relation.per)
            return [f"top {relation.k} {order}", *_below(relation.input)]


def _below(relation: Relation) -> list[str]:
    return [f"  {line}" for line in _lines(relation)]
