"""What do subscriptions and holds have in common? How they start, what they send, and what they hear.

A machine of `gapless.protocol.sessions` decides what is said to the node; a subclass performs its effects.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from gapless.client.events import Chunk
from gapless.client.refusals import refusal_error
from gapless.client.session import ReconnectingSession, Subscribing
from gapless.errors import GaplessError
from gapless.protocol.sessions.enrolment import ClientEffect, ClientHold, Fail, GoLive
from gapless.protocol.sessions.messages import ChangeFilter, Confirmed, RequestRefused, Subscribe
from gapless.protocol.sessions.subscriber import ClientSubscription
from gapless.wire.client_codec import encode_client
from gapless.wire.frames import Part

Machine = TypeVar("Machine", bound=ClientHold | ClientSubscription[Chunk])


class Enrolled(Subscribing, Generic[Machine]):
    """The asyncio host of a machine that stays subscribed over any number of connections."""

    def __init__(self, session: ReconnectingSession, machine: Machine) -> None:
        self._session = session
        self._machine = machine
        #: Done when the node has confirmed or refused it; None before it is entered.
        self._live: asyncio.Future[None] | None = None

    async def _go_live(self) -> None:
        """Subscribe, and wait until that is confirmed. Raises the refusal."""
        self._live = asyncio.get_running_loop().create_future()
        self._session.subscriptions[self] = None
        self._session.wake(self)
        await self._live

    @abstractmethod
    def _perform(self, effects: Iterable[ClientEffect]) -> None:
        """Do what the machine asks for."""

    def _settle(self, effect: GoLive | Fail) -> None:
        """Report to the task that waits for it to begin."""
        if self._live is None or self._live.done():
            return
        if isinstance(effect, Fail):
            self._live.set_exception(refusal_error(effect.error))
        else:
            self._live.set_result(None)

    def frames(self) -> tuple[list[Part], bool]:
        """The frames to send: the subscription itself, then acknowledgements, credit and changes."""
        said, effects = self._machine.say(self._session.node, self._session.numbers)
        parts: list[Part] = []
        for message in said:
            if isinstance(message, Subscribe | ChangeFilter):
                self._session.confirming[message.request] = self
            parts += encode_client(message)
        self._perform(effects)
        return parts, False

    def linked(self) -> None:
        """A new connection: subscribe again, at the exact position."""
        self._perform(self._machine.linked())

    def unlinked(self) -> None:
        """The connection is lost."""
        self._perform(self._machine.unlinked())

    def failed(self, error: GaplessError) -> None:
        """The client has given up connecting."""
        self._perform(self._machine.fail(error))

    def confirmed(self, confirmed: Confirmed) -> None:
        """One pubend has confirmed it, or a change of its filter."""
        self._perform(self._machine.confirmed(confirmed))

    def refused(self, refused: RequestRefused) -> None:
        """The node refuses it, or another client has taken its name."""
        self._perform(self._machine.refused(refused))

    def is_of(self, request: int) -> bool:
        """Whether this is its request on this connection."""
        return self._machine.is_of(request)
