"""What does a subscription cost on its way to the pubend? Thousands of them at one edge, and back.

    .venv/bin/python benchmarks/subscribing.py [--subscriptions N ...] [--json]

An edge, a router and the pubend's broker in one process: all their time counts. The subscribers come in
bursts of 100, as they do after an edge was restarted, and after each burst everything that follows from it
is done. Messages are encoded, cut into frames and decoded as between real nodes. At the end all
subscribers leave one by one. What must be seen: the cost of one subscription does not grow with their number.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from gapless.content.language import parse_condition
from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, CellId, SubscriptionId, TopicId
from gapless.protocol.broker import Broker
from gapless.protocol.effects import AppendRecord, ConfirmSubscription, SendMessage
from gapless.protocol.events import (
    BrokerStarted,
    Event,
    LinkUp,
    MessageReceived,
    Now,
    Order,
    RecordDurable,
    SubscribeRequested,
    UnsubscribeRequested,
)
from gapless.protocol.network import Network
from gapless.wire.broker_codec import BrokerDecoder, BrokerEncoder
from gapless.wire.frames import FROM_BROKER, FrameReader

BURST = 100
ROWS = 1_000
TOPIC = TopicId("trades")
NETWORK = Network.parse(
    {
        "cells": {"P": ["p"], "B": ["b"], "S": ["s"]},
        "links": ["P--B", "B--S"],
        "topics": {"trades": {"g": "int", "p": "float", "sym": "string"}},
        "pubends": {"nyse": {"topic": "trades", "broker": "p"}},
        "edges": ["s"],
        "parameters": {},
    }
)
#: How the n-th of some conditions reads.
KINDS: dict[str, Callable[[int], str]] = {
    "g = n": lambda n: f"g = {n}",
    "g = n AND p < x": lambda n: f"g = {n} AND p < {n % 97}.5",
    "all alike": lambda _: "g = 7",
    "all below one": lambda n: "g >= 0" if n == 0 else f"g = {n}",
    "p between": lambda n: f"p BETWEEN {n} AND {n + 2}",
    "sym = and p >": lambda n: f"sym = 'S{n % 500}' AND p > {n}",
}


@dataclass
class World:
    """Three brokers and the wires between them."""

    brokers: dict[str, Broker] = field(default_factory=dict)
    coming: deque[tuple[str, Event]] = field(default_factory=deque)
    confirmed: int = 0
    messages: int = 0
    wire_bytes: int = 0
    encoder: BrokerEncoder = field(default_factory=BrokerEncoder)
    decoders: dict[str, BrokerDecoder] = field(default_factory=dict)

    @staticmethod
    def started() -> World:
        """All brokers and all links up."""
        world = World()
        for name in ("p", "b", "s"):
            world.brokers[name] = Broker(NETWORK, BrokerId(name), 1, {})
            world.decoders[name] = BrokerDecoder.of(NETWORK)
            world.coming.append((name, BrokerStarted()))
        for one, other in (("p", "b"), ("b", "p"), ("b", "s"), ("s", "b")):
            world.coming.append((one, LinkUp(neighbour=BrokerId(other))))
        world.settle()
        return world

    def settle(self) -> None:
        """Do everything that there is to be done; no time passes."""
        now = Now(ms=1, clock=10_000)
        while self.coming:
            name, event = self.coming.popleft()
            for effect in self.brokers[name].step(event, now):
                match effect:
                    case SendMessage(to=to, message=message):
                        data = b"".join(self.encoder.encode(message))
                        self.messages += 1
                        self.wire_bytes += len(data)
                        for frame in FrameReader(FROM_BROKER).feed(data):
                            told = self.decoders[to].decode(frame)
                            received = MessageReceived(sender=BrokerId(name), message=told)
                            self.coming.append((to, received))
                    case AppendRecord(pubend=pubend, token=token):
                        self.coming.append((name, RecordDurable(pubend=pubend, token=token)))
                    case ConfirmSubscription():
                        self.confirmed += 1
                    case _:
                        pass


@dataclass(frozen=True)
class Measured:
    """What one kind of conditions cost."""

    kind: str
    subscriptions: int
    subscribe_us: float
    last_us: float
    unsubscribe_us: float
    bytes_each: float
    mask_ms: float
    mask_changed_ms: float


def measured(kind: str, subscriptions: int) -> Measured:
    """Subscribe so many times, filter a batch, and unsubscribe."""
    schema = NETWORK.topics[TOPIC]
    events = [
        SubscribeRequested(
            subscription=SubscriptionId(str(n)),
            topic=TOPIC,
            condition=parse_condition(KINDS[kind](n), schema),
            order=Order.PUBLISHER,
            start=None,
        )
        for n in range(subscriptions)
    ]
    world = World.started()
    bursts: list[float] = []
    for first in range(0, subscriptions, BURST):
        begin = time.process_time()
        world.coming.extend(("s", event) for event in events[first : first + BURST])
        world.settle()
        bursts.append(time.process_time() - begin)
    assert world.confirmed == subscriptions, f"{world.confirmed} of {subscriptions} were confirmed"
    wire_bytes = world.wire_bytes
    masks, changed = _filtered(world, subscriptions)
    begin = time.process_time()
    for first in range(0, subscriptions, BURST):
        leaving = events[first : first + BURST]
        world.coming.extend(("s", UnsubscribeRequested(subscription=each.subscription)) for each in leaving)
        world.settle()
    left = time.process_time() - begin
    tenth = max(1, len(bursts) // 10)
    return Measured(
        kind,
        subscriptions,
        sum(bursts) / subscriptions * 1e6,
        sum(bursts[-tenth:]) / (tenth * BURST) * 1e6,
        left / subscriptions * 1e6,
        wire_bytes / subscriptions,
        masks * 1e3,
        changed * 1e3,
    )


def _filtered(world: World, subscriptions: int) -> tuple[float, float]:
    """How long the pubend's broker filters a batch for the router; and right after a change."""
    generator = np.random.default_rng(1)
    columns = pa.record_batch(
        {
            "g": generator.integers(0, 4 * subscriptions, ROWS),
            "p": generator.random(ROWS) * subscriptions,
            "sym": [f"S{n}" for n in generator.integers(0, 5_000, ROWS)],
        }
    )
    accepts = world.brokers["p"]._routing.wants(CellId("P"), CellId("B"), TOPIC).accepts

    def once() -> float:
        begin = time.process_time()
        accepts.mask(EventBatch(np.arange(ROWS, dtype=np.int64), columns))
        return time.process_time() - begin

    once()
    steady = min(once() for _ in range(20))
    changes = []
    for n in range(10):
        condition = parse_condition(f"g = {10**9 + n}", NETWORK.topics[TOPIC])
        event = SubscribeRequested(
            subscription=SubscriptionId(f"late-{n}"),
            topic=TOPIC,
            condition=condition,
            order=Order.PUBLISHER,
            start=None,
        )
        world.coming.append(("s", event))
        world.settle()
        accepts = world.brokers["p"]._routing.wants(CellId("P"), CellId("B"), TOPIC).accepts
        changes.append(once())
    return steady, min(changes)


def main() -> None:
    """Measure every kind and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subscriptions", type=int, nargs="+", default=[2_000, 16_000])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    results = [measured(kind, count) for kind in options.kinds for count in options.subscriptions]
    if options.json:
        print(json.dumps([vars(each) for each in results]))
        return
    table = Table(
        "condition",
        "subscriptions",
        "subscribe µs",
        "the last ones µs",
        "unsubscribe µs",
        "bytes",
        "filter ms",
        "after a change ms",
    )
    for each in results:
        table.add_row(
            each.kind,
            f"{each.subscriptions:,}",
            f"{each.subscribe_us:,.0f}",
            f"{each.last_us:,.0f}",
            f"{each.unsubscribe_us:,.0f}",
            f"{each.bytes_each:,.0f}",
            f"{each.mask_ms:,.2f}",
            f"{each.mask_changed_ms:,.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
