"""One Spark session for all tests of a worker: starting one takes seconds, and its first queries are slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def _stopped_last() -> Iterator[None]:
    """Stop whatever session is there when all tests are done."""
    yield
    from pyspark.sql import SparkSession

    if (last := SparkSession.getActiveSession()) is not None:
        last.stop()


@pytest.fixture(scope="module")
def spark(_stopped_last: None) -> Iterator[SparkSession]:
    """A session as the pipeline has it, with two cores, in which a failed task is tried once more.

    It is the one that is there, if nobody has stopped it, with its settings as they were at the start.
    """
    import gapless.spark
    from gapless.spark.session import session

    made = session("local[2, 2]", name="tests")
    gapless.spark.register(made)
    yield made
    for query in made.streams.active:
        query.stop()
