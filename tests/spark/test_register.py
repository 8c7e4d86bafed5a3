"""Sessions of one program: each is told of `format("gapless")` for itself, in whatever order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gapless.spark
from gapless.client import sync
from tests.spark.nodes import NodeThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODE = """
cells = {all = ["n1"]}
topics.trades = {size = "int"}
pubends.trades-1 = {topic = "trades", broker = "n1"}
"""


def test_every_new_session_learns_the_format(spark: SparkSession, tmp_path: Path) -> None:
    active = type(spark).getActiveSession()
    with NodeThread.running(NODE, tmp_path) as node:
        with sync.connect(node.address) as client:
            client.publish_batch("trades", {"size": [1, 2, 3]})
        other = spark.newSession()
        for _ in range(2):
            gapless.spark.register(other)
        for session in (other, other.newSession(), spark):
            gapless.spark.register(session)
            frame = session.read.format("gapless").options(brokers=node.address, topic="trades").load()
            assert sorted(row["size"] for row in frame.collect()) == [1, 2, 3]
            assert gapless.spark.history(session, node.address, "trades").count() == 3
    assert active is not None
    now = type(spark).getActiveSession()
    assert now is not None
    assert now._jsparkSession.equals(active._jsparkSession), "whose turn it is has not changed"
