"""What do JOIN and UNION ALL make of their inputs? Pairs of equal columns; columns of equal types.

A column of the right input whose name the left has as well is renamed to `<input>_<name>` below the join, so
that the columns of a `Join` have different names; the text may go on calling it `input.name`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from gapless.views.expressions import Call, ColumnRef, Expression
from gapless.views.functions import OPERANDS, coerced, common_kind, described, typed
from gapless.views.logic import conjuncts
from gapless.views.relation import Join, JoinKind, Merge, Project, Relation, columns
from gapless.views.sql.expressions import ExpressionReader, Node, Scope, Visible
from gapless.views.sql.groups import project

_WORDS = (TokenType.JOIN, TokenType.COMMA)
_WAY_OUT = "a join is by equal columns, as in ON a.x = b.x"


@dataclass(frozen=True, slots=True)
class Inputs:
    """A relation, and the names that its columns have in the text."""

    relation: Relation
    scope: Scope


def join(reader: ExpressionReader, node: Node, left: Inputs, right: Inputs) -> Inputs:
    """Both inputs, joined as the node says. Raises ViewError for other joins than by equality."""
    at = reader.keyword(node.this, *_WORDS)
    kind, swapped = _kind(reader, node, at)
    _check_names(reader, left.scope, right.scope, at)
    right = renamed(left, right)
    using = node.args.get("using") or []
    condition = node.args.get("on")
    if using:
        pairs = [_used(reader, each, left.scope, right.scope) for each in using]
    elif condition is None:
        reader.refuse("E168", f"a cross join is not supported: {_WAY_OUT}", at)
    else:
        pairs = _pairs(reader, condition, left, right)
    names = [reader.leaf(each.this).text for each in using]
    return joined(reader, left, right, pairs, kind=kind, swapped=swapped, using=names, at=at)


def joined(
    reader: ExpressionReader,
    left: Inputs,
    right: Inputs,
    pairs: list[tuple[ColumnRef, ColumnRef]],
    *,
    kind: JoinKind,
    swapped: bool = False,
    using: list[str],
    at: int | None = None,
) -> Inputs:
    """Both inputs, whose columns have different names, joined by pairs of columns; `using` names them."""
    for one, other in pairs:
        if one.kind != other.kind or one.kind not in OPERANDS["value"]:
            message = (
                f"{described(one)} and {described(other)} cannot be joined: cast one of them below the join"
            )
            reader.refuse("E167", message, one.at)
    on = tuple(dict.fromkeys((one.name, other.name) for one, other in pairs))
    relation: Relation
    if swapped:
        relation = Join(right.relation, left.relation, kind, tuple((b, a) for a, b in on), at)
    else:
        relation = Join(left.relation, right.relation, kind, on, at)
    scope = _scope(relation, (*left.scope.columns, *right.scope.columns))
    if not using:
        return Inputs(relation, scope)
    return _merged(relation, scope, list(zip(using, pairs, strict=True)), kind, swapped)


def _kind(reader: ExpressionReader, node: Node, at: int) -> tuple[JoinKind, bool]:
    side = (node.args.get("side") or "").upper()
    word = (node.args.get("kind") or "").upper()
    method = (node.args.get("method") or "").upper()
    if method == "NATURAL":
        reader.refuse("E168", "NATURAL JOIN is not supported: write USING (column, ...)", at)
    known = {"this", "side", "kind", "on", "using"}
    other = [name for name, value in node.args.items() if value and name not in known]
    if word == "CROSS":
        reader.refuse("E168", f"CROSS JOIN is not supported: {_WAY_OUT}", at)
    if word not in ("", "INNER", "OUTER") or other:
        reader.refuse("E168", f"this kind of join is not supported: {_WAY_OUT}", at)
    match side:
        case "LEFT":
            return "left", False
        case "RIGHT":
            return "left", True
        case "FULL":
            return "full", False
        case _:
            return "inner", False


def _check_names(reader: ExpressionReader, left: Scope, right: Scope, at: int) -> None:
    for name in right.qualifiers():
        if name in left.qualifiers():
            reader.refuse("E166", f"two inputs are called {name!r}: give one another name with AS", at)


def renamed(left: Inputs, right: Inputs) -> Inputs:
    """The right input, with other names for the columns whose names the left has as well."""
    taken = {each.name for each in columns(left.relation)}
    prefix = next(iter(right.scope.qualifiers()), "right")
    names: dict[str, str] = {}
    for each in columns(right.relation):
        name, number = each.name, 1
        while name in taken:
            name = f"{prefix}_{each.name}" if number == 1 else f"{prefix}_{each.name}_{number}"
            number += 1
        names[each.name] = name
        taken.add(name)
    if all(old == new for old, new in names.items()):
        return right
    outputs: list[tuple[str, Expression]] = [
        (names[each.name], ColumnRef(each.name, each.type, each.nullable)) for each in columns(right.relation)
    ]
    visible = tuple(
        replace(each, column=replace(each.column, name=names[each.column.name]))
        for each in right.scope.columns
    )
    return Inputs(Project(right.relation, tuple(outputs)), Scope(visible))


def _used(reader: ExpressionReader, node: Node, left: Scope, right: Scope) -> tuple[ColumnRef, ColumnRef]:
    """The two columns of one name in USING."""
    name = exp.Column(this=node)
    return reader.lookup(left, name), reader.lookup(right, name)


def _pairs(
    reader: ExpressionReader, node: Node, left: Inputs, right: Inputs
) -> list[tuple[ColumnRef, ColumnRef]]:
    scope = Scope((*left.scope.columns, *right.scope.columns))
    condition = reader.condition(node, scope)
    left_names = {each.name for each in columns(left.relation)}
    found = []
    for each in conjuncts(condition):
        pair = _pair(each)
        if pair is None:
            message = (
                f"a join by this condition is not supported: {_WAY_OUT}; other conditions belong to WHERE"
            )
            reader.refuse("E168", message, each.at)
        one, other = pair
        if (one.name in left_names) == (other.name in left_names):
            reader.refuse("E168", f"both columns are of one input: {_WAY_OUT}", one.at)
        found.append((one, other) if one.name in left_names else (other, one))
    if not found:
        reader.refuse("E168", f"a join by no column is not supported: {_WAY_OUT}", reader.at(node))
    return found


def _pair(condition: Expression) -> tuple[ColumnRef, ColumnRef] | None:
    if not isinstance(condition, Call) or condition.function != "=":
        return None
    one, other = condition.operands
    return (one, other) if isinstance(one, ColumnRef) and isinstance(other, ColumnRef) else None


def _scope(relation: Relation, visible: tuple[Visible, ...]) -> Scope:
    """The same names, for columns that a join may have made nullable."""
    now = {each.name: each for each in columns(relation)}
    return Scope(
        tuple(
            replace(each, column=replace(each.column, nullable=now[each.column.name].nullable))
            for each in visible
        )
    )


def _merged(
    relation: Relation,
    scope: Scope,
    used: list[tuple[str, tuple[ColumnRef, ColumnRef]]],
    kind: JoinKind,
    swapped: bool,
) -> Inputs:
    """After USING, a column has one name: it is the one that is never missing."""
    now = {each.name: each for each in columns(relation)}
    hidden: set[str] = set()
    front: list[Visible] = []
    outputs: list[tuple[str, Expression]] = []
    for name, (one, other) in used:
        kept = [ColumnRef(each.name, each.kind, now[each.name].nullable) for each in (one, other)]
        if kind == "full":
            new, number = f"using_{name}", 1
            while new in now:
                number += 1
                new = f"using_{name}_{number}"
            value = typed("coalesce", (kept[0], kept[1]))
            outputs.append((new, value))
            column = ColumnRef(new, value.kind, value.nullable)
        else:
            column = kept[1] if swapped else kept[0]
        hidden |= {one.name, other.name}
        front.append(Visible(None, name, column))
    rest = [replace(each, shown=each.shown and each.column.name not in hidden) for each in scope.columns]
    if outputs:
        old: list[tuple[str, Expression]] = [
            (each.name, ColumnRef(each.name, each.type, each.nullable)) for each in columns(relation)
        ]
        relation = Project(relation, (*outputs, *old))
    return Inputs(relation, Scope((*front, *rest)))


def united(
    reader: ExpressionReader, relations: list[Relation], places: list[int | None], at: int | None = None
) -> Relation:
    """UNION ALL: the rows of all, with the names of the first and types that fit all; `places` are theirs."""
    each_columns = [columns(each) for each in relations]
    first = each_columns[0]
    for place, here in zip(places, each_columns, strict=True):
        if len(here) != len(first):
            message = f"UNION ALL of {len(first)} and {len(here)} columns: select the same number in each"
            reader.refuse("E167", message, place)
    kinds = []
    for same in zip(*each_columns, strict=True):
        kind = common_kind([each.type for each in same])
        if kind is None:
            listed = " and ".join(dict.fromkeys(each.type for each in same))
            reader.refuse("E167", f"column {same[0].name!r} of UNION ALL is {listed}: cast it", places[-1])
        kinds.append(kind)
    inputs: list[Relation] = []
    for relation in relations:
        outputs = [
            (wanted.name, coerced(ColumnRef(each.name, each.type, each.nullable), kind))
            for wanted, each, kind in zip(first, columns(relation), kinds, strict=True)
        ]
        found = project(relation, tuple(outputs))
        inputs += found.inputs if isinstance(found, Merge) else (found,)
    return Merge(tuple(inputs), at)
