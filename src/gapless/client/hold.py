"""How does a bulk reader keep events from being released? With a hold: a name and a position.

A program that reads in bulk fetches events when it likes, and again after a restart. A *hold* is its durable
subscription: the network keeps what the program has not acknowledged, and delivers nothing. What is said to
the node is decided by `ClientHold`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from gapless.client.enrolled import Enrolled
from gapless.client.refusals import refusal_error
from gapless.client.session import ReconnectingSession, never_sent
from gapless.errors import LinkError, UsageError
from gapless.model.ids import PubendId, TopicId
from gapless.model.ticks import Tick
from gapless.protocol.sessions.enrolment import (
    ClientEffect,
    ClientHold,
    Fail,
    GoLive,
    StartRetryTimer,
    Unregister,
    Wake,
)
from gapless.protocol.sessions.messages import (
    ColumnsDelivery,
    Horizon,
    RowsDelivery,
    Unsubscribe,
)
from gapless.wire.client_codec import encode_client


class Hold(Enrolled[ClientHold]):
    """A durable subscription without deliveries. Made by `Client.hold`."""

    def __init__(
        self,
        session: ReconnectingSession,
        *,
        topic: TopicId,
        name: str,
        start: Mapping[PubendId, Tick],
        where: str,
    ) -> None:
        super().__init__(session, ClientHold(topic, name, start, where, session.options.retries_max))
        self._is_forgotten = False

    async def __aenter__(self) -> Self:
        if self._live is not None:
            raise UsageError("E193", "a hold can be entered only once: make another one")
        try:
            await self._go_live()
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
        if self._machine.error is not None:
            raise refusal_error(self._machine.error)
        self._perform(self._machine.acknowledge(positions))

    async def forget(self) -> None:
        """End the hold and forget its name. The log no longer keeps anything for it.

        Raises if the node refuses or cannot be asked, or if the hold has ended: the name is kept then.
        """
        machine = self._machine
        if machine.error is not None:
            raise refusal_error(machine.error)
        if machine.is_ended and not self._is_forgotten:
            raise UsageError(
                "E193", "the hold has ended, and its name is kept: make another one to forget it"
            )
        if machine.number is None:
            raise LinkError("E403", "not connected, so the hold cannot be forgotten: try again", retry=True)
        await self._leave(forget=True)
        self._is_forgotten = True

    async def _leave(self, *, forget: bool) -> None:
        machine = self._machine
        number = machine.number
        if machine.is_ended or number is None or machine.error is not None:
            self._end()
            return
        for message in machine.due():
            self._session.put(encode_client(message))
        self._end()
        await self._session.request(
            lambda request: Unsubscribe(request=request, subscription=number, forget=forget), is_of_link=True
        )

    def _end(self) -> None:
        machine = self._machine
        machine.is_ended = True
        self._session.subscriptions.pop(self, None)
        if machine.number is not None:
            self._session.numbered.pop(machine.number, None)
        if machine.request is not None:
            self._session.confirming.pop(machine.request, None)

    def _perform(self, effects: Iterable[ClientEffect]) -> None:
        """Do what the machine asks for; what only those ask for who get events is never there."""
        for effect in effects:
            match effect:
                case Wake():
                    self._session.wake(self)
                case StartRetryTimer(attempts=attempts):
                    pause = self._session.backoff_s(attempts)
                    asyncio.get_running_loop().call_later(pause, self._try_again)
                case GoLive() | Fail():
                    self._settle(effect)
                case Unregister(request=request):
                    self._session.confirming.pop(request, None)
                case _:
                    pass

    def _try_again(self) -> None:
        self._perform(self._machine.retry())

    def rows(self, delivery: RowsDelivery, places: list[int]) -> None:  # noqa: ARG002  # never called
        """Never sent for a hold."""
        raise never_sent("rows for a hold")

    def columns(self, delivery: ColumnsDelivery) -> None:  # noqa: ARG002  # never called
        """Never sent for a hold."""
        raise never_sent("rows for a hold")

    def horizon(self, horizon: Horizon) -> None:  # noqa: ARG002  # never called
        """Never sent for a hold."""
        raise never_sent("a horizon for a hold")
