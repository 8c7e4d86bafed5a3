"""Mutants that keep every promise and waste the network."""

from __future__ import annotations

from typing import Any

from gapless.content.covering.forest import Forest
from gapless.model.tickmap import TickMap
from gapless.model.ticks import EMPTY, TickSet
from gapless.protocol.istream import Istream
from gapless.protocol.ostream import Ostream, Telling
from tests.mutants.declared import mutant


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
