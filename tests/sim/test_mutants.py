"""Mutants fit what they replace, so that what catches them is what they do wrong."""

from __future__ import annotations

import inspect

import pytest

from gapless.sim.checkers import CHECKERS, Violation
from tests.mutants.declared import MUTANTS, Mutant
from tests.mutants.hunting import FIRST_SEED, SEEDS_MAX, Hunt, hunt, known_seeds, misfit_of, small_first

MUTANTS_MIN = 36
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_takes_the_arguments_of_what_it_replaces(mutant: Mutant) -> None:
    for owner, method, broken in ((mutant.owner, mutant.method, mutant.broken), *mutant.more):
        right = getattr(owner, method)
        taken = inspect.signature(right).parameters.values()
        positional = [each.name for each in taken if each.kind in BY_POSITION]
        named = {each.name: each for each in taken if each.kind is inspect.Parameter.KEYWORD_ONLY}
        inspect.signature(broken(right)).bind(*positional, **named)


def test_there_are_enough_mutants_each_meant_for_some_checker() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    for mutant in MUTANTS.values():
        assert mutant.noticed_by
        assert mutant.noticed_by <= set(CHECKERS), mutant.name


def test_known_seeds_are_of_mutants_and_within_the_hunt() -> None:
    known = known_seeds()
    assert known.keys() <= MUTANTS.keys()
    assert set(known.values()) <= set(range(FIRST_SEED, FIRST_SEED + SEEDS_MAX))
    assert sorted(small_first()) == list(range(FIRST_SEED, FIRST_SEED + SEEDS_MAX))


def test_an_error_that_no_machine_would_make_is_no_catch() -> None:
    violation = Violation("invariant", "a machine notices", subject="n0")
    violation.__cause__ = AssertionError("a machine notices")
    assert not misfit_of(violation)
    violation.__cause__ = TypeError("broken() takes 2 positional arguments but 3 were given")
    assert misfit_of(violation)


def test_only_a_seed_on_which_the_right_machines_pass_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(MUTANTS))
    found = Violation(next(iter(MUTANTS[name].noticed_by)), "whoever runs", subject="n0")
    monkeypatch.setattr("tests.mutants.hunting.run_within", lambda seed: found)
    result = hunt(Hunt(name=name), 3)
    assert not result.is_caught
    assert len(result.worthless) == 3
    passes = iter([found, None])
    monkeypatch.setattr("tests.mutants.hunting.run_within", lambda seed: next(passes))
    assert hunt(Hunt(name=name), 3).is_caught
