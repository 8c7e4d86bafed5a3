"""Does the loop around a broker keep its timers, and stop at a mistake of our own?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from gapless.node.clock import WallClock
from gapless.node.host import Host
from gapless.protocol.effects import Effect, StartTimer
from gapless.protocol.events import Event, Now, TimerFired

Step = Callable[[Event, Now], list[Effect]]


class _Broker:
    """Does what a test says, and remembers what happened to it."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.events: list[Event] = []

    def step(self, event: Event, now: Now) -> list[Effect]:
        self.events.append(event)
        return self._step(event, now)


def _hosted(step: Step, failures: list[Exception]) -> tuple[Host, _Broker]:
    host, broker = Host(failures.append, WallClock(ticks_ahead_ms=1_000)), _Broker(step)
    nothing = cast("Any", None)
    host.run(cast("Any", broker), *[cast("Any", object())] * 3, nothing)
    return host, broker


def test_a_timer_that_was_due_already_is_put_off_like_any_other() -> None:
    # A loop gives another kind of handle for a time that has passed.
    async def story() -> None:
        failures: list[Exception] = []
        due = [-100, -50, 10**9]
        host, broker = _hosted(lambda _, now: [StartTimer(at_ms=now.ms + due.pop(0))], failures)
        for _ in range(3):
            host.feed(TimerFired())
        assert len(broker.events) == 3
        assert not failures
        host.stop()

    uvloop.run(story())


def test_a_mistake_in_a_step_stops_the_host_and_is_told() -> None:
    def mistake(event: Event, now: Now) -> list[Effect]:
        raise AttributeError("no such thing")

    async def story() -> None:
        failures: list[Exception] = []
        host, broker = _hosted(mistake, failures)
        with pytest.raises(AttributeError):
            host.feed(TimerFired())
        host.feed(TimerFired())
        assert len(broker.events) == 1
        assert [str(each) for each in failures] == ["no such thing"]

    uvloop.run(story())
