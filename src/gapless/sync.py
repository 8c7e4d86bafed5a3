"""How does a program without an event loop use Gapless? The same names as in `gapless`, and plain calls.

>>> with embedded() as client:
...     client.create_topic("trades", {"sym": "string", "price": "float"})
...     with client.subscribe("trades", where="price > 100") as trades:
...         receipt = client.publish("trades", {"sym": "IBM", "price": 121.5})
...         trade = next(iter(trades))
>>> trade["sym"], trade.tick == receipt.tick
('IBM', True)
"""

from __future__ import annotations

from os import PathLike

from gapless.client.options import DEFAULTS, Options
from gapless.client.sync import SyncBatch as Batch
from gapless.client.sync import SyncClient as Client
from gapless.client.sync import SyncEvent as Event
from gapless.client.sync import SyncPublication as Publication
from gapless.client.sync import SyncPublisher as Publisher
from gapless.client.sync import SyncSubscription as Subscription
from gapless.client.sync import connect
from gapless.client.sync_view import SyncView as View
from gapless.embedding import embedded as _embedded

__all__ = [
    "Batch",
    "Client",
    "Event",
    "Publication",
    "Publisher",
    "Subscription",
    "View",
    "connect",
    "embedded",
]


def __dir__() -> list[str]:
    """The public names alone, so that completion offers nothing that may move."""
    return list(__all__)


def embedded(
    path: str | PathLike[str] | None = None, *, spark: bool = True, options: Options = DEFAULTS
) -> Client:
    """A client of a node that runs inside this process and keeps its data in `path`; use it with `with`.

    Without a path the data is kept in memory and is lost at the end. The node runs in its own thread.
    Spark is started while there are views; with `spark=False` somebody else has to compute them.
    Entering raises StoreError if the folder cannot be used: E304 if another process has it open.
    """
    return Client(_embedded(path, spark=spark, options=options))
