"""What clients publish in one turn of the loop is stored together, up to a bound."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest

from gapless.errors import PeerError, UsageError
from gapless.model.budget import EVENT_BYTES_MAX, TOGETHER_BYTES_MAX
from gapless.model.ids import PubendId, TopicId
from gapless.model.packed import as_columns
from gapless.node import publishing as publishing_module
from gapless.node.publishing import CAUSED_SECONDS, Publishing
from gapless.node.security import EVERYTHING
from gapless.protocol.effects import RefusePublish
from gapless.protocol.events import Event, PublishRequested
from gapless.protocol.network import Network
from gapless.protocol.sessions.edge_publishing import TOGETHER_BYTES_WORTH, TOGETHER_ROWS_MAX, TURN_BYTES
from gapless.protocol.sessions.messages import NodeMessage, Publish, PublishRefused
from gapless.protocol.sessions.publishers import Publishers

NETWORK = Network.parse(
    {
        "cells": {"all": ["n1"]},
        "topics": {"mine": {"note": "string"}},
        "pubends": {"mine-1": {"topic": "mine", "broker": "n1"}},
    }
)
MINE = PubendId("mine-1")


class _Client:
    def __init__(self) -> None:
        self.rights = EVERYTHING
        self.heard: list[NodeMessage] = []

        self.caused_s = 0.0

    def send(self, message: NodeMessage) -> None:
        self.heard.append(message)

    def caused(self, seconds: float, _: float) -> None:
        self.caused_s += seconds


def published(first: int, *notes: str) -> Publish:
    rows = NETWORK.topics[TopicId("mine")].checked(pa.RecordBatch.from_pydict({"note": list(notes)}))
    size = sum(map(len, notes))
    return Publish(
        topic=TopicId("mine"), publisher="me", first_catenation=first, schema=0, rows=rows, nbytes=size
    )


def story_of(*messages: Publish) -> tuple[list[PublishRequested], _Client]:
    """What reaches the broker when all of these come in one turn of the loop."""
    fed: list[Event] = []
    client = _Client()

    async def story() -> None:
        publishing = Publishing(NETWORK, {MINE: Publishers(MINE)}, fed.append, {})
        for message in messages:
            publishing.publish(client, message)
        publishing.hand_over()

    asyncio.run(story())
    return [event for event in fed if isinstance(event, PublishRequested)], client


def test_rows_that_cannot_be_read_are_all_refused() -> None:
    unread = replace(published(5, "a"), rows=None, claimed_rows=7)
    damaged = replace(unread, damage=PeerError("E216", "a buffer of 3 bytes"))
    _, client = story_of(unread, damaged)
    assert [
        (each.first_catenation, each.last_catenation, each.code)
        for each in client.heard
        if isinstance(each, PublishRefused)
    ] == [(5, 11, "E111"), (5, 11, "E216")]


def test_bytes_that_are_stored_together_are_bounded() -> None:
    piece = "x" * (TOGETHER_BYTES_WORTH // 2)
    steps, _ = story_of(*(published(at, piece) for at in range(200)))
    assert sum(step.rows.num_rows for step in steps) == 200
    assert all(step.rows.nbytes <= TURN_BYTES + 1_000 for step in steps)
    assert len(steps) < 10, "and small ones are still put together"


def test_a_large_event_is_not_copied_to_be_stored_with_others() -> None:
    steps, _ = story_of(published(0, "x"), published(1, "y" * TOGETHER_BYTES_WORTH), published(2, "z"))
    assert [step.rows.num_rows for step in steps] == [1, 1, 1]


def test_a_request_with_very_many_rows_is_stored_in_pieces() -> None:
    steps, _ = story_of(published(0, *["x"] * (2 * TOGETHER_ROWS_MAX + 1)))
    assert [step.rows.num_rows for step in steps] == [TOGETHER_ROWS_MAX, TOGETHER_ROWS_MAX, 1]


def test_one_turn_hands_over_one_piece_and_the_next_turns_the_rest() -> None:
    fed: list[Event] = []

    async def story() -> None:
        publishing = Publishing(NETWORK, {MINE: Publishers(MINE)}, fed.append, {})
        publishing.publish(_Client(), published(0, *["x"] * (3 * TOGETHER_ROWS_MAX)))
        for count in (0, 1, 2, 3):
            assert len(fed) == count
            await asyncio.sleep(0)

    asyncio.run(story())


def test_what_one_client_publishes_is_stored_at_once_and_what_several_do_once_a_turn() -> None:
    fed: list[Event] = []
    flushes: list[int] = []

    async def story() -> None:
        publishing = Publishing(NETWORK, {MINE: Publishers(MINE)}, fed.append, {})
        publishing.flush = lambda: flushes.append(len(fed))
        publishing.publish(_Client(), published(0, "a"))
        publishing.publish(_Client(), published(1, "b"))
        publishing.settled()
        assert flushes == [1], "all that came together, in one step"
        # Another client in the same turn has to wait for the next one: from now on it is worth while.
        publishing.publish(_Client(), replace(published(0, "c"), publisher="other"))
        publishing.settled()
        assert len(fed) == 1
        await asyncio.sleep(0)
        assert len(fed) == 2
        publishing.publish(_Client(), published(2, "d"))
        publishing.settled()
        assert len(fed) == 2
        await asyncio.sleep(0)
        assert len(fed) == 3

    asyncio.run(story())


def test_pieces_behind_one_that_failed_are_refused() -> None:
    """The disk is full when the first piece is stored: none of the later ones may be."""
    client = _Client()
    publishers = Publishers(MINE)
    fed: list[Event] = []

    async def story() -> None:
        publishing = Publishing(NETWORK, {MINE: publishers}, fed.append, {})
        publishing.publish(client, published(0, *["x"] * (3 * TOGETHER_ROWS_MAX)))
        await asyncio.sleep(0)
        [asked] = fed
        assert isinstance(asked, PublishRequested)
        publishing.refused(RefusePublish(pubend=MINE, token=asked.token, reason="full"))
        publishing.hand_over()

    asyncio.run(story())
    assert len(fed) == 1
    assert publishers.accepted("me") == -1
    refused = [each for each in client.heard if isinstance(each, PublishRefused)]
    numbers = [(each.first_catenation, each.last_catenation) for each in refused]
    assert numbers == [(at * TOGETHER_ROWS_MAX, (at + 1) * TOGETHER_ROWS_MAX - 1) for at in range(3)]


def test_what_came_behind_a_request_that_fails_when_it_makes_room_is_stored_once_when_sent_again() -> None:
    """The second event needs room, so the first is handed over, and fails. The client sends both again."""
    client = _Client()
    stored: list[object] = []
    disk = iter([UsageError("E182", "the disk is full", retry=True)])

    def feed(event: Event) -> None:
        error = next(disk, None)
        if error is not None:
            raise error
        assert isinstance(event, PublishRequested)
        stored.extend(as_columns(event.rows).column("note").to_pylist())

    async def story() -> None:
        publishing = Publishing(NETWORK, {MINE: Publishers(MINE)}, feed, {})
        publishing.publish(client, replace(published(0, "first"), nbytes=TOGETHER_BYTES_MAX // 4))
        publishing.publish(client, replace(published(1, "second"), nbytes=TOGETHER_BYTES_MAX * 7 // 8))
        publishing.publish(client, published(0, "first"))
        publishing.publish(client, published(1, "second"))
        publishing.hand_over()

    asyncio.run(story())
    assert stored == ["first", "second"]
    refused = [each for each in client.heard if isinstance(each, PublishRefused)]
    assert [(each.first_catenation, each.retry) for each in refused] == [(0, True), (1, True)]


def caused(seconds: float) -> tuple[float, float]:
    """What somebody with a large event and somebody with a small one have caused by a step of both."""
    much, little = _Client(), _Client()

    async def story() -> None:
        publishing = Publishing(NETWORK, {MINE: Publishers(MINE)}, lambda _: None, {})
        publishing.publish(much, published(0, "x" * 30_000))
        publishing.publish(little, replace(published(0, "x" * 10_000), publisher="other"))
        publishing.hand_over()
        publishing.stepped(seconds, 0.0)
        publishing.stepped(1.0, 0.0)

    asyncio.run(story())
    return much.caused_s, little.caused_s


def test_a_long_step_is_charged_to_its_publishers_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing_module, "FAIR_ROW_SECONDS", 1.0)
    much, little = caused(CAUSED_SECONDS * 4)
    assert 2 < much / little < 3.1
    assert much + little == pytest.approx(CAUSED_SECONDS * 4)


def test_a_client_is_not_charged_for_steps_that_others_make_long() -> None:
    """Those who subscribe with conditions that cost much do."""
    assert sum(caused(10.0)) < 0.001


def test_rows_that_are_stored_together_are_bounded() -> None:
    steps, _ = story_of(*(published(500 * at, *["x"] * 500) for at in range(300)))
    assert sum(step.rows.num_rows for step in steps) == 150_000
    assert all(step.rows.num_rows <= TOGETHER_ROWS_MAX for step in steps)


def test_a_row_that_is_too_large_is_refused_before_anything_changes() -> None:
    steps, client = story_of(published(0, "x", "y" * (EVENT_BYTES_MAX + 1)), published(0, "x"))
    assert [step.rows.num_rows for step in steps] == [1]
    [refused] = client.heard
    assert isinstance(refused, PublishRefused)
    assert (refused.code, refused.retry, refused.first_catenation, refused.last_catenation) == (
        "E194",
        False,
        0,
        1,
    )
