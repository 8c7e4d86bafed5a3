"""Simulated programs publish through session machines; what a broker knows of them survives its crashes."""

from __future__ import annotations

from random import Random

import pytest

from gapless.model.ids import BrokerId, PubendId
from gapless.protocol.network import Network
from gapless.sim.checkers import Checkers
from gapless.sim.faults import Profile
from gapless.sim.nodes import Pace
from gapless.sim.publishers import Program, Temper
from gapless.sim.run import plan_of, run, story
from gapless.sim.topologies import COLUMNS
from gapless.sim.world import SECOND_US, World

N, P = BrokerId("n"), PubendId("t-1")
ALONE = Network.parse(
    {
        "cells": {"C": ["n"]},
        "topics": {"t": COLUMNS},
        "pubends": {P: {"topic": "t", "broker": N}},
        "edges": ["n"],
    }
)
TROUBLE = Profile(
    ("pubend_crash", "disk_full", "connection_cut", "connection_stall", "publisher_kill", "broker_stall"), 3.0
)
STEADY = Temper(is_stable=True, principal="me", window=10, retries_max=100, stray_odds=0.0)


def world_with(temper: Temper) -> tuple[World, Checkers, Program]:
    """A broker, and a program that has published 30 events through it."""
    checkers = Checkers(plan_of(ALONE))
    world = World(ALONE, Random(7), [checkers], Pace())
    world.start(N)
    program = Program(world, world.random, "program", "me", P, temper)
    publish(program, 30)
    return world, checkers, program


def publish(program: Program, count: int) -> None:
    start = len(program.rows)
    program.publish([{"id": start + at, "group": 1, "price": None, "name": "x"} for at in range(count)])


def pass_seconds(world: World, seconds: float) -> None:
    world.run_until(world.time_us + round(seconds * SECOND_US))


def test_everything_gets_a_receipt() -> None:
    world, checkers, program = world_with(STEADY)
    pass_seconds(world, 2)
    assert (program.settled, checkers.published) == (30, 30)


@pytest.mark.parametrize("has_memory", [True, False], ids=["with a memory", "without a memory"])
def test_a_program_that_dies_goes_on_where_it_was(has_memory: bool) -> None:
    world, checkers, program = world_with(STEADY)
    for _ in range(5):
        pass_seconds(world, 0.02)
        program.kill(has_memory=has_memory)
        publish(program, 5)
    pass_seconds(world, 5)
    assert (program.settled, checkers.published) == (55, 55)


def test_a_broker_that_crashes_stores_nothing_twice() -> None:
    world, checkers, program = world_with(STEADY)
    for _ in range(5):
        pass_seconds(world, 0.3)
        world.crash(N)
        program.kill(has_memory=False)
        publish(program, 10)
        world.start(N)
    pass_seconds(world, 10)
    assert (program.settled, checkers.published) == (80, 80)


def test_a_thief_stores_nothing_under_the_identity_of_another() -> None:
    world, checkers, program = world_with(STEADY)
    pass_seconds(world, 2)
    world.crash(N)
    world.start(N)
    thief = Temper(is_stable=True, principal="thief", window=10, retries_max=100, stray_odds=0.0)
    stolen = Program(world, world.random, "thief", "me", P, thief)
    stolen.publish([{"id": 900 + at, "group": 1, "price": None, "name": "x"} for at in range(40)])
    pass_seconds(world, 2)
    assert (stolen.settled, checkers.published) == (40, 30)
    assert program.settled == 30


@pytest.mark.parametrize("seed", range(5))
def test_one_broker_keeps_its_promises_to_publishers(seed: int) -> None:
    result = run(seed, network=ALONE, profile=TROUBLE, plain=True)
    assert result.ok, f"{result}\n{story(result)}"
    assert result.faults["connection_cut"]
