"""Can the simulator fail? Deliberately broken machines, each of which must be caught.

    make mutants                      every mutant, up to 500 seeds each
    python -m tests.mutants NAME ...  only these

A mutant replaces one method of one machine by a subtly wrong one. The simulator runs seeds until a
checker objects; the mutant counts as caught only if it was a checker that is meant to notice this
kind of fault, for a bug that is found by accident is found late.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

from gapless.content.forest import Change, Forest
from gapless.model.epochs import ALWAYS, Epochs
from gapless.model.ticks import TICK_MAX, TICK_MIN, TickSet
from gapless.protocol.broker import Broker
from gapless.protocol.curiosity import NackClock
from gapless.protocol.edge import Edge
from gapless.protocol.istream import Istream
from gapless.protocol.lane import Lane
from gapless.protocol.ostream import Ostream
from gapless.protocol.pubend import Pubend, Starts
from gapless.protocol.routing import Routing
from gapless.protocol.subend import Group, Merged, Subend
from gapless.sim.run import run

SEEDS_MAX = 500


@dataclass(frozen=True)
class Mutant:
    """One broken machine."""

    name: str
    #: What it does wrong, in a few words.
    wrong: str
    owner: type
    method: str
    #: Given the right method, the wrong one.
    broken: Callable[[Callable[..., Any]], Callable[..., Any]]
    #: The checkers that are meant to notice.
    noticed_by: frozenset[str]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The machines with this fault in them."""
        right = getattr(self.owner, self.method)
        with mock.patch.object(self.owner, self.method, self.broken(right)):
            yield


MUTANTS: list[Mutant] = []


