"""Which seed catches a mutant? A hunt, in stretches of seeds, so that the quick ones are caught first.

Seeds that draw small networks are tried first, for they are quick, and before all others the one that caught
the mutant the last time (`known.json`).
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from gapless.sim.checkers import Violation
from gapless.sim.run import BROKERS_MAX, run
from gapless.sim.topologies import random_network
from tests.mutants import folders, promises, publishing, streams, subscribing, waste
from tests.mutants.declared import MUTANTS, Mutant

#: The modules that declare mutants.
DECLARING = (streams, promises, waste, publishing, folders, subscribing)
#: The seeds of a hunt: runs with all kinds of faults, lost folders included.
FIRST_SEED = 2_000_000
SEEDS_MAX = 500
#: Where the stretches of a hunt end, in seeds. All mutants are hunted through one before the next.
STRETCHES = (5, 20, 60, 150, 300, SEEDS_MAX)
#: Networks with at most so many brokers take turns; all larger ones come behind them.
SMALL_BROKERS = 5
#: The seed that caught each mutant the last time.
KNOWN = Path(__file__).with_name("known.json")
#: The processor time that a run may take; most take less than two seconds.
RUN_SECONDS_MAX = 20


class OverdueError(BaseException):
    """A run takes too long. Nothing that a simulation catches, for it is no fault of a machine."""


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """How far the hunt for one mutant has come, and what it has found."""

    name: str
    #: How many seeds were tried, and in how much processor time.
    seeds: int = 0
    seconds: float = 0.0
    #: The seed that caught it, and the violation; None and empty while it is at large.
    seed: int | None = None
    checker: str = ""
    text: str = ""
    #: How often checkers objected that are not meant for it; seeds on which the right machines fail as well;
    #: runs that were given up.
    others: dict[str, int] = field(default_factory=dict)
    worthless: list[int] = field(default_factory=list)
    overdue: list[int] = field(default_factory=list)
    #: Why the mutant cannot be what it is declared to be.
    misfit: str = ""

    @property
    def is_caught(self) -> bool:
        """Whether a checker that is meant for it has noticed."""
        return self.seed is not None

    @property
    def is_over(self) -> bool:
        """Whether to hunt on makes no sense."""
        return self.is_caught or bool(self.misfit)

    def __str__(self) -> str:
        effort = f"{self.seeds} seeds, {self.seconds:.0f} s"
        if self.is_caught:
            return f"{self.name}: caught by {self.checker} at seed {self.seed} ({effort}): {self.text}"
        if self.misfit:
            return f"{self.name}: does not fit what it replaces: {self.misfit}"
        others = ", ".join(f"{checker} {count} times" for checker, count in sorted(self.others.items()))
        notes = f"; others objected: {others}" if others else ""
        notes += f"; the right machines fail on {self.worthless}" if self.worthless else ""
        notes += f"; given up: {self.overdue}" if self.overdue else ""
        return f"{self.name}: at large after {effort}{notes}"

    def as_json(self) -> dict[str, Any]:
        """The same as a line of a file with results."""
        return asdict(self)


def order_of_seeds(chosen: Mutant) -> list[int]:
    """In which order to try the seeds of a mutant."""
    seeds = small_first()
    known = known_seeds().get(chosen.name)
    return [known, *(seed for seed in seeds if seed != known)] if known in seeds else seeds


def known_seeds() -> dict[str, int]:
    """The seeds that caught mutants the last time, by mutant."""
    found: dict[str, int] = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    return found


@cache
def small_first() -> list[int]:
    """All seeds, those of small networks before the others."""
    of_size: dict[int, list[int]] = {}
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        of_size.setdefault(len(random_network(Random(seed), BROKERS_MAX).cell_of), []).append(seed)
    turns = [
        (turn if size <= SMALL_BROKERS else SEEDS_MAX, size, seed)
        for size, seeds in of_size.items()
        for turn, seed in enumerate(seeds)
    ]
    return [seed for _, _, seed in sorted(turns)]


def hunt(so_far: Hunt, stop: int) -> Hunt:
    """Go on until the mutant is caught or `stop` seeds were tried."""
    chosen = MUTANTS[so_far.name]
    others, worthless, overdue = Counter(so_far.others), list(so_far.worthless), list(so_far.overdue)
    began = time.process_time()
    result = so_far
    seeds = order_of_seeds(chosen)
    for count in range(so_far.seeds, min(stop, len(seeds))):
        seed = seeds[count]
        result = replace(result, seeds=count + 1)
        try:
            found = _violation(chosen, seed)
            misfit = misfit_of(found)
            if misfit:
                result = replace(result, misfit=misfit)
            elif found is not None and found.checker not in chosen.noticed_by:
                others[found.checker] += 1
            elif found is not None and run_within(seed) is not None:
                worthless.append(seed)
            elif found is not None:
                result = replace(result, seed=seed, checker=found.checker, text=str(found))
        except OverdueError:
            overdue.append(seed)
        if result.is_over:
            break
    seconds = so_far.seconds + time.process_time() - began
    return replace(result, seconds=seconds, others=dict(others), worthless=worthless, overdue=overdue)


def _violation(chosen: Mutant, seed: int) -> Violation | None:
    with chosen.applied():
        return run_within(seed)


def run_within(seed: int) -> Violation | None:
    """What a run violates; raises OverdueError when it takes too long."""
    with _limited():
        return run(seed).violation


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise OverdueError(number, frame)

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, RUN_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def misfit_of(found: Violation | None) -> str:
    """A mutant that is called as what it replaces is not proves nothing when it fails."""
    cause = None if found is None else found.__cause__
    return str(cause) if isinstance(cause, TypeError | NameError | AttributeError) else ""
