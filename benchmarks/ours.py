"""How is a Gapless node started and loaded? The client library, in processes of its own.

    python -m benchmarks.ours publish ADDRESS --count 100000 [--batch ROWS | --rate PER_SECOND]
    python -m benchmarks.ours subscribe ADDRESS --count 100000 [--events] [--subscriptions N]

Events are 250 bytes: two numbers, a name and a text. `publish` gives every event by itself to
`Client.publish` and awaits every receipt, some thousand later; with `--batch` it awaits `publish_batch` of
Arrow batches, a few at a time. `subscribe` takes batches of columns, or every event by itself, whose
latency it tells: from the call of `publish` to the event in the hands of the program.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import uvloop

from benchmarks.machine import Process
from benchmarks.report import percentile
from gapless.cli.main import GC_THRESHOLDS
from gapless.client import connect
from gapless.client.connection import Client

TOPIC = "bench"
COLUMNS = "sent=int,key=int,name=string,body=string"
NAME = "NY"
BODY = "x" * (250 - 8 - 8 - len(NAME))
#: How many keys the events have.
KEYS = 1_000
#: The program that is measured.
NODE = [sys.executable, "-m", "gapless"]
#: Receipts are awaited in groups of this many events, this many groups after they were published.
GROUP = 1_000
GROUPS_AHEAD = 32
#: Batches that are under way at a time.
BATCHES_AHEAD = 8
#: The first part of a latency run warms everything up.
WARM_SHARE = 0.1


def columns_toml() -> str:
    """The columns of the topic as a network description has them."""
    pairs = [each.split("=") for each in COLUMNS.split(",")]
    return "{" + ", ".join(f'{name} = "{kind}"' for name, kind in pairs) + "}"


def start_node(
    folder: Path, port: int, *options: object, environment: dict[str, str] | None = None
) -> Process:
    """One node with the topic of these benchmarks that has all the roles; it listens."""
    listen = f"127.0.0.1:{port}"
    node = Process(
        [*NODE, "up", "--topic", f"{TOPIC}:{COLUMNS}", "--data", folder, "--listen", listen, *options],
        log=folder.with_suffix(".log"),
        environment=environment,
    )
    node.line()
    return node


def say(**found: Any) -> None:
    """One line for whoever started this process."""
    print(json.dumps(found), flush=True)


async def told() -> None:
    """Wait until whoever started this process says so."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def event(number: int) -> dict[str, object]:
    """One event, with the time of now; each key comes once in a thousand, in no order."""
    return {"sent": time.monotonic_ns(), "key": number * 7_919 % KEYS, "name": NAME, "body": BODY}


async def publish_singles(client: Client, count: int) -> None:
    """Each event by itself, every receipt awaited."""
    waiting: deque[list[Any]] = deque()
    publish = client.publish
    for start in range(0, count, GROUP):
        waiting.append([publish(TOPIC, event(number)) for number in range(start, min(start + GROUP, count))])
        if len(waiting) > GROUPS_AHEAD:
            for publication in waiting.popleft():
                await publication
        await client.ready(TOPIC)
        await asyncio.sleep(0)
    for group in waiting:
        for publication in group:
            await publication


