"""Events that once stopped a node, or made it work for minutes: it refuses or stores them, and lives."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pyarrow as pa

from tests.hostile.arrow import V4, laid_out, message
from tests.hostile.payloads import COLUMNS, CONDITIONS, TOPIC, VALUES, Mutator, plain_of, random_rows
from tests.hostile.raw import frame, publish
from tests.hostile.victim import Victim

DOCUMENT = {"x": "xml"}


def network() -> str:
    lines = ['cells = {all = ["n1"]}', 'edges = ["n1"]']
    for topic, columns in {str(TOPIC): COLUMNS, "documents": DOCUMENT}.items():
        told = ", ".join(f'{name} = "{kind}"' for name, kind in columns.items())
        lines += [f"topics.{topic} = {{{told}}}", f'pubends.{topic}-1 = {{topic = "{topic}", broker = "n1"}}']
    return "\n".join(lines)


def of_document(document: bytes) -> bytes:
    return message(laid_out(1, [[b"", struct.pack("<ii", 0, len(document)), document]]))


def test_a_node_with_filters_of_every_type_survives_hostile_payloads(
    tmp_path: Path,
) -> None:
    random = Random(1)
    mutator = Mutator(random)
    with Victim(tmp_path, network()) as victim, victim.dial() as reader:
        for request, where in enumerate(CONDITIONS):
            head = [request, TOPIC, where, None, "publisher", "now", "best-effort", None]
            reader.send(frame("SUBSCRIBE", head))
            reader.hear_kind("CONFIRMED")
        reader.send(
            frame(
                "SUBSCRIBE",
                [999, "documents", "XPATH(x, '/a')", None, "publisher", "now", "best-effort", None],
            )
        )
        reader.hear_kind("CONFIRMED")
        first = 0
        with victim.dial() as writer:
            # Oversized buffers, and every extreme value: stored, and matched.
            for rows in (random_rows(random, count) for count in (1, 2, 9, 70)):
                for data in (message(plain_of(rows)), mutator.loosened(rows), mutator.loosened(rows)):
                    writer.send(publish(TOPIC, COLUMNS, data, first=first))
                    assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED", "REFUSE").kind == "RECEIPT"
                    first += 100
            many = b" ".join(b"a%d='%d'" % (at, at) for at in range(80_000))
            for document in (b"<a " + many + b"/>", b"<a>" + b"<b/>" * 200_000 + b"</a>"):
                writer.send(publish("documents", DOCUMENT, of_document(document), publisher="crowded"))
                assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").head[3] == "E176"
            for document in VALUES["x"]:
                writer.send(
                    publish("documents", DOCUMENT, of_document(document), first=first, publisher="writer")
                )
                assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED", "REFUSE").kind == "RECEIPT"
                first += 100
        bomb = pa.compress(bytes(500_000_000), codec="zstd").to_pybytes()
        body = struct.pack("<q", 500_000_000) + bomb
        plain = laid_out(1, [[b"", struct.pack("<ii", 0, 8), body]])
        custom = {"ARROW:experimental_compression": "zstd"}
        for options in ({"version": V4, "custom": custom}, {"custom": custom}, {"compression": 1}):
            with victim.dial() as bomber:
                bomber.send(publish("documents", DOCUMENT, message(plain, **options), first=first))
                refused = bomber.hear_kind("PUBLISH_REFUSED").head
                assert refused[3] == "E216"
        assert victim.resident_bytes < 500_000_000
        assert victim.page("/readyz") == (200, "ready\n")
        assert victim.stop() == 0


def test_damaged_rows_are_refused_by_number_and_the_connection_stays(tmp_path: Path) -> None:
    random = Random(2)
    mutator = Mutator(random)
    rows = random_rows(random, 9)
    sound = message(plain_of(rows))
    with Victim(tmp_path, network()) as victim, victim.dial() as writer:
        writer.send(publish(TOPIC, COLUMNS, sound, first=0))
        assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").kind == "RECEIPT"
        # Nothing of it was stored: the same numbers are free for sound rows.
        writer.send(publish(TOPIC, COLUMNS, sound[:-8], first=9))
        refused = writer.hear_kind("RECEIPT", "PUBLISH_REFUSED")
        assert refused.head[1:4] == [9, 17, "E216"]
        writer.send(publish(TOPIC, COLUMNS, sound, first=9))
        assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").head[1:3] == [9, 17]
        answers = set()
        for first in range(100, 20_000, 100):
            writer.send(publish(TOPIC, COLUMNS, mutator.columns(rows), first=first))
            heard = writer.hear_kind("RECEIPT", "PUBLISH_REFUSED", "REFUSE")
            assert heard.kind != "REFUSE", heard
            assert heard.head[1] == first
            answers.add(heard.head[3] if heard.kind == "PUBLISH_REFUSED" else "stored")
        assert "E216" in answers
        assert victim.page("/readyz") == (200, "ready\n")
