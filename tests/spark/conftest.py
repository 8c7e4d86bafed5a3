"""A Spark session for each module, and a node beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session as the pipeline has it, with two cores."""
    import gapless.spark
    from gapless.spark.session import session

    made = session("local[2]", name="tests")
    gapless.spark.register(made)
    yield made
    made.stop()
