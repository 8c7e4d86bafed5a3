"""SQL becomes relations: equal ones, however they are written; and relations become SQL again."""

from decimal import Decimal

import pytest
from hypothesis import given

from gapless.errors import ViewError
from gapless.views import parse_view
from gapless.views.analysis.check import check
from gapless.views.expressions import Call, ColumnRef, Literal
from gapless.views.relation import GroupBy, Join, Merge, Project, Relation, Scan, TopK, Where, columns
from gapless.views.sql.text import view_sql
from tests.budget import examples
from tests.views import drawn
from tests.views.evaluate import Event, evaluate
from tests.views.language import FIGURE_1, TOPICS, VIEWS, read
from tests.views.rows import bag

EAST = Scan("east", TOPICS["east"].columns)
ITEM, QTY = ColumnRef("item", "string", nullable=False), ColumnRef("qty", "int", nullable=False)


def test_a_condition_filters_below_the_selected_columns() -> None:
    relation = read("SELECT qty * 2 AS twice, item FROM east WHERE qty > 3")
    positive = Where(EAST, Call(">", (QTY, Literal(3, "int")), "bool", nullable=False))
    twice = Call("*", (QTY, Literal(2, "int")), "int")
    assert relation == Project(positive, (("twice", twice), ("item", ITEM)))


def test_selecting_all_columns_in_order_gives_the_relation_itself() -> None:
    assert read("SELECT * FROM east") == EAST
    assert read("SELECT item, qty FROM (SELECT * FROM east) AS e") == EAST
    assert read("WITH e AS (SELECT * FROM east) SELECT e.* FROM e;") == EAST
    assert read("SELECT e.qty, item FROM east e -- comment\n/* and another */") != EAST


def test_groups_are_named_as_they_are_shown() -> None:
    relation = read("SELECT item AS what, sum(qty) AS total FROM east GROUP BY item")
    assert isinstance(relation, GroupBy)
    assert relation.keys == (("what", ITEM),)
    assert [each.name for each in columns(relation)] == ["what", "total"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT lower(item) AS k, count(*) AS n FROM east GROUP BY lower(item)",
        "SELECT lower(item) AS k, count(*) AS n FROM east GROUP BY k",
        "SELECT lower(item) AS k, count(*) AS n FROM east GROUP BY 1",
        "SELECT LOWER(e.item) k, COUNT(*) n FROM east AS e GROUP BY LOWER(item)",
        "SELECT k, n FROM (SELECT lower(item) AS k, count(*) AS n FROM east GROUP BY k)",
    ],
)
def test_groups_by_expression_name_and_position_are_equal(text: str) -> None:
    assert read(text) == read("SELECT lower(item) AS k, count(*) AS n FROM east GROUP BY lower(item)")


def test_expressions_over_aggregates_stand_above_the_groups() -> None:
    relation = read(
        "SELECT item, sum(qty) - count(*) AS rest FROM east GROUP BY item HAVING rest > 0 OR max(qty) = 3"
    )
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Where)
    group = relation.input.input
    assert isinstance(group, GroupBy)
    assert [(each.name, each.function) for each in group.aggregates] == [
        ("sum", "sum"),
        ("count", "count"),
        ("max", "max"),
    ]


def test_one_aggregate_is_computed_once() -> None:
    relation = read("SELECT sum(qty) AS a, sum(qty) + 1 AS b, -sum(qty) AS c FROM east")
    assert isinstance(relation, Project)
    assert isinstance(relation.input, GroupBy)
    assert [each.name for each in relation.input.aggregates] == ["a"]
    assert relation.input.keys == ()


def test_an_aggregate_may_have_the_name_of_a_column_below() -> None:
    relation = read("SELECT max(item) AS item, item AS which FROM east GROUP BY item")
    assert [each.name for each in columns(relation)] == ["item", "which"]


def test_distinct_is_a_group_of_all_columns() -> None:
    assert read("SELECT DISTINCT * FROM east") == read("SELECT item, qty FROM east GROUP BY item, qty")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT item, qty FROM east QUALIFY ROW_NUMBER() OVER (PARTITION BY item ORDER BY qty DESC) <= 3",
        "SELECT item, qty FROM east QUALIFY 4 > row_number() OVER (PARTITION BY item ORDER BY qty DESC)",
        """SELECT item, qty
           FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY item ORDER BY qty DESC) AS rn FROM east)
           WHERE rn <= 3""",
        """WITH r AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY item ORDER BY qty DESC) AS rn FROM east)
           SELECT r.item, r.qty FROM r WHERE (rn < 4)""",
    ],
)
def test_the_first_rows_of_each_group_may_be_written_in_several_ways(text: str) -> None:
    assert read(text) == TopK(EAST, 3, (("qty", True),), ("item",))


