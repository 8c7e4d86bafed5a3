"""Can a client push the ticks of a pubend away from the clock? Rows of one bit, a million to a frame."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.hostile.raw import publish
from tests.hostile.victim import Victim

FLAGS = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.flags = {up = "bool"}
pubends.flags-1 = {topic = "flags", broker = "n1"}
"""
COLUMNS = {"up": "bool"}
ROWS = 2**20


def test_rows_of_one_bit_are_refused_when_their_ticks_run_ahead_of_the_clock(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("up", pa.bool_(), nullable=False)])
    rows = pa.RecordBatch.from_pydict({"up": pa.array([True] * ROWS)}, schema=schema)
    with Victim(tmp_path, FLAGS) as victim, victim.dial() as writer:
        frames = [publish("flags", COLUMNS, rows, first=number * ROWS) for number in range(40)]
        writer.send(*frames)
        answers = [writer.hear_kind("RECEIPT", "PUBLISH_REFUSED") for _ in frames]
        refused = [answer.head for answer in answers if answer.kind == "PUBLISH_REFUSED"]
        assert 1 <= len(answers) - len(refused) < len(answers)
        assert {(head[3], head[5]) for head in refused} == {("E182", True)}
        assert "ahead" in refused[0][4]
        # One batch may begin a second ahead, and takes a second itself; the clock went on meanwhile.
        assert ticks_ahead_ms(victim) < 1_000 + ROWS / 1_000


def ticks_ahead_ms(victim: Victim) -> float:
    report: dict[str, Any] = json.loads(victim.page("/status")[1])
    return float(report["pubends"][0]["ticks_ahead_ms"])
