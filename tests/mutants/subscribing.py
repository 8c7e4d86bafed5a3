"""Mutants of the last mile from an edge to a subscriber."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from gapless.model.ticks import TICK_MAX
from gapless.protocol.edge import Edge
from gapless.protocol.sessions.acks import AckLedger
from gapless.protocol.sessions.arrivals import ArrivedRows
from gapless.protocol.sessions.delivering import Deliveries, DeliveryLedger
from gapless.protocol.sessions.filters import Filters
from gapless.protocol.sessions.subscriber import ClientSubscription
from gapless.protocol.sessions.subscribing import EdgeSubscribing
from tests.mutants.declared import mutant


@mutant(ClientSubscription, "expects", "give the program what it had before", "exactly_once", "order")
def keep_repeats(right: Any) -> Any:
    def broken(self: Any, pubend: Any, tick: int) -> bool:
        right(self, pubend, tick)
        return True

    return broken


@mutant(ClientSubscription, "_subscribe", "resume with what is published from now on", "resumption")
def resume_with_now(right: Any) -> Any:
    return lambda self, request: msgspec.structs.replace(right(self, request), start="now")


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


@mutant(ClientSubscription, "horizon", "acknowledge a horizon whatever the program still holds", "acks")
def acknowledge_the_horizon(right: Any) -> Any:
    def broken(self: Any, horizon: Any) -> Any:
        effects = right(self, horizon)
        self._acked.update(horizon.before)
        return effects

    return broken


@mutant(
    ClientSubscription, "_starts_again", "resume one tick late", "gapless", "resumption", "liveness", "gap"
)
def resume_one_tick_late(right: Any) -> Any:
    return lambda self: {pubend: tick + 1 for pubend, tick in right(self).items()}


@mutant(ClientSubscription, "_grant", "grant room twice", "credit")
def grant_twice(right: Any) -> Any:
    return lambda self, rows: right(self, 2 * rows)


@mutant(ClientSubscription, "drop", "give back no room for repeats", "liveness")
def lose_the_room_of_repeats(_: Any) -> Any:
    return lambda self, count: []


@mutant(
    Deliveries, "_is_level", "tell a horizon to those who were not sent all", "gapless", "resumption", "acks"
)
def tell_laggards_a_horizon(_: Any) -> Any:
    return lambda self, reader: reader.outlet is not None


@mutant(Deliveries, "report_slow", "let a slow subscriber go on after what it was sent", "gapless", "release")
def skip_what_was_not_sent(right: Any) -> Any:
    def broken(self: Any, reader: Any, *, away: bool = False) -> Any:
        if not away:
            for group in reader.groups:
                ledger = self._ledger(group)
                for pubend in group:
                    ledger.acked[pubend][reader.slot] = ledger.handed[pubend][reader.slot]
        return right(self, reader, away=away)

    return broken


@mutant(
    Filters, "resume", "resume with the newest condition for all ticks", "gapless", "liveness", "resumption"
)
def resume_with_the_newest_condition(right: Any) -> Any:
    def broken(self: Any, positions: Any, schema: Any) -> str:
        right(self, positions, schema)
        return str(self.where)

    return broken


@mutant(Filters, "mask", "judge all rows by the newest condition", "filter", "gapless", "liveness")
def judge_by_the_newest_condition(right: Any) -> Any:
    def broken(self: Any, *args: Any, **options: Any) -> Any:
        before, self._segments = self._segments, [(self.where, {})]
        found = right(self, *args, **options)
        self._segments = before
        return found

    return broken
