"""A client on uvloop, whose transports are no subclasses of asyncio's."""

from pathlib import Path

import pytest
import uvloop

from gapless.client import connect
from gapless.model.ids import BrokerId
from tests.integration.nodes import ONE_NODE, Cluster


@pytest.mark.filterwarnings("ignore::DeprecationWarning:uvloop")
def test_a_client_on_uvloop_publishes_and_gets_its_event(tmp_path: Path) -> None:
    async def story() -> dict[str, object]:
        async with (
            Cluster.running(ONE_NODE, tmp_path) as cluster,
            connect(f"gapless://{cluster.addresses[BrokerId('n1')]}") as client,
            client.subscribe("trades") as trades,
        ):
            await client.publish("trades", {"name": "IBM", "price": 121.5})
            return dict(await anext(trades))

    assert uvloop.run(story()) == {"name": "IBM", "price": 121.5}
