"""Catenation numbers: what is stored already, what is on its way, and what has to come first."""

from gapless.model.ids import PubendId
from gapless.node.publishers import Publishers


def test_what_is_on_its_way_or_stored_is_known() -> None:
    publishers = Publishers(PubendId("p"))
    assert publishers.fresh("me", 0, 10) == 0
    publishers.accept("me", 9)
    assert publishers.fresh("me", 0, 10) == 10
    assert publishers.fresh("me", 5, 10) == 5
    assert publishers.durable("me") == -1
    publishers.stored("me", 9, 1_000)
    assert publishers.durable("me") == 9
    assert publishers.positions()[0].catenation == 9
    assert publishers.known_tick == 1_000


def test_nothing_passes_events_that_were_refused_for_the_time_being() -> None:
    publishers = Publishers(PubendId("p"))
    publishers.accept("me", 9)
    publishers.failed("me", 0)
    assert publishers.awaited("me", 10) == 0
    assert publishers.awaited("me", 0) is None
    publishers.accept("me", 9)
    assert publishers.awaited("me", 10) is None


def test_what_a_publisher_has_given_up_is_not_waited_for() -> None:
    publishers = Publishers(PubendId("p"))
    publishers.accept("me", 9)
    publishers.failed("me", 4)
    publishers.given_up("me", 3)
    assert publishers.awaited("me", 7) == 4
    publishers.given_up("me", 6)
    assert publishers.awaited("me", 7) is None
    assert publishers.fresh("me", 7, 2) == 0
    publishers.given_up("somebody else", 6)
