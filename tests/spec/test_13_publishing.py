"""Section 13 of docs/protocol.md: the two halves of a publisher's session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from gapless.errors import LinkError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.notes import PublisherPosition
from gapless.model.packed import as_columns
from gapless.model.ticks import Tick
from gapless.protocol.effects import AcceptPublish
from gapless.protocol.network import Network
from gapless.protocol.sessions.client_publishing import (
    RESEND_MS_MAX,
    ClientPublishing,
    FindPubend,
    Outgoing,
    PublishingEffect,
    Settle,
    StartPause,
    Transmission,
)
from gapless.protocol.sessions.edge_publishing import EdgePublishing, PublishAnswer
from gapless.protocol.sessions.identities import TEMPORARY_KEPT, PublisherIdentities
from gapless.protocol.sessions.messages import Publish, PublishReceipt, PublishRefused
from gapless.protocol.sessions.publishers import HOLES_MAX, Publishers

P, TOPIC = PubendId("p"), TopicId("t")
NETWORK = Network.parse(
    {
        "cells": {"all": ["n"]},
        "topics": {"t": {"number": "int"}},
        "pubends": {"p": {"topic": "t", "broker": "n"}},
    }
)
FULL = UsageError("E182", "the disk is full", retry=True)


@dataclass(eq=False)
class Peer:
    """A connection of somebody who may do everything."""

    principal: str = "owner"

    @property
    def rights(self) -> Peer:
        return self

    def check_publish(self, topic: TopicId) -> None:
        """It may."""

    def may_see(self, topic: TopicId) -> bool:
        return bool(topic)

    def no_topic(self, topic: TopicId, topics: Iterable[TopicId]) -> UsageError:
        return UsageError("E141", f"no {topic} in {list(topics)}")


@dataclass
class Disk:
    """A log whose notes are kept, and a database."""

    stored: list[int] = field(default_factory=list)
    kept: list[tuple[Tick, bytes]] = field(default_factory=list)
    positions: list[PublisherPosition] = field(default_factory=list)
    until: Tick = 0

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        return iter([each for each in self.kept if each[0] >= start])


class Edge:
    """The broker's half over a disk that a test works by hand."""

    def __init__(self, disk: Disk, identities: PublisherIdentities | None = None) -> None:
        self.disk = disk
        self.publishers = Publishers.recover(P, disk, disk.positions, disk.until, identities)
        self.session: EdgePublishing[Peer] = EdgePublishing(NETWORK, {P: self.publishers}, {})
        self.tokens: list[tuple[int, list[int], bytes]] = []

    def publish(
        self, peer: Peer, *numbers: int, before: int | None = None, who: str = "me", now: Tick = 0
    ) -> list[tuple[object, ...]]:
        """Publish rows that know their own numbers; gives the answers, shortened."""
        message = Publish(
            topic=TOPIC,
            publisher=who,
            first_catenation=numbers[0],
            schema=0,
            rows=pa.RecordBatch.from_pydict({"number": list(numbers)}),
            before=numbers[0] - 1 if before is None else before,
            is_temporary=True,
        )
        return short(self.session.publish(peer, message, now))

    def turn(self) -> None:
        for request in self.session.steps():
            rows = as_columns(request.rows).column("number").to_pylist()
            self.tokens.append((request.token, rows, request.note))

    def flush(self, at: int = 0) -> list[PublishAnswer[Peer]]:
        """A record that is under way becomes durable."""
        token, rows, note = self.tokens.pop(at)
        start = len(self.disk.stored)
        self.disk.stored += rows
        self.disk.kept.append((len(self.disk.stored) - 1, note))
        return self.session.accepted(
            AcceptPublish(pubend=P, token=token, ticks=range(start, len(self.disk.stored)))
        )

    def fail(self) -> list[PublishAnswer[Peer]]:
        return self.session.refused(self.tokens.pop(0)[0], FULL)

    def store(self, peer: Peer, *numbers: int, before: int | None = None) -> None:
        assert self.publish(peer, *numbers, before=before) == []
        self.turn()
        self.flush()


def short(answers: list[PublishAnswer[Peer]]) -> list[tuple[object, ...]]:
    """Each answer as its first and last number, and its ticks or its code."""
    return [
        (each.message.first_catenation, each.message.last_catenation)
        + ((each.message.runs,) if isinstance(each.message, PublishReceipt) else (each.message.code,))
        for each in answers
    ]


def test_what_comes_again_is_answered_and_stored_once() -> None:
    """Clauses 13.2 and 13.6."""
    one, other, edge = Peer(), Peer(), Edge(Disk())
    assert edge.publish(one, 0, 1, 2) == []
    edge.turn()
    # On its way: both hear of it. Handed over or not makes no difference.
    assert edge.publish(other, 1, 2) == []
    assert edge.publish(one, 3) == edge.publish(other, 3) == []
    edge.turn()
    answers = edge.flush()
    assert short(answers) == [(0, 2, ((0, 3),)), (1, 2, ((1, 2),))]
    assert [each.to for each in answers] == [one, other]
    assert [each.to for each in edge.flush()] == [one, other]
    # Stored: no ticks, and only the rest is new.
    assert edge.publish(other, 2, 3, 4) == [(2, 3, ())]
    edge.turn()
    assert short(edge.flush()) == [(4, 4, ((4, 1),))]
    assert edge.disk.stored == [0, 1, 2, 3, 4]


