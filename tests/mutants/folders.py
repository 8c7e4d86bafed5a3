"""Mutants of what is said when a folder is lost or replaced by an older copy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gapless.protocol.edge import Edge
from gapless.protocol.path import Path, Standing
from gapless.protocol.pubend import Pubend
from tests.mutants.declared import FOLDER_SEEDS, mutant


@mutant(
    Path,
    "standing",
    "believe a log of an earlier life",
    "gap",
    "gapless",
    "liveness",
    "invariant",
    first_seed=FOLDER_SEEDS,
)
def believe_an_old_log(right: Any) -> Any:
    def broken(self: Any, log: Any) -> Any:
        found = right(self, log)
        is_other = found is Standing.CONTRADICTED and log.id != self.istream.log.id
        return Standing.RENEWED if is_other else found

    return broken


@mutant(Edge, "_begun_at", "begin in another log and report no gap", "gap", first_seed=FOLDER_SEEDS)
def report_no_gap(right: Any) -> Any:
    return lambda self, subend, pubend, start: replace(right(self, subend, pubend, start), lost_from=None)


@mutant(
    Edge, "renewed", "keep the promises of a lost log", "gap", "gapless", "liveness", first_seed=FOLDER_SEEDS
)
def keep_lost_promises(_: Any) -> Any:
    return lambda self, pubend: self._doors[pubend].lane.renewed()


@mutant(
    Path,
    "renew",
    "mix what is known of two logs",
    "gap",
    "gapless",
    "liveness",
    "invariant",
    "exactly_once",
    first_seed=FOLDER_SEEDS,
)
def mix_two_logs(_: Any) -> Any:
    return lambda self, log: self.ack_again()


@mutant(
    Pubend,
    "contradicted",
    "go on with an older copy of a log",
    "gap",
    "gapless",
    "liveness",
    "order",
    first_seed=FOLDER_SEEDS,
)
def go_on_with_an_older_copy(_: Any) -> Any:
    return lambda self, broker, message: None
