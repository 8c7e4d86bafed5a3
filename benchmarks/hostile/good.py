"""How is a client served that behaves? A publisher at a steady pace, and a subscriber that times every event.

    python -m benchmarks.hostile.good publish ADDRESS TOKEN --rate 2000 --seconds 20
    python -m benchmarks.hostile.good subscribe ADDRESS TOKEN

Latency counts from the moment at which an event was *due*, not from the call of `publish`: a publisher that
is itself held up must not hide what the node made it wait for. How late it was by itself is told beside that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from typing import Any

import uvloop

from benchmarks.ours import BODY, NAME, say, ticking, told
from benchmarks.report import percentile
from gapless.cli.main import GC_THRESHOLDS
from gapless.client import connect
from gapless.errors import GaplessError

TOPIC = "bench"
#: What is not confirmed, or has not come, so long after the last event was due counts as missing.
GRACE_S = 10.0
#: The plot shows the worst latency of every so many seconds.
BUCKET_S = 0.25


async def publish(given: argparse.Namespace) -> None:
    """So many events a second, each when it is due, and every receipt awaited."""
    count = round(given.rate * given.seconds)
    interval_ns = round(1e9 / given.rate)
    waiting: list[Any] = []
    late_ms: list[float] = []
    refused: dict[str, int] = {}
    async with contextlib.AsyncExitStack() as stack:
        client = connect(given.address, token=given.token, name="good-publisher")
        await stack.enter_async_context(client)
        # Leaving waits for receipts that may never come: this process just ends.
        stack.pop_all()
        await client.publish(TOPIC, _event(-1, time.monotonic_ns()))
        say(ready=True)
        await told()
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        began_ns = time.monotonic_ns()

        def due() -> None:
            os.read(timer, 8)
            now = time.monotonic_ns()
            while len(late_ms) < count and (at := began_ns + len(late_ms) * interval_ns) <= now:
                try:
                    waiting.append(client.publish(TOPIC, _event(len(late_ms), at)))
                except GaplessError as error:
                    refused[error.code] = refused.get(error.code, 0) + 1
                late_ms.append((now - at) / 1e6)
            if len(late_ms) == count and not done.done():
                done.set_result(None)

        timer = ticking(1 / given.rate)
        loop.add_reader(timer, due)
        await done
        loop.remove_reader(timer)
        confirmed = await _confirmed(waiting, refused)
    late_ms.sort()
    say(
        began_ns=began_ns,
        interval_ns=interval_ns,
        due=count,
        confirmed=confirmed,
        refused=refused,
        late_p99_ms=percentile(late_ms, 0.99),
        late_max_ms=late_ms[-1],
    )
    os._exit(0)


async def _confirmed(waiting: list[Any], refused: dict[str, int]) -> int:
    """How many of these have a receipt, or get one soon enough."""
    confirmed = looked_at = 0

    async def look() -> None:
        nonlocal confirmed, looked_at
        for publication in waiting:
            try:
                await publication
                confirmed += 1
            except GaplessError as error:
                refused[error.code] = refused.get(error.code, 0) + 1
            looked_at += 1

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(look(), GRACE_S)
    if looked_at < len(waiting):
        refused["none"] = len(waiting) - looked_at
    return confirmed


def _event(number: int, due_ns: int) -> dict[str, object]:
    return {"sent": due_ns, "key": number, "name": NAME, "body": BODY}


async def subscribe(given: argparse.Namespace) -> None:
    """Take every event; when told what was published, wait for the rest, and say how long each took."""
    latencies: dict[int, tuple[int, float]] = {}
    twice = 0
    enough = asyncio.Event()
    expected = [0]

    async def take(subscription: Any) -> None:
        nonlocal twice
        async for each in subscription:
            number, due_ns = each["key"], each["sent"]
            if number in latencies:
                twice += 1
            elif number >= 0:
                latencies[number] = (due_ns, (time.monotonic_ns() - due_ns) / 1e6)
            if expected[0] and len(latencies) >= expected[0]:
                enough.set()

    client = connect(given.address, token=given.token, name="good-subscriber")
    await client.__aenter__()
    subscription = client.subscribe(TOPIC)
    await subscription.__aenter__()
    task = asyncio.create_task(take(subscription))
    say(ready=True)
    published = json.loads(await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline))
    expected[0] = published["confirmed"]
    if len(latencies) < expected[0]:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), GRACE_S)
    task.cancel()
    taken, now = len(latencies), time.monotonic_ns()
    for number in range(published["due"]):
        # What has not come has taken at least until now.
        due_ns = published["began_ns"] + number * published["interval_ns"]
        latencies.setdefault(number, (due_ns, (now - due_ns) / 1e6))
    say(taken=taken, twice=twice, **_figures(latencies))
    os._exit(0)


def _figures(latencies: dict[int, tuple[int, float]]) -> dict[str, Any]:
    ordered = sorted(each for _, each in latencies.values())
    first_ns = min((due_ns for due_ns, _ in latencies.values()), default=0)
    worst: dict[int, float] = {}
    for due_ns, latency in latencies.values():
        at = int((due_ns - first_ns) / 1e9 / BUCKET_S)
        worst[at] = max(worst.get(at, 0.0), latency)
    return {
        "p50_ms": percentile(ordered, 0.5),
        "p99_ms": percentile(ordered, 0.99),
        "max_ms": ordered[-1] if ordered else 0.0,
        "worst_ms": [[at * BUCKET_S, each] for at, each in sorted(worst.items())],
    }


def main() -> None:
    """Be the half of the client that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("publish", "subscribe"))
    parser.add_argument("address")
    parser.add_argument("token")
    parser.add_argument("--rate", type=float, default=2_000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    uvloop.run((publish if given.role == "publish" else subscribe)(given))


if __name__ == "__main__":
    main()
