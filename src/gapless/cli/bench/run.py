"""How fast is a node, and how soon does an event arrive? Publishes, subscribes, and takes the time.

Two things are measured one after the other, because they exclude each other. *Throughput*: publish as fast
as receipts allow, and see when everything is durable and everything has arrived. *Latency*: publish at a
steady rate that the node can hold, and take for each event the time to its receipt (durable) and to each
subscriber. Publisher and subscribers share this process and its clock; the node has a process of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
import pyarrow as pa

from gapless.cli.nodes import Credentials, notice
from gapless.client import Publisher, Subscription
from gapless.errors import LinkError
from gapless.fleet import Fleet

TOPIC = "gapless-bench"
COLUMNS = {"sent": "int", "body": "string"}
#: The bytes of the column `sent`.
STAMP_BYTES = 8
#: How long each part takes unless a number of events is given.
SECONDS = 3.0
#: The default rate of the second part, in events a second.
RATE = 2_000.0
#: Number of single events published before checking for answers.
HANDFUL = 256
#: After so long without anything new, what is missing will not come.
PATIENCE_SECONDS = 30.0

NODE = f"""
cells = {{all = ["node"]}}
edges = ["node"]
topics.{TOPIC} = {{sent = "int", body = "string"}}
pubends.{TOPIC} = {{topic = "{TOPIC}", broker = "node"}}
"""

Advance = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to measure."""

    events: int | None
    size: int
    batch: int
    subscribers: int
    #: Only latency, at this rate; None for both parts.
    rate: float | None


@dataclass(slots=True)
class Times:
    """How long each of some events took, in milliseconds."""

    parts: list[Any] = field(default_factory=list)

    def add(self, milliseconds: Any) -> None:
        self.parts.append(milliseconds)

    def sorted(self) -> Any:
        return np.sort(np.concatenate(self.parts)) if self.parts else np.zeros(1)

    def quantiles(self) -> dict[str, float]:
        """The quantiles that people compare."""
        times = self.sorted()
        shares = {"p50": 50, "p99": 99, "p99.9": 99.9, "max": 100}
        return {name: round(float(np.percentile(times, share)), 3) for name, share in shares.items()}


@dataclass(slots=True)
class Measured:
    """What came out."""

    throughput: dict[str, float] | None = None
    rate: float = 0.0
    events: int = 0
    durable: Times = field(default_factory=Times)
    delivery: Times = field(default_factory=Times)

    def report(self, plan: BenchPlan, node: str) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "node": node,
            "event_bytes": plan.size,
            "batch": plan.batch,
            "subscribers": plan.subscribers,
            "throughput": self.throughput,
            "latency": {
                "events": self.events,
                "rate": round(self.rate, 1),
                "durable_ms": self.durable.quantiles(),
                "delivery_ms": self.delivery.quantiles(),
            },
        }


@asynccontextmanager
async def own_node(folder: Path | None, *, in_memory: bool) -> AsyncIterator[str]:
    """A node in a process and a folder of its own; gives its address."""
    with TemporaryDirectory(prefix="gapless-bench-", dir=folder) as place:
        async with Fleet(NODE, Path(place), options=["--in-memory"] if in_memory else []) as fleet:
            yield fleet.address("node")


