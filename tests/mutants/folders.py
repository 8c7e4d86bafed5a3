"""Mutants of what is said when a folder is lost or replaced by an older copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gapless.model.epochs import EPOCH_NONE
from gapless.protocol.broker import Broker
from gapless.protocol.edge import Edge
from gapless.protocol.messages import StartGrantMessage
from gapless.protocol.path import Path
from gapless.protocol.pubend import Pubend
from gapless.protocol.routing import Routing
from gapless.protocol.sessions import subscriber
from gapless.protocol.sessions.losses import LossBook
from tests.mutants.declared import breaks_too, mutant


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


@mutant(
    Routing,
    "acknowledged",
    "go on in a life that is behind one that others have seen",
    "liveness",
    "gapless",
    "release",
)
def fall_behind(right: Any) -> Any:
    def broken(self: Any, sender: Any, message: Any) -> None:
        if message.version is None or message.version <= self._roots[message.root].version:
            right(self, sender, message)

    return broken


@breaks_too("fall_behind", Edge, "check_stamps")
def fall_behind_by_stamps(_: Any) -> Any:
    return lambda self, runs: None


@breaks_too("fall_behind", Edge, "granted")
def fall_behind_by_grants(right: Any) -> Any:
    return lambda self, message: right(self, replace(message, seen=EPOCH_NONE))


@mutant(
    Broker, "_upstream_said", "believe grants of a log that is lost", "release", "gapless", "gap", "start"
)
def believe_old_grants(right: Any) -> Any:
    def broken(self: Any, sender: Any, message: Any, step: Any) -> None:
        if isinstance(message, StartGrantMessage):
            self._grant(message, step)
        else:
            right(self, sender, message, step)

    return broken


@mutant(LossBook, "_lose", "forget what a named subscription has lost", "gap")
def forget_the_losses(_: Any) -> Any:
    return lambda self, name, effect, lost_from, reason: None


@mutant(subscriber, "gap_before", "see no gap where another log begins", "gap", "resumption")
def overlook_another_log(right: Any) -> Any:
    return lambda confirmed, asked, log: right(confirmed, asked, None)
