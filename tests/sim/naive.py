"""A broker that is alone and never crashes: enough to test the simulator without the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gapless.content.evaluate import mask
from gapless.content.rows import Rows
from gapless.model.batch import EventBatch
from gapless.model.ids import BrokerId, PubendId
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    BatchRecord,
    ConfirmSubscription,
    Deliver,
    Effect,
    RefusePublish,
    ReleaseRecord,
)
from gapless.protocol.events import (
    DeliveryTaken,
    Event,
    Now,
    PublishRequested,
    RecordDurable,
    RecordFailed,
    SubscribeRequested,
    SubscriberSlow,
    UnsubscribeRequested,
)
from gapless.protocol.network import Network
from gapless.protocol.pubend import Recovered
from gapless.protocol.step import Memory


@dataclass
class Stream:
    """One pubend: its durable batches, and those on their way to the disk."""

    next_tick: int = 0
    pending: dict[int, tuple[int, EventBatch | None]] = field(default_factory=dict)
    batches: list[EventBatch] = field(default_factory=list)


class NaiveBroker:
    """Delivers everything by itself, in publisher order whatever was asked for."""

    def __init__(
        self, network: Network, broker: BrokerId, incarnation: int, recovered: Mapping[PubendId, Recovered]
    ) -> None:
        self.network = network
        self.streams = {pubend: Stream() for pubend in recovered}
        self.subscriptions: dict[str, tuple[int, SubscribeRequested]] = {}
        self.waiting: dict[int, PubendId] = {}
        self.serials = self.tokens = self.slots = 0

    def check(self) -> None:
        pass

    def memory(self) -> Memory:
        return Memory(streams=0, rows=0, row_bytes=0, runs=0)

    def step(self, event: Event, now: Now) -> list[Effect]:
        match event:
            case PublishRequested():
                stream = self.streams[event.pubend]
                first = max(stream.next_tick, now.clock)
                stream.next_tick = first + event.rows.num_rows
                batch = EventBatch(np.arange(first, stream.next_tick, dtype=np.int64), event.rows)
                self.tokens += 1
                stream.pending[self.tokens] = (event.token, batch)
                record = BatchRecord(batch=batch, note=event.note)
                return [AppendRecord(pubend=event.pubend, token=self.tokens, record=record)]
            case RecordDurable():
                return self._durable(event.pubend, event.token)
            case RecordFailed():
                request, batch = self.streams[event.pubend].pending.pop(event.token)
                if batch is None:
                    return self._taken(event.pubend)
                return [RefusePublish(pubend=event.pubend, token=request, reason=event.reason)]
            case SubscribeRequested():
                self.slots += 1
                self.subscriptions[event.subscription] = (self.slots, event)
                return [
                    ConfirmSubscription(
                        subscription=event.subscription,
                        slot=self.slots,
                        pubend=pubend,
                        start=self.streams[pubend].next_tick,
                    )
                    for pubend in self.network.pubends_of(event.topic)
                ]
            case UnsubscribeRequested():
                del self.subscriptions[event.subscription]
            case DeliveryTaken():
                return self._taken(self.waiting.pop(event.serial))
            case SubscriberSlow():
                slot, request = self.subscriptions[event.subscription]
                return [
                    self._deliver(pubend, EventBatch.joined(missed), {event.subscription: (slot, request)})
                    for pubend, position in sorted(event.positions.items())
                    for batches in [self.streams[pubend].batches]
                    for missed in [[b.between(position, 2**62) for b in batches if b.last >= position]]
                ]
        return []

    def _durable(self, pubend: PubendId, token: int) -> list[Effect]:
        stream = self.streams[pubend]
        effects: list[Effect] = []
        for each in sorted(t for t in stream.pending if t <= token):
            request, batch = stream.pending.pop(each)
            if batch is None:
                continue
            stream.batches.append(batch)
            effects.append(
                AcceptPublish(pubend=pubend, token=request, ticks=range(batch.first, batch.last + 1))
            )
            effects.append(self._deliver(pubend, batch, self.subscriptions))
        return effects

    def _deliver(
        self, pubend: PubendId, batch: EventBatch, to: Mapping[str, tuple[int, SubscribeRequested]]
    ) -> Deliver:
        topic = self.network.pubends[pubend].topic
        pairs = [
            (int(row), slot)
            for slot, request in to.values()
            if request.topic == topic
            for row in np.flatnonzero(mask(request.condition, batch.derived(Rows)))
        ]
        rows, slots = zip(*sorted(pairs), strict=True) if pairs else ((), ())
        self.serials += 1
        self.waiting[self.serials] = pubend
        return Deliver(
            serial=self.serials,
            batch=batch,
            rows=np.asarray(rows, dtype=np.int64),
            slots=np.asarray(slots, dtype=np.int64),
            pubends=(pubend,),
        )

    def _taken(self, pubend: PubendId) -> list[Effect]:
        if pubend in self.waiting.values() or not self.streams[pubend].batches:
            return []
        self.tokens += 1
        self.streams[pubend].pending[self.tokens] = (0, None)
        record = ReleaseRecord(before=self.streams[pubend].batches[-1].last + 1)
        return [AppendRecord(pubend=pubend, token=self.tokens, record=record)]
