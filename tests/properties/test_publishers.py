"""Who has a receipt is in the log, once: catenation numbers against a plain list of what was stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from gapless.model.ids import PubendId, TopicId
from gapless.model.notes import PublisherPosition
from gapless.model.packed import PackedRows
from gapless.model.ticks import Tick
from gapless.node.config import sole_network
from gapless.node.publishing import Publishing
from gapless.node.security import EVERYTHING, Rights
from gapless.protocol.effects import AcceptPublish, RefusePublish
from gapless.protocol.events import Event, PublishRequested
from gapless.protocol.sessions.identities import PublisherIdentities
from gapless.protocol.sessions.messages import NodeMessage, Publish, PublishReceipt, PublishRefused
from gapless.protocol.sessions.publishers import HOLES_MAX, Publishers

TOPIC, PUBEND = TopicId("t"), PubendId("t")
NETWORK = sole_network({TOPIC: {"publisher": "string", "number": "int"}})
SCHEMA = NETWORK.topics[TOPIC].arrow()
NAMES = ("ann", "bob")


class Disk:
    """What is in the log, without a single catenation number that the node made: the rows know their own."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []
        self.kept_notes: list[tuple[Tick, bytes]] = []
        self.positions: dict[str, PublisherPosition] = {}
        self.remembered: Tick = 0

    def notes(self, start: Tick) -> Iterator[tuple[Tick, bytes]]:
        return iter([(tick, note) for tick, note in self.kept_notes if tick >= start])


class Teller:
    """A client that only listens: one for each publish, so that its answers are its own."""

    def __init__(self, rights: Rights = EVERYTHING) -> None:
        self.rights = rights
        self.heard: list[NodeMessage] = []

    def send(self, message: NodeMessage) -> None:
        self.heard.append(message)


