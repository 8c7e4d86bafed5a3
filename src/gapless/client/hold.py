"""How does a bulk reader keep events from being released? With a hold: a name and a position.

A program that reads in bulk fetches events when it likes, and again after a restart. A *hold* is its durable
subscription: the network keeps what the program has not acknowledged, and delivers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from gapless.client.refusals import error_of, name_elsewhere
from gapless.client.session import Session, never_sent
from gapless.errors import GaplessError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import Tick
from gapless.wire.client_codec import encode_client
from gapless.wire.client_messages import (
    Acknowledge,
    ColumnsDelivery,
    Confirmed,
    RequestRefused,
    RowsDelivery,
    Subscribe,
    Unsubscribe,
)
from gapless.wire.frames import Part


class Hold:
    """A durable subscription without deliveries. Made by `Client.hold`."""

    def __init__(
        self, session: Session, *, topic: TopicId, name: str, start: Mapping[PubendId, Tick], where: str
    ) -> None:
        self._session = session
        self._topic = topic
        self._name = name
        self._where = where
        #: Where it starts if the name is new, and then the acknowledged positions.
        self._positions = dict(start)
        self._live: asyncio.Future[None] | None = None
        #: On this connection: its request, its number, and the pubends that have confirmed it.
        self._request: int | None = None
        self._number: int | None = None
        self._confirmed: set[PubendId] = set()
        #: The edge it was first asked for at: its name lives there.
        self._edge: str | None = None
        self._attempts = 0
        self._ack_due = False
        self._error: GaplessError | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        if self._live is not None:
            raise UsageError("E193", "a hold can be entered only once: make another one")
        self._live = asyncio.get_running_loop().create_future()
        self._session.subscriptions[self] = None
        self._session.wake(self)
        try:
            await self._live
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(forget=False)

    def acknowledge(self, positions: Mapping[str, Tick]) -> None:
        """Acknowledge everything below these ticks. Raises the error that ended the hold, if any."""
        if self._error is not None:
            raise self._error
        for pubend, tick in positions.items():
            known = self._positions.get(PubendId(pubend), tick)
            self._positions[PubendId(pubend)] = max(known, tick)
        self._ack_due = True
        self._session.wake(self)

    async def forget(self) -> None:
        """End the hold and forget its name. The log no longer keeps anything for it."""
        await self._leave(forget=True)

    async def _leave(self, *, forget: bool) -> None:
        number = self._number
        if self._ended or number is None or self._error is not None:
            self._end()
            return
        if self._ack_due:
            self._session.put(encode_client(Acknowledge(subscription=number, positions=self._positions)))
        self._end()
        await self._session.request(
            lambda request: Unsubscribe(request=request, subscription=number, forget=forget), is_of_link=True
        )

    def _end(self) -> None:
        self._ended = True
        self._session.subscriptions.pop(self, None)
        if self._number is not None:
            self._session.numbered.pop(self._number, None)
        if self._request is not None:
            self._session.confirming.pop(self._request, None)

    # What the session calls.

    def frames(self) -> tuple[list[Part], bool]:
        """The frames to send: the subscription itself, then acknowledgements."""
        if self._ended or self._error is not None:
            return [], False
        if self._request is None:
            edge = self._edge = self._edge or self._session.node
            if edge != self._session.node:
                self.failed(name_elsewhere(self._name, edge, self._session.node))
                return [], False
            self._request = self._session.number()
            self._session.confirming[self._request] = self
            subscribe = Subscribe(
                request=self._request,
                topic=self._topic,
                where=self._where,
                name=self._name,
                start=self._positions,
                mode="holding",
            )
            return encode_client(subscribe), False
        if self._number is None or not self._ack_due:
            return [], False
        self._ack_due = False
        return encode_client(Acknowledge(subscription=self._number, positions=self._positions)), False

    def linked(self) -> None:
        """A new connection: subscribe again."""
        self._session.wake(self)

    def unlinked(self) -> None:
        """The connection is lost."""
        self._request = self._number = None
        self._confirmed = set()

    def failed(self, error: GaplessError) -> None:
        """The client has given up connecting."""
        if self._error is None:
            self._error = error
        if self._live is not None and not self._live.done():
            self._live.set_exception(error)

    def confirmed(self, confirmed: Confirmed) -> None:
        """One pubend has confirmed the hold."""
        self._number = confirmed.subscription
        self._confirmed.add(confirmed.pubend)
        if len(self._confirmed) < confirmed.pubends or self._live is None:
            return
        self._session.confirming.pop(confirmed.request, None)
        self._attempts = 0
        # Acknowledgements of an earlier connection may be lost.
        self._ack_due = self._live.done()
        if not self._live.done():
            self._live.set_result(None)
        self._session.wake(self)

    def refused(self, refused: RequestRefused) -> None:
        """The node refuses the hold, or another client has taken its name."""
        self._attempts += 1
        if refused.retry and self._attempts <= self._session.options.retries_max:
            self._request = None
            loop = asyncio.get_running_loop()
            loop.call_later(self._session.backoff_s(self._attempts), self._session.wake, self)
            return
        self.failed(error_of(refused.code, refused.message, retry=refused.retry))

    def rows(self, delivery: RowsDelivery, places: list[int]) -> None:  # noqa: ARG002  # nobody reads it
        """Never sent for a hold."""
        raise never_sent("rows for a hold")

    def columns(self, delivery: ColumnsDelivery) -> None:  # noqa: ARG002  # nobody reads it
        """Never sent for a hold."""
        raise never_sent("rows for a hold")

    def is_of(self, request: int) -> bool:
        """Whether this is its request on this connection."""
        return self._request == request
