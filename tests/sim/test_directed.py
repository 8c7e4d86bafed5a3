"""Directed faults hit what they are aimed at, and the protocol stands them."""

from __future__ import annotations

import pytest

from gapless.sim import directed
from gapless.sim.directed import DIRECTED
from gapless.sim.run import run, story

#: The first is a small network, the second a large one.
SEEDS = [2_001, pytest.param(2_000, marks=pytest.mark.long)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", DIRECTED)
def test_every_kind_strikes_and_is_survived(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directed, "drawn_kind", lambda _: kind)
    result = run(seed, brokers_max=6)
    assert result.ok, f"{result}\n{story(result)}"
    assert result.faults[kind]
