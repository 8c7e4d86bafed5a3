"""A simulated link keeps the order of its messages, unless the weather says otherwise."""

from collections import Counter
from random import Random

from gapless.model.ids import BrokerId
from gapless.sim.network import SimulatedLink, Weather, ends

A, B = BrokerId("a"), BrokerId("b")


def arrivals(weather: Weather, count: int) -> tuple[list[int], Counter[str]]:
    link, random, counts = SimulatedLink(ends(B, A)), Random(7), Counter[str]()
    link.connect()
    return [at for now in range(count) for at in link.arrivals(B, now, weather, random, counts)], counts


def test_in_good_weather_everything_arrives_once_and_in_order() -> None:
    times, counts = arrivals(Weather(), 200)
    assert len(times) == 200
    assert times == sorted(times)
    assert not counts


def test_bad_weather_is_counted_by_its_name() -> None:
    times, counts = arrivals(Weather(loss=0.2, duplication=0.2, reordering=0.2), 200)
    assert len(times) == 200 - counts["loss"] + counts["duplication"]
    assert times != sorted(times)
    assert min(counts[kind] for kind in ("loss", "duplication", "reordering")) > 10


def test_a_lost_connection_takes_what_it_held_with_it() -> None:
    link = SimulatedLink(ends(A, B))
    link.connect()
    generation = link.generation
    link.stalled = True
    link.disconnect()
    assert (link.stalled, link.held) == (False, [])
    assert link.generation != generation
