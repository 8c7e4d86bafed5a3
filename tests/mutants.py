"""Can the simulator fail? Deliberately broken machines, each of which must be caught.

    make mutants                      every mutant, up to 500 seeds each
    python -m tests.mutants NAME ...  only these

A mutant replaces one method of one machine, or one function of a module, by a subtly wrong one. The
simulator runs seeds until a checker objects; the mutant counts as caught only if it was a checker that
is meant to notice this kind of fault, for a bug that is found by accident is found late.
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

from gapless.content.covering.forest import CoveringChange, Forest
from gapless.model.epochs import ALWAYS, Epochs
from gapless.model.tickmap import TickMap
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, TickSet
from gapless.protocol import joining
from gapless.protocol.broker import Broker
from gapless.protocol.curiosity import NackClock
from gapless.protocol.edge import Edge
from gapless.protocol.effects import ReserveRecord
from gapless.protocol.istream import Istream
from gapless.protocol.lane import Lane
from gapless.protocol.ostream import Ostream, Telling
from gapless.protocol.path import Path, Standing
from gapless.protocol.pubend import Pubend, Starts
from gapless.protocol.routing import Routing
from gapless.protocol.sessions.acks import AckLedger
from gapless.protocol.sessions.arrivals import ArrivedRows
from gapless.protocol.sessions.client_publishing import ClientPublishing
from gapless.protocol.sessions.delivering import Deliveries, DeliveryLedger
from gapless.protocol.sessions.edge_publishing import EdgePublishing
from gapless.protocol.sessions.publishers import Publishers
from gapless.protocol.sessions.subscriber import ClientSubscription
from gapless.protocol.sessions.subscribing import EdgeSubscribing
from gapless.protocol.subend import Group, Subend
from gapless.sim.run import run

SEEDS_MAX = 500


@dataclass(frozen=True)
class Mutant:
    """One broken machine."""

    name: str
    #: What it does wrong, in a few words.
    wrong: str
    #: The class or module, and the name of what is replaced in it.
    owner: Any
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
    owner: Any, method: str, wrong: str, *noticed_by: str
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


@mutant(Group, "_deliver", "deliver a merge pubend by pubend", "order", "gapless")
def drop_the_merge_order(right: Any) -> Any:
    def broken(self: Any, merged: Any, rows: Any, slots: Any, serials: Any, **options: Any) -> Any:
        if merged.source is not None:
            order = np.lexsort((rows, merged.source[rows]))
            rows, slots = rows[order], slots[order]
        return right(self, merged, rows, slots, serials, **options)

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
    def broken(self: Any, condition: Any) -> CoveringChange:
        return CoveringChange((), right(self, condition).covered)

    return broken


@mutant(Routing, "received", "take the first part of an advertisement for all of it", "gapless", "liveness")
def believe_the_first_part(right: Any) -> Any:
    return lambda self, sender, message: right(self, sender, replace(message, total=None))


@mutant(Routing, "_leave", "keep filtering for what was cancelled", "routing")
def filter_for_the_cancelled(_: Any) -> Any:
    return lambda self, state, origin, want: state.leave(want)


@mutant(Istream, "forget_to_bounds", "never forget", "memory", "invariant")
def never_forget(_: Any) -> Any:
    return lambda self, position, bytes_max=0, behind=0: []


@mutant(Pubend, "failed", "take a reservation that failed for a durable one", "gapless", "release")
def reserve_without_the_disk(right: Any) -> Any:
    def broken(self: Any, token: int, reason: str) -> Any:
        for pending in self.pending:
            if pending.token == token and isinstance(pending.record, ReserveRecord):
                self.reserved = max(self.reserved, pending.record.before)
        return right(self, token, reason)

    return broken


@mutant(Pubend, "recover", "lose the reservation at a restart", "gapless", "release")
def lose_the_reservation(right: Any) -> Any:
    return lambda pubend, parameters, log, now: right(pubend, parameters, replace(log, reserved=0), now)


@mutant(Pubend, "recover", "lose the granted starts at a restart", "start", "release", "gapless")
def lose_the_grants(right: Any) -> Any:
    return lambda pubend, parameters, log, now: right(pubend, parameters, replace(log, starts=()), now)


@mutant(Starts, "prune", "believe old acks once all they must not speak for was acked", "release", "gapless")
def prune_the_last_start(_: Any) -> Any:
    def broken(self: Any, acked: int) -> None:
        self.entries = [entry for entry in self.entries if entry[1] > acked]

    return broken


@mutant(joining, "_united", "join runs under the stamp of the first", "gapless", "liveness")
def take_the_first_stamp(_: Any) -> Any:
    def broken(runs: Any) -> Any:
        out = runs[:1]
        for start, stop, stamp in runs[1:]:
            if out[-1][1] == start:
                out[-1] = (out[-1][0], stop, out[-1][2])
            else:
                out.append((start, stop, stamp))
        return tuple(out)

    return broken


@mutant(Group, "straight", "ack what went straight to its readers before they took it", "release")
def ack_what_went_straight(right: Any) -> Any:
    def broken(self: Any, run: Any, batch: Any, serials: Any) -> Any:
        delivers = right(self, run, batch, serials)
        for deliver in delivers or ():
            del self.waiting[deliver.serial]
        return delivers

    return broken


@mutant(Istream, "ask", "pass on every nack", "cost")
def never_consolidate(right: Any) -> Any:
    def broken(self: Any, ticks: TickSet, now_ms: int) -> Any:
        right(self, ticks, now_ms)
        return ticks, EMPTY

    return broken


@mutant(Ostream, "pass_on", "tell silence to those who did not ask", "cost")
def tell_silence_at_once(right: Any) -> Any:
    def broken(self: Any, fresh: Any, rows: Any, wants: Any, *, first_time: bool, route: Any) -> Any:
        told = right(self, fresh, rows, wants, first_time=first_time, route=route)
        if first_time and not told and self.withheld:
            told = [Telling(list(self.withheld), [], first_time=True)]
            self.withheld = TickMap()
        return told

    return broken


@mutant(Ostream, "pass_on", "retransmit to all", "cost")
def retransmit_to_all(right: Any) -> Any:
    def broken(self: Any, fresh: Any, rows: Any, wants: Any, *, first_time: bool, route: Any) -> Any:
        told = right(self, fresh, rows, wants, first_time=first_time, route=route)
        accepted, runs = self._filtered(fresh, rows, wants)
        if not first_time and not told and accepted is not None:
            told = [Telling(runs, [accepted], first_time=False)]
        return told

    return broken


@mutant(Forest, "_place", "advertise what is covered", "cost")
def never_cover(_: Any) -> Any:
    def broken(self: Any, node: Any, work: Any, result: Any) -> None:
        self._roots.add(node)
        result.entered(node)

    return broken


# ---- publishing: the last mile -----------------------------------------------------------------------


@mutant(Publishers, "fresh", "store what was stored before", "one_to_one")
def no_dedup_of_publishers(_: Any) -> Any:
    return lambda self, publisher, first, count: 0


@mutant(Publishers, "check_before", "store events although others before them are missing", "refused")
def store_after_a_hole(_: Any) -> Any:
    return lambda self, publisher, before, first, last: None


@mutant(Publishers, "durable", "give receipts for what is on its way to the log", "receipt")
def receipt_before_durable(_: Any) -> Any:
    return lambda self, publisher: self.accepted(publisher)


@mutant(Publishers, "_learn", "read no notes after a restart", "one_to_one", "publisher_order")
def forget_the_notes(right: Any) -> Any:
    def broken(self: Any, publisher: str, value: Any, tick: int) -> None:
        if not self.known_tick or tick <= self.known_tick:
            right(self, publisher, value, tick)

    return broken


@mutant(EdgePublishing, "_stored", "store events without their note", "one_to_one", "publisher_order")
def store_without_a_note(right: Any) -> Any:
    def broken(self: Any, pubend: Any, requests: Any) -> Any:
        for event in right(self, pubend, requests):
            yield replace(event, note=b"")

    return broken


@mutant(Publishers, "take", "write nothing down before the log forgets its notes", "one_to_one", "refused")
def write_nothing_down(right: Any) -> Any:
    return lambda self, most: (right(self, most)[0], [])


@mutant(Publishers, "failed", "count what failed as stored", "receipt", "liveness")
def forget_that_it_failed(_: Any) -> Any:
    return lambda self, publisher, first: None


@mutant(
    EdgePublishing, "_drop_fallen", "store what came behind events that failed", "publisher_order", "receipt"
)
def store_behind_what_failed(_: Any) -> Any:
    return lambda self, pubend: []


@mutant(EdgePublishing, "_tell_later", "answer a repeat on another connection never", "liveness")
def never_answer_the_second_connection(_: Any) -> Any:
    return lambda self, peer, publisher, pubend, first, last: None


@mutant(EdgePublishing, "accepted", "name the ticks of other events in receipts", "receipt")
def name_other_ticks(right: Any) -> Any:
    def broken(self: Any, effect: Any) -> Any:
        requests = self._under_way[effect.token]
        if len(requests) > 1:
            requests.reverse()
        return right(self, effect)

    return broken


@mutant(Publishers, "check_owner", "let anybody publish under any identity", "receipt", "one_to_one")
def ignore_the_owner(_: Any) -> Any:
    return lambda self, publisher, principal: None


@mutant(ClientPublishing, "linked", "send nothing again on a new connection", "liveness")
def send_nothing_again(_: Any) -> Any:
    def broken(self: Any, now_ms: int) -> Any:
        self.is_paused = False
        return []

    return broken


@mutant(ClientPublishing, "refused", "drop what is refused for the time being", "liveness")
def drop_what_is_refused(right: Any) -> Any:
    def broken(self: Any, refused: Any, error: Any, now_ms: int) -> Any:
        if not refused.retry:
            return right(self, refused, error, now_ms)
        for outgoing in self.sent:
            first = outgoing.first
            outgoing.close(refused.first_catenation - first, refused.last_catenation + 1 - first)
        return []

    return broken


@mutant(ClientPublishing, "send", "rely on nothing that was sent before", "refused", "publisher_order")
def rely_on_nothing(right: Any) -> Any:
    return lambda self, outgoing, now_ms: right(self, outgoing, now_ms)._replace(before=-1)


# ---- lost folders ------------------------------------------------------------------------------------


@mutant(Path, "standing", "believe a log of an earlier life", "gap", "gapless", "liveness", "invariant")
def believe_an_old_log(right: Any) -> Any:
    def broken(self: Any, log: Any) -> Any:
        found = right(self, log)
        is_other = found is Standing.CONTRADICTED and log.id != self.istream.log.id
        return Standing.RENEWED if is_other else found

    return broken


@mutant(Edge, "_begun_at", "begin in another log and report no gap", "gap")
def report_no_gap(right: Any) -> Any:
    return lambda self, subend, pubend, start: replace(right(self, subend, pubend, start), lost_from=None)


@mutant(Edge, "renewed", "keep the promises of a lost log", "gap", "gapless", "liveness")
def keep_lost_promises(_: Any) -> Any:
    return lambda self, pubend: self._doors[pubend].lane.renewed()


@mutant(
    Path, "renew", "mix what is known of two logs", "gap", "gapless", "liveness", "invariant", "exactly_once"
)
def mix_two_logs(_: Any) -> Any:
    return lambda self, log: self.ack_again()


@mutant(Pubend, "contradicted", "go on with an older copy of a log", "gap", "gapless", "liveness", "order")
def go_on_with_an_older_copy(_: Any) -> Any:
    return lambda self, broker, message: None


# ---- subscribing: the last mile ----------------------------------------------------------------------


@mutant(ClientSubscription, "expects", "give the program what it had before", "exactly_once", "order")
def keep_repeats(right: Any) -> Any:
    def broken(self: Any, pubend: Any, tick: int) -> bool:
        right(self, pubend, tick)
        return True

    return broken


@mutant(ClientSubscription, "_subscribe", "resume with what is published from now on", "resumption")
def resume_with_now(right: Any) -> Any:
    return lambda self, request: replace(right(self, request), start="now")


@mutant(Deliveries, "granted", "send twice as many rows as were granted", "credit")
def double_the_credit(right: Any) -> Any:
    return lambda self, reader, rows: right(self, reader, 2 * rows)


@mutant(ClientSubscription, "_is_done_with_all", "acknowledge what the program has not taken", "acks")
def acknowledge_what_waits(_: Any) -> Any:
    return lambda self: True


@mutant(ArrivedRows, "stops", "acknowledge all rows that came with one that is done", "acks")
def acknowledge_the_whole_chunk(right: Any) -> Any:
    return lambda self, rows: right(self, self.size if rows else 0)


@mutant(AckLedger, "acked", "acknowledge everything before what the program acknowledges", "acks")
def acknowledge_out_of_order(_: Any) -> Any:
    return lambda self, pubend, ticks: max(ticks) + 1


@mutant(Deliveries, "positions", "go on after what was handed out", "gapless", "release", "resumption")
def go_on_after_what_was_handed_out(right: Any) -> Any:
    def broken(self: Any, reader: Any) -> Any:
        found = right(self, reader)
        for group in reader.groups:
            ledger = self._ledger(group)
            for pubend in group:
                if pubend in found:
                    most = max(ledger.handed[pubend][reader.slot], ledger.reached[pubend][reader.slot])
                    found[pubend] = int(most)
        return found

    return broken


@mutant(EdgeSubscribing, "lost", "forget a subscription with its connection", "release", "resumption")
def forget_with_the_connection(_: Any) -> Any:
    return lambda self, client, subscription: (
        self.end(subscription) if subscription.client is client and self.is_current(subscription) else []
    )


@mutant(Edge, "horizons", "call laggards level", "gapless", "resumption", "acks")
def call_laggards_level(right: Any) -> Any:
    return lambda self, pubend, now: [
        replace(effect, lagging=frozenset()) for effect in right(self, pubend, now)
    ]


@mutant(DeliveryLedger, "low_water", "count deliveries as taken that some still hold", "release", "gapless")
def take_for_everybody(_: Any) -> Any:
    return lambda self: TICK_MAX


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
