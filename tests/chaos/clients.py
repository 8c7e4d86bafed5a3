"""Who publishes and subscribes during a chaos run? Programs of their own, which are killed as well.

`python -m tests.chaos.clients SPEC.json` runs some publishers and subscribers in one process. It reads
commands from standard input, one JSON object per line, and says `{"ready": true}` when all of them run. A
program that was killed is started with the same arguments: it reads what it wrote down before and goes on
from there, as a careful program would. A publisher publishes again, with the same numbers, what has no
receipt; a subscriber resumes after the last event that it wrote down, a durable one where the network says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gapless.client import Options, connect
from gapless.client.publisher import Publisher
from gapless.client.receipts import Publication
from gapless.client.subscription import Subscription
from gapless.errors import GaplessError
from gapless.model.ids import PubendId
from tests.chaos.history import History, Recorder, digest
from tests.chaos.wishes import decode, some_row, text_of

#: A client of a network that is taken apart on purpose dials quickly, and often asks whether a node is there.
OPTIONS = Options(
    connect_timeout_s=60.0, dial_timeout_s=1.0, backoff_max_s=0.25, ping_s=1.0, close_timeout_s=20.0
)
#: A publisher waits when this many of its events have no receipt.
OUTSTANDING_MAX = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherSpec:
    """One publisher: to which pubend, through which addresses, how fast."""

    name: str
    number: int
    address: str
    topic: str
    pubend: str
    events_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSpec:
    """One subscription: of what, in which order, and how it is read."""

    name: str
    address: str
    topic: str
    #: The condition, encoded.
    wants: list[Any]
    order: str = "publisher"
    ack: str = "auto"
    durable: bool = False
    #: Seconds that it takes for each event, and rows that may wait at the client.
    slow_s: float = 0.0
    credit_rows: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Everything in one process."""

    name: str
    seed: int
    folder: str
    publishers: list[PublisherSpec]
    subscribers: list[SubscriberSpec]

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(file: Path) -> Spec:
        told = json.loads(file.read_text(encoding="utf-8"))
        told["publishers"] = [PublisherSpec(**each) for each in told["publishers"]]
        told["subscribers"] = [SubscriberSpec(**each) for each in told["subscribers"]]
        return Spec(**told)


class PublisherProgram:
    """Publishes at a steady pace, in bursts, until it is told to finish."""

    def __init__(self, spec: PublisherSpec, seed: int, recorder: Recorder, before: History) -> None:
        self._spec = spec
        self._recorder = recorder
        self._seed = seed
        own = [each for each in before.published.values() if each.publisher == spec.name]
        own.sort(key=lambda each: each.number)
        #: What was published before and has no receipt, and the number of the next new event.
        self._again = [each.row for each in own if each.receipt_at is None]
        self._first = min((each.number for each in own if each.receipt_at is None), default=len(own))
        self._next = self._first
        self._known = len(own)
        self._finishing = asyncio.Event()
        self._open: deque[tuple[int, Publication]] = deque()
        #: Whether everything published has an outcome, and whether something has none.
        self._settled, self._unsettled = asyncio.Event(), asyncio.Event()
        self._settled.set()

    def finish(self) -> None:
        """Publish nothing more, and end when everything has a receipt."""
        self._finishing.set()

    async def run(self, ready: asyncio.Event) -> None:
        spec = self._spec
        async with (
            connect(spec.address, name=spec.name, options=OPTIONS) as client,
            client.publisher(
                spec.topic, pubend=spec.pubend, identity=spec.name, first_catenation=self._first
            ) as publisher,
        ):
            ready.set()
            receipts = asyncio.create_task(self._receive())
            try:
                for row in self._again:
                    self._publish(publisher, row)
                await self._pace(publisher)
                await self._settled.wait()
            finally:
                receipts.cancel()

    async def _pace(self, publisher: Publisher) -> None:
        spec = self._spec
        while not self._finishing.is_set():
            chance = random.Random(f"{self._seed} {spec.name} {self._next}")
            burst = chance.choice((1, 1, 1, 2, 3, 8))
            for _ in range(burst if len(self._open) < OUTSTANDING_MAX else 0):
                row_id = spec.number * 10**9 + self._next
                self._publish(publisher, some_row(spec.topic, row_id, chance))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finishing.wait(), burst / spec.events_per_s)

    def _publish(self, publisher: Publisher, row: dict[str, Any]) -> None:
        spec, number = self._spec, self._next
        self._next += 1
        if number >= self._known:
            self._recorder.write("pub", id=row["id"], by=spec.name, number=number, topic=spec.topic, row=row)
        self._open.append((row["id"], publisher.publish(row)))
        self._settled.clear()
        self._unsettled.set()

    async def _receive(self) -> None:
        while True:
            if not self._open:
                self._settled.set()
                self._unsettled.clear()
            await self._unsettled.wait()
            row_id, publication = self._open[0]
            try:
                receipt = await publication
            except GaplessError as error:
                self._recorder.write("refused", id=row_id, why=str(error))
            else:
                self._recorder.write("receipt", id=row_id, pubend=receipt.pubend, tick=receipt.tick)
            self._open.popleft()


