"""How do programs use a network? Connect, publish and subscribe; see `gapless.client.connection`.

```python
async with gapless.connect("gapless://localhost:7400") as client:
    await client.publish("trades", {"sym": "IBM", "price": 121.5})
    async with client.subscribe("trades", where="price > 100", start="earliest") as trades:
        async for trade in trades:
            print(trade["sym"], trade["price"])
```
"""

from gapless.client.connection import Client, Topic, connect
from gapless.client.events import Batch, Event
from gapless.client.options import AckMode, DeliveryMode, DeliveryOrder, GapMode, Options, StartAt
from gapless.client.publisher import Publisher
from gapless.client.receipts import BatchReceipt, Publication, Receipt
from gapless.client.subscription import Subscription
from gapless.client.table import Change
from gapless.client.tls import TlsFiles
from gapless.client.view import View
from gapless.client.views import ViewInfo
from gapless.protocol.sessions.gaps import Gap

__all__ = [
    "AckMode",
    "Batch",
    "BatchReceipt",
    "Change",
    "Client",
    "DeliveryMode",
    "DeliveryOrder",
    "Event",
    "Gap",
    "GapMode",
    "Options",
    "Publication",
    "Publisher",
    "Receipt",
    "StartAt",
    "Subscription",
    "TlsFiles",
    "Topic",
    "View",
    "ViewInfo",
    "connect",
]
