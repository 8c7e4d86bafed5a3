"""Does a node notice that its clock leaps, and believe no leap that cannot be?"""

from __future__ import annotations

import logging
import re

import pytest

from gapless.errors import UsageError
from gapless.model.epochs import CLOCK_LIVES_MAX, clock_at
from gapless.model.ids import PubendId
from gapless.node.clock import WallClock, check_ahead, least_incarnation
from gapless.protocol.parameters import Parameters

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
DAY_MS = 86_400_000
START = 1_700_000_000 * SECOND


class Hands:
    """Two clocks that a test moves, in ticks."""

    def __init__(self) -> None:
        self.wall = START
        self.monotonic = 500
        self.clock = WallClock(DAY_MS, lambda: self.wall * 1_000, lambda: self.monotonic * 1_000)

    def passes(self, ticks: int) -> None:
        """Both go on."""
        self.wall += ticks
        self.monotonic += ticks


def test_a_clock_that_goes_on_is_passed_on_as_it_is() -> None:
    hands = Hands()
    for _ in range(5):
        hands.passes(7 * SECOND)
        assert hands.clock.now() == hands.wall
    # So it is when somebody sets it a little, or when a machine was asleep for a week.
    hands.wall -= SECOND // 2
    assert hands.clock.now() == hands.wall
    hands.passes(7 * DAY)
    assert hands.clock.now() == hands.wall
    assert (hands.clock.leaps, hands.clock.held) == (0, 0)


@pytest.mark.parametrize("leap", [2 * SECOND, HOUR, DAY, -HOUR, -30 * DAY])
def test_a_leap_is_passed_on_and_told(leap: int, caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    hands.wall += leap
    with caplog.at_level(logging.WARNING):
        assert hands.clock.now() == hands.wall
        hands.passes(SECOND)
        assert hands.clock.now() == hands.wall
    assert (hands.clock.leaps, hands.clock.last_leap, hands.clock.held) == (1, leap, 0)
    assert [record.getMessage() for record in caplog.records] == ["clock_leap"]


def test_a_leap_of_more_than_a_day_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    hands.wall += 400 * DAY
    with caplog.at_level(logging.WARNING):
        for seconds in range(5):
            assert hands.clock.now() == START + seconds * SECOND
            assert hands.clock.held == 400 * DAY
            hands.passes(SECOND)
    assert hands.clock.leaps == 1
    (record,) = caplog.records
    assert record.getMessage() == "clock_leap_held"


def test_a_clock_that_is_set_right_again_is_believed_again() -> None:
    hands = Hands()
    hands.wall += 400 * DAY
    hands.clock.now()
    hands.passes(9 * SECOND)
    hands.wall -= 400 * DAY
    assert hands.clock.now() == START + 9 * SECOND
    assert hands.clock.held == 0
    hands.passes(SECOND)
    assert hands.clock.now() == START + 10 * SECOND


def test_a_leap_that_becomes_longer_is_still_not_believed() -> None:
    hands = Hands()
    for _ in range(3):
        hands.wall += 2 * DAY
        assert hands.clock.now() == START
    assert (hands.clock.leaps, hands.clock.held) == (3, 6 * DAY)


def test_a_log_far_ahead_of_the_clock_is_refused_and_names_the_clock() -> None:
    floors = {PubendId("one"): START, PubendId("two"): START + DAY}
    check_ahead(floors, START, DAY_MS)
    with pytest.raises(
        UsageError, match=r"'two' ends 3\.0 days after the clock .* 2023-11-12 22:13 UTC"
    ) as refused:
        check_ahead(floors, START - 2 * DAY, DAY_MS)
    assert refused.value.code == "E117"


def test_the_way_out_of_a_log_far_ahead_is_one() -> None:
    floors = {PubendId("one"): START + 36 * DAY}
    with pytest.raises(UsageError, match=r"ticks_ahead_ms = \d+ .* until 2024-01-25") as refused:
        check_ahead(floors, START, DAY_MS)
    said = re.search(r"ticks_ahead_ms = (\d+)", str(refused.value))
    assert said is not None
    parameters = Parameters.parse({"ticks_ahead_ms": int(said[1])})
    check_ahead(floors, START, parameters.ticks_ahead_ms)
    # No parameter allows a century.
    with pytest.raises(UsageError, match="start with an empty folder"):
        check_ahead({PubendId("one"): START + 36_500 * DAY}, START, DAY_MS)


def test_a_clock_that_cannot_be_right_gives_no_life() -> None:
    last = clock_at(CLOCK_LIVES_MAX)
    assert least_incarnation(last) == CLOCK_LIVES_MAX
    assert least_incarnation(0) < 0
    for clock in (clock_at(CLOCK_LIVES_MAX + 1), 2**62):
        with pytest.raises(UsageError, match=r"the clock of this machine says .*: set it right") as refused:
            least_incarnation(clock)
        assert refused.value.code == "E119"
