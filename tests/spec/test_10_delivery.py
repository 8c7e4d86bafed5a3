"""Section 10 of docs/protocol.md: groups, order, laggards, and what taken means."""

import numpy as np
import pytest

from gapless.content.condition import EVERYTHING, Condition
from gapless.model.epochs import ALWAYS, first_epoch
from gapless.model.ids import BrokerId, PubendId, SubscriptionId
from gapless.model.ticks import TICK_MIN
from gapless.protocol.allowance import LAGGARD_ROWS, Allowance
from gapless.protocol.broker import Broker
from gapless.protocol.curiosity import NackClock
from gapless.protocol.effects import Deliver, Effect, TrimLog
from gapless.protocol.events import (
    DeliveryTaken,
    Event,
    Now,
    Order,
    SubscriberReady,
    SubscriberSlow,
    UnsubscribeRequested,
)
from gapless.protocol.istream import Istream
from gapless.protocol.lane import Lane
from gapless.protocol.messages import AckMessage, KnowledgeMessage, NackMessage
from gapless.protocol.parameters import Parameters
from gapless.protocol.subend import Group
from gapless.protocol.subscription import Phase, Subend
from tests.conditions import where
from tests.spec.hand import FIRST, PUBEND, TOPIC, Hand, batch, network, two_pubends

ALICE, BOB = SubscriptionId("alice"), SubscriptionId("bob")


def slow(hand: Hand, name: str, position: int) -> None:
    """Report a subscriber slow that has taken everything below a tick of nyse, and what it holds as done."""
    hand.stalled.discard(name)
    event = SubscriberSlow(subscription=SubscriptionId(name), positions={PUBEND: position})
    hand.coming.append(("s", event))
    hand.coming += [("s", DeliveryTaken(serial=d.serial)) for _, d in hand.of(Deliver)]


def deliveries(hand: Hand) -> list[list[int]]:
    """The rows of each delivery, as ticks."""
    return [d.batch.ticks[np.unique(d.rows)].tolist() for _, d in hand.of(Deliver)]


def test_subends_in_step_share_one_delivery() -> None:
    """Clause 10.1."""
    hand = Hand.started(network())
    for name in ("alice", "bob", "carol"):
        hand.subscribe(name)
    hand.publish(1, 2)
    ((_, deliver),) = hand.of(Deliver)
    assert len(deliver.rows) == 6
    assert hand.got("alice") == hand.got("bob") == hand.got("carol") == [FIRST, FIRST + 1]


def test_data_beyond_the_horizon_waits_and_then_comes_in_order() -> None:
    """Clause 10.2."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.loses = lambda _sender, to, message: to == "s" and isinstance(message, KnowledgeMessage)
    hand.publish(1)
    hand.loses = lambda *_: False
    hand.publish(2)
    hand.publish(3)
    assert hand.got("alice") == []
    hand.wait(300)
    assert hand.got("alice") == [FIRST, FIRST + 1, FIRST + 2]


def test_total_order_is_by_tick_and_then_by_pubend() -> None:
    """Clause 10.3."""
    hand = Hand.started(two_pubends())
    hand.subscribe("alice", order=Order.TOTAL)
    hand.subscribe("bob", where("price BETWEEN 2 AND 8"), order=Order.TOTAL)
    hand.publish(1, 2, pubend="nyse")
    hand.publish(3, pubend="lse")
    hand.wait(400)
    assert hand.events("alice") == [("lse", FIRST), ("nyse", FIRST), ("nyse", FIRST + 1)]
    assert hand.events("bob") == [("lse", FIRST), ("nyse", FIRST + 1)]


def test_publisher_order_waits_for_no_other_pubend() -> None:
    """Clause 10.3."""
    hand = Hand.started(two_pubends())
    hand.subscribe("alice", order=Order.TOTAL)
    hand.subscribe("bob")
    hand.wait(10)
    hand.publish(1, 2, pubend="nyse")
    assert hand.events("bob") == [("nyse", FIRST + 10_000), ("nyse", FIRST + 10_001)]
    assert hand.events("alice") == []


def test_a_slot_gets_exactly_what_its_condition_accepts() -> None:
    """Clause 10.4."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price = 7"))
    hand.subscribe("bob", where("price BETWEEN 5 AND 7"))
    hand.subscribe("carol")
    hand.publish(4, 5, 7, 8)
    assert hand.got("alice") == [FIRST + 2]
    assert hand.got("bob") == [FIRST + 1, FIRST + 2]
    assert hand.got("carol") == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]


