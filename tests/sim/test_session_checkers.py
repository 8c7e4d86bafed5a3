"""Every checker of subscribers over connections can fail, and passes what is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gapless.model.ids import PubendId
from gapless.sim.checkers import Violation
from gapless.sim.conditions import Either, Equal
from gapless.sim.observer import Wish
from gapless.sim.plan import Plan
from gapless.sim.session_checkers import SessionCheckers

X = PubendId("x")


def watched() -> SessionCheckers:
    """A subscriber of group 1 that an edge holds, with events at 10 and 30, and another's at 20."""
    checks = SessionCheckers(
        Plan(
            topic_of={"x": "trades"},
            root_of={"x": "P"},
            cell_of={"p": "P", "s": "S"},
            links=[("P", "S")],
            edges=frozenset({"s"}),
            row_bytes_max={"p": 1_000, "s": 1_000},
            runs_max={"p": 10, "s": 10},
        )
    )
    checks.stepped("s")
    group_1 = Equal("group", 1)
    wish = Wish(subscription="a", edge="s", topic="trades", condition=group_1, total=False, wanted=None)
    checks.subscribed(wish)
    checks.roamed("a", "s")
    checks.credit("a", 2, is_new=True)
    checks.log_began("x", "first")
    checks.confirmed("a", "x", 0, "first")
    checks.held("a", "s/1/1", is_named=False)
    checks.durable("x", [10, 20, 30], [{"id": t, "group": g} for t, g in ((10, 1), (20, 2), (30, 1))])
    checks.rows_arrived("a", 1)
    checks.taken("a", "x", 10, 10)
    checks.finished("a", "x", 10)
    return checks


def test_a_good_history_passes() -> None:
    checks = watched()
    checks.acknowledged("a", {X: 30})
    checks.released("x", 30)
    checks.let_go("s/1/1")
    checks.released("x", 31)
    checks.gap("a", "x", 30, 31)
    checks.credit("a", 2, is_new=True)
    checks.rows_arrived("a", 2)


@pytest.mark.parametrize(
    ("checker", "wrong"),
    [
        ("credit", lambda checks: checks.rows_arrived("a", 2)),
        ("acks", lambda checks: checks.acknowledged("a", {X: 31})),
        ("release", lambda checks: checks.released("x", 31)),
        ("resumption", lambda checks: checks.gap("a", "x", 11, 31)),
        ("resumption", lambda checks: (checks.horizon("a", {X: 30}), checks.gap("a", "x", 11, 20))),
        ("resumption", lambda checks: checks.reborn("a", "x", 31)),
    ],
)
def test_a_bad_step_is_noticed(checker: str, wrong: Callable[[SessionCheckers], object]) -> None:
    checks = watched()
    with pytest.raises(Violation) as found:
        wrong(checks)
    assert found.value.checker == checker


def test_without_a_memory_what_was_not_finished_may_come_again() -> None:
    checks = watched()
    checks.rows_arrived("a", 1)
    checks.taken("a", "x", 30, 30)
    checks.reborn("a", "x", 11)
    checks.taken("a", "x", 30, 30)


def test_what_has_come_and_is_not_taken_may_be_released_unless_a_name_may_need_it_again() -> None:
    checks = watched()
    checks.arrived("a", "x", 30)
    checks.released("x", 31)
    checks = watched()
    checks.arrived("a", "x", 30)
    checks.held("a", "s/1/1", is_named=True)
    with pytest.raises(Violation, match="release"):
        checks.released("x", 31)


def test_what_came_before_a_gap_may_be_taken_after_it_was_reported() -> None:
    checks = watched()
    checks.arrived("a", "x", 30)
    checks.let_go("s/1/1")
    checks.durable("x", [40, 50], [{"id": tick, "group": 1} for tick in (40, 50)])
    checks.released("x", 41)
    checks.gap("a", "x", 31, 41)
    checks.taken("a", "x", 30, 30)
    checks.taken("a", "x", 50, 50)


def test_of_a_lost_log_a_subscriber_is_owed_nothing_but_the_gap() -> None:
    checks = watched()
    checks.log_lost("x", [], noticeable=True)
    checks.log_began("x", "second")
    checks.reads("a", "x", "second")
    owed = checks.unfinished()
    assert owed is not None
    assert "without being told" in owed.text
    checks.gap("a", "x", 11, 40)
    checks.durable("x", [39, 41], [{"id": t, "group": 1} for t in (39, 41)])
    checks.taken("a", "x", 41, 41)
    checks.finished("a", "x", 41)
    checks.acknowledged("a", {X: 42})
    checks.released("x", 42)
    assert checks.unfinished() is None


