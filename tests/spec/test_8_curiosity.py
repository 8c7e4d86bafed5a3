"""Section 8 of docs/protocol.md: when subends ask for what they lack."""

from gapless.model.epochs import ALWAYS
from gapless.model.ids import BrokerId
from gapless.model.ticks import EMPTY, TICK_MIN, TickSet
from gapless.protocol.curiosity import NackClock, RepeatEstimate
from gapless.protocol.events import Order
from gapless.protocol.istream import Istream
from gapless.protocol.lane import Lane
from gapless.protocol.messages import AckExpectedMessage, KnowledgeMessage, NackMessage
from gapless.protocol.parameters import Parameters
from tests.spec.hand import FIRST, PUBEND, Hand, batch, network

GAP = TickSet.between(10, 20)


def clock(**parameters: object) -> NackClock:
    return NackClock(Parameters.parse(parameters))


def lossy(hand: Hand) -> None:
    """Lose all knowledge on its way to the edge."""
    hand.loses = lambda _sender, to, message: to == "s" and isinstance(message, KnowledgeMessage)


def test_the_doubt_horizon_is_the_first_unknown_tick() -> None:
    """Clause 8.1."""
    lane = Lane(PUBEND, BrokerId("s"), Istream(PUBEND, Parameters()), clock())
    lane.istream.accumulate(((0, 10, ALWAYS), (12, 20, ALWAYS)), batch([5, 15]), TICK_MIN)
    assert lane.resolved(0) == 10
    assert lane.resolved(10) == 10
    assert lane.resolved(12) == 20
    lane.istream.accumulate(((10, 12, ALWAYS),), None, TICK_MIN)
    assert lane.resolved(0) == 20


def test_nothing_beyond_the_doubt_horizon_is_delivered() -> None:
    """Clause 8.1."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    lossy(hand)
    hand.publish(1)
    hand.loses = lambda *_: False
    hand.publish(2)
    assert hand.got("alice") == []
    hand.wait(200)
    assert hand.got("alice") == [FIRST, FIRST + 1]


def test_a_gap_is_asked_for_when_it_is_as_old_as_gct() -> None:
    """Clause 8.2."""
    one = clock(gap_curiosity_ms=200)
    assert one.update(GAP, EMPTY, now_ms=0) == EMPTY
    assert one.deadline_ms() == 200
    assert one.update(GAP, EMPTY, now_ms=199) == EMPTY
    assert one.update(GAP, EMPTY, now_ms=200) == GAP


def test_a_gap_that_closes_by_itself_is_never_asked_for() -> None:
    """Clause 8.2."""
    one = clock(gap_curiosity_ms=200)
    one.update(GAP, EMPTY, now_ms=0)
    assert one.update(EMPTY, EMPTY, now_ms=150) == EMPTY
    assert one.deadline_ms() is None
    # The same ticks, missing again, are a new gap.
    assert one.update(GAP, EMPTY, now_ms=300) == EMPTY


def test_urgent_ticks_are_asked_for_at_once() -> None:
    """Clause 8.3."""
    assert clock().update(EMPTY, GAP, now_ms=0) == GAP
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    hand.subscribe("bob", start=FIRST - 2_000)
    assert hand.sent(NackMessage, "s")
    assert hand.ms == 1


def test_the_repetition_interval_is_estimated_as_tcp_does_it() -> None:
    """Clause 8.4."""
    parameters = Parameters(nack_repeat_min_ms=600)
    estimate = RepeatEstimate()
    assert estimate.repeat_ms(parameters) == 600
    estimate.learn(1_000)
    assert estimate.repeat_ms(parameters) == 1_000 + 4 * 500
    estimate.learn(1_000)
    assert estimate.repeat_ms(parameters) == 1_000 + 4 * 375
    estimate.learn(1_800)
    assert estimate.repeat_ms(parameters) == int(1_100 + 4 * (375 + (800 - 375) / 4))
    for _ in range(100):
        estimate.learn(10)
    assert estimate.repeat_ms(parameters) == 600


def test_every_repetition_doubles_the_interval_up_to_a_bound() -> None:
    """Clause 8.5."""
    one = clock(nack_repeat_min_ms=600, nack_repeat_max_ms=2_000)
    asked = [ms for ms in range(0, 10_000, 100) if one.update(EMPTY, GAP, now_ms=ms)]
    assert asked == [0, 600, 1_800, 3_800, 5_800, 7_800, 9_800]


def test_repeated_questions_teach_nothing() -> None:
    """Clause 8.6."""
    one = clock()
    one.update(EMPTY, GAP, now_ms=0)
    one.update(EMPTY, GAP, now_ms=600)
    one.update(EMPTY, EMPTY, now_ms=900)
    assert one.estimate.smoothed_ms is None
    one.update(EMPTY, GAP, now_ms=1_000)
    one.update(EMPTY, EMPTY, now_ms=1_300)
    assert one.estimate.smoothed_ms == 300


def test_a_horizon_that_trails_the_clock_makes_the_edge_ask() -> None:
    """Clause 8.7."""
    hand = Hand.started(network({"delay_curiosity_ms": 400, "idle_silence_ms": 100_000}))
    hand.subscribe("alice")
    lossy(hand)
    hand.publish(1)
    hand.loses = lambda *_: False
    hand.wait(390)
    assert not hand.sent(NackMessage, "s")
    hand.wait(420)
    assert hand.sent(NackMessage, "s")
    assert hand.got("alice") == [FIRST]


def test_with_an_infinite_delay_the_edge_does_not_ask() -> None:
    """Clause 8.7."""
    hand = Hand.started(network({"delay_curiosity_ms": "infinite"}))
    hand.subscribe("alice")
    lossy(hand)
    hand.publish(1)
    hand.wait(9_000)
    assert not hand.sent(NackMessage, "s")


def test_ack_expected_does_not_wait_for_backed_off_questions() -> None:
    """Clause 8.8."""
    one = clock(nack_repeat_min_ms=600, nack_repeat_max_ms=20_000)
    for ms in range(0, 10_000, 100):
        one.update(EMPTY, GAP, now_ms=ms)
    assert one.update(EMPTY, GAP, now_ms=10_000) == EMPTY
    one.hurry(now_ms=10_000)
    assert one.update(EMPTY, GAP, now_ms=10_000) == GAP
    one.hurry(now_ms=10_100)
    assert one.update(EMPTY, GAP, now_ms=10_100) == EMPTY


def test_ack_expected_brings_back_the_last_event() -> None:
    """Clause 8.8."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    lossy(hand)
    hand.publish(1)
    hand.loses = lambda *_: False
    hand.wait(13_000)
    assert hand.sent(AckExpectedMessage, "b", "s")
    assert hand.got("alice") == [FIRST]


def test_a_merge_asks_the_pubend_that_holds_it_back() -> None:
    """Clause 8.9."""
    places = {name: {"topic": "trades", "broker": "p"} for name in ("lse", "nyse")}
    hand = Hand.started(network({"idle_silence_ms": 100_000}, pubends=places))
    hand.subscribe("alice", order=Order.TOTAL)
    hand.subscribe("bob")
    hand.wait(10)
    hand.publish(1, pubend="lse")
    assert hand.events("alice") == []
    assert hand.events("bob") == [("lse", FIRST + 10_000)]
    hand.wait(200)
    assert {nack.pubend for nack in hand.sent(NackMessage, "s")} == {"nyse"}
    assert hand.events("alice") == [("lse", FIRST + 10_000)]
