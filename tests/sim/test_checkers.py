"""Every checker can fail: a good history passes, and one bad step in it is noticed by the right checker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gapless.sim.checkers import CHECKERS, Checkers, Violation
from gapless.sim.conditions import (
    Begins,
    Between,
    Both,
    Condition,
    Contains,
    Different,
    Either,
    Equal,
    Everything,
    Missing,
)
from gapless.sim.observer import Wish
from gapless.sim.plan import Plan

GROUP_1, GROUP_2 = Equal("group", 1), Equal("group", 2)


def checkers() -> Checkers:
    """Two pubends at p, of one topic; a router r; edges s and t below it."""
    plan = Plan(
        topic_of={"x": "trades", "y": "trades"},
        root_of={"x": "P", "y": "P"},
        cell_of={"p": "P", "r": "R", "s": "S", "t": "T"},
        links=[("P", "R"), ("R", "S"), ("R", "T")],
        edges=frozenset({"s", "t"}),
        row_bytes_max=dict.fromkeys("prst", 1_000),
        runs_max=dict.fromkeys("prst", 10),
    )
    return Checkers(plan)


def log(checks: Checkers, pubend: str, *events: tuple[int, int]) -> None:
    """Make (tick, group) events durable; the id of an event is its tick."""
    ticks = [tick for tick, _ in events]
    checks.durable(pubend, ticks, [{"id": tick, "group": group} for tick, group in events])


def subscribe(
    checks: Checkers,
    name: str,
    condition: Condition = GROUP_1,
    *,
    total: bool = False,
    wanted: int | None = None,
    start: int = 0,
) -> None:
    checks.stepped("s")
    wish = Wish(subscription=name, edge="s", topic="trades", condition=condition, total=total, wanted=wanted)
    checks.subscribed(wish)
    for pubend in ("x", "y"):
        checks.confirmed(name, pubend, start)
    checks.stepped("s")


def take(checks: Checkers, name: str, pubend: str, *ticks: int) -> None:
    for tick in ticks:
        checks.taken(name, pubend, tick, tick)


def good_history() -> Checkers:
    """Events 10 to 13 of x and 11 of y, of groups 1 and 2; both subscriptions are up to date with 12."""
    checks = checkers()
    subscribe(checks, "plain")
    subscribe(checks, "merged", total=True)
    log(checks, "x", (10, 1), (11, 2), (12, 1))
    log(checks, "y", (11, 1))
    checks.accepted("x", [10, 11, 12], [10, 11, 12])
    checks.rows_sent("p", "r", "R", "x", [10, 12])
    checks.rows_sent("r", "s", "S", "x", [10, 12])
    take(checks, "plain", "x", 10, 12)
    take(checks, "plain", "y", 11)
    take(checks, "merged", "x", 10)
    take(checks, "merged", "y", 11)
    take(checks, "merged", "x", 12)
    checks.released("x", 13)
    checks.released("y", 12)
    checks.weighed("r", 1_000, 10)
    return checks


def test_a_good_history_passes() -> None:
    assert good_history().unfinished() is None


def twice(checks: Checkers) -> None:
    take(checks, "plain", "x", 12)


def not_logged(checks: Checkers) -> None:
    take(checks, "plain", "x", 99)


def other_row(checks: Checkers) -> None:
    log(checks, "x", (20, 1))
    checks.taken("plain", "x", 20, 21)


def backwards(checks: Checkers) -> None:
    # A real history that is out of order has a gap first, so the last tick is set by hand.
    log(checks, "x", (20, 1))
    checks._views["plain"].shares["x"].last = 50
    take(checks, "plain", "x", 20)


def merged_backwards(checks: Checkers) -> None:
    log(checks, "x", (20, 1))
    take(checks, "merged", "x", 20)
    log(checks, "y", (19, 1))
    take(checks, "merged", "y", 19)


def log_backwards(checks: Checkers) -> None:
    log(checks, "x", (9, 1))


def gap(checks: Checkers) -> None:
    log(checks, "x", (20, 1), (21, 1))
    take(checks, "plain", "x", 21)


def merged_gap(checks: Checkers) -> None:
    log(checks, "x", (20, 1))
    log(checks, "y", (19, 1))
    take(checks, "merged", "x", 20)


def merged_gap_at_equal_ticks(checks: Checkers) -> None:
    log(checks, "x", (20, 1))
    log(checks, "y", (20, 1))
    take(checks, "merged", "y", 20)


def unwanted(checks: Checkers) -> None:
    log(checks, "x", (20, 2))
    take(checks, "plain", "x", 20)


def change(checks: Checkers, name: str, **since: int) -> None:
    """From these ticks on, group 2 decides instead of group 1."""
    checks.changing(name, GROUP_2)
    for pubend, tick in since.items():
        checks.changed(name, pubend, GROUP_2, tick)
    checks.stepped("s")


def unwanted_since_the_change(checks: Checkers) -> None:
    change(checks, "plain", x=20)
    log(checks, "x", (20, 1))
    take(checks, "plain", "x", 20)


def unwanted_before_the_change(checks: Checkers) -> None:
    change(checks, "plain", x=21)
    log(checks, "x", (20, 2))
    take(checks, "plain", "x", 20)


def changed_in_the_past(checks: Checkers) -> None:
    change(checks, "plain", x=12)


def changed_in_the_future(checks: Checkers) -> None:
    change(checks, "plain", x=30)
    log(checks, "x", (20, 1))
    checks.accepted("x", [20], [20])


def changed_before_it_was_confirmed(checks: Checkers) -> None:
    wish = Wish(subscription="new", edge="s", topic="trades", condition=GROUP_1, total=False, wanted=None)
    checks.subscribed(wish)
    change(checks, "new", x=20)


def changed_in_pieces(checks: Checkers) -> None:
    change(checks, "merged", x=20, y=21)


def gap_before_the_change(checks: Checkers) -> None:
    change(checks, "plain", x=21)
    log(checks, "x", (20, 1), (21, 2))
    take(checks, "plain", "x", 21)


def gap_since_the_change(checks: Checkers) -> None:
    change(checks, "plain", x=20)
    log(checks, "x", (20, 2), (21, 2))
    take(checks, "plain", "x", 21)


def never_answered(checks: Checkers) -> None:
    published(checks)
    raise checks.unfinished() or AssertionError("nothing is owed")


def never_changed(checks: Checkers) -> None:
    change(checks, "plain", x=20)
    raise checks.unfinished() or AssertionError("nothing is owed")


def sent_for_the_old_condition(checks: Checkers) -> None:
    change(checks, "plain", x=20, y=20)
    change(checks, "merged", x=20, y=20)
    log(checks, "x", (20, 1))
    checks.rows_sent("r", "s", "S", "x", [20])
    checks.settled = True
    checks.rows_sent("r", "s", "S", "x", [20])


def below_start(checks: Checkers) -> None:
    subscribe(checks, "late", start=50)
    take(checks, "late", "x", 12)


def unconfirmed(checks: Checkers) -> None:
    wish = Wish(subscription="new", edge="s", topic="trades", condition=GROUP_1, total=False, wanted=None)
    checks.subscribed(wish)
    take(checks, "new", "x", 12)


def accepted_below_start(checks: Checkers) -> None:
    subscribe(checks, "late", start=50)
    log(checks, "x", (20, 2))
    checks.accepted("x", [20], [20])


def wanted_and_still_there(checks: Checkers) -> None:
    log(checks, "x", (20, 1))
    subscribe(checks, "late", wanted=15, start=30)


def confirmed_twice(checks: Checkers) -> None:
    checks.confirmed("plain", "x", 30)


def published(checks: Checkers) -> None:
    """A program publishes 30 to 33 as numbers 0 to 3, and the first two are stored."""
    for number in range(4):
        checks.numbered("program", "me", number, 30 + number)
    log(checks, "x", (30, 1), (31, 1))
    checks.receipted("program", 0, "x", 30)
    checks.receipted("program", 1, "x", None)


def receipt_for_nothing(checks: Checkers) -> None:
    published(checks)
    checks.receipted("program", 2, "x", None)


def receipt_with_another_tick(checks: Checkers) -> None:
    published(checks)
    checks.receipted("program", 0, "x", 31)


def stored_twice(checks: Checkers) -> None:
    published(checks)
    checks.durable("x", [40], [{"id": 31, "group": 1}])


def stored_under_a_taken_number(checks: Checkers) -> None:
    published(checks)
    checks.numbered("thief", "me", 1, 99)
    checks.durable("x", [40], [{"id": 99, "group": 1}])


def stored_out_of_order(checks: Checkers) -> None:
    published(checks)
    log(checks, "x", (33, 1))
    checks.durable("x", [40], [{"id": 32, "group": 1}])


def taken_out_of_order(checks: Checkers) -> None:
    published(checks)
    subscribe(checks, "all", Everything(), start=14)
    checks.numbered("program", "me", 9, 50)
    log(checks, "y", (50, 1))
    take(checks, "all", "y", 50)
    take(checks, "all", "x", 30)


def stored_after_a_refusal(checks: Checkers) -> None:
    published(checks)
    checks.unpublished("program", 2, "E103", retry=False)
    log(checks, "x", (32, 1))


def test_what_was_refused_may_be_stored_when_it_is_published_again() -> None:
    checks = good_history()
    published(checks)
    for number in (2, 3):
        checks.unpublished("program", number, "E104", retry=False)
    checks.program_restarted("program", 3)
    log(checks, "x", (33, 1))
    with pytest.raises(Violation, match="refused"):
        log(checks, "y", (32, 1))


def refused_after_it_was_stored(checks: Checkers) -> None:
    published(checks)
    checks.unpublished("program", 1, "E103", retry=False)


def refused_as_given_up(checks: Checkers) -> None:
    published(checks)
    checks.unpublished("program", 2, "E102", retry=False)


def accepted_unflushed(checks: Checkers) -> None:
    checks.accepted("x", [20], [20])


def accepted_partly(checks: Checkers) -> None:
    checks.accepted("x", [12, 13], [12])


def sent_unflushed(checks: Checkers) -> None:
    checks.rows_sent("p", "r", "R", "x", [20])


def released_too_early(checks: Checkers) -> None:
    log(checks, "x", (20, 1))
    checks.released("x", 21)


def promised_after_release(checks: Checkers) -> None:
    subscribe(checks, "late", start=5)


def logged_below_release(checks: Checkers) -> None:
    checks.released("x", 40)
    log(checks, "x", (30, 2))


def sent_to_nobody(checks: Checkers) -> None:
    checks.rows_sent("r", "t", "T", "x", [10])


def sent_upwards(checks: Checkers) -> None:
    checks.rows_sent("r", "p", "P", "x", [10])


def sent_to_the_gone(checks: Checkers) -> None:
    checks.ended("plain")
    checks.ended("merged")
    checks.rows_sent("r", "s", "S", "x", [10])
    checks.settled = True
    checks.rows_sent("r", "s", "S", "x", [10])


def too_heavy(checks: Checkers) -> None:
    checks.weighed("r", 1_001, 0)


def too_many_runs(checks: Checkers) -> None:
    checks.weighed("r", 0, 11)


def never_taken(checks: Checkers) -> None:
    log(checks, "x", (20, 1))
    raise checks.unfinished() or AssertionError("nothing is owed")


def never_released(checks: Checkers) -> None:
    log(checks, "x", (20, 2))
    raise checks.unfinished() or AssertionError("nothing is owed")


def lose(checks: Checkers, *told: str, lost_from: int = 13) -> None:
    """The log of x is lost after 13, and another one begins at 30; these subscribers are told of it."""
    checks.log_began("x", "old")
    checks.log_lost("x", [], noticeable=True)
    checks.log_began("x", "new")
    for name in told:
        checks.reads(name, "x", "new")
        checks.gap(name, "x", lost_from, 30)


def lost_and_not_told(checks: Checkers) -> None:
    lose(checks, "plain")
    raise checks.unfinished() or AssertionError("nothing is owed")


def moved_and_not_told(checks: Checkers) -> None:
    lose(checks, "merged")
    checks.reads("plain", "x", "new")
    raise checks.unfinished() or AssertionError("nothing is owed")


def told_too_little(checks: Checkers) -> None:
    log(checks, "x", (20, 1))
    lose(checks, "plain", "merged", lost_from=21)
    raise checks.unfinished() or AssertionError("nothing is owed")


def told_too_little_of_an_older_copy(checks: Checkers) -> None:
    checks.log_began("x", "old")
    log(checks, "x", (20, 1))
    checks.log_lost("x", [10, 12], noticeable=False)
    checks.log_began("x", "noticed")
    for name in ("plain", "merged"):
        checks.reads(name, "x", "noticed")
        checks.gap(name, "x", 25, 30)
    raise checks.unfinished() or AssertionError("nothing is owed")


def told_of_too_short_a_gap(checks: Checkers) -> None:
    log(checks, "x", (30, 1))
    lose(checks, "plain", "merged")
    raise checks.unfinished() or AssertionError("nothing is owed")


def told_of_nothing(checks: Checkers) -> None:
    checks.gap("plain", "x", 13, 30)


def told_twice(checks: Checkers) -> None:
    lose(checks, "plain")
    checks.gap("plain", "x", 13, 30)


def began_anew_for_nothing(checks: Checkers) -> None:
    checks.log_began("x", "old")
    checks.log_began("x", "new")


def gap_in_the_new_log(checks: Checkers) -> None:
    lose(checks, "plain", "merged")
    log(checks, "x", (30, 1), (31, 1))
    take(checks, "plain", "x", 31)


@pytest.mark.parametrize(
    ("checker", "bad"),
    [
        ("exactly_once", twice),
        ("exactly_once", not_logged),
        ("exactly_once", other_row),
        ("order", backwards),
        ("order", merged_backwards),
        ("order", log_backwards),
        ("gapless", gap),
        ("gapless", merged_gap),
        ("gapless", merged_gap_at_equal_ticks),
        ("filter", unwanted),
        ("filter", unwanted_since_the_change),
        ("filter", unwanted_before_the_change),
        ("filter", changed_in_the_past),
        ("filter", changed_in_the_future),
        ("order", changed_in_pieces),
        ("gapless", gap_before_the_change),
        ("gapless", gap_since_the_change),
        ("start", changed_before_it_was_confirmed),
        ("liveness", never_answered),
        ("liveness", never_changed),
        ("routing", sent_for_the_old_condition),
        ("start", below_start),
        ("start", unconfirmed),
        ("start", accepted_below_start),
        ("start", wanted_and_still_there),
        ("start", confirmed_twice),
        ("durability", accepted_unflushed),
        ("durability", accepted_partly),
        ("durability", sent_unflushed),
        ("receipt", receipt_for_nothing),
        ("receipt", receipt_with_another_tick),
        ("one_to_one", stored_twice),
        ("one_to_one", stored_under_a_taken_number),
        ("publisher_order", stored_out_of_order),
        ("publisher_order", taken_out_of_order),
        ("refused", stored_after_a_refusal),
        ("refused", refused_after_it_was_stored),
        ("refused", refused_as_given_up),
        ("release", released_too_early),
        ("release", promised_after_release),
        ("release", logged_below_release),
        ("gap", lost_and_not_told),
        ("gap", moved_and_not_told),
        ("gap", told_too_little),
        ("gap", told_too_little_of_an_older_copy),
        ("gap", told_of_too_short_a_gap),
        ("gap", told_of_nothing),
        ("gap", told_twice),
        ("gap", began_anew_for_nothing),
        ("gapless", gap_in_the_new_log),
        ("routing", sent_to_nobody),
        ("routing", sent_upwards),
        ("routing", sent_to_the_gone),
        ("memory", too_heavy),
        ("memory", too_many_runs),
        ("liveness", never_taken),
        ("liveness", never_released),
    ],
)
def test_a_bad_step_is_noticed_by_its_checker(checker: str, bad: Callable[[Checkers], None]) -> None:
    checks = good_history()
    with pytest.raises(Violation) as found:
        bad(checks)
    assert found.value.checker == checker, str(found.value)


def test_a_change_decides_from_its_tick_on() -> None:
    checks = good_history()
    change(checks, "plain", x=21, y=12)
    log(checks, "x", (20, 1), (21, 1), (22, 2))
    take(checks, "plain", "x", 20, 22)
    take(checks, "merged", "x", 20, 21)
    checks.released("x", 23)
    assert checks.unfinished() is None


def test_a_lost_log_is_forgotten_once_all_subscribers_know_of_it() -> None:
    checks = good_history()
    log(checks, "x", (20, 1), (21, 1))
    take(checks, "plain", "x", 20)
    lose(checks, "plain", "merged")
    # What was in a queue when the log was lost may still be taken; what is below the new start is not owed.
    take(checks, "plain", "x", 21)
    log(checks, "x", (29, 1), (30, 1))
    take(checks, "plain", "x", 30)
    take(checks, "merged", "x", 30)
    checks.released("x", 31)
    assert checks.unfinished() is None


def test_an_older_copy_promises_nothing_that_it_had_released() -> None:
    checks = good_history()
    checks.log_lost("x", [10, 12], noticeable=False)
    checks.released("x", 13)
    subscribe(checks, "late", wanted=5, start=13)


def test_what_an_older_copy_lacked_that_nobody_noticed_is_in_no_gap() -> None:
    checks = good_history()
    checks.log_began("x", "old")
    log(checks, "x", (20, 1))
    checks.log_lost("x", [10, 12], noticeable=False)
    # Nobody else knew of 20. Subscribers were told of silence there, and are at 25 when all of it is lost.
    checks.log_lost("x", [], noticeable=True)
    checks.log_began("x", "new")
    for name in ("plain", "merged"):
        checks.reads(name, "x", "new")
        checks.gap(name, "x", 25, 30)
    assert checks.unfinished() is None


def test_a_violation_names_checker_subject_and_event() -> None:
    found = Violation("gapless", "not taken", subject="s-1", pubend="x", tick=12)
    assert str(found) == "gapless: s-1 x@12: not taken"
    assert {"gapless", "invariant"} <= set(CHECKERS)


def test_an_event_below_a_start_in_the_future_is_not_owed() -> None:
    checks = good_history()
    subscribe(checks, "future", wanted=50, start=50)
    log(checks, "x", (40, 1), (60, 1))
    take(checks, "future", "x", 60)
    take(checks, "plain", "x", 40, 60)
    take(checks, "merged", "x", 40, 60)
    checks.released("x", 61)
    assert checks.unfinished() is None


@pytest.mark.parametrize(
    ("condition", "row", "accepted"),
    [
        (Everything(), {"group": None}, True),
        (Equal("group", 1), {"group": 1}, True),
        (Equal("group", 1), {"group": None}, False),
        (Equal("name", "Ada"), {"name": "Grace"}, False),
        (Between("price", 1, 2), {"price": 1.0}, True),
        (Between("price", 1, 2), {"price": 2.0}, False),
        (Between("price", 0, 2), {"price": None}, False),
        (Different("group", 1), {"group": 2}, True),
        (Different("group", 1), {"group": 1}, False),
        (Different("name", "Ada"), {"name": None}, False),
        (Begins("name", "Gr"), {"name": "Grace"}, True),
        (Begins("name", "Gr"), {"name": "Ada"}, False),
        (Begins("name", "Gr"), {"name": None}, False),
        (Contains("name", "ar"), {"name": "Barbara"}, True),
        (Contains("name", "ar"), {"name": None}, False),
        (Missing("price"), {"price": None}, True),
        (Missing("price"), {"price": 0.0}, False),
        (Either(Missing("name"), Equal("group", 1)), {"name": "Ada", "group": 1}, True),
        (Either(Missing("name"), Equal("group", 1)), {"name": "Ada", "group": 2}, False),
        (Both(Missing("name"), Equal("group", 1)), {"name": None, "group": 1}, True),
        (Both(Missing("name"), Equal("group", 1)), {"name": None, "group": 2}, False),
    ],
)
def test_conditions_judge_rows(condition: Condition, row: dict[str, int], accepted: bool) -> None:
    assert condition.accepts(row) is accepted
