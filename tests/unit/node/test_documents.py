"""A document that would take too long to match is refused when it is published, and never stored."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from gapless.model.budget import DOCUMENT_BYTES_MAX, NODES_MAX
from gapless.model.ids import PubendId, TopicId
from gapless.model.packed import is_packable
from gapless.node.config import Limits
from gapless.node.documents import DocumentQuota
from gapless.node.publishing import Publishing
from gapless.node.security import EVERYTHING
from gapless.protocol.events import Event, PublishRequested
from gapless.protocol.network import Network
from gapless.protocol.sessions.edge_publishing import pieces_of
from gapless.protocol.sessions.messages import NodeMessage, Publish, PublishRefused
from gapless.protocol.sessions.publishers import Publishers

NETWORK = Network.parse(
    {
        "cells": {"all": ["n1"]},
        "topics": {
            "news": {"number": "int", "doc": "xml?", "other": "xml?"},
            "plain": {"number": "int", "doc": "binary?", "other": "string?"},
        },
        "pubends": {
            "news-1": {"topic": "news", "broker": "n1"},
            "plain-1": {"topic": "plain", "broker": "n1"},
        },
    }
)
BYTES_MAX = Limits().document_bytes_max
PARTS_MAX = Limits().document_parts_max


class _Client:
    def __init__(self) -> None:
        self.rights = EVERYTHING
        self.heard: list[NodeMessage] = []

    def send(self, message: NodeMessage) -> None:
        self.heard.append(message)

    def charge(self, seconds: float) -> None:
        """Not of interest here."""


def rows_of(*documents: bytes | None, other: bytes | None = None, topic: str = "news") -> pa.RecordBatch:
    schema = NETWORK.topics[TopicId(topic)]
    count = len(documents)
    columns = {"number": [*range(count)], "doc": [*documents], "other": [other] * count}
    kinds = {"number": pa.int64(), "doc": pa.binary(), "other": schema.arrow().field("other").type}
    return schema.checked(
        pa.RecordBatch.from_arrays([pa.array(columns[name], kinds[name]) for name in kinds], names=[*kinds])
    )


def publishing_of(rows: pa.RecordBatch, topic: str = "news", limits: Limits | None = None) -> tuple[int, str]:
    """How many rows reach the broker, and why not."""
    fed: list[Event] = []
    client = _Client()

    async def story() -> None:
        publishers = {PubendId(f"{each}-1"): Publishers(PubendId(f"{each}-1")) for each in NETWORK.topics}
        publishing = Publishing(NETWORK, publishers, fed.append, {}, limits=limits)
        publishing.publish(
            client,
            Publish(
                topic=TopicId(topic),
                publisher="me",
                first_catenation=0,
                schema=0,
                rows=rows,
                nbytes=min(rows.nbytes, 2**20),
            ),
        )
        publishing.hand_over()

    asyncio.run(story())
    refused = [each for each in client.heard if isinstance(each, PublishRefused)]
    assert all(not each.retry for each in refused)
    stored = sum(each.rows.num_rows for each in fed if isinstance(each, PublishRequested))
    return stored, " ".join(f"{each.code} {each.message}" for each in refused)


def of_bytes(size: int) -> bytes:
    return b"<a>" + b"x" * (size - 7) + b"</a>"


def of_parts(count: int) -> bytes:
    """A tag, tags with an attribute, and signs in the text: so many parts."""
    tags = (count - 1) // 4
    return b"<a>" + b"<b c='1'/></b>" * tags + b"x" * PARTS_MAX + b"=" * (count - 1 - 2 * tags) + b"</a>"


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_document_has_as_many_bytes_as_the_quota_and_no_more(more: int) -> None:
    stored, why = publishing_of(rows_of(of_bytes(BYTES_MAX + more)))
    assert stored == (more <= 0)
    if more > 0:
        assert why == (
            f"E176 row 0 for topic 'news': the document in column 'doc' has {BYTES_MAX + 1} bytes, "
            f"this node takes {BYTES_MAX}: split it, or raise limits.document_bytes_max"
        )


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_document_has_as_many_parts_as_the_quota_and_no_more(more: int) -> None:
    stored, why = publishing_of(rows_of(of_parts(PARTS_MAX + more)))
    assert stored == (more <= 0)
    if more > 0:
        assert f"has {PARTS_MAX + 1} parts (signs < and =), this node takes {PARTS_MAX}: " in why
        assert why.startswith("E176 ")
        assert why.endswith("raise limits.document_parts_max")


@pytest.mark.parametrize("more", [0, 1])
def test_the_quota_holds_for_every_row_and_column(more: int) -> None:
    good, last = of_parts(PARTS_MAX), of_parts(PARTS_MAX + more)
    batch = rows_of(good, None, b"", good, last)
    stored, why = publishing_of(batch)
    assert stored == (0 if more else 5)
    assert ("row 4 for" in why) == bool(more)
    # A slice has other offsets.
    stored, why = publishing_of(batch.slice(3))
    assert stored == (0 if more else 2)
    assert ("row 1 for" in why) == bool(more)
    stored, why = publishing_of(rows_of(None, None, other=last))
    assert stored == (0 if more else 2)
    assert ("column 'other'" in why) == bool(more)


def test_utf_16_counts_at_least_as_much() -> None:
    document = "<a>" + "<b/>" * PARTS_MAX + "</a>"
    assert publishing_of(rows_of(document.encode("utf-16")))[0] == 0
    assert publishing_of(rows_of(document.encode("utf-16-be")))[0] == 0
    assert publishing_of(rows_of(f"<a>{'é' * PARTS_MAX}</a>".encode("utf-16")))[0] == 1


def test_what_is_hidden_behind_a_null_is_no_document() -> None:
    schema = NETWORK.topics[TopicId("news")]
    data = of_bytes(BYTES_MAX + 1)
    offsets = pa.py_buffer(b"".join(each.to_bytes(4, "little") for each in (0, len(data))))
    hidden = pa.Array.from_buffers(pa.binary(), 1, [pa.py_buffer(b"\0"), offsets, pa.py_buffer(data)])
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1]), hidden, pa.nulls(1, pa.binary())], schema=schema.arrow()
    )
    DocumentQuota(Limits()).check(schema, rows)


def test_other_columns_have_no_quota() -> None:
    assert publishing_of(rows_of(of_bytes(BYTES_MAX + 1), topic="plain"), "plain") == (1, "")


def test_rows_with_documents_are_never_packed() -> None:
    # So they come as columns, which are checked; packed rows are not looked at again.
    assert not is_packable(NETWORK.topics[TopicId("news")])


def test_the_quota_can_be_raised_to_the_limits_of_documents() -> None:
    limits = Limits(document_bytes_max=DOCUMENT_BYTES_MAX, document_parts_max=NODES_MAX)
    assert publishing_of(rows_of(of_bytes(DOCUMENT_BYTES_MAX)), limits=limits) == (1, "")
    assert publishing_of(rows_of(of_parts(NODES_MAX)), limits=limits) == (1, "")
    assert publishing_of(rows_of(of_parts(NODES_MAX + 1)), limits=limits)[0] == 0


def test_heavy_documents_are_cut_into_steps_and_light_ones_are_not() -> None:
    heavy = of_parts(PARTS_MAX)
    assert steps_of(heavy, b"<a/>", heavy, heavy) == [1, 1, 1, 1]
    assert steps_of(*[b"<a b='1'>x</a>"] * 500) == [500]
    assert steps_of(heavy[:-4], None, None) == [1, 2]


def steps_of(*documents: bytes | None) -> list[int]:
    """How many rows each piece of a request has."""
    rows = rows_of(*documents)
    weights = DocumentQuota(Limits()).check(NETWORK.topics[TopicId("news")], rows)
    return [stop - start for start, stop, _ in pieces_of(rows.num_rows, weights)]


def test_documents_are_handed_over_one_heavy_one_at_a_time_and_all_get_there() -> None:
    heavy = of_parts(PARTS_MAX)
    stored, why = publishing_of(rows_of(heavy, heavy, b"<a/>", heavy, None))
    assert (stored, why) == (5, "")
