"""`gapless sim` as a person or a program meets it: lines, summaries, replays, refusals and exit codes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapless.cli.exits import EXIT_INTERRUPTED
from gapless.cli.main import app, main
from gapless.cli.sim import seeds as sim_seeds
from gapless.cli.sim.command import EXIT_BROKEN, _seeds_code
from gapless.cli.sim.report import FAULT_MEANINGS
from gapless.cli.sim.seeds import SeedOutcome, Tally, outcomes, simulate
from gapless.protocol.broker import Broker
from gapless.protocol.effects import Deliver, Effect
from gapless.protocol.events import Event, Now
from gapless.protocol.marks import MARKS
from gapless.sim import world
from gapless.sim.faults import KINDS


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def gapless(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line with its entry point, which turns an error into a line."""

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["gapless", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Answer(exit_.value.code, captured.out, captured.err)

    return run


class Forgetful(Broker):
    """Forgets every third delivery."""

    def step(self, event: Event, now: Now) -> list[Effect]:
        effects = super().step(event, now)
        return [each for each in effects if not (isinstance(each, Deliver) and each.serial % 3 == 2)]


# ---- many seeds --------------------------------------------------------------------------------------


def test_every_run_has_a_line_and_all_have_a_summary() -> None:
    result = CliRunner().invoke(app, ["sim", "--seeds", "2", "--first", "5", "--jobs", "1"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["seed", "0x0005", "ok"], ["seed", "0x0006", "ok"]]
    assert "2 seeds: 0 violations" in result.stdout
    # Every kind of fault and every branch is listed by name, reached or not.
    assert all(name in result.stdout for name in (*KINDS, *MARKS))


def test_quiet_leaves_out_what_went_well() -> None:
    result = CliRunner().invoke(app, ["sim", "--seeds", "1", "--first", "6", "--quiet"])
    assert result.exit_code == 0
    assert "seed 0x0006" not in result.stdout
    assert "1 seeds: 0 violations" in result.stdout


def test_json_is_one_object_per_run_and_a_summary() -> None:
    result = CliRunner().invoke(app, ["sim", "--seeds", "2", "--first", "5", "--jobs", "1", "--json"])
    *runs, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert [(run["kind"], run["seed"], run["ok"], run["violation"]) for run in runs] == [
        ("run", 5, True, None),
        ("run", 6, True, None),
    ]
    assert (summary["kind"], summary["runs"], summary["violations"]) == ("summary", 2, 0)
    assert summary["delivered"] == sum(run["delivered"] for run in runs)
    assert set(summary["faults"]) == set(KINDS)
    assert set(summary["marks"]) == set(MARKS)
    missing = [kind for kind in KINDS if not any(run["faults"].get(kind) for run in runs)]
    assert summary["faults_never_injected"] == missing


def test_processes_give_the_same_outcomes_in_the_same_order() -> None:
    seeds, finished = range(5, 7), Counter[str]()
    there = list(outcomes(seeds, 2, lambda: finished.update(["run"])))
    assert there == [simulate(seed) for seed in seeds]
    assert finished == {"run": len(seeds)}


def test_what_was_never_reached_fails_only_on_request() -> None:
    few = ["sim", "--seeds", "1", "--first", "6", "--json"]
    assert CliRunner().invoke(app, few).exit_code == 0
    assert CliRunner().invoke(app, [*few, "--require-all"]).exit_code == EXIT_BROKEN


def test_a_single_mark_or_fault_that_was_never_reached_is_enough_to_fail() -> None:
    complete = {"faults": Counter(KINDS), "marks": Counter(list(MARKS))}
    assert _seeds_code(Tally(runs=1, **complete), interrupted=False, require_all=True) == 0
    for part, counts in complete.items():
        for name in counts:
            lacking = Tally(runs=1, **(complete | {part: counts - Counter({name: 1})}))
            assert _seeds_code(lacking, interrupted=False, require_all=True) == EXIT_BROKEN, name
            assert _seeds_code(lacking, interrupted=False, require_all=False) == 0


def test_a_broken_promise_prints_its_story_and_how_to_see_it_again(
    gapless: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "Broker", Forgetful)
    answer = gapless("sim", "--seeds", "1", "--first", "9", "--jobs", "1")
    assert answer.code == EXIT_BROKEN
    assert "seed 0x0009  FAILED" in answer.out
    assert "violation: " in answer.out
    assert "the story of " in answer.out
    assert "  append " in answer.out or " deliver " in answer.out
    assert "gapless sim --seed 0x9" in answer.out
    assert "1 seeds: 1 violation;" in answer.out
    assert answer.err == ""


def test_json_output_reports_a_broken_promise(gapless: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "Broker", Forgetful)
    answer = gapless("sim", "--seed", "10", "--json")
    violation = json.loads(answer.out)["violation"]
    assert answer.code == EXIT_BROKEN
    assert violation["checker"] == "gapless"
    assert violation["story"]
    assert violation["reproduce"][0] == "gapless sim --seed 0xa"


def test_ctrl_c_ends_with_the_summary_so_far(gapless: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate_until_seven(seed: int) -> SeedOutcome:
        if seed == 7:
            raise KeyboardInterrupt
        return simulate(seed)

    monkeypatch.setattr(sim_seeds, "simulate", simulate_until_seven)
    answer = gapless("sim", "--seeds", "50", "--first", "5", "--jobs", "1")
    assert answer.code == EXIT_INTERRUPTED
    assert "2 seeds: 0 violations" in answer.out
    assert "interrupted" in answer.out
    assert answer.err == ""


def test_a_tally_knows_what_is_missing() -> None:
    tally = Tally()
    tally.add(simulate(6))
    assert tally.runs == 1
    assert {kind for kind in KINDS if tally.faults[kind]} == set(KINDS) - set(tally.faults_missing)
    assert {name for name in MARKS if tally.marks[name]} == set(MARKS) - set(tally.marks_missing)


def test_every_kind_of_fault_has_a_meaning() -> None:
    assert set(FAULT_MEANINGS) == set(KINDS)


# ---- one seed ----------------------------------------------------------------------------------------


def test_a_seed_is_replayed_exactly_and_tells_what_it_drew(gapless: Command, tmp_path: Path) -> None:
    one = gapless("sim", "--seed", "6", "--trace", str(tmp_path / "one"))
    other = gapless("sim", "--seed", "0x6", "--trace", str(tmp_path / "other"))
    assert one.code == other.code == 0
    assert one.out.replace("/one ", "/other ") == other.out
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text()
    assert all(word in one.out for word in ("cells", "pubends", "edges", "parameters", "fingerprint"))


def test_the_story_of_a_tick_can_be_asked_for(gapless: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    gapless("sim", "--seed", "6", "--trace", str(trace))
    lines = [line.split() for line in trace.read_text().splitlines() if "  accept " in line]
    # A line with many events has their number there.
    accepted = next(words for words in lines if "events" not in words and not words[3].startswith("new"))
    pubend, tick = accepted[3], accepted[6]
    answer = gapless("sim", "--seed", "6", "--story", pubend, tick)
    assert f"the story of {pubend}@{tick}" in answer.out
    assert f"data {tick}" in answer.out


# ---- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--seeds 0", "E150 --seeds takes a whole number from 1 on, got '0'"),
        ("--seeds many", "E150 --seeds takes a whole number from 1 on, got 'many'"),
        ("--seed -1", "E150 --seed takes a whole number from 0 on, got '-1'"),
        ("--jobs 0", "E150 --jobs takes a whole number from 1 to 1024, got '0'"),
        ("--scenario p1-crash --outage never", "E150 --outage takes seconds from 0.1 to 3600, got 'never'"),
        ("--seed 1 --scenario p1-crash", "E151 --seed and --scenario do not go together: choose one"),
        ("--seed 1 --quiet", "E151 --quiet goes with --seeds, not with --seed"),
        ("--parameter a=1", "E151 --parameter goes with --scenario, not with --seeds"),
        ("--demo --json", "E151 --json goes with --seeds or --seed or --scenario, not with --demo"),
        ("--scenario b2", "E152 no scenario 'b2': there are b1-s1-link, b1-crash, p1-crash"),
        ("--scenario b1-crash --parameter nrt", "E153 --parameter 'nrt' is not of the form name=value"),
        ("--seed 6 --trace no/such/file", "E154 --trace no/such/file: not a file in an existing folder"),
        (
            "--scenario b1-crash --story moon 7",
            "E155 --story: no pubend 'moon': there are hkex, lse, nyse, tse",
        ),
        (
            "--scenario b1-crash --parameter gap_curiosty_ms=1",
            "E122 unknown parameter 'gap_curiosty_ms': did you mean 'gap_curiosity_ms'?",
        ),
        (
            "--scenario b1-crash --parameter gap_curiosity_ms=soon",
            "E120 parameter 'gap_curiosity_ms' must be a whole number, got 'soon'",
        ),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    gapless: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = gapless("sim", *arguments.split())
    assert (answer.code, answer.out, answer.err) == (2, "", f"error: {message}\n")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_refused(gapless: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    answer = gapless("sim", "--scenario", "p1-crash", "--out", str(tmp_path / "file"))
    assert answer.code == 2
    assert answer.err.startswith(f"error: E154 --out {tmp_path / 'file'}: cannot make this folder")
