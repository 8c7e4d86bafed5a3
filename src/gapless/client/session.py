"""How does a client outlive its connections? It redials, and sends again whatever is outstanding.

A session has at most one link at a time. Publishers and subscriptions are its *senders*. A sender that has
something to send wakes the session; when the socket is free, the session collects the frames of all such
senders and writes them at once. When a link is lost, the addresses are dialled in turn, starting with the
last that worked. When one answers, every sender starts over with what the node has not confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol, assert_never

from gapless.client.link import Link, dial
from gapless.client.options import Options
from gapless.client.refusals import error_of
from gapless.errors import GaplessError, LinkError, PeerError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.protocol.sessions.messages import (
    ClientMessage,
    ColumnsDelivery,
    Confirmed,
    Done,
    Horizon,
    ListTopics,
    NodeMessage,
    PublishReceipt,
    PublishRefused,
    RequestRefused,
    RowsDelivery,
    StatusReport,
    Topics,
)
from gapless.wire.address import Address
from gapless.wire.client_codec import encode_client
from gapless.wire.frames import Part
from gapless.wire.handshake import Hello

log = logging.getLogger("gapless.client")

#: Answers to requests that take one message to answer.
Answer = Done | Topics | StatusReport


class Sender(Protocol):
    """Something that sends frames to the node."""

    def frames(self) -> tuple[list[Part], bool]:
        """The frames to send now, and whether there are more. Called only while the socket is free."""

    def linked(self) -> None:
        """There is a new connection; nothing was sent on it yet."""

    def unlinked(self) -> None:
        """The connection is lost."""

    def failed(self, error: GaplessError) -> None:
        """The client has given up connecting."""


class PublishingSender(Sender, Protocol):
    """A sender of published events."""

    def receipt(self, receipt: PublishReceipt) -> None:
        """Events are durable."""

    def refusal(self, refused: PublishRefused) -> None:
        """Events were not stored."""


class Subscribing(Sender, Protocol):
    """A sender of subscriptions."""

    def confirmed(self, confirmed: Confirmed) -> None:
        """The subscription, or a change of it, is confirmed for one pubend."""

    def refused(self, refused: RequestRefused) -> None:
        """The subscription, or a change of it, is refused."""

    def horizon(self, horizon: Horizon) -> None:
        """Everything below some ticks was sent."""

    def rows(self, delivery: RowsDelivery, places: list[int]) -> None:
        """A few events arrived."""

    def columns(self, delivery: ColumnsDelivery) -> None:
        """Many events arrived."""

    def is_of(self, request: int) -> bool:
        """Whether this is its request on this connection."""


class _Request:
    """A request, and the future for its answer."""

    __slots__ = ("answer", "attempts", "is_of_link", "make")

    def __init__(
        self, make: Callable[[int], ClientMessage], answer: asyncio.Future[Answer], *, is_of_link: bool
    ) -> None:
        self.make = make
        self.answer = answer
        #: Whether it is meaningless on another connection.
        self.is_of_link = is_of_link
        self.attempts = 0


class ReconnectingSession:
    """A connection to a network that is re-established whenever it is lost."""

    def __init__(
        self, addresses: Sequence[Address], hello: Hello, *, tls: ssl.SSLContext | None, options: Options
    ) -> None:
        self.options = options
        #: The topics, as last listed by the node.
        self.schemas: dict[TopicId, Schema] = {}
        #: The last list of topics, with the places of their pubends.
        self.topics: Topics | None = None
        #: The name of the node at the other end of this connection, or of the last one.
        self.node = ""
        #: Why the client has given up connecting; None if it has not.
        self.error: GaplessError | None = None
        self.publishers: dict[str, PublishingSender] = {}
        self.subscriptions: dict[Subscribing, None] = {}
        #: The subscriptions of this connection, by the node's number for them.
        self.numbered: dict[int, Subscribing] = {}
        #: The requests of this connection that Confirmed answers.
        self.confirming: dict[int, Subscribing] = {}
        self._addresses = list(addresses)
        self._hello = hello
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._attempts = 0
        self._dirty: dict[Sender, None] = {}
        self._outbox: list[Part] = []
        self._scheduled = False
        self._requests: dict[int, _Request] = {}
        #: Unused request numbers.
        self.numbers = count(1)

    def beside(self, addresses: Sequence[Address]) -> ReconnectingSession:
        """Another session of the same client, to other nodes."""
        return ReconnectingSession(addresses, self._hello, tls=self._tls, options=self.options)

    # Connecting.

    async def start(self) -> None:
        """Connect for the first time. Raises GaplessError."""
        self._attach(await self._dialled(self.options.connect_timeout_s, first=True))
        self._keeper = asyncio.create_task(self._keep(), name="gapless client")
        self._keeper.add_done_callback(self._ended)

    def _ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and keeper.exception() is not None:
            # Our bug. No caller may wait for ever because of it; the loop reports the traceback.
            self._fail(LinkError("E402", f"the client failed: {keeper.exception()!r}"))

    async def stop(self) -> None:
        """Close the connection. Everything outstanding fails."""
        self._fail(LinkError("E402", "the client was closed before the node answered"))
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        link, self._link = self._link, None
        if link is not None:
            link.close()
            done, _ = await asyncio.wait([link.closed], timeout=self.options.dial_timeout_s)
            if not done:
                link.fail(LinkError("E402", "the connection was closed before all data was sent"))

    @property
    def host(self) -> str:
        """The host at the other end of this connection, or of the last one."""
        return self._addresses[0].host

    @property
    def roams(self) -> bool:
        """Whether it may come back at another node."""
        return len(self._addresses) > 1

    @property
    def is_linked(self) -> bool:
        """Whether there is a connection now."""
        return self._link is not None

    async def _keep(self) -> None:
        """Redial whenever the connection is lost, until that is pointless."""
        while True:
            link = self._link
            assert link is not None
            began = self._loop.time()
            await asyncio.wait([link.closed])
            if self._loop.time() - began > self.options.backoff_max_s:
                self._attempts = 0
            self._detach(link)
            if link.is_refused:
                assert link.error is not None
                self._fail(link.error)
                return
            try:
                self._attach(await self._dialled(self.options.give_up_s, first=False))
            except GaplessError as error:
                self._fail(error)
                return

    async def _dialled(self, patience_s: float | None, *, first: bool) -> Link:
        """A link to one of the addresses. Raises GaplessError if that is hopeless or takes too long."""
        began = self._loop.time()
        while True:
            if self._attempts and not first:
                await asyncio.sleep(self._backoff_s(self._attempts))
            self._attempts += 1
            failed: list[tuple[Address, Link]] = []
            for address in list(self._addresses):
                link = await dial(
                    address,
                    self,
                    self._hello,
                    tls=self._tls,
                    ping_s=self.options.ping_s,
                    timeout_s=self.options.dial_timeout_s,
                )
                if link.error is None:
                    # Dial it first the next time: it knows what it has stored.
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                    return link
                log.info("%s does not answer: %s", address, link.error)
                failed.append((address, link))
            self._check_hope(failed, first=first)
            waited_s = self._loop.time() - began
            pause_s = self._backoff_s(self._attempts)
            if patience_s is not None and waited_s + pause_s > patience_s:
                raise _given_up(failed)
            if first:
                await asyncio.sleep(pause_s)

    def _check_hope(self, failed: list[tuple[Address, Link]], *, first: bool) -> None:
        """Raise the first error if no address can ever succeed."""
        for _, link in failed:
            assert link.error is not None
            # A node that answered before may come back. At the first attempt the address is wrong.
            if link.error.retry or not (first or link.is_refused):
                return
        address, link = failed[0]
        assert link.error is not None
        raise error_of(link.error.code, f"{link.error.message} (at {address})")

    def _backoff_s(self, attempts: int) -> float:
        """Exponential backoff with jitter, so that clients do not all come back at once."""
        longest_s = self.options.backoff_max_s
        pause_s = min(longest_s, self.options.backoff_min_s * 2.0 ** min(attempts - 1, 30))
        return pause_s * random.uniform(0.5, 1.0)

    def _attach(self, link: Link) -> None:
        if link.closed.done():
            # Welcomed and lost at once: `_keep` finds it closed and redials.
            self._link = link
            return
        self._link = link
        self.node = link.welcomed.result().name
        self._outbox = []
        self._dirty = {}
        for number, request in list(self._requests.items()):
            self._say(request.make(number))
        for sender in [*self.subscriptions, *self.publishers.values()]:
            sender.linked()
        self._schedule()

    def _detach(self, link: Link) -> None:
        log.warning("connection lost: %s", link.error)
        self._link = None
        self.numbered = {}
        self.confirming = {}
        for number, request in list(self._requests.items()):
            if request.is_of_link:
                del self._requests[number]
                if not request.answer.done():
                    request.answer.set_exception(LinkError("E403", "the connection was lost", retry=True))
        for sender in [*self.subscriptions, *self.publishers.values()]:
            sender.unlinked()

    def give_up(self, error: GaplessError) -> None:
        """Stop redialling. Everything outstanding fails with this error."""
        self._fail(error)

    def _fail(self, error: GaplessError) -> None:
        if self.error is not None:
            return
        self.error = error
        requests, self._requests = self._requests, {}
        for request in requests.values():
            if not request.answer.done():
                request.answer.set_exception(error)
        for sender in [*self.subscriptions, *self.publishers.values()]:
            sender.failed(error)

    # Sending.

    def wake(self, sender: Sender) -> None:
        """A sender has frames to send."""
        self._dirty[sender] = None
        self._schedule()

    def leave(self, identity: str) -> None:
        """A publisher goes on at another node: nothing of it may be sent here any more."""
        publisher = self.publishers.pop(identity, None)
        if publisher is not None:
            self._dirty.pop(publisher, None)

    def _say(self, message: ClientMessage) -> None:
        self.put(encode_client(message))

    def put(self, parts: list[Part]) -> None:
        """Send these frames next, before those of all senders. There must be a connection."""
        assert self.is_linked, "there is no connection"
        self._outbox += parts
        self._schedule()

    def writable(self) -> None:
        """The socket can take more."""
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._link is not None:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write the frames of all senders at once."""
        self._scheduled = False
        link = self._link
        if link is None or not link.is_writable:
            return
        parts, self._outbox = self._outbox, []
        dirty, self._dirty = self._dirty, {}
        for sender in dirty:
            frames, more = sender.frames()
            parts += frames
            if more:
                self._dirty[sender] = None
        if parts:
            link.write(parts)
        if self._dirty and link.is_writable:
            self._schedule()

    # Asking.

    async def request(self, make: Callable[[int], ClientMessage], *, is_of_link: bool = False) -> Answer:
        """Send a request, again on every new connection, until it is answered. Raises GaplessError.

        With `is_of_link` it is sent on this connection only; raises LinkError if that is lost.
        """
        if self.error is not None:
            raise self.error
        if is_of_link and not self.is_linked:
            raise LinkError("E403", "there is no connection", retry=True)
        number = self.number()
        request = _Request(make, self._loop.create_future(), is_of_link=is_of_link)
        self._requests[number] = request
        if self.is_linked:
            self._say(make(number))
        try:
            return await request.answer
        finally:
            self._requests.pop(number, None)

    def number(self) -> int:
        """An unused request number."""
        return next(self.numbers)

    async def learn_topics(self) -> Topics:
        """List all topics."""
        answer = await self.request(lambda number: ListTopics(request=number))
        assert isinstance(answer, Topics)
        return answer

    # Hearing.

    def received(self, message: NodeMessage) -> None:
        """Dispatch a message of the node. Drop it if its recipient is gone."""
        match message:
            case PublishReceipt() | PublishRefused():
                self._published(message)
            case ColumnsDelivery(to=to):
                for subscription in [self.numbered[number] for number in to if number in self.numbered]:
                    subscription.columns(message)
            case RowsDelivery():
                self._deliver_rows(message)
            case Confirmed():
                self._confirm(message)
            case Horizon(subscription=number):
                if number in self.numbered:
                    self.numbered[number].horizon(message)
            case RequestRefused():
                self._refused(message)
            case Done() | Topics() | StatusReport():
                self._answered(message)
            case _:
                assert_never(message)

    def _published(self, answer: PublishReceipt | PublishRefused) -> None:
        publisher = self.publishers.get(answer.publisher)
        if publisher is None:
            return
        if isinstance(answer, PublishReceipt):
            publisher.receipt(answer)
        else:
            publisher.refusal(answer)

    def _confirm(self, confirmed: Confirmed) -> None:
        # One that was confirmed earlier goes on in another log.
        subscription = self.confirming.get(confirmed.request) or self.numbered.get(confirmed.subscription)
        if subscription is not None:
            self.numbered[confirmed.subscription] = subscription
            subscription.confirmed(confirmed)

    def _deliver_rows(self, delivery: RowsDelivery) -> None:
        if len(delivery.to) == 1:
            [(number, place)] = delivery.to
            subscription = self.numbered.get(number)
            if subscription is not None:
                subscription.rows(delivery, [place])
            return
        places: dict[int, list[int]] = {}
        for number, place in delivery.to:
            places.setdefault(number, []).append(place)
        for number, own in places.items():
            subscription = self.numbered.get(number)
            if subscription is not None:
                subscription.rows(delivery, own)

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, Topics):
            self.topics = answer
            self.schemas = {schema.topic: schema for schema, _ in answer.topics}
        request = self._requests.pop(answer.request, None)
        if request is not None and not request.answer.done():
            request.answer.set_result(answer)

    def _refused(self, refused: RequestRefused) -> None:
        subscription = self.confirming.pop(refused.request, None)
        if subscription is None:
            # One confirmed earlier, whose name another client has taken.
            subscription = next((each for each in self.subscriptions if each.is_of(refused.request)), None)
        if subscription is not None:
            subscription.refused(refused)
            return
        request = self._requests.get(refused.request)
        if request is None:
            return
        request.attempts += 1
        if refused.retry and request.attempts <= self.options.retries_max:
            self._loop.call_later(self._backoff_s(request.attempts), self._again, refused.request)
        elif not request.answer.done():
            request.answer.set_exception(error_of(refused.code, refused.message, retry=refused.retry))

    def _again(self, number: int) -> None:
        request = self._requests.get(number)
        if request is not None and self.is_linked:
            self._say(request.make(number))

    def backoff_s(self, attempts: int) -> float:
        """How long to wait before the n-th retry."""
        return self._backoff_s(attempts)


def never_sent(what: str) -> PeerError:
    """The error for an answer to something that was never sent."""
    return PeerError("E240", f"the node answers {what}, which was never sent")


def _given_up(failed: list[tuple[Address, Link]]) -> GaplessError:
    """Why no address succeeded: the refusal of the first node that answered, or that none did."""
    reasons = [f"{address}: {link.error}" for address, link in failed]
    for at, (address, link) in enumerate(failed):
        if link.is_answered and link.error is not None:
            others = "".join(f"; {each}" for each in reasons[:at] + reasons[at + 1 :])
            return error_of(link.error.code, f"{link.error.message} (at {address}{others})", retry=True)
    # Say only once that no node answers.
    return LinkError("E401", f"no node answers: {'; '.join(reasons).replace(': E401 ', ': ')}", retry=True)
