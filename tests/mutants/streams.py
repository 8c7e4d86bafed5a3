"""Mutants of what travels: knowledge, curiosity, acknowledgements, filters and delivery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gapless.content.covering.forest import CoveringChange, Forest
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
from gapless.protocol.subend import Group
from gapless.protocol.subscription import Subend
from tests.mutants.declared import mutant


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
        return fresh  # type: ignore[no-any-return]

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
    def broken(self: Any, start: Any, stop: int, **options: Any) -> Any:
        if stop > min(start.values()):
            start = {pubend: tick - 100_000 for pubend, tick in start.items()}
        return right(self, start, stop, **options)

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
    def broken(self: Any, merged: Any, serials: Any, left: Any) -> Any:
        slots = np.asarray(sorted(self.index._by_slot), dtype=np.int64)
        count = len(merged.batch)
        rows = np.repeat(np.arange(count), len(slots))
        return self._deliver(merged, rows, np.tile(slots, count), serials) if len(rows) else None, count

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
    def broken(self: Any, condition: Any, *rest: Any) -> CoveringChange:
        return CoveringChange((), right(self, condition, *rest).covered)

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
