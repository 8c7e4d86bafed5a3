"""The paper's three failures: everything arrives once, and only those on the failed path notice."""

import pytest

from gapless.sim.paper import EXPERIMENTS, PaperResult, run_paper

EDGES = ("s1", "s2", "s3", "s4", "s5")


# Shorter versions of all three are in tests/unit/cli/test_sim_scenario.py.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=sorted(EXPERIMENTS))
def result(request: pytest.FixtureRequest) -> PaperResult:
    return run_paper(request.param)


def worst_s(result: PaperResult, edge: str) -> float:
    return max(each.latency_s for each in result.latencies[edge])


def test_nothing_is_lost_and_nothing_comes_twice(result: PaperResult) -> None:
    assert result.violation is None
    assert (result.lost, result.duplicated) == (0, 0)
    # What is on its way to the disk when p1 crashes is never published: at most one event of each pubend.
    assert all(len(result.latencies[edge]) >= 996 for edge in EDGES)


def test_two_of_four_pubends_flow_through_b1(result: PaperResult) -> None:
    assert len(result.pubends_of_b1) == 2


def test_who_is_not_on_the_failed_path_notices_nothing(result: PaperResult) -> None:
    failed = {"b1-s1-link": ("s1",), "b1-crash": ("s1", "s2"), "p1-crash": EDGES}[result.name]
    for edge in EDGES:
        if edge in failed:
            assert worst_s(result, edge) > 2.0, edge
        else:
            assert worst_s(result, edge) < 0.1, edge


def test_who_noticed_asked_for_what_was_lost(result: PaperResult) -> None:
    failed = {"b1-s1-link": ("s1",), "b1-crash": ("s1", "s2"), "p1-crash": EDGES}[result.name]
    for edge in failed:
        asked_ms = sum(nack.range_ms for nack in result.nacks[edge])
        assert asked_ms > 2_000, edge
