"""Mutants of the last mile from a publisher to the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gapless.protocol.sessions.client_publishing import ClientPublishing
from gapless.protocol.sessions.edge_publishing import EdgePublishing
from gapless.protocol.sessions.publishers import Publishers
from tests.mutants.declared import mutant


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


@mutant(Publishers, "fresh", "take one event more for known than is stored", "receipt", "refused")
def know_one_too_many(right: Any) -> Any:
    def broken(self: Any, publisher: str, first: int, count: int) -> int:
        known = right(self, publisher, first, count)
        return int(known) + 1 if 0 < known < count else int(known)

    return broken


@mutant(
    ClientPublishing,
    "resends",
    "send again only what was sent last",
    "liveness",
    "publisher_order",
    "refused",
)
def resend_the_last_only(right: Any) -> Any:
    def broken(self: Any, bytes_max: int) -> Any:
        for outgoing in list(self.sent)[:-1]:
            outgoing.again = False
        return right(self, bytes_max)

    return broken


@mutant(Publishers, "take", "forget who owns an identity when it is written down", "receipt", "one_to_one")
def write_no_owners(right: Any) -> Any:
    def broken(self: Any, most: int) -> Any:
        forgotten, positions = right(self, most)
        return forgotten, [replace(each, owner=None) for each in positions]

    return broken


@mutant(Publishers, "pieces", "answer for given up events with a receipt", "receipt")
def receipt_for_holes(_: Any) -> Any:
    return lambda self, publisher, first, last: iter([(first, last, True)])
