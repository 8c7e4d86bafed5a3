"""An event at the limit goes everywhere, one above it nowhere; of one in an old log somebody is told.

The limits here are those of docs/wire.md, written down again: nothing is taken from the code.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId
from gapless.protocol.effects import BatchRecord
from gapless.store.log import Log
from tests.hostile.raw import KINDS, Heard, Raw, frame, publish, publish_rows
from tests.hostile.victim import COLUMNS, Victim

EVENT_BYTES_MAX = 15 * 2**20
CLIENT_FRAME_BYTES_MAX = 16 * 2**20
SCHEMA = pa.schema([pa.field("price", pa.float64(), nullable=False), pa.field("note", pa.string())])
#: The pubend lives at one node, and subscribers come to another.
TWO_NODES = """
cells = {p = ["p1"], s = ["s1"]}
links = ["p--s"]
edges = ["s1"]
topics.mine = {price = "float", note = "string?"}
pubends.mine-1 = {topic = "mine", broker = "p1"}
retention.mine = "forever"
"""
SUBSCRIBE = [1, "mine", "", None, "publisher", "earliest", "guaranteed", None]


def rows_of(*notes: str | None) -> pa.RecordBatch:
    listed = [{"price": float(at), "note": note} for at, note in enumerate(notes)]
    return pa.RecordBatch.from_pylist(listed, schema=SCHEMA)


def note_of(more: int) -> str:
    """A text that makes an event so much larger than the largest; the price counts 16 bytes."""
    return "x" * (EVENT_BYTES_MAX - 16 + more)


def sizes_heard(heard: Heard) -> dict[int, int]:
    """How long the notes of a delivery are, by tick."""
    if heard.kind == "COLUMNS":
        rows = pa.ipc.read_record_batch(pa.py_buffer(heard.parts[1]), SCHEMA)
        ticks = np.frombuffer(heard.parts[0], dtype="<i8").tolist()
        return dict(zip(ticks, (len(note) for note in rows.column("note").to_pylist()), strict=True))
    pairs, rows = struct.unpack_from("<II", heard.head)
    at = 8 + 8 * pairs
    sizes = {}
    for _ in range(rows):
        tick, _, length = struct.unpack_from("<qII", heard.head, at)
        # An array of two, a float of 9 bytes, and a text of more than 65,535 bytes, or a short one.
        text = heard.head[at + 16 + 10 : at + 16 + length]
        sizes[tick] = length - 10 - {0xDB: 5, 0xDA: 3, 0xD9: 2}.get(text[0], 1)
        at += 16 + length + -length % 8
    return sizes


def hear_notes(reader: Raw, count: int) -> list[int]:
    """How long the notes of the first events are. One that is slow to read gets some again."""
    found: dict[int, int] = {}
    while len(found) < count:
        found |= sizes_heard(reader.hear_kind("ROWS", "COLUMNS"))
    return [found[tick] for tick in sorted(found)]


def subscribed(victim: Victim, head: list[object] = SUBSCRIBE) -> Raw:
    reader = victim.dial("reader")
    reader.send(frame("SUBSCRIBE", head))
    reader.hear_kind("CONFIRMED")
    return reader


def test_an_event_at_the_limit_goes_through_log_links_rows_columns_and_restarts(tmp_path: Path) -> None:
    with Victim(tmp_path, TWO_NODES, broker="p1", brokers=("p1", "s1")) as home, home.beside("s1") as edge:
        with subscribed(edge) as reader, home.dial() as writer:
            # One row each: the subscriber gets them as rows.
            for number, more in enumerate((-1, 0)):
                writer.send(publish("mine", COLUMNS, rows_of(note_of(more)), first=number))
                assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").head[:3] == ["mallory", number, number]
            writer.send(publish_rows("mine", COLUMNS, [[1.0, note_of(0)]], first=2))
            assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").kind == "RECEIPT"
            # Many rows of which one is the largest: the subscriber gets columns.
            mixed = rows_of(*["small"] * 99, note_of(0))
            writer.send(publish("mine", COLUMNS, mixed, first=3))
            assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").kind == "RECEIPT"
            full = EVENT_BYTES_MAX - 16
            expected = [full - 1, full, full, *[5] * 99, full]
            assert hear_notes(reader, len(expected)) == expected
        home.kill()
        edge.kill()
        home.start()
        edge.start()
        with subscribed(edge) as reader:
            assert hear_notes(reader, len(expected)) == expected
        assert home.page("/readyz") == (200, "ready\n")
        assert edge.stop() == 0
        assert home.stop() == 0


@pytest.mark.parametrize("form", [publish, publish_rows])
def test_an_event_above_the_limit_is_refused_and_the_connection_survives(
    form: object, tmp_path: Path
) -> None:
    with Victim(tmp_path) as victim, victim.dial() as writer:
        if form is publish:
            writer.send(publish("mine", COLUMNS, rows_of("fine", note_of(1))))
        else:
            writer.send(publish_rows("mine", COLUMNS, [[0.0, "fine"], [1.0, note_of(1)]]))
        refused = writer.hear_kind("RECEIPT", "PUBLISH_REFUSED")
        assert refused.kind == "PUBLISH_REFUSED"
        assert refused.head[:4] == ["mallory", 0, 1, "E194"]
        assert refused.head[5] is False, "trying again cannot help"
        writer.send(publish("mine", COLUMNS, rows_of("fine"), publisher="other"))
        assert writer.hear_kind("RECEIPT").head[:3] == ["other", 0, 0]
        assert victim.stop() == 0


@pytest.mark.parametrize(("more", "kind"), [(0, "RECEIPT"), (8, "REFUSE")])
def test_a_frame_above_the_limit_is_refused_as_soon_as_it_is_announced(
    more: int, kind: str, tmp_path: Path
) -> None:
    one = publish("mine", COLUMNS, rows_of(*[note_of(-(2**20))] * 1))
    # Many rows of one frame, none of which is too large: what is left up to the limit is one more note.
    room = CLIENT_FRAME_BYTES_MAX - len(publish("mine", COLUMNS, rows_of("", note_of(-(2**20)))))
    data = publish("mine", COLUMNS, rows_of("y" * (room // 8 * 8), note_of(-(2**20))))
    assert len(one) < len(data) == CLIENT_FRAME_BYTES_MAX
    with Victim(tmp_path) as victim, victim.dial() as writer:
        if more:
            header = struct.pack("<2sBBIIHH", b"G\xa7", 1, KINDS["PUBLISH"], len(data) - 16 + more, 64, 1, 0)
            writer.send(header)
        else:
            writer.send(data)
        heard = writer.hear()
        assert heard is not None
        assert heard.kind == kind
        if more:
            assert heard.head["code"] == "E212"
        assert victim.stop() == 0


def poison(folder: Path, *notes: str) -> None:
    """Append events as an earlier version would have: nothing looks at their size."""
    log = Log.open(folder, PubendId("mine-1"), SCHEMA)
    tick = log.recover().next_tick + 10
    for number, note in enumerate(notes):
        batch = EventBatch(np.asarray([tick + number]), rows_of(note))
        log.append(number, BatchRecord(batch=batch))
    while log.waiting:
        assert log.flush().error is None
    log.close()


def test_a_poison_event_in_an_old_log_is_quarantined_and_reported(tmp_path: Path) -> None:
    network = TWO_NODES.replace('edges = ["s1"]', 'edges = ["s1", "p1"]')
    named = [1, "mine", "", "desk", "publisher", "earliest", "guaranteed", None]
    with Victim(tmp_path, network, broker="p1", brokers=("p1", "s1")) as home:
        with home.dial() as writer:
            writer.send(publish("mine", COLUMNS, rows_of("before")))
            writer.hear_kind("RECEIPT")
        with subscribed(home, named):
            pass
        assert home.stop() == 0
        # As large as a frame of 64 MiB let it be, so that it fits no frame with anything around it.
        poison(tmp_path / "data" / "p1" / "log" / "mine-1", "x" * (64 * 2**20 - 300), "after")
        home.start()
        edge = home.beside("s1")
        with edge:
            for victim, head in ((edge, SUBSCRIBE), (edge, named), (home, named)):
                with subscribed(victim, head) as reader:
                    assert hear_notes(reader, 2) == [len("before"), len("after")]
            status = json.loads(home.page("/status")[1])
            [event] = status["quarantined"]
            assert event["pubend"] == "mine-1"
            assert event["event_bytes"] == 64 * 2**20 - 300 + 16
            assert status["totals"]["events_quarantined"] == 1
            assert "gapless_events_quarantined_total 1.0" in home.page("/metrics")[1]
            told = [json.loads(line) for line in home.log.read_text().splitlines()]
            [line] = [each for each in told if each["event"] == "event_quarantined"]
            assert (line["code"], line["tick"], line["level"]) == ("E307", event["tick"], "error")
            with home.dial() as writer:
                writer.send(publish("mine", COLUMNS, rows_of("later"), first=1))
                assert writer.hear_kind("RECEIPT")
            assert edge.stop() == 0
        # And again: it does not stop the node with every start.
        assert home.stop() == 0
        home.start()
        with subscribed(home, SUBSCRIBE) as reader:
            assert hear_notes(reader, 3) == [len("before"), len("after"), len("later")]
        assert home.stop() == 0


def test_many_legal_frames_at_once_are_all_stored(tmp_path: Path) -> None:
    frames = [
        publish("mine", COLUMNS, rows_of(*[f"{at}" * 250_000] * 12), first=12 * at, publisher=f"p{at % 3}")
        for at in range(10, 22)
    ]
    with Victim(tmp_path) as victim, victim.dial() as writer:
        writer.send(*frames)
        answers = [writer.hear_kind("RECEIPT", "PUBLISH_REFUSED") for _ in frames]
        # Beyond what may wait for the disk they are refused for the time being, and nothing is wedged.
        assert {heard.kind for heard in answers} <= {"RECEIPT", "PUBLISH_REFUSED"}
        assert all(heard.head[5] is True for heard in answers if heard.kind == "PUBLISH_REFUSED")
        assert any(heard.kind == "RECEIPT" for heard in answers)
        writer.send(publish("mine", COLUMNS, rows_of("one"), publisher="last"))
        assert writer.hear_kind("RECEIPT").head[0] == "last"
        assert victim.stop() == 0