def mutant(
    owner: type, method: str, wrong: str, *noticed_by: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a mutant: the decorated function turns the right method into the wrong one."""

    def declare(broken: Callable[..., Any]) -> Callable[..., Any]:
        MUTANTS.append(Mutant(broken.__name__, wrong, owner, method, broken, frozenset(noticed_by)))
        return broken

    return declare


@mutant(Lane, "resolved", "deliver beyond the doubt horizon", "gapless")
def deliver_beyond_doubt(right: Any) -> Any:
    return lambda self, start: max(start, min(right(self, start) + 50_000, self.istream.frontier))


@mutant(Lane, "resolved_under", "believe silence whatever epoch its filter had", "gapless")
def ignore_epochs_on_silence(_: Any) -> Any:
    return lambda self, start, need: self.istream.stream.known.reach(start, lambda stamp: True)


@mutant(Ostream, "_filtered", "call filtered data silent for every epoch", "gapless")
def stamp_silence_always(right: Any) -> Any:
    def broken(self: Any, fresh: Any, rows: Any, wants: Any) -> Any:
        accepted, runs = right(self, fresh, rows, wants)
        return accepted, [(start, stop, ALWAYS) for start, stop, _ in runs]

    return broken


@mutant(Group, "acked", "ack before delivery", "release")
def ack_before_delivery(_: Any) -> Any:
    return lambda self, pubend: self.horizon


@mutant(Ostream, "acked", "ack data that the cell has not acked", "release")
def ack_for_the_cell(_: Any) -> Any:
    def broken(self: Any) -> Any:
        self.unacked.drop(TICK_MIN, TICK_MAX)
        at = self.passed.reach(TICK_MIN, lambda stamp: True)
        return [(at, self.passed.get(TICK_MIN))] if at > TICK_MIN else []

    return broken


@mutant(Pubend, "_believed", "trim unacked data", "release")
def trim_unacked(_: Any) -> Any:
    return lambda self, runs: self.told


@mutant(Starts, "limit", "believe acks made before a subscription was known", "release", "gapless")
def believe_old_acks(_: Any) -> Any:
    return lambda self, epoch: TICK_MAX


@mutant(Edge, "ack_stamp", "ack for subscriptions that have no start tick yet", "release", "gapless")
def ack_for_the_unborn(_: Any) -> Any:
    return lambda self, pubend: Epochs({self.broker: self.epoch})


@mutant(NackClock, "_ask", "never repeat a nack", "liveness")
def never_repeat_a_nack(_: Any) -> Any:
    def broken(self: Any, due: TickSet, now_ms: int) -> TickSet:
        fresh = due - self.asked.ticks(TICK_MIN, TICK_MAX)
        for start, stop in fresh.pairs():
            self.asked.set_range(start, stop, _once(self, now_ms))
        return fresh

    return broken


def _once(clock: Any, now_ms: int) -> Any:
    from gapless.protocol.curiosity import Asked

    return Asked(now_ms, clock.parameters.nack_repeat_max_ms, 1)


@mutant(Istream, "ask", "hold back a nack for ever once the same was sent", "liveness")
def consolidate_for_ever(right: Any) -> Any:
    def broken(self: Any, ticks: TickSet, now_ms: int) -> Any:
        return right(self, ticks - self.asked.ticks(TICK_MIN, TICK_MAX), now_ms)

    return broken


@mutant(Ostream, "_by_asker", "retransmit to nobody", "liveness")
def retransmit_to_nobody(_: Any) -> Any:
    return lambda self, runs: {}


@mutant(Pubend, "_ack_expected", "never expect an ack", "liveness")
def never_expect_an_ack(_: Any) -> Any:
    return lambda self, now: None


@mutant(Pubend, "_read_next", "forget at the pubend", "gapless", "liveness")
def forget_at_the_pubend(_: Any) -> Any:
    return lambda self: []


@mutant(Pubend, "read", "answer old curiosity with silence", "gapless")
def silence_instead_of_the_log(right: Any) -> Any:
    return lambda self, event: right(self, replace(event, batch=None))


@mutant(Pubend, "_follow", "wait for the clock to come to ticks that are ahead", "liveness")
def never_follow(_: Any) -> Any:
    return lambda self, wanted, now: None


@mutant(Broker, "_publish", "tell before the log has flushed", "durability")
def tell_before_durable(right: Any) -> Any:
    def broken(self: Any, event: Any, step: Any) -> None:
        right(self, event, step)
        pubend = self._hosted(event.pubend)
        effects, knowledge, grants = pubend.durable(pubend.token, step.now)
        step.effects += effects
        self._tell(knowledge, step)
        for grant in grants:
            self._grant(grant, step)

    return broken


@mutant(Group, "fall_behind", "no dedup: replay what a slow subscriber has taken", "exactly_once")
def no_dedup(right: Any) -> Any:
    return lambda self, subend, positions: right(
        self, subend, dict.fromkeys(self.pubends, self.horizon - 3000000)
    )


@mutant(Group, "_pieces", "no dedup: hand out the last piece again", "exactly_once", "order")
def hand_out_again(right: Any) -> Any:
    def broken(self: Any, start: Any, stop: int) -> Any:
        if stop > min(start.values()):
            start = {pubend: tick - 100_000 for pubend, tick in start.items()}
        return right(self, start, stop)

    return broken


@mutant(Group, "fall_behind", "forget what a slow subscriber had not taken", "gapless")
def drop_for_the_slow(right: Any) -> Any:
    return lambda self, subend, positions: right(self, subend, dict.fromkeys(self.pubends, self.horizon))


@mutant(Group, "_merged", "drop the merge order", "order", "gapless")
def drop_the_merge_order(right: Any) -> Any:
    def broken(self: Any, start: Any, stop: int) -> Any:
        merged = right(self, start, stop)
        if merged is None:
            return None
        order = np.lexsort((merged.batch.ticks, merged.source))
        return Merged(merged.where(order).batch, merged.source[order]) if len(order) > 1 else merged

    return broken


@mutant(Group, "_started", "deliver below the start tick", "start")
def ignore_start_ticks(_: Any) -> Any:
    return lambda self, merged, rows, slots: (rows, slots)


@mutant(Group, "_matched", "deliver to everybody", "filter")
def deliver_to_everybody(_: Any) -> Any:
    def broken(self: Any, merged: Any, serials: Any) -> Any:
        slots = np.asarray(sorted(self.index._by_slot), dtype=np.int64)
        rows = np.repeat(np.arange(len(merged.batch)), len(slots))
        return self._deliver(merged, rows, np.tile(slots, len(merged.batch)), serials) if len(rows) else None

    return broken


@mutant(Subend, "in_force", "change a condition one tick late", "filter", "gapless")
def change_one_tick_late(right: Any) -> Any:
    return lambda self, pubend, tick: right(self, pubend, tick - 1)


@mutant(Subend, "pass_by", "forget the old condition when a change is decided", "filter", "gapless")
def forget_the_old_condition(right: Any) -> Any:
    return lambda self, pubends, settled, topic: right(self, pubends, TICK_MAX - 1, topic)


@mutant(Ostream, "_filtered", "send everything everywhere", "routing")
def flood(right: Any) -> Any:
    def broken(self: Any, fresh: Any, rows: Any, wants: Any) -> Any:
        _, runs = right(self, fresh, rows, wants)
        return rows, runs

    return broken


@mutant(Forest, "remove", "drop what a cancelled condition had covered", "gapless", "liveness")
def drop_the_uncovered(right: Any) -> Any:
    def broken(self: Any, condition: Any) -> Change:
        return Change((), right(self, condition).covered)

    return broken


@mutant(Routing, "received", "take the first part of an advertisement for all of it", "gapless", "liveness")
def believe_the_first_part(right: Any) -> Any:
    return lambda self, sender, message: right(self, sender, replace(message, total=None))


@mutant(Routing, "_leave", "keep filtering for what was cancelled", "routing")
def filter_for_the_cancelled(_: Any) -> Any:
    return lambda self, state, origin, want: state.leave(want)


@mutant(Istream, "forget_to_bounds", "never forget", "memory", "invariant")
def never_forget(_: Any) -> Any:
    return lambda self, position: []


@dataclass(frozen=True)
class Hunt:
    """What became of one mutant."""

    name: str
    seed: int | None
    checker: str
    text: str


def hunt(name: str, first: int = 0, seeds: int = SEEDS_MAX) -> Hunt:
    """Run seeds with the mutant until a checker that should notice it does."""
    chosen = next(each for each in MUTANTS if each.name == name)
    other = ""
    with chosen.applied():
        for seed in range(first, first + seeds):
            violation = run(seed).violation
            if violation is None:
                continue
            if violation.checker in chosen.noticed_by:
                return Hunt(name, seed, violation.checker, str(violation))
            other = f"seed {seed} was caught by {violation.checker} instead"
    return Hunt(name, None, "", other)


def main() -> int:
    """Hunt all mutants, two at a time; 0 when every one was caught."""
    wanted = sys.argv[1:] or [each.name for each in MUTANTS]
    console = Console()
    table = Table("mutant", "what is wrong", "meant for", "caught by", "at seed")
    survived = 0
    with multiprocessing.Pool(2) as pool:
        for result in pool.imap(hunt, wanted):
            chosen = next(each for each in MUTANTS if each.name == result.name)
            caught = result.seed is not None
            survived += not caught
            console.print(f"{result.name}: {result.text or 'survived'}", highlight=False, markup=False)
            table.add_row(
                result.name,
                chosen.wrong,
                ", ".join(sorted(chosen.noticed_by)),
                result.checker if caught else "[red]nobody[/red]",
                str(result.seed) if caught else "-",
            )
    console.print(table)
    console.print(f"{len(wanted) - survived} of {len(wanted)} mutants caught within {SEEDS_MAX} seeds each")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