def test_order_by_with_limit_keeps_the_first_rows_of_all() -> None:
    first = TopK(EAST, 3, (("qty", True), ("item", False)))
    assert read("SELECT * FROM east ORDER BY qty DESC, 1 LIMIT 3") == first
    assert read("(SELECT * FROM east) ORDER BY qty DESC NULLS LAST, item ASC LIMIT 3") == first
    union = read("SELECT item FROM east UNION ALL SELECT item FROM west ORDER BY item LIMIT 1")
    assert isinstance(union, TopK)
    assert isinstance(union.input, Merge)


def test_ordering_by_a_name_or_by_its_expression_is_the_same() -> None:
    by_name = read("SELECT item, sum(qty) AS n FROM east GROUP BY item ORDER BY n DESC LIMIT 2")
    again = read("SELECT item, sum(qty) AS n FROM east GROUP BY item ORDER BY sum(qty) DESC LIMIT 2")
    assert by_name == again


def test_union_takes_names_of_the_first_and_types_that_fit_all() -> None:
    relation = read("SELECT item, qty FROM east UNION ALL (SELECT item, price FROM sellers)")
    assert [(each.name, each.type) for each in columns(relation)] == [("item", "string"), ("qty", "decimal")]
    three = read("SELECT * FROM east UNION ALL SELECT * FROM west UNION ALL SELECT * FROM east")
    assert isinstance(three, Merge)
    assert len(three.inputs) == 3


OFFERED = "(SELECT item, first(price) AS price FROM sellers GROUP BY item) AS o"


def test_joined_columns_have_different_names_below() -> None:
    relation = read(
        f"SELECT o.item, s.item AS again, price, total FROM {OFFERED} JOIN sums s ON s.item = o.item"
    )
    assert isinstance(relation, Project)
    join = relation.input
    assert isinstance(join, Join)
    assert join.on == (("item", "s_item"),)
    assert [each.name for each in columns(join)] == ["item", "price", "s_item", "total"]


def test_using_shows_a_column_once() -> None:
    relation = read(f"SELECT * FROM {OFFERED} JOIN sums USING (item)")
    assert [each.name for each in columns(relation)] == ["item", "price", "total"]
    full = read(f"SELECT * FROM {OFFERED} FULL JOIN sums USING (item)")
    assert [(each.name, each.nullable) for each in columns(full)] == [
        ("item", True),
        ("price", True),
        ("total", True),
    ]


def test_a_right_join_is_a_left_join_the_other_way_round() -> None:
    relation = read(f"SELECT price, total FROM {OFFERED} RIGHT JOIN sums ON o.item = sums.item")
    assert isinstance(relation, Project)
    join = relation.input
    assert isinstance(join, Join)
    assert join.kind == "left"
    assert join.on == (("sums_item", "item"),)


def test_views_are_put_in_where_they_are_named() -> None:
    assert read("SELECT * FROM sums") == VIEWS["sums"]
    assert read("SELECT * FROM sums WHERE total > 3") == Where(
        VIEWS["sums"], Call(">", (ColumnRef("total", "int"), Literal(3, "int")), "bool")
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("qty BETWEEN 1 AND 3", "qty >= 1 AND qty <= 3"),
        ("NOT qty IS NULL", "qty IS NOT NULL"),
        ("qty = 1 AND (qty = 2 AND qty = 3)", "(qty = 1 AND qty = 2) AND qty = 3"),
        ("CASE qty WHEN 1 THEN TRUE END", "CASE WHEN qty = 1 THEN TRUE ELSE NULL END"),
        ("item || 'a' = 'b'", "CONCAT(item, 'a') = 'b'"),
        ("qty = - 1", "qty = -1"),
        ("ceiling(qty) = 1", "CEIL(qty) = 1"),
        ("qty != 1", "qty <> 1"),
        ("qty IN (1) IS TRUE", "COALESCE(qty IN (1), FALSE)"),
    ],
)
def test_equivalent_conditions_are_read_as_the_same_relation(one: str, other: str) -> None:
    assert read(f"SELECT * FROM east WHERE {one}") == read(f"SELECT * FROM east WHERE {other}")


