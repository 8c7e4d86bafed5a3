"""Which node does a publisher talk to? The nearest one with a pubend of its topic, and then always that.

A client is connected to some node, its *home*. If that node hosts a pubend of the topic, events go there. If
not, the client dials every node that does, and keeps the connection that is up first. Subscriptions and
requests stay at home.

Order is kept within a pubend, and so is the memory of what was stored. So a publisher stays with its pubend
once it has sent an event, wherever its home is by then, and waits while that pubend is down
(docs/adr/0023-a-publisher-stays-with-its-pubend.md). A publisher whose program numbers its events across
restarts always takes the pubend whose name sorts first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gapless.client.refusals import error_of
from gapless.client.session import ReconnectingSession
from gapless.errors import GaplessError, LinkError, UsageError
from gapless.model.ids import BrokerId, PubendId, TopicId
from gapless.protocol.sessions.messages import Topics
from gapless.wire.address import Address

if TYPE_CHECKING:
    from gapless.client.publisher import Publisher

#: Maximum number of nodes dialled at once.
ASKED_MAX = 8


class Steering:
    """The connections of one client: to its home, and to the repositories it publishes to."""

    def __init__(self, home: ReconnectingSession) -> None:
        self.home = home
        #: All publishers of the client, by identity.
        self.publishers: dict[str, Publisher] = {}
        self._away: dict[BrokerId, ReconnectingSession] = {}
        self._opening: asyncio.Lock = asyncio.Lock()

    async def stop(self) -> None:
        """Close all connections."""
        away, self._away = list(self._away.values()), {}
        for session in [*away, self.home]:
            await session.stop()

    def here(self, topic: TopicId, pubend: PubendId | None, *, first: bool) -> PubendId | None:
        """The pubend at home that a publisher may use; None if there is none, or none is known."""
        home = self.home
        found = [each for each in self._candidates(topic, pubend, first=first) if self._is_home(each)]
        return found[0] if found and home.is_linked else None

    def is_elsewhere(self, topic: TopicId, pubend: PubendId | None, *, first: bool) -> bool:
        """Whether all pubends the publisher may use are known to be at other nodes."""
        candidates = self._candidates(topic, pubend, first=first)
        return bool(candidates) and not any(map(self._is_home, candidates))

    async def session(
        self, topic: TopicId, pubend: PubendId | None, *, first: bool
    ) -> tuple[ReconnectingSession, PubendId | None]:
        """A connection to the nearest node with a pubend of the topic, and that pubend.

        Raises GaplessError if none can be reached.
        """
        if topic not in self.home.schemas or self.home.topics is None:
            await self.home.learn_topics()
        here = self.here(topic, pubend, first=first)
        candidates = self._candidates(topic, pubend, first=first)
        if here is not None or not candidates:
            return self.home, here or pubend
        places = self._topics_listed.places
        broker, session = await self.nearest({places[each] for each in candidates})
        return session, next(each for each in candidates if places[each] == broker)

    async def nearest(self, brokers: Iterable[BrokerId]) -> tuple[BrokerId, ReconnectingSession]:
        """A connection to whichever of these nodes answers first. Raises GaplessError if none does."""
        named = sorted(set(brokers))
        known = [broker for broker in named if broker in self._topics_listed.addresses]
        if not known:
            raise UsageError("E143", f"the node does not say where {' or '.join(named) or 'any broker'} is")
        async with self._opening:
            for broker in known:
                session = self._away.get(broker)
                if session is not None and session.is_linked:
                    return broker, session
            return await self._raced(known[:ASKED_MAX])

    async def _raced(self, brokers: list[BrokerId]) -> tuple[BrokerId, ReconnectingSession]:
        asked = {asyncio.create_task(self._opened(broker)): broker for broker in brokers}
        errors: list[GaplessError] = []
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is None:
                        waiting.discard(task)
                        await self._keep(asked[task], task.result(), done - {task})
                        return asked[task], self._away[asked[task]]
                    if not isinstance(error, GaplessError):
                        raise error
                    errors.append(error)
        finally:
            for task in waiting:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, GaplessError):
                    await (await task).stop()
        for error in errors:
            if not isinstance(error, LinkError):
                # That node answered: its refusal says more than a timeout.
                raise error_of(error.code, error.message, retry=True)
        reasons = "; ".join(str(error).removeprefix("E401 ") for error in errors)
        raise LinkError("E401", f"no repository answers: {reasons}", retry=True)

    async def _keep(
        self, broker: BrokerId, session: ReconnectingSession, others: set[asyncio.Task[ReconnectingSession]]
    ) -> None:
        """Keep this session, and close those that answered at the same moment."""
        old = self._away.get(broker)
        if old is not None and old.error is None:
            # Publishers stay with the old session, which leads to the same node.
            await session.stop()
        else:
            self._away[broker] = session
        for task in others:
            if task.exception() is None:
                await task.result().stop()

    async def _opened(self, broker: BrokerId) -> ReconnectingSession:
        address = Address.parse(self._topics_listed.addresses[broker], f"the address of {broker}")
        session = self.home.beside([address])
        try:
            await session.start()
        except BaseException:
            await session.stop()
            raise
        return session

    @property
    def _topics_listed(self) -> Topics:
        return self.home.topics or Topics(request=0, topics=())

    def _is_home(self, pubend: PubendId) -> bool:
        return self._topics_listed.places.get(pubend) == self.home.node

    def _candidates(self, topic: TopicId, pubend: PubendId | None, *, first: bool) -> list[PubendId]:
        """The pubends that a publisher may use and whose places are known."""
        listed = self._topics_listed
        found = sorted(
            each
            for schema, pubends in listed.topics
            if schema.topic == topic
            for each in pubends
            if each in listed.places
        )
        if pubend is not None:
            return [each for each in found if each == pubend]
        return found[:1] if first else found
