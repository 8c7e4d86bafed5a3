"""Gapless and Spark: topics as data sources, history as tables, and the pipeline of live views.

```python
import gapless.spark

gapless.spark.register(spark)
trades = spark.readStream.format("gapless").options(brokers="gapless://localhost:7400", topic="trades").load()
```

Needs PySpark: `pip install "gapless[spark]"`. Nothing else in Gapless imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Let a session know `format("gapless")`. Repeating is harmless."""
    from gapless.spark.source import GaplessSource  # noqa: PLC0415  # PySpark is loaded by whoever needs it

    spark.dataSource.register(GaplessSource)
