"""Into which stages views are cut, and that equal parts of different views become equal stages."""

import pytest

from gapless.errors import ViewError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.views.expressions import ColumnRef, Literal
from gapless.views.planning.plan import plan
from gapless.views.planning.stages import Events, Keyed, Paired, Reduced, ViewPlan, stage_name
from gapless.views.printing import outputs_text
from gapless.views.relation import Join, Merge, Project, Relation, TopK, Where, columns
from gapless.views.sql.parse import parse_view
from gapless.views.sql.text import expression_sql
from tests.views.evaluate import Event, Row, evaluate
from tests.views.incremental_twin import Twin
from tests.views.interpret import Interpreter
from tests.views.rows import bag

SCHEMAS = {
    name: Schema.parse(TopicId(name), described)
    for name, described in {
        "sellers": {"item": "int", "price": "decimal", "qty": "int"},
        "buyers_east": {"item": "int", "qty": "int"},
        "buyers_west": {"item": "int", "qty": "int"},
        "ratings": {"item": "int?", "stars": "int?", "category": "string"},
    }.items()
}
#: The ticket sale: Figure 1 of the SMILE paper.
AVAILABLE = """
    SELECT s.item, s.price, s.qty - COALESCE(b.total, 0) AS available
    FROM (SELECT item, LAST(price) AS price, SUM(qty) AS qty FROM sellers GROUP BY item) AS s
    LEFT JOIN (
        SELECT item, SUM(qty) AS total
        FROM (SELECT * FROM buyers_east UNION ALL SELECT * FROM buyers_west) AS buyers
        GROUP BY item
    ) AS b ON s.item = b.item
    WHERE s.qty - COALESCE(b.total, 0) > 0
"""
PRICES = "SELECT item, LAST(price) AS price FROM sellers GROUP BY item"
SOLD = "SELECT item, COUNT(*) AS n FROM buyers_east GROUP BY item"
EAST_WEST = "(SELECT * FROM buyers_east UNION ALL SELECT * FROM buyers_west) AS m"
WEST_EAST = "(SELECT * FROM buyers_west UNION ALL SELECT * FROM buyers_east) AS m"
STARS = "SELECT category, item, MAX(stars) AS stars FROM ratings GROUP BY category, item"


def parsed(sql: str) -> Relation:
    return parse_view(sql, SCHEMAS, {})


def planned(sql: str) -> ViewPlan:
    return plan(parsed(sql))


def keyed(sql: str) -> Keyed:
    stage = planned(sql).shown.stage
    assert isinstance(stage, Keyed), stage
    return stage


def test_the_ticket_sale_is_one_aggregation() -> None:
    stage = keyed(AVAILABLE)
    assert stage.keys == (("item", "int"),)
    assert [branch.name for branch in stage.branches] == ["buyers_east_buyers_west", "sellers"]
    assert [[leaf.topic for leaf in branch.leaves] for branch in stage.branches] == [
        ["buyers_east", "buyers_west"],
        ["sellers"],
    ]
    shown = planned(AVAILABLE).shown
    assert shown.visible is not None
    assert expression_sql(shown.visible) == (
        "((sellers_sum_qty - COALESCE(buyers_east_buyers_west_sum_qty, 0)) > 0) AND (sellers_events > 0)"
    )
    assert outputs_text(shown.outputs) == (
        "item, sellers_last_price AS price, "
        "sellers_sum_qty - COALESCE(buyers_east_buyers_west_sum_qty, 0) AS available"
    )


def test_what_brokers_can_decide_is_pushed_and_only_needed_columns_are_read() -> None:
    (branch,) = keyed(
        "SELECT item, SUM(qty) AS n FROM sellers "
        "WHERE price > 3 AND LENGTH(CAST(item AS string)) = 2 GROUP BY item"
    ).branches
    (leaf,) = branch.leaves
    assert leaf.where == "price > 3"
    assert leaf.residual is not None
    assert expression_sql(leaf.residual) == "LENGTH(CAST(item AS string)) = 2"
    assert leaf.columns == ("item", "qty")


