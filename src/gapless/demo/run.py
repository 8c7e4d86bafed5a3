"""What happens in the demo? Real processes, real clients, and a router that is killed while events flow.

The brokers are processes of their own (`fleet`). Every publisher and every subscriber is a client with a
connection of its own; they are tasks of this process, which is not a broker. All times are read from
one clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import pyarrow as pa

from gapless.client import Client, Subscription, connect
from gapless.demo.account import Name, Published, Record, SubscriberArrivals, wanted_by
from gapless.demo.network import (
    DESCRIPTION,
    PUBLISHERS,
    REPOSITORY,
    SUBSCRIBERS,
    VICTIM,
    PublisherPlan,
    SubscriberPlan,
    events_of,
)
from gapless.errors import GaplessError
from gapless.fleet import Fleet

#: How often to check whether events are due, and whether all have arrived.
PACE_SECONDS = 0.01
#: What has not arrived so long after publishing ended is lost.
PATIENCE_SECONDS = 20.0
#: When everything is there, this long is listened for anything that comes twice.
AFTERWARDS_SECONDS = 0.5
#: The seed of what is published.
SEED = 7

Found = TypeVar("Found")

#: Told what has just happened (`started`, `killed`, `recovered`, ...), and the record so far.
Tell = Callable[[str, Record], None]


class Demo:
    """One run of the demo."""

    def __init__(self, folder: Path, *, seconds: float, rate: float, tell: Tell) -> None:
        self._folder = folder
        self._seconds = seconds
        self._rate = rate
        self._tell = tell
        self._started = 0.0
        #: Set when publishing begins.
        self.started = asyncio.Event()
        #: The ways (an edge and a pubend) on which nothing has come yet that was published after the kill.
        self._silent = {(plan.edge, each.pubend) for plan in SUBSCRIBERS for each in PUBLISHERS}
        self.record = Record(
            published={plan.name: Published() for plan in PUBLISHERS},
            arrivals={plan.name: SubscriberArrivals() for plan in SUBSCRIBERS},
        )

    def now_s(self) -> float:
        """Seconds since the first event could be published."""
        return perf_counter() - self._started

    async def run(self) -> Record:
        """Start everything, kill, restart, and end everything.

        Raises GaplessError when a node does not start, or an event is refused.
        """
        return await unwrapped(self._run())

    async def _run(self) -> Record:
        # The first array makes Arrow look for pandas, which takes a while: not while events wait for it.
        pa.array([0])
        async with Fleet(DESCRIPTION, self._folder) as fleet, AsyncExitStack() as stack:
            subscriptions = {}
            for plan in SUBSCRIBERS:
                client = await stack.enter_async_context(connect(fleet.address(plan.edge), name=plan.name))
                wish = client.subscribe(plan.topic, plan.where, order=plan.order)
                subscriptions[plan.name] = await stack.enter_async_context(wish)
            clients = {
                plan.name: await stack.enter_async_context(connect(fleet.address(REPOSITORY), name=plan.name))
                for plan in PUBLISHERS
            }
            self._started = perf_counter()
            self._tell("started", self.record)
            self.started.set()
            async with asyncio.TaskGroup() as tasks:
                takers = [
                    tasks.create_task(self._take(plan, subscriptions[plan.name])) for plan in SUBSCRIBERS
                ]
                async with asyncio.TaskGroup() as publishing:
                    for publisher in PUBLISHERS:
                        publishing.create_task(self._publish(publisher, clients[publisher.name]))
                    publishing.create_task(self._fail(fleet))
                self.record.stopped_s = self.now_s()
                self._tell("stopped", self.record)
                await self._all_arrived()
                for taker in takers:
                    taker.cancel()
        return self.record

    def _is_over(self, now_s: float) -> bool:
        """Whether publishing ends: in time, but not before the restarted router has had something to do."""
        return now_s >= max(self._seconds, self.record.back_s + self._seconds / 6)

    async def _publish(self, plan: PublisherPlan, client: Client) -> None:
        publisher = client.publisher(plan.topic, pubend=plan.pubend)
        published = self.record.published[plan.name]
        event_of = events_of(plan, SEED)
        rate = self._rate * plan.share
        number = 0
        while not self._is_over(now_s := self.now_s()):
            while number < now_s * rate:
                event = event_of(number)
                published.rows.append(event)
                published.sent_s.append(self.now_s())
                publisher.publish(event)
                number += 1
            await publisher.ready()
            await asyncio.sleep(PACE_SECONDS)
        # Raises when any of them was refused.
        await publisher.flush()

    async def _take(self, plan: SubscriberPlan, messages: Subscription) -> None:
        taken = self.record.arrivals[plan.name]
        async for batch in messages.batches():
            now_s = self.now_s()
            publishers = batch.columns.column("publisher").to_pylist()
            numbers = batch.columns.column("number").to_pylist()
            names = list(zip(publishers, numbers, strict=True))
            taken.names += names
            taken.pubends += batch.pubends
            taken.at_s += [now_s] * len(batch)
            if now_s > self.record.killed_s and self._silent:
                self._look_for_recovery(plan.edge, names, batch.pubends)

    def _look_for_recovery(self, edge: str, names: list[Name], pubends: Sequence[str]) -> None:
        """Tell when something that was published after the kill has come on every way."""
        killed_s = self.record.killed_s
        fresh = zip(names, pubends, strict=True)
        self._silent -= {(edge, pubend) for name, pubend in fresh if self.record.sent_s(name) > killed_s}
        if not self._silent:
            self.record.recovered_s = self.now_s()
            self._tell("recovered", self.record)

    async def _fail(self, fleet: Fleet) -> None:
        """Kill the router after a third of the time, and start it again after two thirds."""
        await asyncio.sleep(self._seconds / 3)
        self.record.killed_s = self.now_s()
        self._tell("killed", self.record)
        await fleet.kill(VICTIM)
        await asyncio.sleep(2 * self._seconds / 3 - self.now_s())
        self.record.restarted_s = self.now_s()
        self._tell("restarted", self.record)
        await fleet.start(VICTIM)
        self.record.back_s = self.now_s()
        self._tell("back", self.record)

    async def _all_arrived(self) -> None:
        """Wait until every subscriber has as many events as it should have, or patience ends."""
        matched = {
            plan.name: await asyncio.to_thread(_count_wanted, plan, self.record) for plan in SUBSCRIBERS
        }
        deadline_s = self.now_s() + PATIENCE_SECONDS
        while self.now_s() < deadline_s:
            taken = self.record.arrivals
            if all(len(taken[name].names) >= count for name, count in matched.items()):
                break
            await asyncio.sleep(PACE_SECONDS)
        await asyncio.sleep(AFTERWARDS_SECONDS)


async def unwrapped(story: Coroutine[Any, Any, Found]) -> Found:
    """What a story gives; of several things that went wrong at once in it, the first GaplessError alone."""
    try:
        return await story
    except BaseExceptionGroup as group:
        refusals, _ = group.split(GaplessError)
        if refusals is None:
            raise
        error: BaseException = refusals
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _count_wanted(plan: SubscriberPlan, record: Record) -> int:
    return len(wanted_by(plan, record))
