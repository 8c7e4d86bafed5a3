"""What happens to what a client publishes? Checked, known or new, on its way to the disk, answered.

Publishing is exactly once: the catenation numbers of `publishers` tell what was stored already, and a client
hears of its events when they are durable, or why they never will be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from gapless.errors import UsageError
from gapless.model.ids import BrokerId, PubendId
from gapless.node.publishers import Publishers, note
from gapless.node.security import Rights
from gapless.protocol.effects import AcceptPublish, AppendRecord, BatchRecord, RefusePublish
from gapless.protocol.events import Event, PublishRequested
from gapless.protocol.network import Network
from gapless.wire.client_messages import NodeMessage, Publish, PublishRefused, Receipt, tick_runs


class Speaker(Protocol):
    """Whoever gets the answers: a client, or what is left of it."""

    rights: Rights

    def send(self, message: NodeMessage) -> None:
        """Say it; lost when nobody is there."""


@dataclass(slots=True)
class _Request:
    """Rows that a client published and that are on their way to the disk."""

    client: Speaker
    pubend: PubendId
    publisher: str
    first: int
    last: int


class Publishing:
    """All that clients of one node publish."""

    def __init__(
        self,
        network: Network,
        publishers: Mapping[PubendId, Publishers],
        feed: Callable[[Event], None],
        addresses: Mapping[BrokerId, str],
    ) -> None:
        """`addresses` are where clients reach the other nodes."""
        self._addresses = addresses
        self.network = network
        self._publishers = publishers
        self._feed = feed
        self._requests: dict[int, _Request] = {}
        self._tokens = count()
        #: What goes into the log beside the rows that are being published.
        self._note = b""
        #: Nothing new is taken any more.
        self.is_stopping = False
        #: How many events were not stored.
        self.events_refused = 0

    def publish(self, client: Speaker, message: Publish) -> None:
        """A client publishes: answered now or when the rows are durable."""
        rows_count = 0 if message.rows is None else message.rows.num_rows
        last = message.first_catenation + max(rows_count, 1) - 1
        try:
            client.rights.check_publish(message.topic)
            if self.is_stopping:
                raise UsageError("E188", "this node stops: publish at another one", retry=True)
            pubend = self._pubend_for(message)
            publishers = self._publishers[pubend]
            schema = self.network.topics[message.topic]
            if message.rows is None:
                raise UsageError("E111", f"the rows are not of the schema of topic '{message.topic}'")
            if message.given_up is not None:
                publishers.given_up(message.publisher, message.given_up)
            awaited = publishers.awaited(message.publisher, message.first_catenation)
            if awaited is not None:
                # What comes later would make the refused events pass for known ones.
                raise UsageError("E182", f"event {awaited} was refused and has to come first", retry=True)
            known = publishers.fresh(message.publisher, message.first_catenation, rows_count)
            if known == rows_count:
                self._repeat(client, message, pubend, last)
                return
            if known:
                # A publisher that was restarted may cut its events into other batches than before.
                self._repeat(client, message, pubend, message.first_catenation + known - 1)
            rows = schema.checked(message.rows.slice(known))
            token = next(self._tokens)
            first = message.first_catenation + known
            self._requests[token] = _Request(client, pubend, message.publisher, first, last)
            publishers.accept(message.publisher, last)
            # The step that stores the rows asks for their note before it is over.
            self._note = note(message.publisher, last)
            try:
                self._feed(PublishRequested(pubend=pubend, token=token, rows=rows))
            except UsageError as error:
                if error.retry:
                    publishers.failed(message.publisher, first)
                del self._requests[token]
                raise
        except UsageError as error:
            self.events_refused += rows_count
            client.send(
                PublishRefused(
                    publisher=message.publisher,
                    first_catenation=message.first_catenation,
                    last_catenation=last,
                    code=error.code,
                    message=error.message,
                    retry=error.retry,
                )
            )

    def note_of(self, effect: AppendRecord) -> bytes:
        """What is kept in the log beside a record."""
        return self._note if isinstance(effect.record, BatchRecord) else b""

    def accepted(self, effect: AcceptPublish) -> None:
        """Rows are durable: the client hears of it."""
        request = self._requests.pop(effect.token)
        self._publishers[request.pubend].stored(request.publisher, request.last, int(effect.ticks[-1]))
        request.client.send(
            Receipt(
                publisher=request.publisher,
                first_catenation=request.first,
                last_catenation=request.last,
                pubend=effect.pubend,
                runs=tick_runs(effect.ticks),
            )
        )

    def refused(self, effect: RefusePublish) -> None:
        """Rows were not stored: the client hears why."""
        request = self._requests.pop(effect.token)
        self._publishers[request.pubend].failed(request.publisher, request.first)
        self.events_refused += request.last + 1 - request.first
        request.client.send(
            PublishRefused(
                publisher=request.publisher,
                first_catenation=request.first,
                last_catenation=request.last,
                code="E182",
                message=effect.reason,
                retry=True,
            )
        )

    def _pubend_for(self, message: Publish) -> PubendId:
        if message.topic not in self.network.topics:
            known = ", ".join(self.network.topics) or "none"
            raise UsageError("E141", f"there is no topic '{message.topic}': there is {known}")
        if message.pubend is not None:
            if message.pubend in self._publishers:
                return message.pubend
            raise UsageError("E143", f"pubend '{message.pubend}' does not live at this node")
        here = [pubend for pubend in self.network.pubends_of(message.topic) if pubend in self._publishers]
        if not here:
            there = {self.network.pubends[each].broker for each in self.network.pubends_of(message.topic)}
            brokers = [f"{broker} ({self._addresses.get(broker, 'unknown')})" for broker in sorted(there)]
            raise UsageError(
                "E143", f"topic '{message.topic}' is not published here: connect to {', '.join(brokers)}"
            )
        return here[0]

    def _repeat(self, client: Speaker, message: Publish, pubend: PubendId, last: int) -> None:
        """Everything up to `last` was accepted before: receipts, now or when it is durable."""
        stored = min(self._publishers[pubend].durable(message.publisher), last)
        if stored >= message.first_catenation:
            client.send(
                Receipt(
                    publisher=message.publisher,
                    first_catenation=message.first_catenation,
                    last_catenation=stored,
                    pubend=pubend,
                    runs=(),
                )
            )
        if stored == last:
            return
        for request in self._requests.values():
            if request.publisher == message.publisher:
                request.client = client