def test_a_selection_by_key_reaches_the_brokers() -> None:
    stage = keyed("SELECT item, SUM(qty) AS n FROM sellers GROUP BY item HAVING item IN (3, 4)")
    assert stage.branches[0].leaves[0].where == "item BETWEEN 3 AND 4"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "SELECT item, SUM(qty) AS n FROM sellers GROUP BY item",
            "SELECT SUM(qty) AS m, item AS i FROM sellers GROUP BY item",
        ),
        (
            "SELECT item, SUM(qty) AS n, MAX(qty) AS m FROM sellers WHERE qty > 3 AND item = 4 GROUP BY item",
            "SELECT item, MAX(qty) AS a, SUM(qty) AS b FROM sellers WHERE item = 4 AND 3 < qty GROUP BY item",
        ),
        (
            "SELECT item, SUM(q) AS n FROM (SELECT item, qty + 1 AS q FROM sellers) AS a GROUP BY item",
            "SELECT i, SUM(r) AS n FROM (SELECT item AS i, qty + 1 AS r FROM sellers) AS b GROUP BY i",
        ),
        (
            f"SELECT item, COUNT(*) AS n FROM {EAST_WEST} GROUP BY item",
            f"SELECT item, COUNT(*) AS n FROM {WEST_EAST} GROUP BY item",
        ),
        (
            f"SELECT a.item, a.price, b.n FROM ({PRICES}) AS a JOIN ({SOLD}) AS b ON a.item = b.item",
            f"SELECT b.n FROM ({SOLD}) AS b JOIN ({PRICES}) AS a ON b.item = a.item",
        ),
        (
            "SELECT item, qty FROM sellers WHERE qty > 3",
            "SELECT qty AS q, item AS i FROM sellers WHERE NOT qty <= 3",
        ),
        (
            "SELECT item, AVG(qty) AS a FROM sellers GROUP BY item",
            "SELECT item, SUM(qty) AS a FROM sellers GROUP BY item",
        ),
    ],
)
def test_views_that_compute_the_same_share_a_stage(one: str, other: str) -> None:
    first, second = planned(one).shown.stage, planned(other).shown.stage
    assert first == second
    assert stage_name(first) == stage_name(second)


def test_other_conditions_make_other_stages() -> None:
    stages = {
        planned(f"SELECT item, SUM(qty) AS n FROM sellers WHERE qty > {least} GROUP BY item").shown.stage
        for least in (3, 4)
    }
    assert len({stage_name(stage) for stage in stages}) == 2


def test_a_join_of_a_relation_with_itself_has_one_branch() -> None:
    counts = "SELECT item, COUNT(*) AS n FROM sellers GROUP BY item"
    sql = f"SELECT a.price, b.n FROM ({PRICES}) AS a JOIN ({counts}) AS b ON a.item = b.item"
    (branch,) = keyed(sql).branches
    assert [each.name for each in branch.aggregates] == ["sellers_last_price"]
    assert planned(sql).shown.visible is None


def test_an_aggregation_of_an_aggregation_is_reduced() -> None:
    made = planned(f"SELECT COUNT(*) AS n, AVG(price) AS a FROM ({PRICES}) AS p")
    stage = made.shown.stage
    assert isinstance(stage, Reduced)
    assert isinstance(stage.input.stage, Keyed)
    assert [each.name for each in stage.aggregates] == ["sum_sellers_last_price"]
    assert outputs_text(made.shown.outputs) == (
        "group_events AS n, sum_sellers_last_price / group_events AS a"
    )


PAIRED = f"SELECT p.item, p.price, c.stars FROM ({PRICES}) AS p JOIN ({STARS}) AS c ON p.item = c.item"


def test_a_join_by_other_columns_than_the_keys_is_paired() -> None:
    stage = planned(PAIRED).shown.stage
    assert isinstance(stage, Paired)
    assert len(stage.on) == 1


def test_a_paired_join_pairs_rows() -> None:
    events = {
        "sellers": [Event("s", at, {"item": at % 3, "price": at, "qty": 1}) for at in range(5)],
        "ratings": [
            Event("r", at, {"item": item, "stars": at, "category": category})
            for at, (item, category) in enumerate(
                [(0, "a"), (1, "b"), (1, "a"), (None, "a"), (7, "b"), (1, "b")]
            )
        ],
    }
    relation = parsed(PAIRED)
    found = Interpreter(SCHEMAS, events).rows(plan(relation))
    assert bag(found) == bag(evaluate(relation, events))
    assert len(found) == 3


RATED_A = "SELECT item, MAX(stars) AS best, COUNT(*) AS n FROM ratings WHERE category = 'a' GROUP BY item"
RATED_B = "SELECT item, MAX(stars) AS best, COUNT(*) AS n FROM ratings WHERE category = 'b' GROUP BY item"
GOOD_B = f"SELECT * FROM ({RATED_B}) AS x WHERE best > 2"
RATINGS = [
    *[(0, "a", 3), (1, "b", 5), (1, "a", 2), (None, "a", 4)],
    *[(None, "b", 4), (2, "b", 1), (3, "a", 1), (3, "b", 2)],
]


