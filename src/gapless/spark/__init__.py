"""Gapless and Spark: topics as data sources, history as tables, and the pipeline of live views.

```python
import gapless.spark

gapless.spark.register(spark)
trades = spark.readStream.format("gapless").options(brokers="gapless://localhost:7400", topic="trades").load()
past = gapless.spark.history(spark, "gapless://localhost:7400", "trades", from_="2026-01-31")
```

Needs PySpark: `pip install "gapless[spark]"`. Nothing else in Gapless imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.spark.past import history

__all__ = ["history", "register"]


def __getattr__(name: str) -> object:
    if name == "history":
        from gapless.spark.past import history  # noqa: PLC0415  # PySpark is loaded by whoever needs it

        return history
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Let a session know `format("gapless")`. Repeating is harmless."""
    from gapless.spark.sink import GaplessTopic  # noqa: PLC0415  # PySpark is loaded by whoever needs it

    spark.dataSource.register(GaplessTopic)
