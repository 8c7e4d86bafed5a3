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

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.spark.past import history

__all__ = ["history", "register"]


def __getattr__(name: str) -> object:
    if name == "history":
        from gapless.spark.past import history  # noqa: PLC0415  # PySpark is loaded on demand

        return history
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Register `format("gapless")` with a session; each session needs it. Repeating is harmless."""
    from gapless.spark.sink import GaplessTopic  # noqa: PLC0415  # PySpark is loaded on demand

    with _active(spark):
        spark.dataSource.register(GaplessTopic)


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Makes the session the active one of this thread.

    Spark looks for a source of that name in the active session, but registers a new one in the given session.
    So a second session would be refused because the name already exists in the first.
    """
    own: Any = getattr(spark, "_jsparkSession", None)
    if own is None:
        # With Spark Connect the server does this.
        yield
        return
    sessions: Any = type(spark)._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(own)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
