"""The simulator itself: a broker that does right passes, and one that does wrong is found out."""

from __future__ import annotations

import pytest

from gapless.protocol.effects import AppendRecord, Deliver, Effect
from gapless.protocol.events import Event, Now, SubscribeRequested
from gapless.protocol.network import Network
from gapless.sim import world
from gapless.sim.faults import Profile
from gapless.sim.run import RunResult, run, story
from gapless.sim.topologies import COLUMNS
from tests.sim.naive import NaiveBroker

ALONE = Network.parse(
    {
        "cells": {"C": ["n"]},
        "topics": {"t": COLUMNS},
        "pubends": {"t-1": {"topic": "t", "broker": "n"}},
        "edges": ["n"],
    }
)
TROUBLE = Profile(("disk_full", "clock_forward", "clock_backward", "slow_subscriber"), 1.0)


def simulate(broker: type[NaiveBroker], monkeypatch: pytest.MonkeyPatch, seed: int = 7) -> RunResult:
    monkeypatch.setattr(world, "Broker", broker)
    return run(seed, network=ALONE, profile=TROUBLE, plain=True)


class Repeating(NaiveBroker):
    """Hands every delivery out again, under a new serial."""

    def step(self, event: Event, now: Now) -> list[Effect]:
        effects = super().step(event, now)
        return effects + [
            self._deliver(effect.pubends[0], effect.batch, self.subscriptions)
            for effect in effects
            if isinstance(effect, Deliver)
        ]


class Hasty(NaiveBroker):
    """Delivers before the disk has flushed."""

    def step(self, event: Event, now: Now) -> list[Effect]:
        effects = super().step(event, now)
        for effect in list(effects):
            if isinstance(effect, AppendRecord):
                effects += self._durable(effect.pubend, effect.token)
        return effects


class Skipping(NaiveBroker):
    """Forgets every seventh delivery."""

    def step(self, event: Event, now: Now) -> list[Effect]:
        effects = super().step(event, now)
        return [e for e in effects if not (isinstance(e, Deliver) and e.serial % 7 == 0)]


class Failing(NaiveBroker):
    """Notices a mistake of its own."""

    def step(self, event: Event, now: Now) -> list[Effect]:
        assert not isinstance(event, SubscribeRequested), "this cannot be"
        return super().step(event, now)


def test_a_broker_that_does_right_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulate(NaiveBroker, monkeypatch)
    assert result.ok, f"{result}\n{story(result)}"
    assert result.delivered > 0
    assert result.faults


@pytest.mark.parametrize(
    ("broker", "checker"),
    [(Repeating, "exactly_once"), (Hasty, "durability"), (Skipping, "gapless"), (Failing, "invariant")],
)
def test_a_broker_that_does_wrong_is_found_out(
    broker: type[NaiveBroker], checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = simulate(broker, monkeypatch)
    assert result.violation is not None
    assert result.violation.checker == checker, str(result)
    assert story(result)
