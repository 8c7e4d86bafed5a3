"""Domains and visibility: what the analysis promises of columns and rows, and that histories keep it."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from gapless.views.analysis.analyse import Analysis, analyse, domains, visibility
from gapless.views.analysis.domains import MonotonicDomain, Motion
from gapless.views.analysis.visibility import ConditionState
from gapless.views.relation import Relation
from tests.budget import examples
from tests.views import drawn
from tests.views.evaluate import Event, Row, evaluate
from tests.views.language import FIGURE_1, read


def described(text: str) -> dict[str, str]:
    return {name: str(domain) for name, domain in domains(read(text)).items()}


def test_availability_in_figure_1_falls_and_its_rows_leave_for_good() -> None:
    relation = read(FIGURE_1)
    assert described(FIGURE_1) == {"item": "key", "price": "event", "avail": "pair (falls)"}
    assert str(visibility(relation)) == "temporarily false -> temporarily true -> permanently false"
    assert visibility(relation).may_leave


def test_without_a_bound_on_the_quantity_the_rest_may_rise_again() -> None:
    text = FIGURE_1.replace("WHERE qty > 0", "")
    assert described(text)["avail"] == "pair (rises and falls)"
    assert str(visibility(read(text))) == "temporarily false <-> temporarily true"


@pytest.mark.parametrize(
    ("aggregate", "domain"),
    [
        ("count(*)", "counter (rises)"),
        ("count(title)", "counter (rises)"),
        ("sum(abs(score))", "counter (rises)"),
        ("sum(2)", "counter (rises)"),
        ("sum(-2)", "pair (falls)"),
        ("sum(score)", "pair (rises and falls)"),
        ("sum(length(title))", "counter (rises)"),
        ("sum(greatest(score, 0))", "counter (rises)"),
        ("sum(CASE WHEN flag THEN 1 ELSE 0 END)", "counter (rises)"),
        ("sum(CASE WHEN flag THEN 1 ELSE -1 END)", "pair (rises and falls)"),
        ("avg(score)", "pair (rises and falls)"),
        ("max(at)", "extremum (rises)"),
        ("min(score)", "extremum (falls)"),
        ("min(score) * -2", "extremum (rises)"),
        ("first(title)", "event"),
        ("last(title)", "latest (replaced)"),
        ("count(*) * 2 + 1", "counter (rises)"),
        ("3 - count(*)", "pair (falls)"),
        ("count(*) - count(title)", "pair (rises and falls)"),
        ("count(*) / 2", "counter (rises)"),
        ("count(*) / count(title)", "pair (rises and falls)"),
        ("count(*) * count(title)", "counter (rises)"),
        ("coalesce(sum(abs(score)), 0)", "counter (rises)"),
        ("coalesce(sum(abs(score)), 9)", "pair (rises and falls)"),
        ("upper(last(title))", "latest (replaced)"),
        ("upper(first(title))", "event"),
        ("count(*) % 2", "latest (replaced)"),
        ("CAST(count(*) AS float)", "counter (rises)"),
        ("CAST(count(*) AS string)", "latest (replaced)"),
    ],
)
def test_each_column_has_a_domain(aggregate: str, domain: str) -> None:
    text = f"SELECT category, {aggregate} AS x FROM news GROUP BY category"
    assert described(text) == {"category": "key", "x": domain}


@pytest.mark.parametrize(
    ("condition", "fate"),
    [
        ("n > 3", "temporarily false -> permanently true"),
        ("n < 3", "temporarily false -> temporarily true -> permanently false"),
        ("3 > n", "temporarily false -> temporarily true -> permanently false"),
        ("n = 3", "temporarily false -> temporarily true -> permanently false"),
        ("n <> 3", "temporarily false <-> temporarily true -> permanently true"),
        ("s > 3", "temporarily false <-> temporarily true"),
        ("NOT n > 3", "temporarily false -> temporarily true -> permanently false"),
        ("n > 3 AND category = 'a'", "temporarily false -> permanently true or permanently false"),
        ("n > 3 OR s > 3", "temporarily false <-> temporarily true -> permanently true"),
        ("n > 3 AND s > 3", "temporarily false <-> temporarily true"),
        ("f = 'x'", "temporarily false -> permanently true or permanently false"),
        ("s IS NULL", "temporarily false <-> temporarily true"),
        ("m IS NULL", "temporarily false -> temporarily true -> permanently false"),
        ("m IS NOT NULL", "temporarily false -> permanently true"),
        ("m > 3", "temporarily false -> permanently true"),
        ("(m > 3) IS TRUE", "temporarily false -> permanently true"),
        ("(m > 3) IS FALSE", "temporarily false -> temporarily true -> permanently false"),
        ("TRUE", "temporarily false -> permanently true"),
        ("FALSE", "permanently false"),
        ("n > m", "temporarily false <-> temporarily true"),
    ],
)
def test_each_condition_has_a_fate(condition: str, fate: str) -> None:
    text = (
        "SELECT * FROM (SELECT category, count(*) AS n, sum(score) AS s, first(title) AS f, max(score) AS m"
        f" FROM news GROUP BY category) WHERE {condition}"
    )
    assert str(visibility(read(text))) == fate


def test_events_are_final() -> None:
    relation = read("SELECT title, score + 1 AS s FROM news WHERE flag")
    assert {str(each) for each in domains(relation).values()} == {"event"}
    assert str(visibility(relation)) == "temporarily false -> permanently true or permanently false"
    assert not visibility(relation).may_leave


def test_what_a_left_join_lacks_may_come_later() -> None:
    text = (
        "SELECT item, qty, total, qty - coalesce(total, 0) AS rest FROM"
        " (SELECT item, first(qty) AS qty FROM sellers GROUP BY item) LEFT JOIN"
        " (SELECT item, sum(qty) AS total FROM east WHERE qty >= 0 GROUP BY item) USING (item)"
    )
    assert described(text) == {
        "item": "key",
        "qty": "event",
        "total": "counter (rises)",
        "rest": "pair (falls)",
    }
    assert domains(read(text))["total"].arrives


def test_sums_and_maxima_of_rising_counters_rise_unless_rows_may_leave() -> None:
    inner = "(SELECT item, sum(qty) AS total FROM east WHERE qty >= 0 GROUP BY item)"
    text = f"SELECT count(*) AS n, sum(total) AS s, max(total) AS most FROM {inner}"
    assert described(text) == {"n": "counter (rises)", "s": "counter (rises)", "most": "extremum (rises)"}
    leaving = f"SELECT count(*) AS n, sum(total) AS s FROM {inner} WHERE total < 9"
    assert described(leaving) == {"n": "pair (rises and falls)", "s": "pair (rises and falls)"}


# ---- the analysis against histories --------------------------------------------------------------------


def keyed_rows(analysis: Analysis, rows: list[Row]) -> dict[tuple[object, ...], Row]:
    names = [min(key) for key in analysis.keys]
    return {tuple(row[name] for name in names): row for row in rows}


def is_number(value: Any) -> bool:
    return not isinstance(value, float) or not math.isnan(value)


def check_column(name: str, domain: MonotonicDomain, before: Any, after: Any) -> None:
    told = f"{name} is {domain} and went from {before!r} to {after!r}"
    if not is_number(before) or not is_number(after) or domain.motion is Motion.ANY:
        return
    if before is None or after is None:
        assert before is after or (before is None and domain.arrives), told
        return
    assert domain.motion is not Motion.FIXED or before == after, told
    assert domain.motion is not Motion.RISES or before <= after, told
    assert domain.motion is not Motion.FALLS or before >= after, told
    assert not domain.not_negative or after >= 0, told
    assert not domain.not_positive or after <= 0, told


def check_step(analysis: Analysis, before: Mapping[Any, Row], after: Mapping[Any, Row]) -> None:
    for key, row in before.items():
        if key not in after:
            assert analysis.visibility.may_leave, f"{key} left, though {analysis.visibility}"
            continue
        for name, domain in analysis.domains.items():
            check_column(name, domain, row[name], after[key][name])


def prefixes(events: dict[str, list[Event]]) -> list[dict[str, list[Event]]]:
    """The history up to each tick."""
    ticks = sorted({each.tick for listed in events.values() for each in listed})
    return [
        {topic: [each for each in listed if each.tick <= tick] for topic, listed in events.items()}
        for tick in (0, *ticks)
    ]


@given(drawn.views(), drawn.histories())
@examples(60)
def test_histories_keep_what_the_analysis_promises(
    relation: Relation, events: dict[str, list[Event]]
) -> None:
    analysis = analyse(relation)
    if not analysis.keys or not all(analysis.keys):
        return
    states = [keyed_rows(analysis, evaluate(relation, each)) for each in prefixes(events)]
    for before, after in pairwise(states):
        check_step(analysis, before, after)
    gone = (
        {ConditionState.FALSE_FOR_EVER}
        if analysis.visibility.shown().states == {ConditionState.FALSE_FOR_EVER}
        else set()
    )
    assert not gone or not any(states), f"rows are shown, though {analysis.visibility}"