def test_however_often_events_come_again_there_is_one_more_answer() -> None:
    """Clause 13.6. Otherwise a few repeats of many small requests would cost a receipt for each of each."""
    one, other, edge = Peer(), Peer(), Edge(Disk())
    for number in range(4):
        edge.publish(one, number)
        if number == 1:
            edge.turn()
    for _ in range(9):
        assert edge.publish(other, 0, 1, 2) == []
        assert edge.publish(one, 0, 1, 2, 3) == []
    edge.turn()
    answers = edge.flush()
    assert [each.message.first_catenation for each in answers if each.to is one] == [0, 1, 0]
    assert short([each for each in answers if each.to is other]) == [(0, 1, ((0, 2),))]
    edge.publish(other, 3)
    assert short([each for each in edge.flush() if each.to is other]) == [(2, 3, ((2, 2),))]
    edge.session.check()


def test_whoever_sent_events_again_hears_that_they_failed() -> None:
    """Clause 13.6."""
    one, other, edge = Peer(), Peer(), Edge(Disk())
    edge.publish(one, 0)
    edge.turn()
    edge.publish(one, 1)
    for _ in range(2):
        edge.publish(other, 0, 1)
    answers = edge.fail()
    assert short([each for each in answers if each.to is other]) == [(0, 0, "E182"), (1, 1, "E182")]
    edge.session.check()
    assert edge.publish(one, 0, 1) == []
    edge.turn()
    assert [each.to for each in edge.flush()] == [one]


def test_what_came_again_is_answered_when_receipts_of_one_flush_come_in_any_order() -> None:
    """Clause 13.6."""
    one, other, edge = Peer(), Peer(), Edge(Disk())
    for number in range(3):
        edge.publish(one, number)
        edge.turn()
    edge.publish(other, 0, 1, 2)
    heard = [short([each for each in edge.flush(at) if each.to is other]) for at in (1, 1, 0)]
    assert [first for [(first, _, _)] in heard] == [1, 2, 0]
    edge.session.check()


def test_receipts_of_one_flush_may_come_in_any_order() -> None:
    """Clause 13.6."""
    peer, edge = Peer(), Edge(Disk())
    for number in range(2):
        edge.publish(peer, number)
        edge.turn()
    edge.tokens.reverse()
    edge.flush()
    edge.flush()
    assert edge.publishers.durable("me") == 1


def test_nothing_is_stored_before_what_its_publisher_relies_on() -> None:
    """Clause 13.3."""
    peer, edge = Peer(), Edge(Disk())
    edge.store(peer, 0)
    [answer] = edge.session.publish(
        peer,
        Publish(
            topic=TOPIC,
            publisher="me",
            first_catenation=2,
            schema=0,
            rows=pa.RecordBatch.from_pydict({"number": [2]}),
            before=1,
        ),
        0,
    )
    assert isinstance(answer.message, PublishRefused)
    assert (answer.message.retry, answer.message.had) == (True, 0)
    # What came behind events that fail is refused with them.
    edge.publish(peer, 1)
    edge.turn()
    edge.publish(peer, 2)
    assert short(edge.fail()) == [(1, 1, "E182"), (2, 2, "E182")]
    edge.turn()
    assert edge.tokens == []
    edge.store(peer, 1, 2)
    assert edge.disk.stored == [0, 1, 2]


def test_a_number_in_a_hole_is_refused_for_good() -> None:
    """Clause 13.4."""
    peer, edge = Peer(), Edge(Disk())
    edge.store(peer, 0)
    edge.store(peer, 3, before=0)
    assert edge.publish(peer, 1, 2, 3) == [(1, 2, "E102"), (3, 3, ())]
    again = Edge(edge.disk)
    assert again.publish(peer, 0, 1, 2, 3) == [(0, 0, ()), (1, 2, "E102"), (3, 3, ())]
    for number in range(5, 5 + 2 * HOLES_MAX, 2):
        again.store(peer, number, before=number - 2)
    assert again.publish(peer, 3) == [(3, 3, "E102")], "the oldest two holes became one"


@pytest.mark.parametrize("is_written", [False, True], ids=["from notes", "from the database"])
def test_what_is_known_of_an_identity_survives_a_restart(is_written: bool) -> None:
    """Clause 13.5."""
    peer, edge = Peer(), Edge(Disk())
    edge.store(peer, 0, 1)
    edge.store(peer, 2)
    if is_written:
        edge.disk.positions, edge.disk.until = edge.publishers.take(9)[1], edge.publishers.known_tick
        edge.disk.kept = []
    # What is not flushed is lost, with its note.
    edge.publish(peer, 3)
    edge.turn()
    again = Edge(edge.disk)
    assert again.publish(Peer(), 0, 1, 2) == [(0, 2, ())]
    assert again.publish(Peer("thief"), 3) == [(3, 3, "E103")]
    again.store(peer, 3)
    assert again.disk.stored == [0, 1, 2, 3]


