"""A document within the quotas goes to whoever asks for it, one above them nowhere, however it is sent.

The quotas here are those of docs/network.md, written down again: nothing is taken from the code.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.hostile.raw import Heard, Raw, frame, publish, publish_rows
from tests.hostile.victim import Victim

BYTES_MAX = 2**20
PARTS_MAX = 5_000
COLUMNS = {"number": "int", "doc": "xml?"}
NETWORK = """
cells = {all = ["n1"]}
topics.news = {number = "int", doc = "xml?"}
pubends.news-1 = {topic = "news", broker = "n1"}
"""
SCHEMA = pa.schema([pa.field("number", pa.int64(), nullable=False), pa.field("doc", pa.binary())])


def of_bytes(size: int) -> bytes:
    return b"<a>" * 255 + b"<b>" + b" " * (size - 256 * 7) + b"</b>" + b"</a>" * 255


def of_parts(count: int) -> bytes:
    return b"<a>" + b"<b>1</b>" * (count - 1) + b"</a>"


def send(writer: Raw, document: bytes, number: int, publisher: str) -> Heard:
    rows = pa.RecordBatch.from_pylist([{"number": number, "doc": document}], schema=SCHEMA)
    writer.send(publish("news", COLUMNS, rows, publisher=publisher))
    return writer.hear_kind("RECEIPT", "PUBLISH_REFUSED")


def test_documents_above_a_quota_are_refused_and_those_at_it_are_delivered(tmp_path: Path) -> None:
    with Victim(tmp_path, NETWORK) as victim, victim.dial() as writer, victim.dial("reader") as reader:
        # What there is of the text is looked for at every level.
        patterns = ["//b[. < 5]", "//*[contains(., 'yz')]", "//*[not(.//z)][. = '']", "//b[not(. > 5)]"]
        for at, pattern in enumerate(patterns, 1):
            reader.send(
                frame("SUBSCRIBE", [at, "news", pattern, None, "publisher", "now", "guaranteed", None])
            )
            reader.hear_kind("CONFIRMED")
        documents = [
            of_bytes(BYTES_MAX + 1),
            of_parts(PARTS_MAX + 1),
            of_bytes(BYTES_MAX),
            of_parts(PARTS_MAX),
        ]
        heard = [
            send(writer, document, number, f"mallory-{number}") for number, document in enumerate(documents)
        ]
        assert [each.kind for each in heard] == ["PUBLISH_REFUSED", "PUBLISH_REFUSED", "RECEIPT", "RECEIPT"]
        assert [each.head[3] for each in heard[:2]] == ["E176", "E176"]
        assert "limits.document_bytes_max" in heard[0].head[4]
        assert "limits.document_parts_max" in heard[1].head[4]
        reader.hear_kind("ROWS", "COLUMNS")
        reader.hear_kind("ROWS", "COLUMNS")
        assert victim.is_alive


def test_packed_rows_do_not_bypass_the_document_quotas(tmp_path: Path) -> None:
    with Victim(tmp_path, NETWORK) as victim, victim.dial() as writer:
        writer.send(publish_rows("news", COLUMNS, [[1, of_parts(PARTS_MAX + 1)]]))
        assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED", "REFUSE").head[3] == "E215"
        assert victim.is_alive
