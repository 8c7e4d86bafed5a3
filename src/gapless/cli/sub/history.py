"""How does a new subscriber get what the log no longer has? The past in bulk first, then the subscription.

A subscription reaches back as far as the log does. What was deleted there may be in the archive, and a bulk
read finds it. So a replay reads everything up to now in bulk, and then subscribes from there on.

Nothing falls between the two: before the reading begins, a hold keeps the log from then on. The name of the
subscriber exists only when all of the past was printed, so one that is stopped before that begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gapless.cli.nodes import NodeOptions, notice
from gapless.errors import UsageError
from gapless.model.ids import PubendId
from gapless.model.schema import Schema

if TYPE_CHECKING:
    from gapless.client import Client
    from gapless.client.bulk import Bulk
    from gapless.model.ticks import Tick, TickArray
    from gapless.protocol.sessions.messages import Start

#: What is put behind a subscriber's name for the hold that keeps the log while its past is read.
HOLD = ".history"


@dataclass(frozen=True, slots=True)
class PastRows:
    """Rows of the past, as a subscription would give them."""

    columns: pa.RecordBatch
    pubends: list[str]
    ticks: TickArray

    def __len__(self) -> int:
        return len(self.ticks)


class Past:
    """Everything of a topic from a place up to now."""

    def __init__(
        self, bulk: Bulk, schema: Schema, starts: Mapping[str, Tick], stops: Mapping[str, Tick]
    ) -> None:
        self._bulk = bulk
        self._schema = schema
        self._starts = starts
        #: Where the past ends at each pubend, and a subscription goes on.
        self.stops = {PubendId(pubend): tick for pubend, tick in stops.items()}

    @staticmethod
    async def opened(topic: str, schema: Schema, start: Start, node: NodeOptions) -> Past:
        """Look how far back it goes. Raises UsageError, or LinkError."""
        from gapless.client.bulk import open_bulk  # noqa: PLC0415  # Arrow Flight takes a while to load

        bulk = await asyncio.to_thread(open_bulk, node.to, topic, token=node.token, tls=node.files())
        pasts = await asyncio.to_thread(bulk.describe)
        starts: dict[str, Tick] = {}
        for each in pasts.values():
            asked = start if isinstance(start, int) else each.oldest
            starts[each.pubend] = max(asked, each.oldest)
            if asked < each.oldest:
                notice(f"the network no longer keeps {each.pubend} {asked}..{each.oldest}")
        return Past(bulk, schema, starts, {each.pubend: each.known for each in pasts.values()})

    async def rows(self, where: str) -> AsyncIterator[PastRows]:
        """The events that a condition accepts, pubend by pubend, each in order."""
        for pubend, stop in self.stops.items():
            start = self._starts[pubend]
            if start >= stop:
                continue
            batches = self._bulk.read(pubend, start, stop, where=where)
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                tick, _, *others = batch.columns
                columns = pa.RecordBatch.from_arrays(others, schema=self._schema.arrow())
                yield PastRows(columns, [pubend] * len(tick), np.asarray(tick))

    def close(self) -> None:
        """Hang up."""
        self._bulk.close()


async def is_known(client: Client, name: str) -> bool:
    """Whether there is a subscription of that name. Raises UsageError when the node has too many to tell."""
    listed: dict[str, Any] = (await client.status())["subscriptions"]
    if any(each.get("name") == name for each in listed["list"]):
        return True
    if len(listed["list"]) < listed["count"]:
        raise UsageError(
            "E151",
            f"--history: this node has {listed['count']} subscriptions and does not list them all, so it is "
            f"unknown whether '{name}' is new: leave --history out to resume it",
        )
    return False
