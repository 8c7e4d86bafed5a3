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
        from gapless.spark.past import history  # noqa: PLC0415  # PySpark is loaded by whoever needs it

        return history
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Let a session know `format("gapless")`: each session for itself. Repeating is harmless."""
    from gapless.spark.sink import GaplessTopic  # noqa: PLC0415  # PySpark is loaded by whoever needs it

    with _active(spark):
        spark.dataSource.register(GaplessTopic)


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """While this lasts, the session is the active one of this thread.

    Spark looks for a source of that name in the active session, and puts a new one into the session that is
    asked. So a session beside one that knows the name would be refused: there is one already, elsewhere.
    """
    own: Any = getattr(spark, "_jsparkSession", None)
    if own is None:
        # A session of Spark Connect: its server sees to that.
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
