"""No seed that ever failed fails again."""

from pathlib import Path

import pytest

from gapless.sim.run import run, story

SEEDS = Path(__file__).parent / "seeds.txt"


def regressions() -> list[tuple[int, str]]:
    """The seeds with their causes."""
    found = []
    for line in SEEDS.read_text(encoding="utf-8").splitlines():
        seed, _, cause = line.partition("#")
        if seed.strip():
            found.append((int(seed, 0), cause.strip()))
    return found


@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(True, id="plain conditions", marks=pytest.mark.long),
        pytest.param(False, id="all conditions"),
    ],
)
@pytest.mark.parametrize(("seed", "cause"), regressions())
def test_a_seed_that_failed_once_passes(seed: int, cause: str, plain: bool) -> None:
    result = run(seed, plain=plain)
    assert result.ok, f"once: {cause}\nnow: {result}\n{story(result)}"


def test_every_regression_names_its_cause() -> None:
    assert all(cause for _, cause in regressions())
