"""Who may be a neighbour, and what becomes of what one sends that is too large."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gapless.errors import PeerError
from gapless.model.batch import EventBatch
from gapless.model.budget import EVENT_BYTES_MAX
from gapless.model.epochs import ALWAYS
from gapless.model.ids import PubendId
from gapless.node.links import BrokerConnections
from gapless.node.node import Node
from gapless.protocol.messages import KnowledgeMessage
from gapless.wire.broker_codec import BrokerEncoder
from gapless.wire.frames import FROM_BROKER, Frame, FrameReader
from gapless.wire.handshake import Hello, Role, Welcome, network_fingerprint
from tests.integration.files import running

TWO_NODES = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["s1"]
topics.mine = {note = "string"}
pubends.mine-1 = {topic = "mine", broker = "p1"}
"""
SCHEMA = pa.schema([pa.field("note", pa.string(), nullable=False)])


def test_a_stranger_is_no_neighbour(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(TWO_NODES, tmp_path, "p1", "s1") as network:
            links: BrokerConnections = network.nodes["p1"].links
            with pytest.raises(PeerError) as caught:
                links.welcome(None, Hello(role=Role.BROKER, name="mallory"))  # type: ignore[arg-type]
            assert caught.value.code == "E221"

    asyncio.run(story())


def test_another_broker_at_the_address_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(TWO_NODES, tmp_path, "p1", "s1") as network:
            node: Node = network.nodes["p1"]
            fingerprint = network_fingerprint(node.config.network)
            answer = Welcome(version=1, name="mallory", network=fingerprint, software="")
            [neighbour] = node.links._neighbours.values()
            with pytest.raises(PeerError) as caught:
                node.links.check(answer, neighbour)
            assert caught.value.code == "E223"

    asyncio.run(story())


def frames_of(*notes: str) -> list[Frame]:
    ticks = np.arange(10, 10 + len(notes))
    rows = pa.RecordBatch.from_pydict({"note": list(notes)}, schema=SCHEMA)
    message = KnowledgeMessage(
        pubend=PubendId("mine-1"),
        runs=((10, 10 + len(notes), ALWAYS),),
        batch=EventBatch(ticks, rows),
        first_time=True,
        final_before=0,
    )
    return FrameReader(FROM_BROKER).feed(b"".join(BrokerEncoder().encode(message)))


def test_what_an_older_neighbour_sends_that_is_too_large_is_quarantined(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(TWO_NODES, tmp_path, "p1", "s1") as network:
            node: Node = network.nodes["s1"]
            [neighbour] = node.links._neighbours.values()
            for frame in frames_of("before", "x" * (EVENT_BYTES_MAX + 1), "after"):
                node.links.received(neighbour, frame)
            node.links.settled(neighbour)
            [event] = json.loads(node.status())["quarantined"]
            assert event == {"pubend": "mine-1", "tick": 11, "event_bytes": EVENT_BYTES_MAX + 1}
            assert node.failure is None
            stream = node.broker._paths[PubendId("mine-1")].istream.stream
            assert not stream.known.missing(10, 13), "its tick is final, and not asked for"

    asyncio.run(story())
