"""The broker hears of durable records at once, unless the last step for that log was long."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from gapless.model.ids import PubendId
from gapless.node import telling
from gapless.node.guard import Guard
from gapless.node.principals import rest_after
from gapless.node.telling import (
    HEAVY_WEIGHT,
    LONG_SECONDS,
    QUICK_SECONDS,
    STEP_BYTES_MAX,
    STEP_ROWS_MAX,
    Durable,
    DurableRecords,
)
from gapless.protocol.events import Event, RecordDurable


class _Clock:
    """Each step takes as long as is said for its log."""

    def __init__(self, **took_s: float) -> None:
        self.now = 0.0
        #: How much of that somebody else had the processor, and how much more with each step.
        self.elsewhere_s = self.waits_s = 0.0
        self.took_s = took_s
        self.fed: list[str] = []
        self.is_told = False

    def feed(self, event: Event) -> None:
        assert isinstance(event, RecordDurable)
        self.now += self.took_s[event.pubend] + self.waits_s
        self.elsewhere_s += self.waits_s
        self.fed.append(f"{event.pubend}{event.token}")

    def told(self) -> None:
        self.is_told = True

    def made(self) -> DurableRecords:
        def stop(mistake: BaseException) -> None:
            raise mistake

        return DurableRecords(self.feed, self.told, Guard(stop))


def durable(*tokens: int) -> list[Durable]:
    """Records that are worth a step each."""
    return [Durable(token, 1, STEP_BYTES_MAX) for token in tokens]


def run_with(clock: _Clock, story: object) -> None:
    times = {"perf_counter": lambda: clock.now, "thread_time": lambda: clock.now - clock.elsewhere_s}
    with mock.patch.multiple(telling, **times):
        asyncio.run(story)  # type: ignore[arg-type]


def test_logs_with_long_steps_are_told_of_one_piece_a_turn_each_in_its_turn() -> None:
    clock = _Clock(a=QUICK_SECONDS * 5, b=QUICK_SECONDS * 5)

    async def story() -> None:
        made = clock.made()
        made.add(PubendId("a"), durable(1, 2, 3))
        made.add(PubendId("b"), durable(1, 2))
        assert clock.fed == ["a1"]
        for expected in ("b1", "a2", "b2", "a3"):
            assert not clock.is_told
            await asyncio.sleep(0)
            assert clock.fed[-1] == expected
        assert made.is_done
        assert clock.is_told

    run_with(clock, story())


def test_a_log_with_short_steps_does_not_wait_for_those_with_long_ones() -> None:
    clock = _Clock(a=QUICK_SECONDS * 5, b=0.0)

    async def story() -> None:
        made = clock.made()
        made.add(PubendId("a"), durable(1))
        await asyncio.sleep(0)
        made.add(PubendId("a"), durable(2, 3))
        made.add(PubendId("b"), durable(1))
        assert clock.fed == ["a1", "b1"]
        await asyncio.sleep(0)
        assert clock.fed == ["a1", "b1", "a2"]

    run_with(clock, story())


def test_many_short_steps_do_not_make_a_long_turn() -> None:
    clock = _Clock(**{f"p{at}": QUICK_SECONDS for at in range(100)})

    async def story() -> None:
        made = clock.made()
        for at in range(100):
            made.add(PubendId(f"p{at}"), durable(1))
        assert len(clock.fed) == pytest.approx(telling.AT_ONCE_SECONDS / QUICK_SECONDS)
        while not made.is_done:  # noqa: ASYNC110  # a turn each
            await asyncio.sleep(0)
        assert len(clock.fed) == len(set(clock.fed)) == 100

    run_with(clock, story())


def test_logs_with_short_steps_that_had_to_wait_go_before_those_with_long_ones() -> None:
    clock = _Clock(a=QUICK_SECONDS * 5, b=QUICK_SECONDS * 5, c=telling.AT_ONCE_SECONDS, d=0.0)

    async def story() -> None:
        made = clock.made()
        for name in "ab":
            made.add(PubendId(name), durable(1))
            await asyncio.sleep(0)
        made.add(PubendId("a"), durable(2))
        made.add(PubendId("b"), durable(2))
        made.add(PubendId("c"), durable(1))
        made.add(PubendId("d"), durable(1))
        assert clock.fed == ["a1", "b1", "c1"], "the turn has no time left for another one"
        await asyncio.sleep(0)
        assert clock.fed[3:] == ["d1", "a2"]

    run_with(clock, story())


def test_a_log_is_not_slow_because_the_machine_was_busy_elsewhere() -> None:
    clock = _Clock(a=0.0, b=QUICK_SECONDS * 5)
    clock.waits_s = LONG_SECONDS

    async def story() -> None:
        made = clock.made()
        made.add(PubendId("b"), durable(1, 2, 3))
        for token in (1, 2, 3):
            made.add(PubendId("a"), durable(token))
            await asyncio.sleep(0)
        assert [each for each in clock.fed if each[0] == "a"] == ["a1", "a2", "a3"]

    run_with(clock, story())


def test_pieces_of_one_log_are_told_in_order() -> None:
    clock = _Clock(a=0.0)

    async def story() -> None:
        made = clock.made()
        made.add(PubendId("a"), durable(1, 2))
        made.add(PubendId("a"), durable(3))
        while not made.is_done:  # noqa: ASYNC110  # a turn each
            await asyncio.sleep(0)
        assert clock.fed == ["a1", "a2", "a3"]

    run_with(clock, story())


def test_what_becomes_durable_meanwhile_goes_along() -> None:
    clock = _Clock(a=QUICK_SECONDS * 2)

    async def story() -> None:
        made = clock.made()
        for token in range(1, 10):
            made.add(PubendId("a"), [Durable(token, 1, 10)])
        await asyncio.sleep(0)
        assert clock.fed == ["a1", "a9"]

    run_with(clock, story())


def test_a_log_whose_steps_are_long_is_told_of_fewer_rows_at_a_time() -> None:
    clock = _Clock(a=LONG_SECONDS * 2)

    async def story() -> None:
        made = clock.made()
        made.add(PubendId("a"), [Durable(1, STEP_ROWS_MAX, 0)])
        made.add(PubendId("a"), [Durable(token, STEP_ROWS_MAX // 8, 0) for token in range(2, 8)])
        for _ in range(2):
            await asyncio.sleep(0)
        assert clock.fed == ["a1", "a5", "a7"], "half of what was told, then half of that"
        clock.took_s["a"] = QUICK_SECONDS * 2
        made.add(PubendId("a"), [Durable(token, STEP_ROWS_MAX // 8, 0) for token in range(8, 20)])
        while not made.is_done:  # noqa: ASYNC110  # a turn each
            await asyncio.sleep(0)
        assert clock.fed[3:] == ["a8", "a10", "a14", "a19"], "and of more again"

    run_with(clock, story())


def test_steps_are_shorter_while_another_log_is_active() -> None:
    clock = _Clock(a=telling.SHARED_LONG_SECONDS * 2, b=0.0)
    assert telling.SHARED_LONG_SECONDS * 2 < LONG_SECONDS

    async def told_of(others: bool) -> int:
        """How many records a step reports after one that took longer than a shared step may."""
        clock.fed.clear()
        made = clock.made()
        if others:
            made.add(PubendId("b"), durable(1))
        made.add(PubendId("a"), [Durable(1, STEP_ROWS_MAX, 0)])
        made.add(PubendId("a"), [Durable(token, STEP_ROWS_MAX // 8, 0) for token in range(2, 10)])
        await asyncio.sleep(0)
        return int(clock.fed[-1][1:]) - 1

    async def story() -> None:
        assert [await told_of(others=False), await told_of(others=True)] == [8, 4]

    run_with(clock, story())


def test_a_log_rests_after_a_large_document_while_others_are_active() -> None:
    clock = _Clock(a=LONG_SECONDS, b=0.0)

    def documents(*tokens: int) -> list[Durable]:
        return [Durable(token, HEAVY_WEIGHT, STEP_BYTES_MAX, HEAVY_WEIGHT) for token in tokens]

    async def story() -> None:
        made = clock.made()
        made.add(PubendId("a"), documents(1, 2))
        await asyncio.sleep(0)
        assert clock.fed == ["a1", "a2"], "nobody else is there"
        await asyncio.sleep(0)
        made.add(PubendId("b"), durable(1))
        made.add(PubendId("a"), documents(3, 4))
        for _ in range(3):
            await asyncio.sleep(0)
        assert clock.fed[2:] == ["b1", "a3"]
        for token in (2, 3):
            made.add(PubendId("b"), durable(token))
            for _ in range(3):
                await asyncio.sleep(0)
        assert clock.fed[4:] == ["b2", "b3"], "only the other log is served"
        clock.now += rest_after(LONG_SECONDS) - LONG_SECONDS / 2
        for _ in range(3):
            await asyncio.sleep(0)
        assert clock.fed[6:] == [], "for longer than the document took"
        clock.now += LONG_SECONDS
        while not made.is_done:  # noqa: ASYNC110  # a turn each
            await asyncio.sleep(0)
        assert clock.fed[6:] == ["a4"]

    run_with(clock, story())