class SubscriberProgram:
    """Takes what it subscribed to, and writes it down."""

    def __init__(self, spec: SubscriberSpec, recorder: Recorder, before: History) -> None:
        self._spec = spec
        self._recorder = recorder
        self._before = before.subscribed.get(spec.name)
        self._reading = asyncio.Event()
        self._reading.set()
        self._changes: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None

    def read(self, *, reads: bool) -> None:
        """Go on reading, or stop."""
        if reads:
            self._reading.set()
        else:
            self._reading.clear()

    def change(self, wants: list[Any]) -> None:
        """Want something else from now on."""
        task = asyncio.create_task(self._change(wants))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _change(self, wants: list[Any]) -> None:
        if self._subscription is None:
            return
        self._recorder.write("asks", of=self._spec.name, wants=wants)
        try:
            ticks = await self._subscription.change(text_of(decode(wants)))
        except GaplessError as error:
            self._recorder.write("broke", of=self._spec.name, why=str(error))
        else:
            self._recorder.write("change", of=self._spec.name, wants=wants, ticks=dict(ticks))

    async def run(self, ready: asyncio.Event) -> None:
        spec, before = self._spec, self._before
        wants, start = spec.wants, None
        if before is None:
            self._recorder.write(
                "wish",
                of=spec.name,
                topic=spec.topic,
                wants=wants,
                total=spec.order == "total",
                durable=spec.durable,
                slow=spec.slow_s > 0,
            )
        elif before.stretches:
            start = None if spec.durable else {PubendId(at): tick for at, tick in before.positions.items()}
        async with (
            connect(spec.address, name=spec.name, options=OPTIONS) as client,
            client.subscribe(
                spec.topic,
                text_of(decode(wants)),
                name=spec.name if spec.durable else None,
                order=spec.order,
                start="now" if start is None else start,
                ack=spec.ack,  # type: ignore[arg-type]
                credit_rows=spec.credit_rows,
            ) as subscription,
        ):
            self._subscription = subscription
            positions = {str(pubend): tick for pubend, tick in subscription.positions.items()}
            if before is None or not before.stretches:
                self._recorder.write("start", of=spec.name, ticks=positions)
            elif start is None:
                self._recorder.write("resume", of=spec.name, ticks=positions)
            ready.set()
            await self._take(subscription)

    async def _take(self, subscription: Subscription) -> None:
        spec = self._spec
        gaps = 0
        while True:
            await self._reading.wait()
            event = await anext(subscription)
            for gap in subscription.gaps[gaps:]:
                gaps += 1
                self._recorder.write("gap", of=spec.name, pubend=gap.pubend, start=gap.start, stop=gap.stop)
            self._recorder.write(
                "got",
                of=spec.name,
                pubend=event.pubend,
                tick=event.tick,
                id=event["id"],
                digest=digest(dict(event)),
            )
            if spec.ack == "manual":
                await event.ack()
            if spec.slow_s:
                await asyncio.sleep(spec.slow_s)


async def _commands() -> AsyncIterator[dict[str, Any]]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        yield json.loads(line)


async def _guarded(name: str, program: Any, recorder: Recorder, ready: asyncio.Event) -> None:
    """Run a program; what it fails with is written down, for the judge."""
    try:
        await program.run(ready)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
        recorder.write("broke", of=name, why=f"{type(error).__name__}: {error}")
        ready.set()


async def main(spec: Spec) -> None:
    """Run all programs until standard input ends, or all publishers have finished."""
    file = Path(spec.folder) / f"{spec.name}.jsonl"
    before = History(file.parent)
    before.refresh_file(file)
    recorder = Recorder(file)
    publishers = {each.name: PublisherProgram(each, spec.seed, recorder, before) for each in spec.publishers}
    subscribers = {each.name: SubscriberProgram(each, recorder, before) for each in spec.subscribers}
    tasks, waiting = [], []
    for name, program in {**publishers, **subscribers}.items():
        ready = asyncio.Event()
        waiting.append(ready)
        tasks.append(asyncio.create_task(_guarded(name, program, recorder, ready)))
    for ready in waiting:
        await ready.wait()
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    async for command in _commands():
        match command:
            case {"read": bool(reads), "of": name}:
                subscribers[name].read(reads=reads)
            case {"change": wants, "of": name}:
                subscribers[name].change(wants)
            case {"finish": True}:
                for publisher in publishers.values():
                    publisher.finish()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Spec.read(Path(sys.argv[1]))))
