"""The synchronous client: the same names and the same promises, without an event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import pytest

from gapless.client import sync
from gapless.errors import LinkError, SchemaError, UsageError
from gapless.protocol.sessions.messages import Acknowledge, ChangeFilter, Publish, Subscribe, Unsubscribe
from tests.unit.client.fake_node import PATIENCE_SECONDS, PUBEND, QUICK, FakeNode, Peer, event

Made = TypeVar("Made")


class Thread:
    """A node in a thread of its own; `call` runs something there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.node: FakeNode
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

        async def start() -> None:
            self.node = await FakeNode().__aenter__()

        asyncio.run_coroutine_threadsafe(start(), self.loop).result(PATIENCE_SECONDS)

    def call(self, function: Callable[[], Made]) -> Made:
        async def run() -> Made:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_SECONDS)

    def hear(self, kind: type[Made]) -> Made:
        return self.hearing(kind).result(PATIENCE_SECONDS)

    def hearing(self, kind: type[Made]) -> "Future[Made]":
        return asyncio.run_coroutine_threadsafe(self.node.hear(kind), self.loop)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.node.__aexit__(), self.loop).result(PATIENCE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def thread() -> Iterator[Thread]:
    made = Thread()
    yield made
    made.stop()


@contextmanager
def connected(thread: Thread) -> Iterator[sync.SyncClient]:
    with sync.connect(thread.node.address, options=QUICK) as client:
        yield client


def test_publish_returns_when_the_event_is_durable(thread: Thread) -> None:
    with connected(thread) as client:
        received = client.publish("trades", event(1))
        assert (received.pubend, received.tick) == (PUBEND, 1_000)
        assert thread.call(lambda: thread.node.prices) == [1.0], "stored before `publish` returned"
        with client.publisher("trades", identity="me") as publisher:
            assert publisher.publish(event(2)).tick == 1_001
            assert ("me", 0) in thread.call(lambda: thread.node.stored)
        client.create_topic("quotes", {"bid": "int"})
        assert client.publish("quotes", {"bid": 1}).pubend == PUBEND


def test_enqueued_events_are_durable_after_their_result_or_a_flush(thread: Thread) -> None:
    with connected(thread) as client:
        publications = [client.enqueue("trades", event(price)) for price in range(10_000)]
        assert [each.result().tick for each in publications[-2:]] == [10_998, 10_999]
        assert client.publish_batch("trades", {"sym": ["a"], "price": [1.0]}).ticks.tolist() == [11_000]
        with client.publisher("trades", identity="me") as publisher:
            publisher.enqueue(event(1))
            publisher.publish_batch([event(2)])
        assert ("me", 1) in thread.node.stored
        client.enqueue("trades", event(3))
        client.flush()
        assert thread.call(lambda: thread.node.prices[-1]) == 3.0
        assert client.publish("trades", event(4)).tick == 11_004
        assert set(client.topics()) == {"trades"}
        assert client.status() == {"name": "fake"}


def test_mistakes_are_raised_by_publish_and_by_the_result(thread: Thread) -> None:
    with connected(thread) as client:
        with pytest.raises(SchemaError, match="E112"):
            client.publish("trades", {"sym": "IBM"})
        with pytest.raises(SchemaError, match="E114"):
            client.publish("trades", {"sym": "IBM", "price": "x"})
        with pytest.raises(SchemaError, match="E112"):
            client.enqueue("trades", {"sym": "IBM"}).result()
        thread.call(lambda: setattr(thread.node, "on_publish", lambda _peer, _message: None))
        waiting = client.enqueue("trades", event(1))
        with pytest.raises(TimeoutError):
            waiting.result(timeout_s=0.01)
        peer, message = thread.call(lambda: (thread.node.peer, None))[0], thread.hear(Publish)
        thread.call(lambda: (thread.node.store(message), thread.node.receipt(peer, message)))
        assert waiting.result().tick == 1_000


def test_events_come_once_over_a_lost_connection(thread: Thread) -> None:
    with connected(thread) as client, client.subscribe("trades", start=5) as trades:
        thread.hear(Subscribe)
        thread.call(lambda: thread.node.peer.deliver(7, [10, 11, 12]))
        events = iter(trades)
        assert next(trades)["sym"] == "t10"
        assert next(events).tick == 11
        assert trades.positions == {PUBEND: 12}
        thread.call(thread.node.peer.drop)
        assert thread.hear(Subscribe).start == {PUBEND: 13}
        thread.call(lambda: thread.node.peer.deliver(7, [12, 13]))
        assert [next(events).tick, next(events).tick] == [12, 13]
        assert trades.gaps == []


def test_leaving_acknowledges_only_what_the_program_has_taken(thread: Thread) -> None:
    with connected(thread) as client:
        with client.subscribe("trades", start=5) as trades:
            thread.hear(Subscribe)
            thread.call(lambda: thread.node.peer.deliver(7, [10, 11, 12]))
            for trade in trades:
                if trade.tick == 11:
                    break
        assert thread.hear(Acknowledge).positions == {PUBEND: 12}
        thread.hear(Unsubscribe)


def test_manual_acknowledgements_batches_and_changes(thread: Thread) -> None:
    with connected(thread) as client, client.subscribe("trades", start=5, ack="manual") as trades:
        thread.hear(Subscribe)
        thread.call(lambda: thread.node.peer.deliver(7, [10, 11, 12]))
        next(iter(trades)).ack()
        assert thread.hear(Acknowledge).positions == {PUBEND: 11}
        batch = next(trades.batches())
        assert batch.ticks.tolist() == [11, 12]
        batch.ack()
        assert thread.hear(Acknowledge).positions == {PUBEND: 13}
        asked = thread.hearing(ChangeFilter)
        confirming = asyncio.run_coroutine_threadsafe(_confirm(asked, thread), thread.loop)
        assert trades.change("price > 3") == {PUBEND: 40}
        confirming.result(PATIENCE_SECONDS)
        assert trades.where == "price > 3"
        trades.forget()
        assert list(trades) == []


async def _confirm(asked: "Future[ChangeFilter]", thread: Thread) -> None:
    change = await asyncio.wrap_future(asked)
    peer: Peer = thread.node.peer
    peer.confirm(change.request, change.subscription, 40)


def test_a_client_that_cannot_connect_leaves_no_thread() -> None:
    before = threading.active_count()
    options = sync.Options(connect_timeout_s=0.01)
    with pytest.raises(LinkError, match="E401"), sync.connect("gapless://127.0.0.1:1", options=options):
        pass
    assert threading.active_count() == before


def test_a_client_is_used_inside_its_context_only(thread: Thread) -> None:
    client = sync.connect(thread.node.address)
    with pytest.raises(UsageError, match="E193"):
        client.publish("trades", event(1))
    with client, pytest.raises(UsageError, match="E193"):
        client.__enter__()


def test_a_call_in_another_thread_raises_when_the_client_is_closed(thread: Thread) -> None:
    """Before, it waited for ever, and what it had asked for was never awaited."""
    client = sync.connect(thread.node.address, options=QUICK)
    with client:
        loop = client._running()
        begun = threading.Event()
        told: Future[str] = Future()

        async def endless() -> None:
            begun.set()
            await asyncio.Event().wait()

        def wait() -> None:
            with pytest.raises(UsageError, match="E193") as raised:
                loop.run(endless())
            told.set_result(str(raised.value))

        threading.Thread(target=wait).start()
        begun.wait(PATIENCE_SECONDS)
    assert "connect again" in told.result(PATIENCE_SECONDS)
    with pytest.raises(UsageError, match="E193"):
        loop.run(endless())
