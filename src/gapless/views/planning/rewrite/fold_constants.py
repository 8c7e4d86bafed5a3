"""What can be computed before there is any event? Calls on constants, and decided conditions."""

from __future__ import annotations

import math
from dataclasses import replace

from gapless.views.expressions import Call, Expression, Literal
from gapless.views.logic import TRUE, all_of, any_of
from gapless.views.relation import GroupBy, Project, Relation, Where
from gapless.views.scalars import value_of

_FALSE = Literal(False, "bool")


def fold_constants(relation: Relation) -> Relation:
    """Computes every expression of the operator as far as it does not depend on rows."""
    match relation:
        case Where():
            return replace(relation, condition=_folded(relation.condition))
        case Project():
            return replace(relation, outputs=tuple((name, _folded(each)) for name, each in relation.outputs))
        case GroupBy():
            return replace(
                relation,
                keys=tuple((name, _folded(each)) for name, each in relation.keys),
                aggregates=tuple(
                    each if each.operand is None else replace(each, operand=_folded(each.operand))
                    for each in relation.aggregates
                ),
            )
        case _:
            return relation


def _folded(expression: Expression) -> Expression:
    if not isinstance(expression, Call):
        return expression
    call = replace(expression, operands=tuple(_folded(operand) for operand in expression.operands))
    if all(isinstance(operand, Literal) for operand in call.operands):
        value = value_of(call, {})
        # Infinity and NaN have no literal.
        if not isinstance(value, float) or math.isfinite(value):
            return Literal(value, call.kind, call.at)
    return _decided(call)


def _decided(call: Call) -> Expression:
    """What is known although an operand is not."""
    match call.function:
        case "and":
            if _FALSE in call.operands:
                return _FALSE
            return all_of(call.operands) or TRUE
        case "or":
            if TRUE in call.operands:
                return TRUE
            return any_of(operand for operand in call.operands if operand != _FALSE) or _FALSE
        case "not" if isinstance(call.operands[0], Call) and call.operands[0].function == "not":
            return call.operands[0].operands[0]
        case "is_null" | "is_not_null" if not call.operands[0].nullable:
            return _FALSE if call.function == "is_null" else TRUE
        case "coalesce":
            return _coalesced(call)
        case _:
            return call


def _coalesced(call: Call) -> Expression:
    """Drops nulls, and everything after an operand that is never null."""
    kept: list[Expression] = []
    for operand in call.operands:
        if isinstance(operand, Literal) and operand.value is None:
            continue
        kept.append(operand)
        if not operand.nullable:
            break
    if not kept:
        return Literal(None, call.kind, call.at)
    return kept[0] if len(kept) == 1 else replace(call, operands=tuple(kept))
