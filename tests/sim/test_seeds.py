"""Whole networks under faults keep every promise, and a seed always tells the same story."""

import subprocess
import sys

import pytest

from gapless.sim.run import run, story

#: Enough to notice a broken protocol; `gapless sim` runs as many as you have time for.
SEEDS = range(1_000, 1_025)

_REPLAY = "from gapless.sim.run import run; r = run({seed}); print(r.fingerprint, r.steps, r.delivered)"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    result = run(seed, brokers_max=40)
    assert result.ok, f"{result}\n{story(result)}"


@pytest.mark.parametrize("hash_seed", ["1", "2"])
@pytest.mark.parametrize("seed", [1_003, 0x1E84E7])
def test_a_seed_tells_the_same_story_in_every_process(seed: int, hash_seed: str) -> None:
    here = run(seed)
    there = subprocess.run(
        [sys.executable, "-c", _REPLAY.format(seed=seed)],
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == [str(here.fingerprint), str(here.steps), str(here.delivered)]


def test_two_seeds_tell_two_stories() -> None:
    assert run(1_003).fingerprint != run(1_004).fingerprint


@pytest.mark.parametrize("seed", range(1_030, 1_041))
def test_every_promise_is_kept_when_events_are_merged_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless.protocol.subend._MERGED_BYTES_MAX", 1)
    result = run(seed, brokers_max=40)
    assert result.ok, f"{result}\n{story(result)}"