def test_an_identity_belongs_to_its_first_user() -> None:
    """Clause 13.7."""
    owner, thief = Peer("owner"), Peer("thief")
    edge = Edge(Disk(), PublisherIdentities(publishers_max=1))
    edge.store(owner, 0)
    assert edge.publish(thief, 1) == [(1, 1, "E103")]
    assert edge.publish(owner, 0, who="other") == [(0, 0, "E104")]
    assert edge.publish(thief, 0, who="other") == []
    assert edge.publish(owner, 0, who="another", now=TEMPORARY_KEPT + 1) == []
    assert edge.publishers.accepted("me") == -1, "forgotten"


# ---- the client's half -------------------------------------------------------------------------------


def client(**more: int) -> ClientPublishing[Outgoing]:
    machine: ClientPublishing[Outgoing] = ClientPublishing("me", **more)  # type: ignore[arg-type]
    machine.choose(P)
    return machine


def sent(machine: ClientPublishing[Outgoing], count: int, now_ms: int = 0) -> tuple[int, int, int]:
    return numbers(machine.send(Outgoing(count, count), now_ms))


def numbers(transmission: Transmission[Outgoing]) -> tuple[int, int, int]:
    """The first and last number of a transmission, and the one before."""
    outgoing, start, stop, before = transmission
    return outgoing.first + start, outgoing.first + stop - 1, before


def receipt(first: int, last: int) -> PublishReceipt:
    return PublishReceipt(publisher="me", first_catenation=first, last_catenation=last, pubend=P, runs=())


def refusal(first: int, last: int, *, code: str = "E182", retry: bool = True) -> PublishRefused:
    return PublishRefused(
        publisher="me", first_catenation=first, last_catenation=last, code=code, message="", retry=retry
    )


def settled(effects: list[PublishingEffect[Outgoing]]) -> list[tuple[int, int, bool]]:
    """The numbers that have an outcome, and whether it is a receipt."""
    return [
        (each.outgoing.first + each.start, each.outgoing.first + each.stop - 1, each.error is None)
        for each in effects
        if isinstance(each, Settle)
    ]


def test_everything_without_a_receipt_is_sent_again_on_a_new_connection() -> None:
    """Clause 13.8."""
    machine = client()
    machine.linked(0)
    assert [sent(machine, 3), sent(machine, 2)] == [(0, 2, -1), (3, 4, 2)]
    assert settled(machine.receipt(receipt(1, 1), 1)) == [(1, 1, True)]
    machine.unlinked()
    assert machine.linked(2) == []
    again, more = machine.resends(1_000)
    assert [numbers(each) for each in again] == [(0, 0, -1), (2, 2, 0), (3, 4, 2)]
    assert not more
    assert sent(machine, 1) == (5, 5, 4)
    machine.check()


def test_what_was_sent_too_long_ago_fails() -> None:
    """Clause 13.8."""
    machine = client()
    sent(machine, 2, now_ms=0)
    sent(machine, 1, now_ms=RESEND_MS_MAX)
    assert settled(machine.linked(RESEND_MS_MAX + 1)) == [(0, 1, False)]
    again, _ = machine.resends(1_000)
    assert [numbers(each) for each in again] == [(2, 2, -1)]


def test_what_is_refused_for_now_is_sent_again_a_few_times() -> None:
    """Clause 13.9."""
    machine = client(retries_max=1)
    sent(machine, 2)
    assert machine.refused(refusal(0, 1), FULL, 1) == [StartPause(1)]
    assert not machine.is_sending
    assert machine.pause_over() == []
    assert [numbers(each) for each in machine.resends(1_000)[0]] == [(0, 1, -1)]
    assert settled(machine.refused(refusal(0, 1), FULL, 2)) == [(0, 1, False)]
    assert machine.given_up() == 1
    assert sent(machine, 1) == (2, 2, -1)


def test_a_publisher_follows_its_pubend_and_stays_with_it() -> None:
    """Clause 13.9."""
    machine = client()
    sent(machine, 1)
    moved = refusal(0, 0, code="E143", retry=False)
    assert machine.refused(moved, UsageError("E143", ""), 1) == [FindPubend(is_stale=True)]
    assert not machine.is_sending
    away = LinkError("E401", "nobody answers", retry=True)
    assert machine.not_found(away, 2) == [StartPause(1)]
    assert machine.pause_over() == [FindPubend(is_stale=False)]
    machine.unlinked()
    assert machine.pubend == P
    machine.found(P)
    machine.linked(3)
    assert [numbers(each) for each in machine.resends(1_000)[0]] == [(0, 0, -1)]
