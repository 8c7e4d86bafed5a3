"""A short run of the chaos suite, as a program of its own; `make chaos` plays a long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Generous: the run itself takes less than a minute on an idle machine.
PATIENCE_SECONDS = 600


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.slow
@pytest.mark.parametrize("faults", [3, pytest.param(12, marks=pytest.mark.long)])
def test_real_processes_that_are_killed_frozen_and_cut_off_lose_nothing(faults: int, tmp_path: Path) -> None:
    plot = ("--plot", str(tmp_path / "recovery.svg"))
    done = chaos("--seed", "11", "--faults", str(faults), "--json", *plot)
    assert done.returncode == 0, done.stderr[-4_000:]
    told = json.loads(done.stdout)
    assert told["violations"] == []
    assert told["faults_total"] == faults
    assert told["published"] == told["accepted"] + told["refused"]
    assert told["delivered"] > told["published"] > 100
    assert (told["lost"], told["duplicated"], told["out_of_order"]) == (0, 0, 0)
    assert (tmp_path / "recovery.svg").stat().st_size > 1_000


def test_what_makes_no_sense_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for arguments in (["--faults", "0"], ["--seed", "-1"], ["--keep", str(tmp_path)], ["--odds", "3"]):
        done = chaos(*arguments)
        assert done.returncode == 2, done
        assert "error: " in done.stderr
