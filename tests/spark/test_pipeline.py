"""Views end to end: events in at a node, Spark in between, rows out at a subscriber."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.client import sync
from tests.spark.stories import node, pipeline, published, state_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("sell:item=string,qty=int,price=float", "east:item=string,qty=int", "west:item=string,qty=int")

AVAILABLE = """
SELECT s.item, s.offered - b.bought AS left_over, s.price
FROM (SELECT item, sum(qty) AS offered, last(price) AS price FROM sell GROUP BY item) AS s
JOIN (SELECT item, sum(qty) AS bought
      FROM (SELECT item, qty FROM east UNION ALL SELECT item, qty FROM west) AS b0 GROUP BY item) AS b
ON s.item = b.item
WHERE s.offered - b.bought > 0
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with node(tmp_path_factory.mktemp("node"), *TOPICS) as listens:
        yield listens


def test_views_come_and_go_and_a_restart_goes_on(spark: SparkSession, address: str, tmp_path: Path) -> None:
    with sync.connect(address) as client:
        client.create_view(
            "total", "SELECT item, sum(qty) AS offered, count(*) AS sales FROM sell GROUP BY item"
        )
        client.create_view("available", AVAILABLE)
        offered = {"item": ["a", "b", "c"], "qty": [10, 20, 30], "price": [1.0, 2.0, 3.0]}
        sold = published(client, "sell", offered)
        with pipeline(spark, address, tmp_path):
            assert state_at(client, "view.total", sold) == {("a", 10, 1), ("b", 20, 1), ("c", 30, 1)}
            east = published(client, "east", {"item": ["a", "b"], "qty": [4, 20]})
            west = published(client, "west", {"item": ["a"], "qty": [5]})
            assert state_at(client, "view.available", {**sold, **east, **west}) == {("a", 1, 1.0)}
            # Another view of the same stage is computed from what the stage has.
            client.create_view("large", "SELECT item FROM total WHERE offered > 15")
            assert state_at(client, "view.large", sold) == {("b",), ("c",)}
            client.drop_view("large")
        west = published(client, "west", {"item": ["c", "a"], "qty": [1, 1]})
        with pipeline(spark, address, tmp_path):
            assert state_at(client, "view.available", {**sold, **west}) == {("c", 29, 3.0)}
