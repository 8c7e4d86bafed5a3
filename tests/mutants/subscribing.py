"""Mutants of the last mile from an edge to a subscriber."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gapless.model.ticks import TICK_MAX
from gapless.protocol.edge import Edge
from gapless.protocol.sessions.acks import AckLedger
from gapless.protocol.sessions.arrivals import ArrivedRows
from gapless.protocol.sessions.delivering import Deliveries, DeliveryLedger
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
