"""The hand-made wire of these tests is understood by a node."""

from pathlib import Path

import pyarrow as pa

from tests.hostile.raw import frame, publish, publish_rows
from tests.hostile.victim import COLUMNS, Victim


def test_a_hand_made_publish_is_stored_and_delivered(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("price", pa.float64(), nullable=False), pa.field("note", pa.string())])
    rows = pa.RecordBatch.from_pylist([{"price": 1.5, "note": None}], schema=schema)
    with Victim(tmp_path) as victim, victim.dial() as reader, victim.dial() as writer:
        reader.send(
            frame("SUBSCRIBE", [1, "mine", "price > 1", None, "publisher", "now", "guaranteed", None])
        )
        assert reader.hear_kind("CONFIRMED").head[4] == "mine-1"
        writer.send(publish("mine", COLUMNS, rows))
        assert writer.hear_kind("RECEIPT").head[:4] == ["mallory", 0, 0, "mine-1"]
        writer.send(publish_rows("mine", COLUMNS, [[2.5, "x"]], first=1))
        assert writer.hear_kind("RECEIPT").head[:4] == ["mallory", 1, 1, "mine-1"]
        assert reader.hear_kind("ROWS", "COLUMNS")
        assert victim.page("/readyz") == (200, "ready\n")
        assert victim.stop() == 0