def test_nothing_below_the_start_tick_is_delivered() -> None:
    """Clause 10.5."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.subscribe("bob", start=FIRST + 2)
    hand.publish(1, 2, 3, 4)
    assert hand.got("alice") == [FIRST + at for at in range(4)]
    assert hand.got("bob") == [FIRST + 2, FIRST + 3]


def test_a_delivery_is_bounded_but_one_tick_is_not_parted() -> None:
    """Clause 10.6."""
    hand = Hand.started(network({"message_rows_max": 2}))
    hand.subscribe("alice")
    hand.publish(1, 2, 3, 4, 5)
    assert [len(each) for each in deliveries(hand)] == [2, 2, 1]
    merging = Hand.started(two_pubends(message_rows_max=1))
    merging.subscribe("alice", order=Order.TOTAL)
    merging.publish(1, pubend="nyse")
    merging.publish(2, pubend="lse")
    merging.wait(400)
    assert deliveries(merging) == [[FIRST, FIRST]]


def test_a_group_hands_out_no_more_when_too_much_waits() -> None:
    """Clause 10.7."""
    hand = Hand.started(network({"deliveries_waiting_max": 2}))
    hand.subscribe("alice")
    hand.stalled = {"alice"}
    for price in range(4):
        hand.publish(price)
    assert hand.got("alice") == [FIRST, FIRST + 1]
    hand.stalled.clear()
    hand.feed("s", DeliveryTaken(serial=hand.of(Deliver)[0][1].serial))
    assert hand.got("alice") == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]


def test_an_edge_does_not_ack_what_was_not_taken() -> None:
    """Clause 10.8."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.subscribe("bob")
    hand.publish(1)
    hand.stalled = {"bob"}
    hand.publish(2)
    hand.publish(3)
    hand.wait(200)
    assert hand.sent(AckMessage, "s")[-1].runs[-1][0] == FIRST + 1
    hand.stalled = set()
    for _, deliver in hand.of(Deliver):
        hand.feed("s", DeliveryTaken(serial=deliver.serial))
    hand.wait(200)
    assert hand.sent(AckMessage, "s")[-1].runs[-1][0] == FIRST + 3


def test_a_slow_subscriber_catches_up_without_holding_the_others_back() -> None:
    """Clause 10.9."""
    hand = Hand.started(network({"message_rows_max": 2}))
    hand.subscribe("alice")
    hand.subscribe("bob")
    hand.stalled = {"alice"}
    hand.publish(1)
    hand.publish(2)
    hand.publish(3)
    before = len(hand.got("alice"))
    slow(hand, "alice", FIRST)
    hand.stalled.add("alice")
    hand.settle()
    # One delivery is handed to the laggard, and no second one before that is taken.
    assert hand.got("alice")[before:] == [FIRST]
    hand.publish(4)
    assert hand.got("bob") == [FIRST + at for at in range(4)]
    assert hand.got("alice")[before:] == [FIRST]
    hand.stalled.clear()
    hand.feed("s", DeliveryTaken(serial=hand.of(Deliver)[-2][1].serial))
    assert hand.got("alice")[before:] == [FIRST + at for at in range(4)]
    hand.wait(300)
    assert hand.sent(AckMessage, "s")[-1].runs[-1][0] == FIRST + 4


