"""The paper's experiments from the command line: measures, tables, pictures, and what they claim."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from gapless.cli.main import app
from gapless.cli.sim.scenario import SCENARIOS, overridden, table
from gapless.demo import simulated as sim_demo
from gapless.figures.failures import draw
from gapless.figures.measures import as_json, consolidation, is_good, rows
from gapless.sim import paper
from gapless.sim.checkers import Violation
from gapless.sim.paper import EXPERIMENTS, PAPER_PARAMETERS, Latency, Nack, PaperResult
from gapless.sim.world import SECOND_US

PNG = b"\x89PNG\r\n\x1a\n"


def latency(pubend: str, sent_s: float, latency_s: float) -> Latency:
    return Latency(pubend=pubend, sent_s=sent_s, latency_s=latency_s)


def nack(time_s: float, start: int, stop: int) -> Nack:
    return Nack(time_s=time_s, to="b2", pubend="lse", start=start, stop=stop)


#: Small enough to count by hand: of four messages, the third took its time.
RESULT = PaperResult(
    name="b1-crash",
    violation=None,
    stalled_s=5.5,
    failed_s=8.0,
    repaired_s=9.0,
    latencies={
        edge: [
            latency("lse", 3.0, 0.005),
            latency("tse", 3.0, 0.007),
            latency("lse", 6.0, 2.5),
            latency("lse", 9.5, 0.006),
        ]
        for edge in ("s1", "s2")
    },
    nacks={
        "s1": [nack(8.2, 0, 500_000), nack(8.21, 500_000, 1_000_000)],
        "s2": [nack(8.2, 0, 1_000_000)],
        "b2": [nack(8.3, 0, 1_000_000)],
    },
    pubends_of_b1=["lse"],
    published=4,
    lost=0,
    duplicated=0,
    trace=(),
)


# ---- measures ----------------------------------------------------------------------------------------


def test_every_experiment_is_a_scenario() -> None:
    assert list(SCENARIOS) == list(EXPERIMENTS)


def test_the_table_has_what_the_paper_speaks_of() -> None:
    measured = {row.what: row.measured for row in rows(RESULT)}
    assert measured["worst latency at s1"] == "2.50 s"
    assert measured["nack range of s1"] == "1,000 ms in 2 nacks"
    assert measured["nack range of b2"] == "1,000 ms in 1 nacks"
    assert measured["b2 / (s1 + s2)"] == "0.50"
    assert measured["first nack"] == "2.70 s after the stall"
    assert (measured["messages lost"], measured["messages duplicated"]) == ("0", "0")
    assert "nack range of b1" not in measured


def test_a_run_without_nacks_has_no_consolidation_ratio() -> None:
    quiet = replace(RESULT, nacks={})
    assert consolidation(quiet, "b2") is None
    measured = {row.what: row.measured for row in rows(quiet)}
    assert (measured["nack range of s1"], measured["b2 / (s1 + s2)"]) == ("no nacks", "nobody asked")


def test_a_lost_message_or_a_violation_is_not_good() -> None:
    assert is_good(RESULT)
    assert not is_good(replace(RESULT, lost=1))
    assert not is_good(replace(RESULT, violation=Violation("order", "taken after 9", subject="s1")))


def test_parameters_are_changed_by_name() -> None:
    assert overridden([]) == dict(PAPER_PARAMETERS)
    changed = overridden(["gap_curiosity_ms=100", "delay_curiosity_ms=infinite"])
    assert changed == {**PAPER_PARAMETERS, "gap_curiosity_ms": 100}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_experiment_has_a_picture(name: str, tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    draw(replace(RESULT, name=name), path)
    assert path.read_bytes().startswith(PNG)


def test_the_numbers_are_json() -> None:
    numbers = json.loads(json.dumps(as_json(RESULT)))
    assert numbers["worst_latency_ms"] == {"s1": 2500.0, "s2": 2500.0}
    assert numbers["nack_range_ms"] == {"b2": 1000.0, "s1": 1000.0, "s2": 1000.0}
    assert numbers["b2_share"] == 0.5


def test_an_account_counts_what_a_subscriber_took() -> None:
    early, tse, late, after = RESULT.latencies["s1"]
    shuffled = replace(RESULT, latencies={"s1": [late, early, tse, tse]})
    account = sim_demo.account_of(shuffled, "s1")
    assert (account.lost, account.duplicated, account.out_of_order) == (1, 1, 1)
    good = sim_demo.account_of(RESULT, "s1")
    assert (good.delivered, good.lost, good.duplicated, good.out_of_order) == (4, 0, 0, 0)
    assert (good.before_s, good.during_s, good.after_s) == (0.007, 2.5, after.latency_s)


def test_the_table_fits_a_terminal() -> None:
    console = Console(width=80, file=StringIO())
    with console.capture() as captured:
        console.print(table(RESULT))
    lines = captured.get().splitlines()
    assert max(len(line) for line in lines) <= 80
    # Every row stays on one line, below the title and its rule.
    assert sum(bool(line.strip()) for line in lines) == 2 + len(rows(RESULT))


# ---- the experiments themselves ----------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish for a second after the repair, which is enough to see everything delivered."""
    monkeypatch.setattr(paper, "AFTERMATH_US", 3 * SECOND_US)


