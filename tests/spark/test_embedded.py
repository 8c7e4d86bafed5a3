"""An embedded node starts Spark by itself, as `gapless up` does, and stops it in the end."""

from pathlib import Path

import gapless.sync
from gapless.views.registry import RUNNING
from tests.spark.quiet import status_when

STOCK = "SELECT item, sum(qty) AS total FROM sales GROUP BY item"


def test_an_embedded_node_computes_its_views_on_spark(tmp_path: Path) -> None:
    with gapless.sync.embedded(tmp_path) as client:
        client.create_topic("sales", {"item": "string", "qty": "int"})
        client.create_view("stock", STOCK)
        sold = client.publish_batch("sales", {"item": ["pen", "ink", "pen"], "qty": [2, 5, 1]})
        assert status_when(client, "stock", RUNNING).message == ""
        with client.view("stock") as table:
            table.wait_until(sold, timeout_s=60)
            assert table.rows() == [{"item": "ink", "total": 5}, {"item": "pen", "total": 3}]
    # Nobody would end it later: the process has gone before the node did.
    assert "Spark" in (tmp_path / "node" / "pipeline.log").read_text()