@pytest.mark.parametrize(
    ("expression", "kind", "nullable"),
    [
        ("qty + 1", "int", True),
        ("qty + 1.5", "decimal", True),
        ("score + 1", "float", True),
        ("qty / 2", "float", True),
        ("length(item)", "int", False),
        ("CAST(qty AS float)", "float", False),
        ("CAST(item AS int)", "int", True),
        ("CAST(NULL AS decimal)", "decimal", True),
        ("coalesce(score, 0)", "float", False),
        ("greatest(qty, 1.5)", "decimal", False),
        ("nullif(qty, 0)", "int", True),
        ("CASE WHEN flag THEN 1 ELSE 2.5 END", "decimal", False),
        ("date_trunc('day', at)", "timestamp", False),
        ("xml_text(doc, '/a/@id')", "string", True),
        ("xml_number(doc, '//price')", "float", True),
        ("title IS NULL", "bool", False),
        ("title LIKE '!%' ESCAPE '!'", "bool", True),
        ("at > '2026-01-31'", "bool", False),
        ("substring(item, 2, 3) || trim(upper(item))", "string", False),
        ("round(score, 2)", "float", True),
        ("qty % 2 = 1 OR NOT flag", "bool", True),
    ],
)
def test_every_expression_has_a_type(expression: str, kind: str, nullable: bool) -> None:
    joined = "(SELECT 'x' AS item, 1 AS qty, * FROM news) AS n"
    (column,) = columns(read(f"SELECT {expression} AS c FROM {joined}"))
    assert (column.type, column.nullable) == (kind, nullable)


def test_numbers_keep_their_exact_value() -> None:
    relation = read(
        "SELECT 0.1 AS d, 1e0 AS f, 9223372036854775807 AS i, 9223372036854775808 AS big FROM east"
    )
    assert isinstance(relation, Project)
    values = [each.value for _, each in relation.outputs if isinstance(each, Literal)]
    assert values == [Decimal("0.1"), 1.0, 2**63 - 1, Decimal(2**63)]
    assert [each.type for each in columns(relation)] == ["decimal", "float", "int", "decimal"]


@pytest.mark.parametrize(
    "text",
    [
        FIGURE_1,
        f"SELECT * FROM {OFFERED} FULL JOIN sums USING (item)",
        f"SELECT price, total FROM {OFFERED} RIGHT JOIN sums ON o.item = sums.item",
        "SELECT CAST(NULL AS int) AS a, CASE WHEN flag THEN NULL ELSE doc END AS b FROM news",
        "SELECT TIMESTAMP '2026-01-31 00:00:00.5' AS t, -1.5 AS \"order\", -2e-9 AS b FROM east",
        "SELECT item AS \"values\", -(qty) AS b, 'it''s' AS c FROM east WHERE item LIKE 'a!%' ESCAPE '!'",
        "SELECT X'0a' AS a, NOT qty IN (1, -2) AS b FROM east",
        "SELECT item, qty FROM east QUALIFY ROW_NUMBER() OVER (PARTITION BY item ORDER BY qty) = 1",
        "SELECT 'x' AS k, count(*) AS n FROM east GROUP BY k ORDER BY n LIMIT 1",
    ],
)
def test_the_text_of_a_relation_parses_to_that_relation(text: str) -> None:
    relation = read(text)
    assert read(view_sql(relation)) == relation


def test_a_text_avoids_names_of_topics() -> None:
    topics = {"r1": TOPICS["east"], "a.b-c": TOPICS["west"]}
    text = 'SELECT item, sum(qty) AS n FROM (SELECT * FROM r1 UNION ALL SELECT * FROM "a.b-c") GROUP BY item'
    relation = parse_view(text, topics, {})
    assert parse_view(view_sql(relation), topics, {}) == relation
    assert parse_view("SELECT e.qty FROM a.b AS e", {"a.b": TOPICS["east"]}, {})


@given(drawn.views(), drawn.histories())
@examples(60)
def test_the_text_of_any_view_means_the_same(relation: Relation, events: dict[str, list[Event]]) -> None:
    try:
        check(relation)
    except ViewError:
        return
    again = parse_view(view_sql(relation), drawn.SCHEMAS, {})
    assert bag(evaluate(again, events)) == bag(evaluate(relation, events))
    assert parse_view(view_sql(again), drawn.SCHEMAS, {}) == again