def experiment(name: str, folder: Path, *options: str) -> tuple[Result, dict[str, object]]:
    result = CliRunner().invoke(app, ["sim", "--scenario", name, "--out", str(folder), "--json", *options])
    return result, json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_failed_link_delays_only_who_is_behind_it(tmp_path: Path) -> None:
    result, numbers = experiment("b1-s1-link", tmp_path, "--outage", "0.5")
    assert result.exit_code == 0
    assert (numbers["lost"], numbers["duplicated"]) == (0, 0)
    worst_ms = numbers["worst_latency_ms"]
    assert isinstance(worst_ms, dict)
    assert 2_000 < worst_ms["s1"] < 3_500
    assert worst_ms["s2"] < 100
    assert (tmp_path / "b1-s1-link.png").read_bytes().startswith(PNG)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_questions_of_two_edges_become_one(tmp_path: Path) -> None:
    result, numbers = experiment("b1-crash", tmp_path, "--outage", "0.5")
    assert result.exit_code == 0
    assert (numbers["lost"], numbers["duplicated"]) == (0, 0)
    share = numbers["b2_share"]
    assert isinstance(share, float)
    assert 0.4 < share < 0.6
    assert (tmp_path / "b1-crash.png").read_bytes().startswith(PNG)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_publishing_broker_that_returns_delivers_what_it_had_logged(tmp_path: Path) -> None:
    folder, trace = tmp_path / "new" / "folder", tmp_path / "trace"
    arguments = ["--scenario", "p1-crash", "--outage", "12", "--out", str(folder), "--trace", str(trace)]
    result = CliRunner().invoke(app, ["sim", *arguments])
    assert result.exit_code == 0, result.stdout
    assert ["messages", "lost", "0"] in [line.split()[:3] for line in result.stdout.splitlines()]
    assert "after the repair" in result.stdout
    assert (folder / "p1-crash.png").read_bytes().startswith(PNG)
    assert "ack-expected" in trace.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_demonstration_tells_its_story_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_demo, "SEEDS", range(5, 7))
    monkeypatch.setattr(sim_demo, "OUTAGE_S", 0.5)
    result = CliRunner().invoke(app, ["sim", "--demo", "--jobs", "1"])
    assert result.exit_code == 0, result.stdout
    told = result.stdout
    positions = [
        told.index(text)
        for text in (
            "This is the network",
            "b1 stalls",
            "b1 crashes",
            "b2 is asked twice",
            "b1 is back",
            "Delivery report",
            "Nothing lost, nothing twice, nothing out of order.",
            "2 seeds: 0 violations",
            "Try next",
        )
    ]
    assert positions == sorted(positions)
    assert "\x1b" not in told