def test_a_laggard_that_has_caught_up_is_a_member_again() -> None:
    """Clause 10.10."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.subscribe("bob")
    hand.stalled = {"alice"}
    hand.publish(1)
    slow(hand, "alice", FIRST)
    hand.settle()
    hand.publish(2)
    last = hand.of(Deliver)[-1][1]
    assert sorted(hand.names["s", int(slot)] for slot in last.slots) == ["alice", "bob"]


def test_a_subscription_with_a_past_begins_as_a_laggard() -> None:
    """Clause 10.11."""
    hand = Hand.started(network({"message_rows_max": 2}))
    hand.subscribe("alice")
    hand.stalled = {"alice"}
    hand.publish(1, 2)
    hand.publish(3)
    hand.stalled = {"alice", "bob"}
    hand.subscribe("bob", start=FIRST)
    assert hand.got("bob") == [FIRST, FIRST + 1]
    hand.publish(4)
    assert hand.got("alice") == [FIRST + at for at in range(4)]
    assert hand.got("bob") == [FIRST, FIRST + 1]


def test_the_window_of_a_laggard_follows_what_it_holds() -> None:
    """Clause 10.12."""
    parameters = Parameters(message_rows_max=8, nack_ticks_max=10_000)
    lane = Lane(PUBEND, BrokerId("s"), Istream(PUBEND, parameters), NackClock(parameters))
    lane.istream.accumulate(((0, 100_000, ALWAYS),), batch(range(50_000, 50_400)), TICK_MIN)
    group = Group((lane,), parameters)
    birth = first_epoch(1)
    phase = Phase(EVERYTHING, birth, {PUBEND: 0}, granted={PUBEND: (0, 100_000)})
    subend = Subend(ALICE, 0, TOPIC, Order.PUBLISHER, [phase])
    group.place(subend)
    lag = group.laggards[ALICE]
    assert lag.window == 10_000
    # Empty stretches double it; a stretch with as many rows as fit halves it.
    first = group.catch_up(subend, iter(range(100)), Allowance.of(1_000_000))
    assert first is not None
    assert lag.window == 10_000 * 2 * 2 // 2
    group.taken(first.serial, subend)
    group.catch_up(subend, iter(range(100, 200)), Allowance.of(1_000_000))
    assert lag.window == 10_000 * 2 * 2 // 2 // 2


def test_nothing_is_delivered_or_held_after_the_end() -> None:
    """Clause 10.13."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.subscribe("bob")
    hand.stalled = {"alice"}
    hand.publish(1)
    hand.feed("s", UnsubscribeRequested(subscription=ALICE))
    # The host has nobody any more to hand the delivery to, so it counts as taken.
    hand.feed("s", DeliveryTaken(serial=hand.of(Deliver)[-1][1].serial))
    hand.publish(2)
    hand.wait(500)
    assert hand.got("alice") == [FIRST]
    assert hand.got("bob") == [FIRST, FIRST + 1]
    assert hand.of(TrimLog)[-1][1].before == FIRST + 2


@pytest.mark.parametrize("order", Order)
def test_no_event_is_delivered_twice(order: Order) -> None:
    """Clause 10.14."""
    hand = Hand.started(two_pubends())
    hand.subscribe("alice", order=order)
    lost = iter([True, False, True, False, True, False] * 20)
    hand.loses = lambda _sender, _to, message: (
        isinstance(message, KnowledgeMessage | NackMessage | AckMessage) and next(lost)
    )
    for price in range(10):
        hand.publish(price, price, pubend="nyse")
        hand.publish(price, pubend="lse")
        hand.wait(7)
    hand.loses = lambda *_: False
    hand.wait(30_000)
    got = hand.events("alice")
    assert len(got) == len(set(got)) == 30
    for pubend in ("nyse", "lse"):
        ticks = [tick for name, tick in got if PubendId(name) == pubend]
        assert ticks == sorted(ticks)


