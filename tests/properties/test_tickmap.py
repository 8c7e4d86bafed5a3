"""TickMap against a dictionary with one entry per tick."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gapless.model.tickmap import TickMap
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, TickSet
from tests.properties.strategies import DOMAIN, inside, spans

values = st.integers(0, 2)
accepting = st.sets(values)
changes: list[Callable[[int | None], int]] = [
    lambda old: 0 if old is None else old,
    lambda old: 0 if old is None else (old + 1) % 3,
    lambda old: 2,
]


def exactly(tick_set: TickSet) -> set[int]:
    return {tick for start, stop in tick_set.pairs() for tick in range(start, stop)}


class TickMapTwins(RuleBasedStateMachine):
    """The same calls on the map and on a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.map: TickMap[int] = TickMap()
        self.twin: dict[int, int] = {}

    @rule(span=spans, value=values)
    def set_range(self, span: tuple[int, int], value: int) -> None:
        self.map.set_range(*span, value)
        self.twin |= dict.fromkeys(inside(span), value)

    @rule(span=spans, change=st.sampled_from(changes))
    def update(self, span: tuple[int, int], change: Callable[[int | None], int]) -> None:
        self.map.update(*span, change)
        self.twin |= {tick: change(self.twin.get(tick)) for tick in inside(span)}

    @rule(span=spans)
    def clear(self, span: tuple[int, int]) -> None:
        self.map.clear(*span)
        for tick in inside(span):
            self.twin.pop(tick, None)

    @rule(runs_max=st.integers(0, 6))
    def drop_highest(self, runs_max: int) -> None:
        runs = list(self.map)
        if self.map.drop_highest(runs_max):
            assert len(runs) > runs_max
            kept = runs[: max(1, runs_max // 2)]
            self.twin = {tick: value for start, stop, value in kept for tick in range(start, stop)}
        else:
            assert len(runs) <= runs_max

    @rule(length=st.integers(1, 4), value=values)
    def grow_at_the_end(self, length: int, value: int) -> None:
        start = self.map.stop if self.map else 0
        self.set_range((start, min(DOMAIN, start + length)), value)

    @rule(span=spans, accepted=accepting)
    def ask_about_a_span(self, span: tuple[int, int], accepted: set[int]) -> None:
        held = {tick: self.twin[tick] for tick in inside(span) if tick in self.twin}
        runs = self.map.runs(*span)
        assert all(start < stop for start, stop, _ in runs)
        assert [(tick, value) for a, b, value in runs for tick in range(a, b)] == sorted(held.items())
        assert exactly(self.map.ticks(*span)) == held.keys()
        assert exactly(self.map.missing(*span)) == set(inside(span)) - held.keys()
        found = self.map.where(*span, accepted.__contains__)
        assert exactly(found) == {tick for tick, value in held.items() if value in accepted}

    @rule(accepted=accepting)
    def ask_how_far_values_are_accepted(self, accepted: set[int]) -> None:
        for tick in range(-1, DOMAIN + 1):
            reached = tick
            while self.twin.get(reached) in accepted:
                reached += 1
            assert self.map.reach(tick, accepted.__contains__) == reached

    @invariant()
    def both_give_the_same_for_every_tick(self) -> None:
        stop = DOMAIN + 1
        for tick in range(DOMAIN, -2, -1):
            value = self.twin.get(tick)
            if value != self.twin.get(tick + 1):
                stop = tick + 1
            assert self.map.get(tick) == value
            assert self.map.run_at(tick) == (None if value is None else (stop, value))

    @invariant()
    def the_map_is_sound(self) -> None:
        self.map.check()

    @invariant()
    def both_hold_the_same(self) -> None:
        held = {tick: value for start, stop, value in self.map for tick in range(start, stop)}
        assert held == self.twin
        assert bool(self.map) == bool(self.twin)
        if self.twin:
            assert (self.map.start, self.map.stop) == (min(self.twin), max(self.twin) + 1)

    @invariant()
    def runs_are_as_few_as_can_be(self) -> None:
        starts = [t for t in self.twin if t - 1 not in self.twin or self.twin[t - 1] != self.twin[t]]
        assert len(self.map) == len(starts)


TestTickMapTwins = TickMapTwins.TestCase
TestTickMapTwins.settings = settings(stateful_step_count=20)


def test_a_span_the_wrong_way_round_has_no_runs() -> None:
    ticks: TickMap[str] = TickMap()
    ticks.set_range(0, 10, "a")
    assert ticks.runs(5, 5) == []
    assert ticks.runs(7, 3) == []
    assert ticks.missing(7, 3) == EMPTY


def test_an_update_that_fails_halfway_changes_nothing() -> None:
    ticks: TickMap[int] = TickMap()
    ticks.set_range(0, 5, 1)
    ticks.set_range(5, 9, 0)
    with pytest.raises(ZeroDivisionError):
        ticks.update(0, 9, lambda old: 1 // (old or 0))
    assert list(ticks) == [(0, 5, 1), (5, 9, 0)]


@pytest.mark.parametrize(
    ("runs_max", "kept"), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (7, 3), (8, 4), (9, 9), (20, 9)]
)
def test_with_too_many_runs_the_highest_go_until_half_as_many_as_allowed_are_left(
    runs_max: int, kept: int
) -> None:
    ticks: TickMap[str] = TickMap()
    for start in range(0, 90, 10):
        ticks.set_range(start, start + 5, "a")
    assert ticks.drop_highest(runs_max) == (runs_max < 9)
    assert [start for start, _, _ in ticks] == list(range(0, 90, 10))[:kept]


def test_all_of_time_is_one_run() -> None:
    ticks: TickMap[str] = TickMap()
    ticks.set_range(10, 20, "b")
    ticks.update(TICK_MIN, TICK_MAX, lambda old: old or "a")
    assert list(ticks) == [(TICK_MIN, 10, "a"), (10, 20, "b"), (20, TICK_MAX, "a")]
    ticks.set_range(10, 20, "a")
    assert list(ticks) == [(TICK_MIN, TICK_MAX, "a")]


@pytest.mark.parametrize(
    ("runs", "complaint"),
    [
        ([(3, 3, "a")], "empty run"),
        ([(0, 5, "a"), (4, 6, "b")], "overlaps"),
        ([(0, 5, "a"), (5, 6, "a")], "not merged"),
    ],
)
def test_check_notices_a_broken_map(runs: list[tuple[int, int, str]], complaint: str) -> None:
    ticks: TickMap[str] = TickMap()
    ticks._starts = [start for start, _, _ in runs]
    ticks._stops = [stop for _, stop, _ in runs]
    ticks._values = [value for _, _, value in runs]
    with pytest.raises(AssertionError, match=complaint):
        ticks.check()