class Bench:
    """The publishing of a node over a disk that a test works by hand."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.publishers = Publishers.recover(
            PUBEND,
            disk,
            disk.positions.values(),
            disk.remembered,
            PublisherIdentities(),
        )
        self.publishing = Publishing(NETWORK, {PUBEND: self.publishers}, self._feed, {})
        self.under_way: list[tuple[int, list[tuple[str, int]], bytes]] = []
        self.asked: list[tuple[Teller, Publish]] = []

    def publish(self, name: str, first: int, count: int, before: int | None, given_up: int | None) -> None:
        rows = pa.RecordBatch.from_arrays(
            [pa.array([name] * count), pa.array(range(first, first + count))], schema=SCHEMA
        )
        message = Publish(
            topic=TOPIC,
            publisher=name,
            first_catenation=first,
            schema=0,
            rows=rows,
            before=before,
            given_up=given_up,
        )
        teller = Teller()
        self.asked.append((teller, message))
        self.publishing.publish(teller, message)

    def _feed(self, event: Event) -> None:
        assert isinstance(event, PublishRequested)
        columns = event.rows.columns() if isinstance(event.rows, PackedRows) else event.rows
        rows = [(str(row["publisher"]), int(row["number"])) for row in columns.to_pylist()]
        self.under_way.append((event.token, rows, event.note))

    def flush(self) -> None:
        """The oldest record that is under way becomes durable."""
        token, rows, note = self.under_way.pop(0)
        start = len(self.disk.rows) + 1
        self.disk.rows += rows
        self.disk.kept_notes.append((len(self.disk.rows), note))
        ticks = range(start, start + len(rows))
        self.publishing.accepted(AcceptPublish(pubend=PUBEND, token=token, ticks=ticks))

    def fail(self) -> None:
        """The disk is full: nothing that is under way is stored."""
        under_way, self.under_way = self.under_way, []
        for token, _, _ in under_way:
            self.publishing.refused(RefusePublish(pubend=PUBEND, token=token, reason="full"))

    def remember(self, *, trim: bool) -> None:
        """Write down how far publishers have come; the log may forget its notes then."""
        while self.publishers.unwritten:
            forgotten, positions = self.publishers.take(2)
            for name in forgotten:
                self.disk.positions.pop(name, None)
            self.disk.positions |= {each.publisher: each for each in positions}
        self.disk.remembered = self.publishers.known_tick
        if trim:
            self.disk.kept_notes = [each for each in self.disk.kept_notes if each[0] > self.disk.remembered]

    def check(self) -> None:
        stored = set(self.disk.rows)
        for teller, message in self.asked:
            for heard in teller.heard:
                if isinstance(heard, PublishReceipt):
                    for number in range(heard.first_catenation, heard.last_catenation + 1):
                        assert (message.publisher, number) in stored, f"{heard} is false"
        twice = [row for row, times in Counter(self.disk.rows).items() if times > 1]
        assert not twice, f"stored twice: {twice}"

    def check_answers(self) -> None:
        """With nothing under way, every number of every publish was answered."""
        for teller, message in self.asked:
            assert message.rows is not None
            first = message.first_catenation
            answered = {
                number
                for heard in teller.heard
                if isinstance(heard, PublishReceipt | PublishRefused)
                for number in range(heard.first_catenation, heard.last_catenation + 1)
            }
            assert answered == set(range(first, first + message.rows.num_rows)), (message, teller.heard)


def _random_publish(bench: Bench, random: Random) -> None:
    name = random.choice(NAMES)
    had = bench.publishers.accepted(name)
    first = max(0, had + random.choice([1, 1, 1, 2, 3, -3, -8, -40, 10]))
    before: int | None = random.choice([first - 1, had, had, -1, None, first - 2])
    if before is not None:
        before = max(-1, min(before, first - 1))
    given_up = random.choice([None, None, first - 1]) if first else None
    bench.publish(name, first, random.choice([1, 1, 2, 5, 600]), before, given_up)


@pytest.mark.parametrize("seed", range(30))
def test_a_receipt_means_that_the_event_is_in_the_log_once(seed: int) -> None:
    async def story() -> None:
        random = Random(seed)
        disk = Disk()
        bench = Bench(disk)
        for step in range(400):
            match random.choices(
                ["publish", "turn", "flush", "fail", "remember", "restart"], [8, 4, 4, 1, 1, 0.3]
            ):
                case ["publish"]:
                    _random_publish(bench, random)
                case ["turn"]:
                    bench.publishing.hand_over()
                case ["flush"] if bench.under_way:
                    bench.flush()
                case ["fail"]:
                    bench.fail()
                case ["remember"]:
                    bench.remember(trim=random.random() < 0.5)
                case ["restart"]:
                    # What was under way may have reached the disk, and nobody heard of it.
                    for _ in range(random.randint(0, len(bench.under_way))):
                        _, rows, note = bench.under_way.pop(0)
                        disk.rows += rows
                        disk.kept_notes.append((len(disk.rows), note))
                    bench.check()
                    bench = Bench(disk)
            if step % 20 == 0:
                bench.check()
        bench.publishing.hand_over()
        while bench.under_way:
            bench.flush()
        bench.check()
        bench.check_answers()
        for name in NAMES:
            holes = max((len(each.holes) for each in bench.publishers.take(1_000)[1]), default=0)
            assert holes <= HOLES_MAX, name

    asyncio.run(story())


@pytest.mark.parametrize("seed", range(20))
def test_an_honest_publisher_gets_all_through_that_it_has_not_given_up(seed: int) -> None:
    """It names the number before, sends again what it is told is missing, and gives up now and then."""

    async def story() -> None:
        random = Random(seed)
        bench = Bench(Disk())
        waiting = list(range(60))
        given_up: set[int] = set()
        while waiting:
            bench.asked.clear()
            before = max(set(range(waiting[0])) - given_up, default=-1)
            for number in waiting[: random.randint(1, 6)]:
                bench.publish("ann", number, 1, before, None)
                before = number
                if random.random() < 0.5:
                    bench.publishing.hand_over()
                if random.random() < 0.2:
                    bench.fail()
            bench.publishing.hand_over()
            while bench.under_way:
                bench.flush()
            bench.check()
            bench.check_answers()
            stored = {number for _, number in bench.disk.rows}
            waiting = [number for number in waiting if number not in stored]
            if waiting and random.random() < 0.1:
                given_up.add(waiting.pop(0))
            if random.random() < 0.1:
                bench = Bench(bench.disk)
        # In order, too.
        assert [number for _, number in bench.disk.rows] == sorted(set(range(60)) - given_up)
        for number in sorted(given_up):
            bench.asked.clear()
            bench.publish("ann", number, 1, -1, None)
            if number < 59:
                [answer] = bench.asked[0][0].heard
                assert isinstance(answer, PublishRefused)
                assert (answer.code, answer.retry) == ("E102", False)

    asyncio.run(story())
