"""Random views and random events, small enough that groups, joins and nulls collide."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.views.expressions import ColumnRef, Expression, Literal
from gapless.views.functions import aggregate, cast_to, typed
from gapless.views.relation import GroupBy, Join, Merge, Project, Relation, Scan, TopK, Where, columns
from tests.views.evaluate import Event

SCHEMAS = {
    name: Schema.parse(TopicId(name), described)
    for name, described in {
        "orders": {"item": "int", "qty": "int?", "price": "decimal?", "region": "string"},
        "returns": {"item": "int", "qty": "int?", "price": "decimal?", "region": "string"},
        "notes": {"item": "int?", "region": "string?", "urgent": "bool?", "weight": "float?"},
    }.items()
}
KINDS = ("int", "float", "decimal", "string", "bool")

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.sampled_from([-2, 0, 1, 1, 2, 4]),
    "float": st.sampled_from([0.0, 0.5, -1.25, 3.0, float("nan")]),
    "decimal": st.sampled_from([Decimal(0), Decimal("0.5"), Decimal("-1.25"), Decimal(3)]),
    "string": st.sampled_from(["", "a", "b", "ab", "B%"]),
    "bool": st.booleans(),
}

Draw = Any


def scan(topic: str) -> Scan:
    return Scan(TopicId(topic), SCHEMAS[topic].columns)


def column(relation: Relation, name: str) -> ColumnRef:
    """A column of a relation, with its type."""
    (found,) = (each for each in columns(relation) if each.name == name)
    return ColumnRef(name, found.type, found.nullable)


@st.composite
def histories(draw: Draw) -> dict[str, list[Event]]:
    """Some events of every topic; two pubends each."""
    events: dict[str, list[Event]] = {}
    for topic, schema in SCHEMAS.items():
        place = st.tuples(st.sampled_from(["p", "q"]), st.integers(1, 20))
        places = draw(st.lists(place, min_size=draw(st.sampled_from([0, 6, 6, 8])), max_size=10, unique=True))
        events[topic] = [
            Event(
                f"{topic}.{pubend}",
                tick,
                {each.name: draw(_value(each.type, each.nullable)) for each in schema.columns},
            )
            for pubend, tick in places
        ]
    return events


def _value(kind: str, nullable: bool) -> st.SearchStrategy[Any]:
    return st.none() | _VALUES[kind] if nullable else _VALUES[kind]


def expression(draw: Draw, seen: Sequence[ColumnRef], kind: str, depth: int = 2) -> Expression:
    """An expression of a type over columns, without a sum of rounded numbers in it."""
    known = [each for each in seen if each.kind == kind]
    choice = draw(st.integers(0, 9))
    if known and (depth == 0 or choice < 4):
        return draw(st.sampled_from(known))
    if depth == 0 or choice == 4:
        return Literal(draw(_VALUES[kind].filter(lambda value: str(value) != "nan")), kind)
    if choice == 5:
        return typed("coalesce", (_inner(draw, seen, kind, depth), _inner(draw, seen, kind, depth)))
    if choice == 6:
        return typed(
            "case",
            (
                _inner(draw, seen, "bool", depth),
                _inner(draw, seen, kind, depth),
                _inner(draw, seen, kind, depth),
            ),
        )
    if kind == "bool":
        return _condition(draw, seen, depth)
    if kind == "string":
        return _text(draw, seen, depth)
    return _number(draw, seen, kind, depth)


def _inner(draw: Draw, seen: Sequence[ColumnRef], kind: str, depth: int) -> Expression:
    return expression(draw, seen, kind, depth - 1)


def _condition(draw: Draw, seen: Sequence[ColumnRef], depth: int) -> Expression:
    word = draw(st.sampled_from(["and", "or", "not", "is_null", "in", "like", "compare", "compare", "mixed"]))
    match word:
        case "and" | "or":
            operands = [_inner(draw, seen, "bool", depth) for _ in range(draw(st.integers(2, 3)))]
            return typed(word, tuple(operands))
        case "not":
            return typed("not", (_inner(draw, seen, "bool", depth),))
        case "is_null":
            return typed("is_null", (_inner(draw, seen, draw(st.sampled_from(KINDS)), depth),))
        case "in":
            kind = draw(st.sampled_from(["int", "string"]))
            others = [Literal(draw(_VALUES[kind]), kind) for _ in range(draw(st.integers(1, 3)))]
            return typed("in", (_inner(draw, seen, kind, depth), *others))
        case "like":
            pattern = draw(st.sampled_from(["a%", "%b", "_", "%", "ab"]))
            return typed("like", (_inner(draw, seen, "string", depth), Literal(pattern, "string")))
        case "mixed":
            left, right = (draw(st.sampled_from(["int", "decimal", "float"])) for _ in range(2))
        case _:
            left = right = draw(st.sampled_from(["int", "decimal", "float", "string"]))
    sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    return typed(sign, (_inner(draw, seen, left, depth), _inner(draw, seen, right, depth)))


def _text(draw: Draw, seen: Sequence[ColumnRef], depth: int) -> Expression:
    word = draw(st.sampled_from(["upper", "concat", "substring", "cast"]))
    match word:
        case "upper":
            return typed("upper", (_inner(draw, seen, "string", depth),))
        case "concat":
            return typed("concat", (_inner(draw, seen, "string", depth), _inner(draw, seen, "string", depth)))
        case "substring":
            start = Literal(draw(st.integers(1, 3)), "int")
            return typed("substring", (_inner(draw, seen, "string", depth), start, Literal(1, "int")))
        case _:
            return cast_to(_inner(draw, seen, "int", depth), "string")


def _number(draw: Draw, seen: Sequence[ColumnRef], kind: str, depth: int) -> Expression:
    word = draw(st.sampled_from(["+", "-", "*", "neg", "abs", "nullif", "least", "other"]))
    match word:
        case "neg" | "abs":
            return typed(word, (_inner(draw, seen, kind, depth),))
        case "other" if kind == "int":
            return typed("length", (_inner(draw, seen, "string", depth),))
        case "other" if kind == "float":
            # Halves and quarters have exact sums, in any order.
            divisor = Literal(draw(st.sampled_from([0, 2, 4])), "int")
            return typed("/", (_inner(draw, seen, "int", depth), divisor))
        case "other":
            return cast_to(_inner(draw, seen, "int", depth), kind)
        case _:
            return typed(word, (_inner(draw, seen, kind, depth), _inner(draw, seen, kind, depth)))


def exact(relation: Relation) -> list[ColumnRef]:
    """The columns that may be computed with: averages are rounded, and sums of them depend on the order."""
    return [column(relation, each.name) for each in columns(relation) if "avg" not in each.name]


def _selected(draw: Draw, relation: Relation) -> Relation:
    """Some selections and projections of a relation."""
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        if not draw(st.integers(0, 2)):
            relation = Where(relation, _lenient(draw, relation))
        else:
            relation = _extended(draw, relation)
    return relation


def _lenient(draw: Draw, relation: Relation) -> Expression:
    """A condition; often one that many rows meet, so that there is something to see."""
    condition = expression(draw, exact(relation), "bool")
    if draw(st.booleans()):
        return condition
    return typed("or", (condition, expression(draw, exact(relation), "bool")))


def _extended(draw: Draw, relation: Relation) -> Relation:
    names = [each.name for each in columns(relation)]
    kept = [name for name in names if draw(st.integers(0, 3))] or names[:1]
    outputs: list[tuple[str, Expression]] = [(name, column(relation, name)) for name in kept]
    if draw(st.booleans()):
        kind = draw(st.sampled_from(KINDS))
        outputs.append((f"made{len(names)}_{kind}", expression(draw, exact(relation), kind)))
    named = dict(outputs)
    return Project(relation, tuple(named.items()))


def _flat(draw: Draw) -> Relation:
    if draw(st.integers(0, 2)):
        return _selected(draw, scan(draw(st.sampled_from(sorted(SCHEMAS)))))
    first: Relation = scan("orders")
    second: Relation = scan(draw(st.sampled_from(["orders", "returns"])))
    # An event that is there twice with different columns has no one value that is last.
    if draw(st.booleans()):
        first = Where(first, expression(draw, exact(first), "bool"))
    if second != scan("orders") and draw(st.booleans()):
        whole = [(each.name, column(second, each.name)) for each in columns(second)]
        outputs = [*whole[:1], ("qty", expression(draw, exact(second), "int")), *whole[2:]]
        second = Project(second, tuple(outputs))
    return _selected(draw, Merge((first, second)))


def _grouped(draw: Draw, relation: Relation, *, events: bool, kinds: Sequence[str] | None = None) -> Relation:
    seen = exact(relation)
    keys = []
    if kinds is None:
        kinds = draw(st.sampled_from([["int"], ["int"], ["string"], ["int", "string"], []]))
    for at, kind in enumerate(kinds):
        plain = [each for each in seen if each.kind == kind]
        is_plain = plain and draw(st.integers(0, 3))
        keys.append(
            (f"key{at}", draw(st.sampled_from(plain)) if is_plain else expression(draw, seen, kind, 1))
        )
    functions = ["sum", "count", "min", "max", "avg"] + (["first", "last"] if events else [])
    made = []
    for at in range(draw(st.integers(0, 3))):
        function = draw(st.sampled_from(functions))
        if function == "count" and draw(st.booleans()):
            made.append(aggregate(f"count{at}", "count", None))
            continue
        kind = draw(st.sampled_from(["int", "decimal", "float"]))
        made.append(aggregate(f"{function}{at}", function, expression(draw, seen, kind, 1)))
    if not keys and not made:
        made.append(aggregate("count0", "count", None))
    return GroupBy(relation, tuple(keys), tuple(made))


def _renamed(relation: Relation, prefix: str) -> Relation:
    return Project(
        relation, tuple((f"{prefix}{each.name}", column(relation, each.name)) for each in columns(relation))
    )


def _joined(draw: Draw, left: Relation, right: Relation) -> Relation | None:
    """A join, by the keys of both if they have some, or by any columns of one type."""
    left, right = _renamed(left, "l_"), _renamed(right, "r_")
    pairs = [
        (one.name, other.name)
        for one in exact(left)
        for other in exact(right)
        if one.kind == other.kind and one.kind in ("int", "string")
    ]
    keys = [pair for pair in pairs if pair[1] in ("r_key0", "r_key1") and pair[0].endswith(pair[1][2:])]
    if not pairs:
        return None
    by_keys = bool(keys) and draw(st.integers(0, 2)) > 0
    alike = [pair for pair in pairs if "key" in pair[0] and "key" in pair[1]]
    on = (
        tuple(keys)
        if by_keys
        else (draw(st.sampled_from(alike if alike and draw(st.booleans()) else pairs)),)
    )
    kind = draw(st.sampled_from(["inner", "left", "full"])) if by_keys else "inner"
    return Join(left, right, kind, on)


def _keyed(draw: Draw, depth: int, kinds: Sequence[str] | None = None) -> Relation:
    relation = _selected(draw, _grouped(draw, _flat(draw), events=True, kinds=kinds))
    for _ in range(draw(st.integers(0, depth))):
        if draw(st.integers(0, 2)):
            keys = [each for each in columns(relation) if each.name.removeprefix("l_") in ("key0", "key1")]
            other = _keyed(draw, 0, [each.type for each in keys])
            joined = _joined(draw, relation, other)
            if joined is not None:
                relation = _selected(draw, joined)
        else:
            relation = _selected(draw, _grouped(draw, relation, events=False))
    return relation


@st.composite
def views(draw: Draw) -> Relation:
    """A view of any shape; not every one can be maintained."""
    relation = _flat(draw) if not draw(st.integers(0, 5)) else _keyed(draw, 2)
    if not draw(st.integers(0, 3)):
        names = [each.name for each in exact(relation)]
        order = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)) if names else []
        per = draw(st.lists(st.sampled_from(names), max_size=1)) if names else []
        directed = tuple((name, draw(st.booleans())) for name in order)
        relation = TopK(relation, draw(st.integers(1, 3)), directed, tuple(per))
    return relation