@pytest.mark.parametrize("right", [RATED_B, GOOD_B])
@pytest.mark.parametrize(
    ("left", "kind", "count"),
    [
        # One of the items is null on both sides: those are no pair.
        (RATED_A, "JOIN", {RATED_B: 2, GOOD_B: 1}),
        (RATED_A, "LEFT JOIN", {RATED_B: 4, GOOD_B: 4}),
        (f"SELECT * FROM ({RATED_A}) AS y WHERE best < 3", "LEFT JOIN", {RATED_B: 2, GOOD_B: 2}),
    ],
)
def test_joins_by_key_show_the_pairs_and_those_without_a_partner(
    left: str, kind: str, count: dict[str, int], right: str
) -> None:
    columns_shown = "l.item, l.best, r.item AS other, r.best AS more, r.n"
    sql = f"SELECT {columns_shown} FROM ({left}) AS l {kind} ({right}) AS r ON l.item = r.item"
    assert len(shown_everywhere(sql)) == count[right]


def test_a_full_join_by_key_shows_both_sides() -> None:
    a = "SELECT COALESCE(item, -1) AS item, MAX(stars) AS best FROM ratings WHERE category = 'a' GROUP BY 1"
    b = "SELECT COALESCE(item, -1) AS item, COUNT(*) AS n FROM ratings WHERE category = 'b' GROUP BY 1"
    columns_shown = "l.item, l.best, r.item AS other, r.n"
    rows = shown_everywhere(f"SELECT {columns_shown} FROM ({a}) AS l FULL JOIN ({b}) AS r ON l.item = r.item")
    assert len(rows) == 5
    assert {"item": None, "best": None, "other": 2, "n": 1} in rows
    assert {"item": 0, "best": 3, "other": None, "n": None} in rows


def shown_everywhere(sql: str) -> list[Row]:
    """What a view shows of the ratings: by its meaning, by its plan, and by its plan event by event."""
    events = {
        "ratings": [
            Event("r", at, {"item": item, "stars": stars, "category": category})
            for at, (item, category, stars) in enumerate(RATINGS)
        ]
    }
    relation = parsed(sql)
    made = plan(relation)
    assert isinstance(made.shown.stage, Keyed)
    rows = evaluate(relation, events)
    assert bag(Interpreter(SCHEMAS, events).rows(made)) == bag(rows)
    twin = Twin(made, SCHEMAS)
    for event in reversed(events["ratings"]):
        twin.apply({"ratings": [event]})
    assert bag(twin.rows()) == bag(rows)
    return rows


def test_a_selection_of_a_topic_keeps_no_state() -> None:
    made = planned("SELECT item, qty * 2 AS twice FROM sellers WHERE price > 3")
    assert isinstance(made.shown.stage, Events)
    (leaf,) = made.shown.stage.leaves
    assert (leaf.where, leaf.columns) == ("price > 3", ("item", "qty"))


def test_a_top_k_comes_last() -> None:
    made = planned(f"{PRICES} ORDER BY price DESC LIMIT 3")
    assert made.top is not None
    assert (made.top.k, made.top.order, made.top.per) == (3, (("price", True),), ())
    assert made.shown.stage == planned(PRICES).shown.stage


def test_names_do_not_collide() -> None:
    made = planned(
        "SELECT item, SUM(events) AS s FROM (SELECT item, qty AS events FROM sellers) AS a GROUP BY item"
    )
    stage = made.shown.stage
    assert isinstance(stage, Keyed)
    (branch,) = stage.branches
    assert [each.name for each in branch.aggregates] == ["sellers_sum_qty"]
    two = keyed(
        "SELECT a.item FROM (SELECT item, COUNT(*) AS n FROM sellers WHERE qty > 1 GROUP BY item) AS a "
        "JOIN (SELECT item, COUNT(*) AS n FROM sellers WHERE qty > 2 GROUP BY item) AS b ON a.item = b.item"
    )
    assert [branch.events for branch in two.branches] == ["sellers_events", "sellers_2_events"]


def test_what_no_stage_can_do_is_refused() -> None:
    left = columns_apart(parsed(PRICES), "l_")
    right = columns_apart(parsed(STARS), "r_")
    with pytest.raises(ViewError, match="a left join takes two aggregations, by all keys of both") as refused:
        plan(Join(left, right, "left", (("l_item", "r_item"),)))
    assert refused.value.code == "E168"
    with pytest.raises(ViewError, match="a top-k comes last"):
        plan(Where(TopK(parsed(PRICES), 3, (("price", True),)), Literal(None, "bool")))
    with pytest.raises(ViewError, match="UNION ALL takes events"):
        plan(Merge((parsed(PRICES), parsed(PRICES))))


def columns_apart(relation: Relation, prefix: str) -> Relation:
    renamed = [(f"{prefix}{c.name}", ColumnRef(c.name, c.type, c.nullable)) for c in columns(relation)]
    return Project(relation, tuple(renamed))
