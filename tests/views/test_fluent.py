"""The fluent algebra gives the same relations as SQL, and the same refusals."""

from datetime import datetime
from decimal import Decimal

import pytest

from gapless.errors import ViewError
from gapless.views import (
    Table,
    avg_,
    call,
    col,
    count_,
    first_,
    last_,
    lit,
    max_,
    min_,
    parse_view,
    sum_,
    table,
    topic,
)
from tests.views.language import FIGURE_1, TOPICS, VIEWS, read

EAST, WEST, SELLERS, NEWS = (topic(name, TOPICS[name]) for name in ("east", "west", "sellers", "news"))


def test_figure_1_of_the_paper() -> None:
    bought = EAST.merge(WEST).where(col("qty") > 0).group_by("item").agg(total=sum_("qty"))
    offered = SELLERS.group_by("item").agg(price=first_("price"), qty=first_("qty"))
    joined = offered.join(bought.named("bought"), on="item")
    left = joined.select("item", "price", avail=col("qty") - col("total")).where("avail > 0")
    assert left.relation == read(FIGURE_1)
    assert parse_view(left.sql(), TOPICS, {}) == read(FIGURE_1)


SUMS = table(VIEWS["sums"])


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (EAST, "SELECT * FROM east"),
        (EAST.project("qty"), "SELECT qty FROM east"),
        (EAST.extend(twice="qty * 2"), "SELECT *, qty * 2 AS twice FROM east"),
        (EAST.distinct(), "SELECT DISTINCT * FROM east"),
        (EAST.top(3, "qty desc", "item"), "SELECT * FROM east ORDER BY qty DESC, item LIMIT 3"),
        (
            EAST.top(3, "qty", per="item"),
            "SELECT * FROM east QUALIFY ROW_NUMBER() OVER (PARTITION BY item ORDER BY qty) <= 3",
        ),
        (
            EAST.group_by("item").agg(rest=sum_("qty") - count_(), n=count_("qty"), a="avg(qty)"),
            "SELECT item, sum(qty) - count(*) AS rest, count(qty) AS n, avg(qty) AS a FROM east GROUP BY 1",
        ),
        (
            NEWS.group_by("category", hour="date_trunc('hour', at)").agg(
                best=max_("score"), title=last_("title")
            ),
            """SELECT category, date_trunc('hour', at) AS hour, max(score) AS best, last(title) AS title
               FROM news GROUP BY category, hour""",
        ),
        (
            EAST.agg(low=min_("qty"), mean=avg_(col("qty") * 2)),
            "SELECT min(qty) AS low, avg(qty * 2) AS mean FROM east",
        ),
        (
            SUMS.named("a").join(SUMS.named("b"), on={"item": "item"}).select(both="a.total + b.total"),
            "SELECT a.total + b.total AS both FROM sums a JOIN sums b ON a.item = b.item",
        ),
        (SUMS.where("total > 3").select("total"), "SELECT total FROM sums WHERE total > 3"),
        (
            SUMS.join(WEST.group_by("item").agg(n=count_()).named("w"), on="item", how="full"),
            """SELECT * FROM sums
               FULL JOIN (SELECT item, count(*) AS n FROM west GROUP BY item) AS w USING (item)""",
        ),
        (
            SUMS.join(WEST.group_by(what="item").agg(n=count_()), on={"item": "what"}, how="left"),
            """SELECT * FROM sums
               LEFT JOIN (SELECT item AS what, count(*) AS n FROM west GROUP BY item) AS w
               ON sums.item = w.what""",
        ),
    ],
)
def test_the_same_relation_as_sql(made: Table, text: str) -> None:
    assert made.relation == read(text)
    assert read(made.sql()) == made.relation


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (col("score") + 1 > 2.5, "score + 1 > 2.5e0"),
        (1 - col("score") * 2 / 3 < Decimal("0.5"), "1 - score * 2 / 3 < 0.5"),
        (2 * col("score") % 2 == 1, "2 * score % 2 = 1"),
        ((1 + col("score")) / (1 / col("score")) != -col("score"), "(1 + score) / (1 / score) <> -score"),
        (
            col("flag") & ~(col("score") >= 3) | col("title").is_null(),
            "flag AND NOT score >= 3 OR title IS NULL",
        ),
        (col("title").is_not_null() & (col("score") <= 3), "title IS NOT NULL AND score <= 3"),
        (~col("title").is_null(), "title IS NOT NULL"),
        (col("category").isin("a", "b"), "category IN ('a', 'b')"),
        (col("score").between(1, 3), "score BETWEEN 1 AND 3"),
        (col("title").like("a%"), "title LIKE 'a%'"),
        (col("score").cast("int") == 3, "CAST(score AS int) = 3"),
        (col("at") > datetime(2026, 1, 31), "at > TIMESTAMP '2026-01-31'"),  # noqa: DTZ001  # UTC is meant
        (call("lower", col("title")) == "a", "lower(title) = 'a'"),
        (call("case", col("flag"), 1, 0) == 1, "CASE WHEN flag THEN 1 ELSE 0 END = 1"),
        (call("case", col("flag"), 1) == 1, "CASE WHEN flag THEN 1 END = 1"),
        (call("coalesce", col("title"), lit("")) == "", "coalesce(title, '') = ''"),
        (col("flag") == True, "flag = TRUE"),  # noqa: E712  # an expression
        (-lit(3) < col("score"), "-3 < score"),
        (lit(2**63) < col("score"), "9223372036854775808 < score"),
        (lit(None), "NULL"),
        (call("concat", col("category"), lit("x")) != lit(None), "category || 'x' <> NULL"),
    ],
)
def test_expressions_are_equal_to_those_of_sql(term: object, text: str) -> None:
    assert NEWS.where(term).relation == read(f"SELECT * FROM news WHERE {text}")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EAST.where("qyt > 0"), "E166 at 1: no column 'qyt': did you mean 'qty'?"),
        (lambda: EAST.where(col("qyt") > 0), "E166 no column 'qyt': did you mean 'qty'?"),
        (
            lambda: EAST.where(col("qty") + 1),
            "E167 an expression of type int is not a condition: compare it with something",
        ),
        (EAST.select, "E165 select() names no columns"),
        (lambda: EAST.group_by().agg(), "E165 agg() names no columns"),
        (
            lambda: EAST.select("item", item="qty"),
            "E166 two columns are called 'item': name them with select()",
        ),
        (
            lambda: EAST.select(x=lit(None)),
            "E167 column 'x' is NULL and has no type: write lit(None).cast('int')",
        ),
        (lambda: EAST.select(x=sum_("qty")), "E168 sum() is not allowed here: aggregates belong to agg()"),
        (
            lambda: EAST.group_by("item").agg(x="qty"),
            (
                "E167 at 1: column 'qty' is neither grouped nor aggregated: "
                "add it to GROUP BY, or write last(qty)"
            ),
        ),
        (lambda: EAST.top(0, "qty"), "E165 top() takes a whole number from 1 to 100000"),
        (lambda: EAST.top(3), "E168 top() without an order: any rows would do; say which come first"),
        (lambda: EAST.top(3, "qty down"), "E165 'qty down' is not an order: write 'column' or 'column desc'"),
        (lambda: call("lowr", col("item")), "E166 no function lowr(): did you mean 'lower'?"),
        (lambda: col("item").cast("integer"), "E166 no type 'integer': did you mean 'int'?"),
        (lambda: lit(float("nan")), "E165 nan cannot be a constant of a view: use a finite number"),
        (lambda: EAST.join(WEST, "item", how="cross"), "E168 a join is inner, left or full, not 'cross'"),
        (
            lambda: SUMS.join(SUMS.named("b"), on={"item": "item"}).where(col("total") > 3),
            "E166 'total' is ambiguous: rename one with select() below the join",
        ),
        (
            lambda: SUMS.join(WEST, on="item").sql(),
            (
                "E169 the join keeps every event of 'west' for ever, because any may find a partner later: "
                "group it by the join key first"
            ),
        ),
        (
            lambda: EAST.merge(EAST.project("item")),
            "E167 UNION ALL of 2 and 1 columns: select the same number in each",
        ),
        (
            lambda: EAST.where(col("qty") > 0 and col("qty") < 3),
            "E165 an expression is neither true nor false yet: join conditions with & | ~, not and or not",
        ),
    ],
)
def test_the_same_refusals_as_sql(make: object, message: str) -> None:
    with pytest.raises(ViewError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value) == message
