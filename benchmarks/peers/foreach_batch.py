"""The ticket sale as a Spark job written by hand: one aggregation, and the rest in foreachBatch.

    python -m benchmarks.peers.foreach_batch ADDRESS

What somebody writes who has Spark and a topic: the buys summed by item, the offers read once and joined, and
the changed rows collected in the driver. Says when each batch was done and up to which tick it went. It
publishes nothing, serves nobody else, and starts anew after a crash.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import gapless.spark
from benchmarks.ours import say
from gapless.spark.session import session, state_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    """Run until told to stop."""
    from pyspark.sql import functions as f  # noqa: PLC0415  # the session comes first

    address = sys.argv[1]
    # With the settings that the pipeline has, the store of groups in memory among them.
    spark = session("local[*]", name="by hand", settings=state_settings("memory", "local[*]", 1))
    gapless.spark.register(spark)

    def topic(name: str) -> DataFrame:
        return spark.readStream.format("gapless").options(brokers=address, topic=name).load()

    offers = (
        spark.read.format("gapless")
        .options(brokers=address, topic="sellers")
        .load()
        .groupBy("item")
        .agg(f.max_by("price", "tick").alias("price"), f.sum("qty").alias("offered"))
        .cache()
    )
    sums = (
        topic("buyers_east")
        .unionByName(topic("buyers_west"))
        .groupBy("item")
        .agg(f.sum("qty").alias("total"), f.max("tick").alias("last"))
    )
    shown: list[tuple[float, int]] = []

    def batch(rows: DataFrame, _number: int) -> None:
        found = (
            rows.join(offers, "item")
            .select("item", "price", (f.col("offered") - f.col("total")).alias("avail"), "last")
            .where("avail > 0")
            .toArrow()
        )
        if found.num_rows:
            shown.append((time.time(), max(found["last"].to_pylist())))

    query = sums.writeStream.outputMode("update").foreachBatch(batch).start()
    offers.count()
    say(ready=True)
    sys.stdin.readline()
    query.stop()
    say(shown=shown)
    spark.stop()


if __name__ == "__main__":
    main()
