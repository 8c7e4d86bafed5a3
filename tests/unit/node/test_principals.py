"""What one principal takes up is counted, and its turn of the loop is over when its share is used up."""

import asyncio
import socket
from collections.abc import Callable
from time import perf_counter
from unittest import mock

import pytest
import uvloop

from gapless.client.options import Options
from gapless.content.cost import matching_cost
from gapless.content.language import parse_condition
from gapless.errors import UsageError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.node import principals
from gapless.node.config import Limits
from gapless.node.connection import ANSWERS_BYTES_MAX, LARGE_BYTES, Connection
from gapless.node.principals import Principals, Share, Turns
from gapless.node.security import KNOWN_MAX, NOBODY, Rights, Tokens, is_gone, token_hash
from gapless.protocol.sessions.identities import ANONYMOUS
from gapless.wire.frames import FROM_CLIENT, Frame, Kind, encode_frame

PATIENCE_SECONDS = 10


def test_a_principal_that_has_nothing_is_forgotten() -> None:
    async def story() -> None:
        known = Principals(Limits())
        alice = known.of("token alice")
        assert known.of("token alice") is alice
        alice.clients += 1
        known.left(alice)
        assert len(known) == 1
        alice.clients -= 1
        known.left(alice)
        assert len(known) == 0

    asyncio.run(story())


def test_a_subscription_beyond_any_quota_is_refused() -> None:
    async def story() -> None:
        limits = Limits(
            client_subscriptions_max=2,
            principal_subscriptions_max=3,
            principal_names_max=1,
            principal_condition_bytes_max=10,
        )
        known = Principals(limits)
        alice = known.of("token alice")
        known.check_subscription(alice, 1, "0123456789", named=True)
        with pytest.raises(UsageError, match="client_subscriptions_max"):
            known.check_subscription(alice, 2, "", named=False)
        with pytest.raises(UsageError, match="principal_condition_bytes_max"):
            known.check_subscription(alice, 0, "01234567890", named=False)
        alice.names = 1
        with pytest.raises(UsageError, match="principal_names_max"):
            known.check_subscription(alice, 0, "", named=True)
        alice.subscriptions = 3
        with pytest.raises(UsageError, match="principal_subscriptions_max") as caught:
            known.check_subscription(alice, 0, "", named=False)
        assert (caught.value.code, caught.value.retry) == ("E106", True)
        known.check_subscription(known.of("token bob"), 0, "", named=True)

    asyncio.run(story())


def test_the_cache_of_rights_is_bounded() -> None:
    rights = Rights(name="alice", subscribe=("trades.*",))
    for at in range(3 * KNOWN_MAX):
        assert not rights.may_subscribe(TopicId(f"invented-{at}"))
        assert len(rights._known) <= KNOWN_MAX
    assert rights.may_subscribe(TopicId("trades.nyse"))


def test_a_principal_is_gone_when_no_token_or_certificate_names_it() -> None:
    tokens = Tokens.of({token_hash("a"): Rights(name="alice")})
    assert not is_gone(ANONYMOUS, None, None)
    assert is_gone(ANONYMOUS, tokens, None)
    assert not is_gone("token alice", tokens, None)
    assert is_gone("token bob", tokens, None)
    assert is_gone("token alice", None, None)
    assert is_gone("certificate alice", None, None)
    assert is_gone(NOBODY, None, None)
    assert is_gone(NOBODY, tokens, None)


class Answering:
    """An owner that answers each frame with so many bytes, and remembers in which order they came."""

    def __init__(self, connection: Connection, answer_bytes: int) -> None:
        self._connection = connection
        self._answer = bytes(answer_bytes)
        self.came: list[bytes] = []
        self.news = asyncio.Event()

    def received(self, frame: Frame) -> None:
        self.came.append(bytes(frame.head))
        self._connection.answer([self._answer])
        self.news.set()

    def settled(self) -> None:
        pass

    def drained(self) -> None:
        pass

    def lost(self, reason: str) -> None:
        pass

    async def until(self, count: int) -> None:
        while len(self.came) < count:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), PATIENCE_SECONDS)


