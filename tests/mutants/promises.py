"""Mutants of what a crash must not undo: reservations, granted starts, stamps, receipts of readers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gapless.protocol import joining
from gapless.protocol.effects import ReserveRecord
from gapless.protocol.pubend import Pubend, Starts
from gapless.protocol.subend import Group
from tests.mutants.declared import mutant


@mutant(Pubend, "failed", "take a reservation that failed for a durable one", "gap", "gapless", "release")
def reserve_without_the_disk(right: Any) -> Any:
    def broken(self: Any, token: int, reason: str) -> Any:
        for pending in self.pending:
            if pending.token == token and isinstance(pending.record, ReserveRecord):
                self.reserved = max(self.reserved, pending.record.before)
        return right(self, token, reason)

    return broken


@mutant(Pubend, "recover", "lose the reservation at a restart", "gap", "gapless", "release")
def lose_the_reservation(right: Any) -> Any:
    return lambda pubend, parameters, log, *rest: right(pubend, parameters, replace(log, reserved=0), *rest)


@mutant(Pubend, "recover", "lose the granted starts at a restart", "start", "release", "gapless")
def lose_the_grants(right: Any) -> Any:
    return lambda pubend, parameters, log, *rest: right(pubend, parameters, replace(log, starts=()), *rest)


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
