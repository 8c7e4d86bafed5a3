"""Values at the ends of their types: refused at the door, or delivered in every form."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapless.cli.files.cells import row_text
from gapless.cli.output.tables import cell
from gapless.client import connect
from gapless.content.explain import explain
from gapless.content.language import parse_condition
from gapless.content.rows import Rows
from gapless.model.batch import EventBatch
from gapless.model.ids import TopicId
from gapless.model.python_values import LEAST_DECIMAL, rows_of
from gapless.model.schema import Schema
from gapless.node.inquiry import _row
from gapless.wire.codec import ColumnsFormat
from tests.hostile.arrow import laid_out, message
from tests.hostile.raw import Raw, publish, publish_rows
from tests.hostile.victim import Victim
from tests.integration.files import run, running

NETWORK = """
cells = {all = ["n1"]}
edges = ["n1"]
topics.costs = {cost = "decimal?", number = "int"}
topics.times = {sent = "timestamp", number = "int"}
pubends.costs-1 = {topic = "costs", broker = "n1"}
pubends.times-1 = {topic = "times", broker = "n1"}
retention.costs = "forever"
retention.times = "forever"
"""
COSTS = {"cost": "decimal?", "number": "int"}
TIMES = {"sent": "timestamp", "number": "int"}
#: Beyond this many rows a delivery is made of columns.
MANY = 300


def costs(numbers: list[int]) -> bytes:
    """Rows of decimals, given in billionths."""
    data = b"".join(each.to_bytes(16, "little", signed=True) for each in numbers)
    return message(laid_out(len(numbers), [[b"", data], [b"", places(len(numbers))]]))


def times(microseconds: list[int]) -> bytes:
    count = len(microseconds)
    return message(laid_out(count, [[b"", struct.pack(f"<{count}q", *microseconds)], [b"", places(count)]]))


def places(count: int) -> bytes:
    return struct.pack(f"<{count}q", *range(count))


def test_a_decimal_with_too_many_digits_gets_no_receipt(tmp_path: Path) -> None:
    with Victim(tmp_path, NETWORK) as victim, victim.dial() as writer:
        first = 0
        for number in (-(2**127), 2**127 - 1, 10**38, -(10**38)):
            for rows in ([number], [1] * 9 + [number], [1] * MANY + [number] + [1] * MANY):
                writer.send(publish("costs", COSTS, costs(rows), first=first))
                refused = writer.hear_kind("RECEIPT", "PUBLISH_REFUSED")
                assert refused.kind == "PUBLISH_REFUSED", number
                assert refused.head[3] == "E216"
        for number in (10**38 - 1, 1 - 10**38):
            writer.send(publish("costs", COSTS, costs([number]), first=first))
            assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").kind == "RECEIPT", number
            first += 1
        # Rows of their own bytes cannot hold a decimal at all.
        writer.send(publish_rows("costs", COSTS, [[str(LEAST_DECIMAL), 1]], first=first))
        refused = writer.hear_kind("RECEIPT", "PUBLISH_REFUSED", "REFUSE")
        assert refused.kind == "PUBLISH_REFUSED"
        assert refused.head[3] in ("E215", "E216")


def test_a_decimal_that_an_older_node_let_in_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ColumnsFormat, "decode_new", ColumnsFormat.decode_kept)

    def published(port: int) -> None:
        with Raw.welcomed(port) as writer:
            writer.send(publish("costs", COSTS, costs([1] * MANY + [-(2**127)] + [1] * MANY)))
            assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").kind == "RECEIPT"

    async def story() -> None:
        async with running(NETWORK, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            await asyncio.to_thread(published, int(network.address("n1").rpartition(":")[2]))
            for where in (f"number BETWEEN {MANY - 1} AND {MANY + 1}", ""):
                async with client.subscribe("costs", where, start="earliest") as events:
                    async for event in events:
                        if event["number"] == MANY:
                            assert event["cost"] == LEAST_DECIMAL
                        if event["number"] == MANY + 1:
                            break
                async with client.subscribe("costs", where, start="earliest") as events:
                    found: list[Any] = []
                    while MANY + 1 not in (each["number"] for each in found):
                        batch = await events.next_batch()
                        assert batch is not None
                        found += batch.columns.to_pylist()
                assert LEAST_DECIMAL in [each["cost"] for each in found]

    run(story())


FAR = 2**63 - 1


@pytest.mark.parametrize("far", [FAR, -(2**63) + 1])
def test_times_beyond_the_calendar_are_delivered_in_both_forms(tmp_path: Path, far: int) -> None:
    wheres = (f"number BETWEEN {MANY - 1} AND {MANY + 1}", "")

    def published(port: int) -> None:
        with Raw.welcomed(port) as writer:
            writer.send(publish("times", TIMES, times([0] * MANY + [far] + [0] * MANY)))
            assert writer.hear_kind("RECEIPT", "PUBLISH_REFUSED").kind == "RECEIPT"

    async def story() -> None:
        async with running(NETWORK, tmp_path, "n1") as network, connect(network.address("n1")) as client:
            address = network.address("n1")
            await asyncio.to_thread(published, int(address.rpartition(":")[2]))
            for where in wheres:
                async with client.subscribe("times", where, start="earliest") as events:
                    async for event in events:
                        if event["number"] == MANY:
                            assert event["sent"] == np.datetime64(far, "us")
                            await client.publish("times", {**event, "number": -1})
                            break
                async with client.subscribe("times", where, start="earliest") as events:
                    numbers: list[int] = []
                    while far not in numbers:
                        batch = await events.next_batch()
                        assert batch is not None
                        numbers += batch.columns.column("sent").cast("int64").to_pylist()
                lines = await asyncio.to_thread(printed, address, where, 3 if where else 2 * MANY + 1)
                assert lines[1 if where else MANY] == {
                    "sent": f"{np.datetime64(far, 'us')}+00:00",
                    "number": MANY,
                }
            async with client.subscribe("times", "number = -1", start="earliest") as events:
                async for event in events:
                    assert event["sent"] == np.datetime64(far, "us")
                    break

    run(story())


def printed(address: str, where: str, limit: int) -> list[Any]:
    """What `gapless sub` prints."""
    command = [sys.executable, "-m", "gapless", "sub", "times", "--to", address, "--from", "earliest"]
    command += ["--limit", str(limit), *(["--where", where] if where else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_far_times_are_explained_inspected_and_printed_alike() -> None:
    schema = Schema.parse(TopicId("times"), TIMES)
    rows = ColumnsFormat(schema).decode(memoryview(times([FAR])))
    text = "294247-01-10T04:00:54.775807+00:00"
    assert row_text(rows_of(rows)[0]) == f'{{"sent": "{text}", "number": 0}}'
    assert cell(rows_of(rows)[0]["sent"]) == text
    assert _row(EventBatch(np.array([1]), rows)) == {"sent": text, "number": 0}
    condition = parse_condition("sent > TIMESTAMP '2026-01-31 12:00:00'", schema)
    assert text in str(explain(condition, Rows(rows), 0))
