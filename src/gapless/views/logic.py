"""How are conditions combined and split? A few constructors of expressions, and substitution.

Substitution is what lets operators between two stages vanish: a column of the upper one is replaced by the
expression that computes it from the lower one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gapless.views.expressions import Call, ColumnRef, Expression, Literal

TRUE = Literal(True, "bool")


def conjuncts(condition: Expression | None) -> tuple[Expression, ...]:
    """The operands of a chain of ANDs; nothing for no condition and for TRUE."""
    if condition is None or condition == TRUE:
        return ()
    if isinstance(condition, Call) and condition.function == "and":
        return tuple(part for operand in condition.operands for part in conjuncts(operand))
    return (condition,)


def all_of(conditions: Iterable[Expression]) -> Expression | None:
    """One condition that is true when all are; None when there are none. Each is taken once, in order."""
    parts = tuple(dict.fromkeys(part for each in conditions for part in conjuncts(each)))
    return _connected("and", parts)


def any_of(conditions: Iterable[Expression]) -> Expression | None:
    """One condition that is true when one is; None when there are none."""
    return _connected("or", tuple(dict.fromkeys(conditions)))


def _connected(function: str, parts: tuple[Expression, ...]) -> Expression | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return Call(function, parts, "bool", any(part.nullable for part in parts))


def is_positive(number: Expression) -> Expression:
    """Whether a number is above zero; null of null."""
    return Call(">", (number, Literal(0, "int")), "bool", number.nullable)


def is_not_null(value: Expression) -> Expression:
    """Whether there is a value; never null."""
    return Call("is_not_null", (value,), "bool", nullable=False)


def only_if(condition: Expression | None, value: Expression) -> Expression:
    """The value where the condition is true, and null elsewhere."""
    if condition is None:
        return value
    return Call("case", (condition, value, Literal(None, value.kind)), value.kind)


def substitute(expression: Expression, columns: Mapping[str, Expression]) -> Expression:
    """The expression with each column replaced by what computes it; other columns stay.

    >>> substitute(ColumnRef("a", "int"), {"a": Literal(3, "int")}).value
    3
    """
    match expression:
        case ColumnRef():
            return columns.get(expression.name, expression)
        case Literal():
            return expression
        case Call():
            operands = tuple(substitute(operand, columns) for operand in expression.operands)
            if operands == expression.operands:
                return expression
            # What was not nullable may be now, and so may the result.
            pairs = zip(operands, expression.operands, strict=True)
            more = any(new.nullable > old.nullable for new, old in pairs)
            sees_null = expression.function in ("is_null", "is_not_null")
            nullable = expression.nullable or (more and not sees_null)
            return replace(expression, operands=operands, nullable=nullable)
