"""What became of many seeds? Simulates them on all cores, and adds up what they reached.

Every seed is a run of its own, so they share nothing but a pool of processes. A process sends back only what
a report needs: the trace of a run may have hundreds of thousands of entries, so the story of a violation is
told where the trace is.
"""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context

from gapless.protocol.marks import MARKS
from gapless.sim.faults import KINDS
from gapless.sim.run import RunResult, run, story


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A broken promise, and what led to it."""

    checker: str
    #: The subscription, broker or pubend concerned.
    subject: str
    pubend: str | None
    tick: int | None
    #: The whole violation as one line.
    text: str
    story: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """What one seed came to, light enough to be sent between processes."""

    seed: int
    finding: Finding | None
    brokers: int
    published: int
    delivered: int
    steps: int
    virtual_seconds: float
    fingerprint: int
    faults: Counter[str]
    marks: Counter[str]

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return self.finding is None


@dataclass(slots=True)
class Tally:
    """The sum of outcomes."""

    runs: int = 0
    published: int = 0
    delivered: int = 0
    virtual_seconds: float = 0.0
    #: How often each kind of fault was injected and each mark was reached, ...
    faults: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    #: ... and in how many runs.
    faults_runs: Counter[str] = field(default_factory=Counter)
    marks_runs: Counter[str] = field(default_factory=Counter)
    #: The seeds whose run broke a promise.
    failed: list[int] = field(default_factory=list)

    def add(self, outcome: SeedOutcome) -> None:
        """Count one more run."""
        self.runs += 1
        self.published += outcome.published
        self.delivered += outcome.delivered
        self.virtual_seconds += outcome.virtual_seconds
        self.faults += outcome.faults
        self.marks += outcome.marks
        self.faults_runs.update(outcome.faults.keys())
        self.marks_runs.update(outcome.marks.keys())
        if not outcome.ok:
            self.failed.append(outcome.seed)

    @property
    def faults_missing(self) -> list[str]:
        """The kinds of fault that no run has seen."""
        return [kind for kind in KINDS if not self.faults[kind]]

    @property
    def marks_missing(self) -> list[str]:
        """The marks that no run has reached."""
        return [name for name in MARKS if not self.marks[name]]


def outcome_of(result: RunResult) -> SeedOutcome:
    """The outcome of a run, without its trace."""
    found = result.violation
    finding = None
    if found is not None:
        finding = Finding(
            checker=found.checker,
            subject=found.subject,
            pubend=found.pubend,
            tick=found.tick,
            text=str(found),
            story=story(result),
        )
    return SeedOutcome(
        seed=result.seed,
        finding=finding,
        brokers=result.brokers,
        published=result.published,
        delivered=result.delivered,
        steps=result.steps,
        virtual_seconds=result.virtual_seconds,
        fingerprint=result.fingerprint,
        faults=result.faults,
        marks=result.marks,
    )


def simulate(seed: int) -> SeedOutcome:
    """Run one seed to its end."""
    try:
        return outcome_of(run(seed))
    except Exception as error:
        error.add_note(f"while simulating seed {seed:#x}")
        raise


def outcomes(
    seeds: Sequence[int], jobs: int, finished: Callable[[], None]
) -> Generator[SeedOutcome, None, None]:
    """The outcomes in the order of the seeds; `finished` is called, from any thread, whenever a run ends.

    Close the iterator to stop the runs that are still going on.
    """
    if min(jobs, len(seeds)) > 1:
        yield from _in_processes(seeds, jobs, finished)
        return
    for seed in seeds:
        outcome = simulate(seed)
        finished()
        yield outcome


def _in_processes(
    seeds: Sequence[int], jobs: int, finished: Callable[[], None]
) -> Generator[SeedOutcome, None, None]:
    before = active_children()
    # A forked process would inherit the threads of a progress bar in the middle of their work.
    with ProcessPoolExecutor(min(jobs, len(seeds)), mp_context=get_context("spawn")) as pool:
        futures = _submitted(pool, seeds)
        for future in futures:
            future.add_done_callback(lambda _: finished())
        try:
            while futures:
                # It stays in the queue while we wait for it, so that it is ended, too, when we are.
                outcome = futures[0].result()
                futures.popleft()
                yield outcome
        finally:
            if futures:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in active_children():
                    if child not in before:
                        child.terminate()


def _submitted(pool: ProcessPoolExecutor, seeds: Sequence[int]) -> deque[Future[SeedOutcome]]:
    # The processes of the pool inherit that Ctrl-C is not for them: this process hears it, and ends them.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return deque(pool.submit(simulate, seed) for seed in seeds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def collect(
    seeds: Sequence[int],
    jobs: int,
    *,
    tell: Callable[[SeedOutcome], None],
    finished: Callable[[], None],
) -> tuple[Tally, bool]:
    """Run all seeds, `tell` each outcome in order, and add them up; True when Ctrl-C cut it short."""
    tally = Tally()
    with closing(outcomes(seeds, jobs, finished)) as runs:
        try:
            for outcome in runs:
                tally.add(outcome)
                tell(outcome)
        except KeyboardInterrupt:
            return tally, True
    return tally, False