def test_a_name_lost_with_its_folder_starts_over() -> None:
    checks = watched()
    checks.held("a", "s/1/1", is_named=True)
    checks.name_lost("a", is_gone=True)
    checks.reborn("a", "x", 31)
    checks.released("x", 31)
    checks.held("a", "s/2/1", is_named=True)
    assert checks.unfinished() is None


def test_a_name_of_an_older_copy_need_not_get_again_what_its_program_is_done_with() -> None:
    checks = watched()
    checks.held("a", "s/1/1", is_named=True)
    checks.name_lost("a", is_gone=False)
    checks.reborn("a", "x", 5)
    checks.taken("a", "x", 30, 30)
    with pytest.raises(Violation, match="resumption"):
        checks.reborn("a", "x", 31)


@pytest.mark.parametrize("is_older", [True, False])
def test_a_name_that_was_begun_anew_gets_more_only_from_an_older_copy(is_older: bool) -> None:
    checks = watched()
    checks.held("a", "s/1/1", is_named=True)
    checks.name_lost("a", is_gone=True)
    checks.reborn("a", "x", 35)
    checks.held("a", "s/2/1", is_named=True)
    if is_older:
        checks.name_lost("a", is_gone=False)
    checks.reborn("a", "x", 11)
    if is_older:
        checks.taken("a", "x", 30, 30)
        return
    with pytest.raises(Violation, match="taken, but the start is 35"):
        checks.taken("a", "x", 30, 30)


def test_what_lay_in_a_gap_may_be_lost_with_the_log_after_it() -> None:
    checks = watched()
    checks.log_lost("x", [], noticeable=True)
    checks.log_began("x", "second")
    checks.durable("x", [39], [{"id": 39, "group": 1}])
    checks.reads("a", "x", "second")
    checks.gap("a", "x", 11, 40)
    checks.log_lost("x", [], noticeable=True)
    checks.log_began("x", "third")
    checks.reads("a", "x", "third")
    checks.gap("a", "x", 45, 50)
    assert checks.unfinished() is None


def test_a_subscriber_never_asks_for_more_rows_than_it_had_room_for_at_first() -> None:
    checks = watched()
    checks.credit("a", 2, is_new=True)
    checks.rows_arrived("a", 2)
    checks.credit("a", 2, is_new=False)
    checks.credit("a", 1, is_new=True)
    with pytest.raises(Violation, match="has room for 2"):
        checks.credit("a", 2, is_new=False)


def test_a_change_may_decide_from_an_earlier_tick_on_than_one_before_it() -> None:
    checks = watched()
    for condition, since in ((Equal("group", 2), 40), (Equal("group", 3), 25)):
        checks.changing("a", condition)
        checks.changed("a", "x", condition, since)
    checks.durable("x", [50], [{"id": 50, "group": 2}])
    assert checks.unfinished() is not None, "nobody has released anything"
    with pytest.raises(Violation, match="filter"):
        checks.taken("a", "x", 50, 50)


def test_rows_may_travel_for_all_conditions_that_a_subscriber_asks_for() -> None:
    checks = watched()
    checks.changing("a", Equal("group", 2))
    checks.changed("a", "x", Equal("group", 2), 40)
    checks.settled = True
    checks.durable("x", [39, 41], [{"id": t, "group": 1} for t in (39, 41)])
    checks.asked("a", Either(Equal("group", 1), Equal("group", 2)))
    checks.rows_sent("p", "s", "S", "x", [39])
    checks.asked("a", Equal("group", 2))
    with pytest.raises(Violation, match="routing"):
        checks.rows_sent("p", "s", "S", "x", [41])


@pytest.mark.parametrize("is_heard", [True, False])
def test_an_edge_that_has_heard_of_a_change_need_not_keep_what_only_the_old_condition_accepts(
    is_heard: bool,
) -> None:
    checks = watched()
    checks.changing("a", Equal("group", 2))
    if is_heard:
        checks.change_heard("s/1/1")
        checks.released("x", 31)
        checks.gap("a", "x", 20, 31)
        return
    with pytest.raises(Violation, match="release"):
        checks.released("x", 31)
    with pytest.raises(Violation, match="resumption"):
        checks.gap("a", "x", 20, 31)
