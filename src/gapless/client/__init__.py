"""How do programs use a network? Connect, publish and subscribe.

```python
async with connect("gapless://localhost:7400") as client:
    await client.publish("trades", {"sym": "IBM", "price": 121.5})
    async with client.subscribe("trades", where="price > 100") as trades:
        async for trade in trades:
            print(trade["sym"], trade["price"])
```

- `connection`: the connection, and making it again when it breaks
- `publisher`: events on their way to the node, until their receipts come
- `subscription`: events on their way to the program, once and in order
"""

from gapless.client.connection import Client, connect
from gapless.client.publisher import Publication, Stored
from gapless.client.subscription import Event, Subscription

__all__ = ["Client", "Event", "Publication", "Stored", "Subscription", "connect"]