class Bench:
    """One run against one node."""

    def __init__(self, address: str, door: Credentials, plan: BenchPlan, advance: Advance) -> None:
        self._address = address
        self._door = door
        self._plan = plan
        self._advance = advance
        #: What there is beside the stamp in each event.
        self._body = "x" * max(1, plan.size - STAMP_BYTES)
        self._arrived = 0
        self._last = 0.0
        self._changed = asyncio.Event()
        #: Where the times of what arrives go, while anybody wants them.
        self._times: Times | None = None

    async def run(self) -> Measured:
        """Measure. Raises GaplessError."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._door.client_at(self._address))
            if TOPIC not in await client.topics():
                # What was measured with is deleted; the topic itself cannot be.
                await client.create_topic(TOPIC, COLUMNS, retention="acknowledged")
                notice(f"topic {TOPIC} was created and stays, without events: topics cannot be deleted yet")
            for _ in range(self._plan.subscribers):
                await self._subscribe(stack)
            publisher = client.publisher_of(TOPIC)
            measured = Measured()
            await self._warm_up(publisher)
            if self._plan.rate is None:
                measured.throughput = await self._throughput(publisher)
            await self._latency(publisher, measured)
        return measured

    async def _subscribe(self, stack: AsyncExitStack) -> None:
        client = await stack.enter_async_context(self._door.client_at(self._address))
        events = await stack.enter_async_context(client.subscribe(TOPIC))
        task = asyncio.create_task(self._read(events))
        stack.callback(task.cancel)

    async def _read(self, events: Subscription) -> None:
        async for batch in events.batches():
            now = perf_counter_ns()
            if self._times is not None:
                self._times.add((now - batch.columns.column(0).to_numpy()) / 1e6)
            self._arrived += len(batch)
            self._last = now / 1e9
            self._changed.set()

    async def _all_arrived(self, events: int) -> None:
        """Wait until every subscriber has that many events. Raises LinkError."""
        wanted = events * self._plan.subscribers
        while self._arrived < wanted:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), PATIENCE_SECONDS)
            except TimeoutError:
                missing = wanted - self._arrived
                raise LinkError("E408", f"{missing:,} events did not arrive: see the node's status") from None

    async def _warm_up(self, publisher: Publisher) -> None:
        """Warm up: the first events pay for imports and first uses."""
        for _ in range(HANDFUL):
            publisher.publish({"sent": 0, "body": self._body})
        await publisher.flush()
        await self._all_arrived(HANDFUL)
        self._arrived = 0

    async def _throughput(self, publisher: Publisher) -> dict[str, float]:
        count, began = 0, perf_counter()
        limit = self._plan.events
        pending: deque[asyncio.Task[Any]] = deque()

        def share() -> float:
            return min(1.0, count / limit if limit else (perf_counter() - began) / SECONDS)

        while share() < 1.0:
            size = min(self._plan.batch if self._plan.batch > 1 else HANDFUL, (limit or 2**62) - count)
            if self._plan.batch > 1:
                await publisher.ready()
                task = asyncio.create_task(publisher.publish_batch(self._rows(size)))
                await asyncio.sleep(0)
                pending.append(task)
                while len(pending) > 8:
                    await pending.popleft()
            else:
                for _ in range(size):
                    publisher.publish({"sent": 0, "body": self._body})
                await publisher.ready()
                await asyncio.sleep(0)
            count += size
            self._advance("throughput", share())
        for task in pending:
            await task
        await publisher.flush()
        durable = perf_counter() - began
        await self._all_arrived(count)
        delivered = max(self._last - began, durable) if self._plan.subscribers else durable
        self._arrived = 0
        return {
            "events": count,
            "seconds": round(durable, 3),
            "durable_per_s": round(count / durable),
            "delivered_per_s": round(count * self._plan.subscribers / delivered),
        }

    def _rows(self, size: int) -> pa.RecordBatch:
        stamps = np.full(size, perf_counter_ns(), dtype=np.int64)
        return pa.RecordBatch.from_arrays(
            [pa.array(stamps), pa.array([self._body] * size)], names=list(COLUMNS)
        )

    async def _latency(self, publisher: Publisher, measured: Measured) -> None:
        plan = self._plan
        rate = plan.rate or RATE
        total = plan.events if plan.events is not None and plan.rate else max(1, int(rate * SECONDS))
        self._times = measured.delivery
        began, sent = perf_counter(), 0
        tasks: set[asyncio.Task[None]] = set()
        while sent < total:
            due = min(total, int((perf_counter() - began) * rate) + 1)
            size = min(plan.batch, total - sent)
            while sent + size <= due:
                task = asyncio.create_task(self._timed(publisher, size, measured.durable))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += size
                size = min(plan.batch, total - sent) or 1
                if sent >= total:
                    break
            self._advance("latency", sent / total)
            if sent < total:
                await asyncio.sleep(max(0.0, began + (sent + size - 1) / rate - perf_counter()))
        await asyncio.gather(*tasks)
        measured.rate = total / (perf_counter() - began)
        measured.events = total
        await self._all_arrived(total)
        self._times = None

    async def _timed(self, publisher: Publisher, size: int, times: Times) -> None:
        began = perf_counter_ns()
        if size == 1:
            await publisher.publish({"sent": began, "body": self._body})
        else:
            await publisher.publish_batch(self._rows(size))
        times.add(np.full(size, (perf_counter_ns() - began) / 1e6))
