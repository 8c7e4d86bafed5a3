"""What clients publish in one turn of the loop is stored together, up to a bound."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from gapless.model.budget import EVENT_BYTES_MAX, TOGETHER_BYTES_MAX
from gapless.model.ids import PubendId, TopicId
from gapless.node.publishers import Publishers
from gapless.node.publishing import TOGETHER_ROWS_MAX, Publishing
from gapless.node.security import EVERYTHING
from gapless.protocol.events import Event, PublishRequested
from gapless.protocol.network import Network
from gapless.wire.client_messages import NodeMessage, Publish, PublishRefused

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

    def send(self, message: NodeMessage) -> None:
        self.heard.append(message)


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


def test_bytes_that_are_stored_together_are_bounded() -> None:
    piece = "x" * (TOGETHER_BYTES_MAX // 4)
    steps, _ = story_of(*(published(at, piece) for at in range(20)))
    assert sum(step.rows.num_rows for step in steps) == 20
    assert all(step.rows.nbytes <= TOGETHER_BYTES_MAX + 1_000 for step in steps)
    assert len(steps) < 10, "and small ones are still put together"


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