def test_only_what_was_thrown_away_comes_again() -> None:
    """Clause 10.14."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1, 2, 3)
    hand.stalled = {"alice"}
    hand.publish(4)
    slow(hand, "alice", FIRST + 3)
    hand.settle()
    hand.publish(5)
    assert hand.got("alice") == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3, FIRST + 3, FIRST + 4]


def test_nothing_is_handed_out_across_a_change() -> None:
    """Clause 10.15."""
    hand = Hand.started(network())
    hand.subscribe("alice", where("price < 5"))
    hand.subscribe("bob")
    hand.change("alice", where("price >= 5"))
    hand.loses = lambda _sender, to, message: to == "s" and isinstance(message, KnowledgeMessage)
    hand.publish(1, 6)
    hand.change("alice", where("price < 5"))
    hand.loses = lambda *_: False
    hand.publish(2, 7)
    hand.wait(1_000)
    assert hand.changes("alice") == [("nyse", FIRST), ("nyse", FIRST + 2)]
    assert hand.got("alice") == [FIRST + 1, FIRST + 2]
    assert hand.got("bob") == [FIRST + at for at in range(4)]
    assert deliveries(hand) == [[FIRST, FIRST + 1], [FIRST + 2, FIRST + 3]]


def test_a_laggard_is_judged_by_the_condition_of_each_tick() -> None:
    """Clause 10.16."""
    hand = Hand.started(network())
    hand.stalled = {"alice"}
    hand.subscribe("alice", where("price < 5"))
    hand.publish(1, 6)
    hand.change("alice", where("price >= 5"))
    hand.publish(2, 7)
    assert hand.got("alice") == [FIRST, FIRST + 3]
    hand.effects.clear()
    slow(hand, "alice", FIRST)
    hand.settle()
    assert hand.got("alice") == [FIRST, FIRST + 3], "all of it again, and nothing else"
    hand.publish(3, 8)
    assert hand.got("alice") == [FIRST, FIRST + 3, FIRST + 5]


def test_who_is_away_is_handed_nothing_and_holds_what_it_lacks() -> None:
    """Clause 10.17."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1, 2)
    away = SubscriberSlow(subscription=ALICE, positions={PUBEND: FIRST + 1}, away=True)
    hand.feed("s", away)
    hand.effects.clear()
    hand.publish(3, 4)
    hand.wait(12_000)
    assert not hand.of(Deliver)
    assert not hand.sent(NackMessage, "s")
    assert {stop for ack in hand.sent(AckMessage, "s") for stop, _ in ack.runs} <= {FIRST + 1}
    hand.subscribe("bob", start=FIRST)
    assert hand.got("bob") == [FIRST + 1, FIRST + 2, FIRST + 3], "what was acked is gone, and no more"
    hand.effects.clear()
    hand.feed("s", SubscriberSlow(subscription=ALICE, positions={}))
    assert hand.got("alice") == [FIRST + 1, FIRST + 2, FIRST + 3]
    hand.publish(5)
    assert len(hand.got("alice")) == 4