async def answering(
    share: Share, answer_bytes: int, kind: type[Answering] | None = None
) -> tuple[Answering, socket.socket]:
    """A connection of a principal, and the socket at the other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    near.setblocking(False)
    far.setblocking(False)

    def made(connection: Connection) -> Answering:
        connection.share = share
        return (kind or Answering)(connection, answer_bytes)

    loop = asyncio.get_running_loop()
    _, connection = await loop.connect_accepted_socket(lambda: Connection(FROM_CLIENT, made), near)
    owner = connection._owner
    assert isinstance(owner, Answering)
    return owner, far


def frames(count: int) -> bytes:
    return b"".join(
        bytes(part) for at in range(count) for part in encode_frame(Kind.LIST_TOPICS, b"%08d" % at)
    )


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_requests_wait_until_answers_are_read_and_come_in_order(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        owner, far = await answering(Share(2**30, Turns()), ANSWERS_BYTES_MAX)
        running = asyncio.get_running_loop()
        with far:
            await running.sock_sendall(far, frames(100))
            await owner.until(2)
            assert len(owner.came) < 100, "the sockets on the way do not take 100 MiB"
            left = 100 * ANSWERS_BYTES_MAX
            while left:
                left -= len(await asyncio.wait_for(running.sock_recv(far, 2**20), PATIENCE_SECONDS))
            assert owner.came == [b"%08d" % at for at in range(100)]
            owner._connection.abort("done")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())


def test_answers_that_are_read_never_stop_anybody() -> None:
    async def story() -> None:
        owner, far = await answering(Share(2**30, Turns()), ANSWERS_BYTES_MAX // 4)
        running = asyncio.get_running_loop()
        with far:
            for at in range(32):
                await running.sock_sendall(far, frames(1))
                left = ANSWERS_BYTES_MAX // 4
                while left:
                    left -= len(await asyncio.wait_for(running.sock_recv(far, left), PATIENCE_SECONDS))
                assert owner._connection._unread is None, at
            owner._connection.abort("done")

    asyncio.run(story())


def test_a_client_that_reads_nothing_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.node.connection.UNREAD_SECONDS_MAX", 0.0)
    monkeypatch.setattr("gapless.node.connection.UNREAD_LOOK_SECONDS", 0.001)

    async def story() -> None:
        owner, far = await answering(Share(2**30, Turns()), ANSWERS_BYTES_MAX)
        running = asyncio.get_running_loop()
        with far:
            await running.sock_sendall(far, frames(100))
            while owner._connection.is_open:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0)
            assert len(owner.came) < 100
            assert owner._connection._reason.startswith("E107")

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_connections_of_a_principal_share_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(principals, "TURN_SECONDS", 1e-9)

    async def story() -> None:
        share = Share(2**30, Turns())
        one, far_one = await answering(share, 1)
        two, far_two = await answering(share, 1)
        running = asyncio.get_running_loop()
        with far_one, far_two:
            await running.sock_sendall(far_one, frames(50))
            await running.sock_sendall(far_two, frames(50))
            await one.until(10)
            # A frame of one, a frame of the other: neither waits for all of the other's.
            assert 0 < len(two.came) < 50
            await one.until(50)
            await two.until(50)
            assert one.came == two.came == [b"%08d" % at for at in range(50)]
            for each in (one, two):
                each._connection.abort("done")

    asyncio.run(story())


def test_unfinished_frames_of_a_principal_are_bounded() -> None:
    async def story() -> None:
        share = Share(2**16, Turns())
        owners = [await answering(share, 1) for _ in range(8)]
        [large] = encode_frame(Kind.LIST_TOPICS, bytes(2**15))
        running = asyncio.get_running_loop()
        for _, far in owners:
            await running.sock_sendall(far, bytes(large)[:-8])
        while all(owner._connection.is_open for owner, _ in owners):  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0)
        assert share.held_bytes <= 2 * 2**16
        for owner, far in owners:
            owner._connection.abort("done")
            far.close()
        while any(owner._connection.is_open for owner, _ in owners):  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert share.held_bytes == 0

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_what_conditions_cost_with_every_event_has_a_quota() -> None:
    """Different ones add up; the same one twice is evaluated once, and what the index finds is free."""
    schema = Schema.parse(TopicId("t"), {"note": "string"})
    texts = ("note LIKE '%a%'", "note LIKE '%b%'", "note LIKE '%c%'", "note = 'a'")
    first, second, third, free = (parse_condition(text, schema) for text in texts)

    async def story() -> None:
        known = Principals(Limits(principal_matching_cost_max=2 * matching_cost(first)))
        one = known.of("token a")
        for condition in (first, first, second, free):
            known.check_matching(one, TopicId("t"), condition)
            one.match((TopicId("t"), condition), 1)
        with pytest.raises(UsageError, match="E125"):
            known.check_matching(one, TopicId("t"), third)
        known.check_matching(one, TopicId("t"), first)
        known.check_matching(one, TopicId("t"), free)
        known.check_matching(known.of("token b"), TopicId("t"), third)
        for condition in (first, second):
            one.match((TopicId("t"), condition), -1)
        known.check_matching(one, TopicId("t"), third)
        one.match((TopicId("t"), first), -1)
        assert (one.matching_cost, len(one.matched)) == (0, 0)

    asyncio.run(story())


def test_anonymous_clients_share_fifty_times_the_matching_budget() -> None:
    schema = Schema.parse(TopicId("t"), {"note": "string"})
    conditions = [parse_condition(f"note LIKE '%{at:03}%'", schema) for at in range(51)]

    async def story() -> None:
        known = Principals(Limits(principal_matching_cost_max=max(map(matching_cost, conditions))))
        everybody = known.of(ANONYMOUS)
        for condition in conditions[:-1]:
            known.check_matching(everybody, TopicId("t"), condition)
            everybody.match((TopicId("t"), condition), 1)
        with pytest.raises(UsageError, match="E125"):
            known.check_matching(everybody, TopicId("t"), conditions[-1])

    asyncio.run(story())


class Charged(Share):
    """A share that remembers what it was charged."""

    __slots__ = ("charges",)

    def __init__(self, turns: Turns) -> None:
        super().__init__(2**30, turns)
        self.charges: list[float] = []

    def spent(self, seconds: float, now: float) -> None:
        self.charges.append(seconds)
        super().spent(seconds, now)


def test_a_large_frame_is_charged_by_its_bytes_while_others_are_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gapless.node.connection.BYTE_SECONDS", 1.0)
    monkeypatch.setattr(principals, "AMONG_OTHERS_SECONDS", 3_600.0)
    large, small = (
        b"".join(map(bytes, encode_frame(Kind.PUBLISH, b"head", [bytes(size)])))
        for size in (LARGE_BYTES + 1, LARGE_BYTES)
    )

    async def charged(data: bytes, *, among_others: bool) -> float:
        turns = Turns()
        share = Charged(turns)
        owner, far = await answering(share, 1)
        if among_others:
            Share(2**30, turns).heard(perf_counter())
        with far:
            await asyncio.get_running_loop().sock_sendall(far, data)
            await owner.until(1)
            owner._connection.abort("done")
        return max(share.charges)

    async def story() -> None:
        assert await charged(large, among_others=True) > LARGE_BYTES
        assert await charged(small, among_others=True) < LARGE_BYTES
        assert await charged(large, among_others=False) < LARGE_BYTES

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


async def waited(spent_s: float, *, is_alone: bool = False) -> float:
    """For how long a principal is not heard after something that took so long, while others are."""
    turns = Turns()
    share, other = Share(0, turns), Share(0, turns)
    now = perf_counter()
    (share if is_alone else other).heard(now)
    share.heard(now)
    share.caused(spent_s, now)
    assert share.is_used_up
    return after(share, now, lambda at: None if is_alone else other.heard(at))


def after(share: Share, now: float, meanwhile: Callable[[float], None]) -> float:
    """For how long a principal that waits from `now` on is not heard, as the loop is told."""
    calls: list[tuple[float, Callable[[], None]]] = []
    went_on: list[float] = []
    running = asyncio.get_running_loop()
    at = now
    with (
        mock.patch.object(running, "call_later", lambda delay, call: calls.append((delay, call))),
        mock.patch.object(running, "call_soon", side_effect=lambda call: calls.append((0.0, call))),
        mock.patch.object(principals, "perf_counter", side_effect=lambda: at),
    ):
        share.wait(lambda: went_on.append(at - now))
        while not went_on:
            delay, call = calls.pop()
            at += delay
            meanwhile(at)
            call()
    return went_on[0]


def test_a_principal_leaves_the_loop_to_others_for_as_long_as_it_used_it() -> None:
    long = principals.LONG_SECONDS
    assert asyncio.run(waited(long)) == pytest.approx(long)
    assert asyncio.run(waited(long / 2)) == pytest.approx(long / 2)


def test_after_something_long_it_rests_for_much_longer() -> None:
    long = principals.LONG_SECONDS
    five, ten = asyncio.run(waited(5 * long)), asyncio.run(waited(10 * long))
    assert five > 10 * 5 * long
    assert ten > 3 * five
    assert asyncio.run(waited(60.0)) == pytest.approx(principals.REST_SECONDS_MAX)


def test_a_rest_is_over_when_all_others_are_gone() -> None:
    async def story() -> float:
        turns = Turns()
        share, other = Share(0, turns), Share(0, turns)
        other.heard(0.0)
        share.heard(0.0)
        share.caused(60.0, 0.0)
        return after(share, 0.0, lambda _: None)

    assert asyncio.run(story()) == principals.AMONG_OTHERS_SECONDS


def test_a_busy_machine_does_not_throttle_clients() -> None:
    async def story() -> None:
        turns = Turns()
        share, other = Share(0, turns), Share(0, turns)
        other.heard(0.0)
        with mock.patch.object(principals, "thread_time", side_effect=[7.0, 7.002, 7.5]):
            share.heard(0.0)
            assert share.used(0.1) == pytest.approx(0.002)
            assert share.used(0.1) == 0.1
            assert share.used(0.001) == 0.001

    asyncio.run(story())


def test_rests_do_not_add_up_to_more_than_a_client_waits_for_a_pong() -> None:
    async def story() -> float:
        turns = Turns()
        share, other = Share(0, turns), Share(0, turns)
        other.heard(0.0)
        share.heard(0.0)
        for _ in range(20):
            share.caused(0.1, 0.0)
        return share._until

    assert asyncio.run(story()) == principals.REST_SECONDS_MAX
    # A client sends a PING every `ping_s`, and gives a node up after twice as long.
    assert 2 * Options().ping_s > principals.REST_SECONDS_MAX


def test_a_principal_that_is_alone_waits_for_a_turn_only() -> None:
    assert asyncio.run(waited(1.0, is_alone=True)) == 0.0


def test_among_others_fewer_requests_go_together_unless_each_step_costs_much() -> None:
    async def story() -> None:
        turns = Turns()
        share, other = Share(0, turns), Share(0, turns)
        share.heard(0.0)
        share.spent(principals.SHARED_TURN_SECONDS, 0.0)
        assert not share.is_used_up, "nobody else is there"
        other.heard(0.1)
        assert share.is_used_up
        share.caused(0.003, 0.1)
        share.heard(0.2)
        assert not share.is_used_up, "a new turn"
        share.spent(0.0029, 0.2)
        assert not share.is_used_up
        share.spent(0.0002, 0.2)
        assert share.is_used_up
        share.heard(0.2 + 3 * principals.AMONG_OTHERS_SECONDS)
        assert not turns.are_shared

    asyncio.run(story())


def test_nothing_is_heard_from_a_principal_that_rests() -> None:
    async def story() -> None:
        turns = Turns()
        share, other = Share(2**30, turns), Share(2**30, turns)
        owner, far = await answering(share, 1)
        running = asyncio.get_running_loop()
        with far:
            other.heard(perf_counter())
            share.heard(perf_counter())
            share.caused(2 * principals.LONG_SECONDS, perf_counter())
            until = share._until
            await running.sock_sendall(far, frames(3))
            await owner.until(3)
            assert perf_counter() >= until
            owner._connection.abort("done")

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


class Thoughtful(Answering):
    """Cannot carry out a frame when it first comes, but when it is told so."""

    is_ready = False

    def received(self, frame: Frame) -> None:
        self.news.set()
        if bytes(frame.head) == b"%08d" % 3 and not self.is_ready:
            self._connection.hold()
            return
        super().received(frame)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_comes_behind_a_frame_that_is_held_waits_for_it_and_comes_in_order(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        owner, far = await answering(Share(2**30, Turns()), 1, Thoughtful)
        assert isinstance(owner, Thoughtful)
        running = asyncio.get_running_loop()
        with far:
            await running.sock_sendall(far, frames(10))
            await owner.until(3)
            assert len(owner.came) == 3
            owner.is_ready = True
            owner._connection.go_on()
            await owner.until(10)
            assert owner.came == [b"%08d" % at for at in range(10)]
            await running.sock_sendall(far, frames(1))
            await owner.until(11)
            owner._connection.abort("done")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())


def test_a_held_connection_that_is_lost_takes_what_waits_with_it() -> None:
    async def story() -> None:
        share = Share(2**30, Turns())
        owner, far = await answering(share, 1, Thoughtful)
        with far:
            await asyncio.get_running_loop().sock_sendall(far, frames(10))
            await owner.until(3)
            owner._connection.abort("done")
            while owner._connection.is_open or share.held_bytes:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0)
            owner._connection.go_on()
            await asyncio.sleep(0)
            assert len(owner.came) == 3

    asyncio.run(story())
