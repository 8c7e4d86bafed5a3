"""How far subscribers are behind: measured to the last event, whatever time has passed since."""

import pytest

from gapless.model.ids import PubendId
from gapless.model.ticks import TICKS_PER_MS
from gapless.protocol.figures import Behind, behind, stream_figures
from tests.spec.hand import Hand, network

PUBEND = PubendId("nyse")
TWENTY_MINUTES_MS = 20 * 60 * 1_000


def position(hand: Hand, broker: str) -> int:
    [figures] = stream_figures(hand.brokers[broker])
    assert figures.horizon is not None
    return figures.horizon


@pytest.mark.parametrize("events", [0, 3])
def test_a_subscriber_with_the_last_event_has_no_lag_on_a_quiet_topic(events: int) -> None:
    hand = Hand.started(network())
    hand.subscribe("alice")
    for price in range(events):
        hand.publish(price)
    at = position(hand, "s")
    hand.wait(TWENTY_MINUTES_MS)
    assert len(hand.got("alice")) == events
    # Also by an old position, such as that of a subscription whose client is away.
    for broker in ("p", "s"):
        assert behind(hand.brokers[broker], PUBEND, at) == Behind(0, 0)
        assert behind(hand.brokers["s"], PUBEND, position(hand, "s")) == Behind(0, 0)


def test_events_that_a_position_lacks_are_counted() -> None:
    hand = Hand.started(network())
    hand.stalled.add("alice")
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(10)
    [(_, first)] = hand.events("alice")
    hand.publish(2)
    hand.wait(10)
    last = hand.events("alice")[-1][1]
    assert behind(hand.brokers["s"], PUBEND, first) == Behind(last + 1 - first, 2)
    assert behind(hand.brokers["s"], PUBEND, first + 1) == Behind(last - first, 1)
    assert last - first >= 10 * TICKS_PER_MS


def test_lag_begins_with_the_log() -> None:
    """A subscription from the earliest event on, whose client left at once, stands at tick 0: 1970."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.wait(10)
    began = hand.clock + hand.ms * TICKS_PER_MS
    hand.log_ids[PUBEND] = ("first", began)
    hand.crash("p")
    hand.start("p")
    hand.link_up("p", "b")
    hand.publish(1)
    hand.wait(10)
    for broker in ("p", "s"):
        assert 0 < behind(hand.brokers[broker], PUBEND, 0).ticks <= 1_000 * TICKS_PER_MS


def test_ticks_that_are_missing_may_be_events() -> None:
    hand = Hand.started(network())
    hand.subscribe("alice")
    hand.publish(1)
    hand.wait(10)
    at = position(hand, "s")
    hand.loses = lambda _sender, _to, _message: True
    hand.publish(2)
    hand.loses = lambda _sender, _to, _message: False
    hand.publish(3)
    found = behind(hand.brokers["s"], PUBEND, at)
    assert found.ticks > 0
    assert found.events is None