def test_who_comes_back_is_not_slow() -> None:
    """Clause 10.17."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.feed("s", SubscriberSlow(subscription=ALICE, positions={}, away=True))
    hand.publish(1)
    hand.stalled = {"alice"}
    hand.feed("s", SubscriberSlow(subscription=ALICE, positions={}))
    assert hand.got("alice") == [FIRST]
    hand.publish(2)
    assert hand.got("alice") == [FIRST, FIRST + 1], "it is in step, although it has taken nothing yet"


def lagging(**parameters: object) -> Hand:
    """Five events are in the past when bob subscribes to them; he takes nothing by himself."""
    hand = Hand.started(network({"message_rows_max": 1, **parameters}))
    hand.subscribe("alice")
    hand.stalled = {"alice", "bob"}
    for price in range(5):
        hand.publish(price)
    hand.subscribe("bob", start=FIRST)
    return hand


def ready(hand: Hand, times: int = 1) -> None:
    """All that bob was handed was sent to him, and he has room."""
    for _ in range(times):
        hand.feed("s", SubscriberReady(subscription=BOB))


def taken(hand: Hand, name: str, *which: int) -> None:
    """A subscriber has taken these of its deliveries."""
    mine = [d.serial for _, d in hand.of(Deliver) if hand.names["s", int(d.slots[0])] == name]
    for at in which:
        hand.feed("s", DeliveryTaken(serial=mine[at]))


def test_a_laggard_gets_more_when_it_is_ready_though_it_has_taken_nothing() -> None:
    """Clause 10.18."""
    hand = lagging()
    assert hand.got("bob") == [FIRST]
    ready(hand)
    assert hand.got("bob") == [FIRST, FIRST + 1]
    taken(hand, "bob", 0)
    assert hand.got("bob") == [FIRST, FIRST + 1], "the one before was neither taken nor sent"
    taken(hand, "bob", 1)
    assert hand.got("bob") == [FIRST, FIRST + 1, FIRST + 2]
    ready(hand, 5)
    hand.publish(5)
    assert hand.got("bob") == [FIRST + at for at in range(6)], "all of it once, and it is a member again"


def test_a_laggard_that_takes_nothing_gets_no_more_than_may_wait() -> None:
    """Clause 10.18."""
    hand = lagging(deliveries_waiting_max=5)
    taken(hand, "alice", *range(5))
    for price in range(5, 8):
        hand.publish(price)
    ready(hand, 10)
    assert hand.got("bob") == [FIRST + at for at in range(5)]
    taken(hand, "bob", 0)
    assert hand.got("bob") == [FIRST + at for at in range(6)]


def test_a_slow_subscriber_that_is_ready_is_slow_no_more() -> None:
    """Clauses 10.10 and 10.18."""
    hand = lagging()
    ready(hand, 5)
    hand.effects.clear()
    hand.feed("s", SubscriberSlow(subscription=BOB, positions={PUBEND: FIRST + 3}))
    assert hand.got("bob") == [FIRST + 3]
    hand.publish(5)
    assert hand.got("bob") == [FIRST + 3]
    ready(hand, 3)
    hand.publish(6)
    assert hand.got("bob") == [FIRST + at for at in range(3, 7)]


@pytest.mark.parametrize("handed", [3, 5])
def test_the_oldest_delivery_that_a_laggard_has_not_taken_holds_the_ack(handed: int) -> None:
    """Clause 10.19. As a laggard, and when it is a member again."""
    hand = lagging()
    taken(hand, "alice", *range(5))
    ready(hand, handed - 1)
    assert hand.got("bob") == [FIRST + at for at in range(handed)]

    def acked() -> int:
        hand.wait(300)
        return hand.sent(AckMessage, "s")[-1].runs[-1][0]

    taken(hand, "bob", 1, 2)
    assert acked() <= FIRST
    taken(hand, "bob", 0)
    assert acked() == FIRST + 3


@pytest.mark.parametrize("condition", [EVERYTHING, where("price >= 0"), where("price <> 3")])
def test_a_step_hands_out_so_many_rows_times_subscribers(condition: Condition) -> None:
    """Clause 10.20. The number of rows says nothing of the work: each may be for thousands."""
    hand = Hand.started(network({"step_pairs_max": 20}))
    for at in range(7):
        hand.subscribe(f"reader-{at}", condition)
    hand.publish(*range(10, 50))
    for _ in range(40):
        handed = sum(len(deliver.rows) for _, deliver in hand.of(Deliver))
        hand.wait(1)
        step = sum(len(deliver.rows) for _, deliver in hand.of(Deliver)) - handed
        assert step <= 20, "two rows for each of seven in a step"
    assert {len(deliver.rows) for _, deliver in hand.of(Deliver)} == {14}
    for at in range(7):
        assert hand.got(f"reader-{at}") == [FIRST + row for row in range(40)]


def test_one_event_goes_to_all_who_want_it_in_one_step() -> None:
    """Clause 10.20. Rows that nobody wants come before it."""
    hand = Hand.started(network({"step_pairs_max": 2}))
    for at in range(7):
        hand.subscribe(f"reader-{at}", where("price >= 100"))
    hand.publish(*range(80), 100, 101, 102)
    hand.wait(5)
    assert [len(deliver.rows) for _, deliver in hand.of(Deliver)] == [7, 7, 7]
    assert hand.got("reader-6") == [FIRST + 80, FIRST + 81, FIRST + 82]


def test_a_step_that_is_used_up_parts_no_tick() -> None:
    """Clauses 10.6 and 10.20."""
    hand = Hand.started(two_pubends(step_pairs_max=3))
    for name in ("alice", "bob"):
        hand.subscribe(name, order=Order.TOTAL)
    for pubend in ("nyse", "lse"):
        hand.publish(1, 2, 3, pubend=pubend)
    hand.wait(500)
    assert deliveries(hand) == [[FIRST + at, FIRST + at] for at in range(3)]
    for name in ("alice", "bob"):
        assert hand.events(name) == [(each, FIRST + at) for at in range(3) for each in ("lse", "nyse")]


def test_a_step_looks_at_so_many_laggards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clause 10.20. All of them lack the same, and it comes at once."""
    handed: list[int] = []
    right = Broker.step

    def counted(self: Broker, event: Event, now: Now) -> list[Effect]:
        effects = right(self, event, now)
        handed.append(sum(isinstance(effect, Deliver) for effect in effects))
        return effects

    monkeypatch.setattr(Broker, "step", counted)
    hand = Hand.started(network({"step_pairs_max": 2 * LAGGARD_ROWS}))
    hand.publish(*range(5))
    hand.loses = lambda _sender, to, message: to == "s" and isinstance(message, KnowledgeMessage)
    hand.stalled = {f"reader-{at}" for at in range(7)}
    for at in range(7):
        hand.subscribe(f"reader-{at}", start=FIRST)
    hand.loses = lambda *_: False
    hand.wait(5_000)
    assert max(handed) == 2
    for at in range(7):
        assert hand.got(f"reader-{at}") == [FIRST + row for row in range(5)]