async def publish_batches(client: Client, count: int, rows: int) -> None:
    """Arrow batches, a few under way at a time."""
    columns = {
        "sent": pa.array([time.monotonic_ns()] * rows, pa.int64()),
        "key": pa.array([number * 7_919 % KEYS for number in range(rows)], pa.int64()),
        "name": pa.array([NAME] * rows),
        "body": pa.array([BODY] * rows),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    waiting: deque[asyncio.Task[Any]] = deque()
    for start in range(0, count, rows):
        part = batch if start + rows <= count else batch.slice(0, count - start)
        waiting.append(asyncio.create_task(client.publish_batch(TOPIC, part)))
        if len(waiting) >= BATCHES_AHEAD:
            await waiting.popleft()
    for task in waiting:
        await task


async def publish_paced(client: Client, count: int, rate: float) -> None:
    """So many events a second, each by itself when it is due."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    waiting: list[Any] = []

    def due() -> None:
        for _ in range(min(int.from_bytes(os.read(timer, 8), "little"), count - len(waiting))):
            waiting.append(client.publish(TOPIC, event(len(waiting))))
            if len(waiting) == count:
                done.set_result(None)

    timer = ticking(1 / rate)
    loop.add_reader(timer, due)
    await done
    loop.remove_reader(timer)
    os.close(timer)
    for publication in waiting:
        await publication


def ticking(seconds: float) -> int:
    """A file that says how often so much time has passed; the timers of a loop are good to a millisecond.

    A thread that sleeps would be as exact, but each event would wake two threads, of which one waits for the
    other to let go of the interpreter.
    """
    system = ctypes.CDLL(None, use_errno=True)
    timer: int = system.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    whole, rest = divmod(round(seconds * 1e9), 10**9)
    if timer < 0 or system.timerfd_settime(timer, 0, struct.pack("4q", whole, rest, whole, rest), None):
        raise OSError(ctypes.get_errno(), "cannot make a timer")
    return timer


async def publish(given: argparse.Namespace) -> None:
    """Be a publisher, with the settings of the garbage collector that `gapless pub` has."""
    gc.set_threshold(*GC_THRESHOLDS)
    async with connect(given.address) as client:
        await client.publish(TOPIC, event(0))
        say(ready=True)
        await told()
        began = time.monotonic()
        if given.batch:
            await publish_batches(client, given.count, given.batch)
        elif given.rate:
            await publish_paced(client, given.count, given.rate)
        else:
            await publish_singles(client, given.count)
        say(began=began, ended=time.monotonic(), count=given.count, cpu_s=time.process_time())


async def take_batches(given: argparse.Namespace) -> dict[str, Any]:
    """Be so many subscribers that get everything; gives when the last of them had all."""
    ready = asyncio.Barrier(given.subscriptions + 1)

    async def one(index: int) -> float:
        async with (
            connect(given.address, name=f"reader-{index}") as client,
            client.subscribe(TOPIC, mode=given.mode) as subscription,
        ):
            await ready.wait()
            left = given.count
            while left > 0:
                batch = await subscription.next_batch()
                assert batch is not None, "the subscription ended early"
                left -= len(batch)
            return time.monotonic()

    tasks = [asyncio.create_task(one(index)) for index in range(given.subscriptions)]
    await ready.wait()
    say(ready=True)
    ended = [await task for task in tasks]
    return {"ended": max(ended), "taken": given.count * given.subscriptions}


async def take_events(given: argparse.Namespace) -> dict[str, Any]:
    """Take every event by itself, and tell the latencies in milliseconds."""
    latencies: list[float] = []
    async with connect(given.address) as client, client.subscribe(TOPIC, mode=given.mode) as subscription:
        say(ready=True)
        async for each in subscription:
            latencies.append((time.monotonic_ns() - each["sent"]) / 1e6)
            if len(latencies) == given.count:
                break
    return {"ended": time.monotonic(), "taken": len(latencies), **latency_figures(latencies)}


def latency_figures(latencies: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds, the beginning left out."""
    kept = sorted(latencies[int(len(latencies) * WARM_SHARE) :])
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    return {name: percentile(kept, share) for name, share in shares.items()}


async def subscribe(given: argparse.Namespace) -> None:
    """Be one subscriber, or many."""
    found = await (take_events if given.events else take_batches)(given)
    say(**found, cpu_s=time.process_time())


def main() -> None:
    """Be the load client that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("publish", "subscribe"))
    parser.add_argument("address")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--events", action="store_true")
    parser.add_argument("--subscriptions", type=int, default=1)
    parser.add_argument("--mode", default="guaranteed")
    given = parser.parse_args()
    uvloop.run((publish if given.role == "publish" else subscribe)(given))


if __name__ == "__main__":
    main()
