"""The registry comes to the same whatever the order of its rows, and texts name each other."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.errors import UsageError, ViewError
from gapless.model.ids import PubendId, TopicId
from gapless.model.schema import Column, Schema
from gapless.views.definitions import Views, base_topics
from gapless.views.registry import (
    KEY,
    KIND,
    REGISTRY_COLUMNS,
    STATUS_COLUMNS,
    Definition,
    Registry,
    Status,
    as_of_text,
    checked_name,
    definition_rows,
    dropping_rows,
    parsed_as_of,
    relation_columns,
    status_rows,
    statuses_of,
)

SALES = Schema.parse(TopicId("sales"), {"item": "string", "qty": "int"})
TOPICS = {"sales": SALES}


def arrow(rows: dict[str, list[object]], columns: dict[str, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(rows, schema=Schema.parse(TopicId("t"), columns).arrow())


def apply(registry: Registry, tick: int, rows: dict[str, list[object]], pubend: str = "p") -> set[str]:
    return registry.apply(PubendId(pubend), [tick], arrow(rows, dict(REGISTRY_COLUMNS)))


@given(
    order=st.permutations(
        [
            (10, "a", "one"),
            (20, "a", None),
            (30, "a", "two"),
            (15, "b", "three"),
            (40, "b", None),
            (5, "c", "four"),
        ]
    )
)
def test_the_newest_row_of_each_name_counts_in_whatever_order_they_come(
    order: list[tuple[int, str, str | None]],
) -> None:
    registry = Registry()
    for tick, name, sql in order:
        rows = (
            dropping_rows(name)
            if sql is None
            else definition_rows(Definition(name, sql, TopicId(f"view.{name}")))
        )
        apply(registry, tick, rows)
    assert registry.texts() == {"a": "two", "c": "four"}


def test_an_unchanged_view_is_not_a_change() -> None:
    registry = Registry()
    row = definition_rows(Definition("a", "SELECT 1", TopicId("view.a")))
    assert apply(registry, 1, row) == {"a"}
    assert apply(registry, 2, row) == set()
    assert apply(registry, 1, dropping_rows("a"), "q") == set(), "it is older"
    assert apply(registry, 3, dropping_rows("a")) == {"a"}
    assert apply(registry, 4, dropping_rows("a")) == set()


def test_statuses_and_horizons_are_read_as_they_were_written() -> None:
    told = [
        Status("a", TopicId("view.a"), "running", rows=3),
        Status("b", TopicId("view.b"), "failed", "E502 no"),
    ]
    assert statuses_of(arrow(status_rows(told), dict(STATUS_COLUMNS))) == told
    as_of = {TopicId("sales"): {PubendId("p1"): 17}}
    assert parsed_as_of(as_of_text(as_of)) == as_of
    for wrong in ("[]", '{"a": 3}', '{"a": {"p": 1.5}}', "x"):
        with pytest.raises(ValueError, match=r"^(not a horizon|Expecting value)"):
            parsed_as_of(wrong)


def test_names_that_cannot_be() -> None:
    for wrong in ("", "a b", "1a", "a.b", "ä", "x" * 61):
        with pytest.raises(UsageError, match=r"^E173 .* is not a valid name for a view"):
            checked_name(wrong)
    with pytest.raises(UsageError, match=r"^E173 a view cannot have a column 'gapless_kind'"):
        relation_columns([Column(KIND, "int")])
    assert list(relation_columns([Column("a", "int")]))[2] == KEY


def test_texts_name_each_other_and_are_read_when_asked_for() -> None:
    views = Views(
        {
            "low": "SELECT item FROM stock WHERE total < 5",
            "stock": "SELECT item, sum(qty) AS total FROM sales GROUP BY item",
            "broken": "SELECT nothing FROM sales",
        },
        TOPICS,
    )
    assert set(views) == {"low", "stock", "broken"}
    assert views["low"] is views["low"]
    with pytest.raises(ViewError, match="E166"):
        views["broken"]
    assert views.users_of("stock") == ["low"]
    assert views.users_of("low") == []


def test_views_that_are_made_of_themselves_are_refused() -> None:
    views = Views({"a": "SELECT item FROM b", "b": "SELECT item FROM a"}, TOPICS)
    with pytest.raises(ViewError, match="E169 view 'a' is made of itself"):
        views["a"]


def test_views_are_made_of_topics_that_are_not_their_own() -> None:
    told = dict.fromkeys(["sales", "gapless.views", "gapless.views.status", "view.stock", "viewers"], SALES)
    assert set(base_topics(told)) == {"sales", "viewers"}
