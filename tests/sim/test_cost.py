"""The checker for waste can fail: a thrifty history passes, and each kind of waste in it is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gapless.sim.checkers import Violation
from gapless.sim.conditions import Between, Both, Condition, Either, Equal, Everything
from gapless.sim.cost import Cost
from gapless.sim.observer import Advertised, Wish
from gapless.sim.plan import Plan

CHEAP, CHEAPER = Between("price", 0, 50), Between("price", 10, 20)
GROUP_1 = Equal("group", 1)
PAST = (-(2**62), 0)


class Watched(Cost):
    """A pubend x at p; a router r; edges s and t below it; time as the test says."""

    def __init__(self, *, is_roomy: bool = True, is_thorough: bool = True) -> None:
        plan = Plan(
            topic_of={"x": "trades"},
            root_of={"x": "P"},
            cell_of={"p": "P", "r": "R", "s": "S", "t": "T"},
            links=[("P", "R"), ("R", "S"), ("R", "T")],
            edges=frozenset({"s", "t"}),
            row_bytes_max=dict.fromkeys("prst", 1_000),
            runs_max=dict.fromkeys("prst", 10),
        )
        super().__init__(
            plan, lambda: self.now_us, repeat_min_ms=100, is_roomy=is_roomy, is_thorough=is_thorough
        )
        self.now_us = 0

    def subscribe(self, name: str, edge: str, condition: Condition) -> None:
        self.subscribed(
            Wish(subscription=name, edge=edge, topic="trades", condition=condition, total=False, wanted=None)
        )

    def check_settled(self) -> None:
        found = self.unfinished()
        if found is not None:
            raise found

    def say(
        self, version: int, base: int | None, *added: str, removed: str = "", total: int | None = None
    ) -> None:
        self.advertised(
            Advertised(
                broker="r",
                root="P",
                version=version,
                base=base,
                added=[("trades", each) for each in added],
                removed=[("trades", each) for each in removed],
                total=total,
            )
        )


def thrifty(*, is_roomy: bool = True) -> Watched:
    """Events 10 and 20 of x go to s and t; t misses 20, asks for it, and gets it a second time."""
    cost = Watched(is_roomy=is_roomy)
    cost.rows_sent("p", "r", "R", "x", [10, 20])
    for edge in ("s", "t"):
        cost.rows_sent("r", edge, edge.upper(), "x", [10, 20])
    cost.now_us = 50_000
    cost.nack_sent("t", "r", "x", 15, 25)
    cost.nack_sent("r", "p", "x", 15, 25)
    cost.rows_sent("p", "r", "R", "x", [20])
    cost.rows_sent("r", "t", "T", "x", [20])
    cost.silence_sent("r", "t", "T", "x", [(21, 25), PAST])
    cost.now_us = 90_000
    return cost


def ask_again_at_once(cost: Watched) -> None:
    cost.nack_sent("r", "p", "x", 20, 21)


def tell_silence(cost: Watched) -> None:
    cost.silence_sent("r", "s", "S", "x", [(21, 25), PAST])


def tell_the_past(cost: Watched) -> None:
    cost.silence_sent("r", "s", "S", "x", [PAST])


def send_again(cost: Watched) -> None:
    cost.rows_sent("r", "s", "S", "x", [20])


def answer_once_too_often(cost: Watched) -> None:
    for _ in range(2):
        cost.rows_sent("r", "t", "T", "x", [20])


def advertise_the_covered(cost: Watched) -> None:
    cost.subscribe("one", "s", CHEAP)
    cost.subscribe("two", "t", CHEAPER)
    cost.say(1, None, "cheap")
    cost.say(2, 1, "cheaper")
    cost.check_settled()


WASTE = [
    ask_again_at_once,
    tell_silence,
    tell_the_past,
    send_again,
    answer_once_too_often,
    advertise_the_covered,
]


@pytest.mark.parametrize("waste", WASTE)
def test_waste_is_noticed(waste: Callable[[Watched], None]) -> None:
    with pytest.raises(Violation) as found:
        waste(thrifty())
    assert found.value.checker == "cost"


@pytest.mark.parametrize("waste", [ask_again_at_once, send_again, answer_once_too_often])
def test_a_broker_with_little_room_may_have_forgotten(waste: Callable[[Watched], None]) -> None:
    waste(thrifty(is_roomy=False))


def test_a_broker_that_compares_little_may_advertise_the_covered() -> None:
    advertise_the_covered(Watched(is_thorough=False))


def test_what_a_broker_advertised_in_an_earlier_life_is_not_held_against_it() -> None:
    cost = Watched()
    cost.subscribe("one", "s", CHEAP)
    cost.say(9, None, "cheap", "cheaper")
    cost.crashed("r")
    cost.say(1, None, "cheap")
    cost.check_settled()


def test_two_brokers_of_a_cell_may_both_be_told_that_the_past_is_final() -> None:
    cost = thrifty()
    cost.nack_sent("t", "r", "x", 30, 40)
    for receiver in ("t", "t2"):
        cost.silence_sent("r", receiver, "T", "x", [(30, 31), PAST])
    for receiver in ("t", "t2"):
        cost.silence_sent("r", receiver, "T", "x", [(60, 61), (PAST[0], 45)])


def test_silence_may_answer_a_question_about_the_past_that_is_final_now() -> None:
    cost = thrifty()
    cost.silence_sent("r", "t", "T", "x", [(30, 40), (PAST[0], 20)])
    with pytest.raises(Violation):
        cost.silence_sent("r", "t", "T", "x", [(40, 50), (PAST[0], 20)])


def test_a_question_may_be_repeated_when_a_log_is_believed_in_a_later_life() -> None:
    cost = thrifty()
    cost.log_heard("r", "x", "new", 1)
    cost.nack_sent("r", "p", "x", 30, 40)
    cost.now_us += 1
    cost.log_heard("r", "x", "new", 2)
    cost.nack_sent("r", "p", "x", 30, 40)


def test_a_question_may_be_repeated_after_a_while() -> None:
    cost = thrifty()
    cost.now_us = 149_500
    ask_again_at_once(cost)


@pytest.mark.parametrize(
    "excuse",
    [
        lambda cost: cost.knowledge_heard("r", "x", [(20, 21), PAST]),
        lambda cost: cost.ack_sent("r", "x", 30),
        lambda cost: cost.crashed("r"),
    ],
    ids=["it was answered", "it was acked", "the broker restarted"],
)
def test_a_question_may_be_asked_again_for_a_reason(excuse: Callable[[Watched], None]) -> None:
    cost = thrifty()
    excuse(cost)
    ask_again_at_once(cost)


def test_one_question_may_go_to_all_brokers_of_a_cell() -> None:
    cost = Watched()
    cost.nack_sent("r", "p", "x", 15, 25)
    cost.nack_sent("r", "p", "x", 15, 25)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (Everything(), GROUP_1),
        (CHEAP, CHEAPER),
        (GROUP_1, Both(CHEAP, GROUP_1)),
        (Either(CHEAP, GROUP_1), CHEAPER),
        (GROUP_1, GROUP_1),
    ],
)
def test_one_condition_is_enough_for_what_it_covers(wide: Condition, narrow: Condition) -> None:
    for first, second in ((wide, narrow), (narrow, wide)):
        cost = Watched()
        cost.subscribe("one", "s", first)
        cost.subscribe("two", "t", second)
        cost.say(1, None, "a")
        cost.check_settled()
        cost.say(2, 1, "b")
        with pytest.raises(Violation, match="advertises 2 conditions on trades"):
            cost.check_settled()


def test_what_was_removed_and_what_has_not_come_yet_does_not_count() -> None:
    cost = Watched()
    cost.subscribe("one", "s", CHEAP)
    cost.subscribe("two", "t", GROUP_1)
    cost.say(1, None, "a", "b", "c")
    cost.say(2, 1, "d", removed="bc", total=4)
    with pytest.raises(Violation, match="advertises 3"):
        cost.check_settled()
    cost.say(2, 1, removed="a", total=4)
    cost.check_settled()
    cost.ended("two")
    cost.changing("one", GROUP_1)
    cost.check_settled()


def test_subscriptions_elsewhere_need_no_condition_here() -> None:
    cost = Watched()
    cost.subscribe("one", "s", CHEAP)
    cost.advertised(
        Advertised(
            broker="t", root="P", version=1, base=None, added=[("trades", "a")], removed=[], total=None
        )
    )
    with pytest.raises(Violation, match="t: advertises 1 conditions"):
        cost.check_settled()
