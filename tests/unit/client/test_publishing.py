"""Publishing: one frame for all that wait, receipts, refusals, and exactly once over lost connections."""

import asyncio
import random

import pyarrow as pa
import pytest

from gapless.client import Options, Receipt
from gapless.client.publisher import uptime_ms
from gapless.errors import LinkError, SchemaError, StoreError, UsageError
from gapless.protocol.sessions.client_publishing import FEW_ROWS_MAX, RESEND_MS_MAX, SENDS_MAX
from gapless.protocol.sessions.messages import Publish, PublishReceipt, PublishRefused
from gapless.wire.handshake import Refuse
from tests.unit.client.fake_node import PUBEND, QUICK, FakeNode, Peer, connected, event, run


def test_an_event_is_durable_when_its_receipt_is_there() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            assert await client.publish("trades", event(3.5)) == Receipt(PUBEND, 1_000)
            assert node.prices == [3.5]

    run(story())


def test_everything_queued_goes_out_as_one_frame_with_consecutive_numbers() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            publications = [client.publish("trades", event(price)) for price in range(100)]
            receipts = [await publication for publication in publications]
            assert [receipt.tick for receipt in receipts] == list(range(1_000, 1_100))
            assert node.publishes == 1
            assert sorted(number for _, number in node.stored) == list(range(100))

    run(story())


@pytest.mark.parametrize(("trip_ms", "under_way"), [(10**9, 1), (1e-9, SENDS_MAX)], ids=["near", "far"])
def test_small_frames_wait_for_each_other_while_others_are_under_way(
    trip_ms: float, under_way: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless.protocol.sessions.client_publishing.TRIP_MS", trip_ms)
    monkeypatch.setattr("gapless.protocol.sessions.client_publishing.FEW_ROWS_MAX", 0)

    async def story() -> None:
        async with connected() as (node, client):
            await client.publish("trades", event(0))
            await node.hear(Publish)
            held: list[tuple[Peer, Publish]] = []
            node.on_publish = lambda peer, message: held.append((peer, message))
            publications = []
            for price in range(1, under_way + 1):
                publications.append(client.publish("trades", event(price)))
                await node.hear(Publish)
            publications += [client.publish("trades", event(under_way + price)) for price in range(1, 51)]
            assert len(held) == under_way
            node.on_publish = None
            for peer, message in held:
                node.store(message)
                node.receipt(peer, message)
            assert len({(await publication).tick for publication in publications}) == under_way + 50
            # One frame each for the first ones, and one for all that waited.
            assert node.publishes == 1 + under_way + 1

    run(story())


def test_a_few_events_wait_for_nothing() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            held: list[tuple[Peer, Publish]] = []
            node.on_publish = lambda peer, message: held.append((peer, message))
            publications = []
            for price in range(FEW_ROWS_MAX):
                publications.append(client.publish("trades", event(price)))
                await node.hear(Publish)
            # From here on they wait for a receipt, and for each other.
            publications += [client.publish("trades", event(FEW_ROWS_MAX + price)) for price in range(5)]
            await asyncio.sleep(0)
            assert [message.first_catenation for _, message in held] == list(range(FEW_ROWS_MAX))
            node.on_publish = None
            for peer, message in held:
                node.store(message)
                node.receipt(peer, message)
            ticks = [(await publication).tick for publication in publications]
            assert len(set(ticks)) == len(ticks)
            assert node.prices == [float(price) for price in range(FEW_ROWS_MAX + 5)]

    run(story())


def test_the_program_may_change_its_event_after_publishing_it() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            reused = event(1.0)
            first = client.publish("trades", reused)
            reused["price"] = 2.0
            await client.publish("trades", reused)
            await first
            assert node.prices == [1.0, 2.0]

    run(story())


def test_a_lost_receipt_is_asked_for_again_and_nothing_is_stored_twice() -> None:
    async def story() -> None:
        async with connected() as (node, client):

            def store_and_drop(peer: Peer, message: Publish) -> None:
                node.store(message)
                node.on_publish = None
                peer.drop()

            node.on_publish = store_and_drop
            publications = [client.publish("trades", event(price)) for price in range(10)]
            first = await node.hear(Publish)
            again = await node.hear(Publish)
            assert (again.first_catenation, again.publisher) == (first.first_catenation, first.publisher)
            assert again.rows == first.rows
            assert [(await each).tick for each in publications] == list(range(1_000, 1_010))
            assert node.prices == [float(price) for price in range(10)]
            assert node.publishes == 2

    run(story())


def test_what_was_never_stored_is_sent_again_in_order() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            node.on_publish = lambda peer, _message: peer.drop()
            publications = [client.publish("trades", event(1))]
            await node.hear(Publish)
            node.on_publish = None
            publications += [client.publish("trades", event(price)) for price in (2, 3)]
            for publication in publications:
                await publication
            assert node.prices == [1.0, 2.0, 3.0]

    run(story())


def test_only_what_has_no_receipt_is_sent_again() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            some = [client.publish("trades", event(price)) for price in range(4)]

            def half(peer: Peer, message: Publish) -> None:
                node.store(message)
                node.on_publish = None
                peer.send(
                    PublishReceipt(
                        publisher=message.publisher,
                        first_catenation=0,
                        last_catenation=1,
                        pubend=PUBEND,
                        runs=((1_000, 2),),
                    )
                )

            node.on_publish = half
            assert (await some[1]).tick == 1_001
            assert not some[2].done()
            node.peer.drop()
            assert (await some[3]).tick == 1_003
            sent = await _publishes(node, 2)
            assert [message.first_catenation for message in sent] == [0, 2]

    run(story())


async def _publishes(node: FakeNode, count: int) -> list[Publish]:
    return [await node.hear(Publish) for _ in range(count)]


def test_a_receipt_without_ticks_is_a_receipt() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            node.on_publish = lambda peer, message: peer.send(
                PublishReceipt(
                    publisher=message.publisher, first_catenation=0, last_catenation=0, pubend=PUBEND, runs=()
                )
            )
            assert await client.publish("trades", event(1)) == Receipt(PUBEND, None)

    run(story())


def test_a_refusal_raises_the_error_that_its_code_names() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            node.on_publish = lambda peer, message: node.refuse(
                peer, message, "E111", retry=False, text="another schema"
            )
            with pytest.raises(SchemaError, match=r"^E111 another schema$"):
                await client.publish("trades", event(1))

    run(story())


def test_a_refusal_for_now_is_tried_again_and_then_given_up() -> None:
    async def story() -> None:
        async with connected(Options(backoff_min_s=0.001, backoff_max_s=0.002, retries_max=3)) as (
            node,
            client,
        ):
            refusals = 0

            def refuse(peer: Peer, message: Publish) -> None:
                nonlocal refusals
                refusals += 1
                node.refuse(peer, message, "E302")

            node.on_publish = refuse
            with pytest.raises(StoreError, match=r"^E302 the disk is full$") as raised:
                await client.publish("trades", event(1))
            assert raised.value.retry
            assert refusals == 4
            # Nobody is to wait for it: what comes next says so, or a node would refuse it for ever.
            node.on_publish = None
            await client.publish("trades", event(2))
            heard = [await node.hear(Publish) for _ in range(5)]
            assert [each.given_up for each in heard] == [None] * 4 + [0]

    run(story())


def test_every_frame_names_the_number_before_it() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            await client.publish("trades", event(1))
            await client.publish_batch("trades", [event(2), event(3)])
            await client.publish("trades", event(4))
            heard = await _publishes(node, 3)
            assert [each.before for each in heard] == [-1, 0, 2]
            assert all(each.is_temporary for each in heard)
            await client.publisher("trades", identity="me", first_catenation=7).publish(event(5))
            [chosen] = await _publishes(node, 1)
            assert (chosen.before, chosen.is_temporary) == (-1, False)

    run(story())


def test_a_node_that_lacks_what_came_before_gets_it_again_in_order() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            await client.publish("trades", event(0))
            await node.hear(Publish)
            held: list[tuple[Peer, Publish]] = []
            node.on_publish = lambda peer, message: held.append((peer, message))
            sends = [
                asyncio.create_task(client.publish_batch("trades", [event(price)] * 2)) for price in (1, 2)
            ]
            first, second = await _publishes(node, 2)
            assert (first.before, second.before) == (0, 2)
            node.on_publish = None
            # The first is refused for good, so the second cannot come after it.
            node.refuse(held[0][0], first, "E111", retry=False)
            held[1][0].send(
                PublishRefused(
                    publisher=second.publisher,
                    first_catenation=3,
                    last_catenation=4,
                    code="E182",
                    message="events are missing",
                    retry=True,
                    had=0,
                )
            )
            [again] = await _publishes(node, 1)
            assert (again.first_catenation, again.before) == (3, 0)
            with pytest.raises(SchemaError):
                await sends[0]
            assert len(await sends[1]) == 2

    run(story())


def test_a_node_that_has_forgotten_a_publisher_is_told_where_it_begins() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            await client.publish("trades", event(0))

            def forgot(peer: Peer, message: Publish) -> None:
                node.on_publish = None
                peer.send(
                    PublishRefused(
                        publisher=message.publisher,
                        first_catenation=1,
                        last_catenation=1,
                        code="E182",
                        message="events are missing",
                        retry=True,
                        had=-1,
                    )
                )

            node.on_publish = forgot
            assert (await client.publish("trades", event(1))).tick == 1_001
            assert [each.before for each in await _publishes(node, 3)] == [-1, 0, -1]

    run(story())


def test_what_was_first_sent_a_day_ago_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with connected() as (node, client):
            late_ms = RESEND_MS_MAX + 1

            def drop(peer: Peer, message: Publish) -> None:
                node.on_publish = None
                monkeypatch.setattr("gapless.client.publisher.uptime_ms", lambda: uptime_ms() + late_ms)
                peer.drop()

            node.on_publish = drop
            with pytest.raises(
                UsageError, match=r"^E102 events 0 to 0 of publisher .* were sent 24 hours ago"
            ):
                await client.publish("trades", event(1))
            await client.publish("trades", event(2))
            assert node.prices == [2.0]

    run(story())


def test_a_refusal_for_now_is_forgotten_when_the_next_attempt_succeeds() -> None:
    async def story() -> None:
        async with connected() as (node, client):

            def refuse_once(peer: Peer, message: Publish) -> None:
                node.on_publish = None
                node.refuse(peer, message)

            node.on_publish = refuse_once
            publications = [client.publish("trades", event(price)) for price in range(3)]
            assert [(await each).tick for each in publications] == [1_000, 1_001, 1_002]
            assert [message.first_catenation for message in await _publishes(node, 2)] == [0, 0]

    run(story())


def test_a_value_that_does_not_fit_fails_alone() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            good, bad, null, last = (
                client.publish("trades", event(1)),
                client.publish("trades", {"sym": "IBM", "price": "much"}),
                client.publish("trades", {"sym": None, "price": 2.0}),
                client.publish("trades", event(3)),
            )
            assert (await last).tick == 1_001
            assert (await good).tick == 1_000
            with pytest.raises(SchemaError, match=r"E114 .*'price' must be float"):
                await bad
            with pytest.raises(SchemaError, match=r"E113 .*'sym' is null"):
                await null
            assert sorted(number for _, number in node.stored) == [0, 1]

    run(story())


def test_missing_and_unknown_columns_are_refused_at_once_and_nullable_ones_may_be_left_out() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            with pytest.raises(SchemaError, match=r"E112 .*'price' is missing"):
                client.publish("trades", {"sym": "IBM"})
            with pytest.raises(SchemaError, match=r"E111 .*no column 'prise'"):
                client.publish("trades", {"sym": "IBM", "price": 1.0, "note": None, "prise": 2})
            await client.publish("trades", {"price": 1.0, "sym": "IBM"})
            assert node.prices == [1.0]

    run(story())


def test_an_unknown_topic_is_looked_for_once_more() -> None:
    async def story() -> None:
        async with connected() as (_, client):
            with pytest.raises(UsageError, match="E141 there is no topic 'quotes': there is trades"):
                await client.publish("quotes", {"bid": 1})
            await client.create_topic("quotes", {"bid": "int", "ask": "int?"})
            first = client.publish("quotes", {"bid": 1})
            bad = client.publish("quotes", {"bid": 1.5})
            assert (await first).tick == 1_000
            with pytest.raises(SchemaError, match=r"E114 .*'bid' must be int"):
                await bad
            assert set(await client.topics()) == {"trades", "quotes"}

    run(story())


def test_events_queued_before_their_topic_is_known_are_checked_when_it_is() -> None:
    async def story() -> None:
        async with connected() as (_, client):
            await client.create_topic("quotes", {"bid": "int", "ask": "int?"})
            client._entered().schemas.clear()
            bad, good = client.publish("quotes", {"ask": 1}), client.publish("quotes", {"bid": 1})
            assert (await good).tick == 1_000
            with pytest.raises(SchemaError, match="E112"):
                await bad

    run(story())


def test_flushing_and_leaving_raise_a_refusal_that_was_not_awaited() -> None:
    async def story() -> None:
        async with connected() as (_, client):
            client.publish("trades", {"sym": "IBM", "price": "much"})
            with pytest.raises(SchemaError, match="E114"):
                await client.flush()
            await client.flush()
        with pytest.raises(SchemaError, match="E114"):
            async with connected() as (_, client):
                client.publish("trades", {"sym": "IBM", "price": "much"})

    run(story())


def test_more_than_may_be_outstanding_is_refused_and_ready_waits_for_room() -> None:
    async def story() -> None:
        options = Options(outstanding_rows_max=8, backoff_min_s=0.001, backoff_max_s=0.01)
        async with connected(options) as (node, client):
            held: list[tuple[Peer, Publish]] = []
            node.on_publish = lambda peer, message: held.append((peer, message))
            publications = [client.publish("trades", event(price)) for price in range(8)]
            with pytest.raises(LinkError, match=r"E405 8 events .* await ready\(\)"):
                client.publish("trades", event(9))
            await node.hear(Publish)
            waiting = asyncio.create_task(client.ready("trades"))
            await asyncio.sleep(0)
            assert not waiting.done()
            for peer, message in held:
                node.store(message)
                node.receipt(peer, message)
            await waiting
            node.on_publish = None
            publications.append(client.publish("trades", event(9)))
            assert len({(await each).tick for each in publications}) == 9

    run(story())


def test_unacknowledged_bytes_are_bounded() -> None:
    async def story() -> None:
        options = Options(outstanding_bytes_max=100_000, backoff_min_s=0.001, backoff_max_s=0.01)
        async with connected(options) as (node, client):
            held: list[tuple[Peer, Publish]] = []
            node.on_publish = lambda peer, message: held.append((peer, message))
            client.publish("trades", event(1, "x" * 90_000))
            await node.hear(Publish)
            waiting = asyncio.create_task(client.ready("trades"))
            await asyncio.sleep(0)
            assert not waiting.done()
            with pytest.raises(LinkError, match="E405"):
                client.publish("trades", event(2))
            node.on_publish = None
            [(peer, message)] = held
            node.store(message)
            node.receipt(peer, message)
            await waiting
            await client.publish("trades", event(2))

    run(story())


class _Frame:
    """As a data frame of Polars is, for us."""

    def to_arrow(self) -> pa.Table:
        return pa.table({"price": pa.array([5.0, 6.0]), "sym": pa.array(["a", "b"], pa.large_string())})


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"sym": ["a", "b"], "price": [5.0, 6.0]}),
        pa.RecordBatch.from_pydict({"price": [5, 6], "sym": ["a", "b"]}),
        {"sym": ["a", "b"], "price": [5.0, 6.0]},
        [{"sym": "a", "price": 5.0}, {"sym": "b", "price": 6.0, "note": "x"}],
        _Frame(),
    ],
    ids=["table", "batch", "dict", "records", "frame"],
)
def test_a_batch_may_come_in_many_forms(data: object) -> None:
    async def story() -> None:
        async with connected() as (node, client):
            receipt = await client.publish_batch("trades", data)
            assert receipt.ticks.tolist() == [1_000, 1_001]
            assert receipt.parts[0][0] == PUBEND
            assert node.prices == [5.0, 6.0]

    run(story())


def test_a_large_batch_is_cut_and_keeps_its_order_among_single_events() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            before = client.publish("trades", event(-1))
            text = "x" * 1_000
            rows = 10_000
            data = {"sym": ["a"] * rows, "price": list(range(rows)), "note": [text] * rows}
            receipt = await client.publish_batch("trades", data)
            after = client.publish("trades", event(-2))
            assert (await before).tick == 1_000
            assert receipt.ticks.tolist() == list(range(1_001, 1_001 + rows))
            assert (await after).tick == 1_001 + rows
            assert node.publishes > 3

    run(story())


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (3, "E192"),
        ({"sym": ["a"], "price": [1.0, 2.0]}, "E192"),
        ({"sym": ["a"], "price": [1.0], "prise": [1]}, "E111"),
        ({"sym": ["a"]}, "E112"),
        (pa.table({"sym": ["a"], "price": ["x"]}), "E114"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_as_a_whole(data: object, code: str) -> None:
    async def story() -> None:
        async with connected() as (node, client):
            with pytest.raises(UsageError, match=code):
                await client.publish_batch("trades", data)
            assert not node.stored

    run(story())


def test_an_event_larger_than_a_frame_is_refused_alone() -> None:
    async def story() -> None:
        async with connected() as (_, client):
            large, good = client.publish("trades", event(1, "x" * 2**24)), client.publish("trades", event(2))
            await good
            with pytest.raises(UsageError, match=r"^E194 an event has \d+ bytes, .*: split it, or publish"):
                await large

    run(story())


def test_an_identity_of_ones_own_goes_on_with_its_numbers() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            async with client.publisher("trades", identity="job-7", first_catenation=5) as publisher:
                publisher.publish(event(1))
            assert list(node.stored) == [("job-7", 5)]
            with pytest.raises(UsageError, match="E195"):
                client.publisher("trades", identity="job-7")

    run(story())


def test_a_receipt_for_what_was_never_sent_ends_the_connection_and_is_told() -> None:
    async def story() -> None:
        async with connected() as (node, client):

            def lie(peer: Peer, message: Publish) -> None:
                node.on_publish = None
                peer.send(
                    PublishReceipt(
                        publisher=message.publisher,
                        first_catenation=0,
                        last_catenation=5,
                        pubend=PUBEND,
                        runs=((1, 6),),
                    )
                )

            node.on_publish = lie
            publication = client.publish("trades", event(1))
            assert (await node.hear(Refuse)).code == "E240"
            assert (await publication).tick == 1_000

    run(story())


def test_a_cancelled_waiter_does_not_disturb_the_others() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            held: list[tuple[Peer, Publish]] = []
            node.on_publish = lambda peer, message: held.append((peer, message))
            publication = client.publish("trades", event(1))

            async def wait() -> Receipt:
                return await publication

            one, other = asyncio.create_task(wait()), asyncio.create_task(wait())
            await node.hear(Publish)
            one.cancel()
            await asyncio.wait([one])
            [(peer, message)] = held
            node.store(message)
            node.receipt(peer, message)
            assert (await other).tick == 1_000

    run(story())


def test_leaving_waits_for_receipts_but_not_for_ever() -> None:
    async def story() -> None:
        async with FakeNode() as node:
            node.on_publish = lambda _peer, _message: None
            from gapless.client import connect

            with pytest.raises(LinkError, match="E406 1 events have no receipt"):
                async with connect(node.address, options=Options(close_timeout_s=0.05)) as client:
                    publication = client.publish("trades", event(1))
            with pytest.raises(LinkError, match="E402"):
                await publication

    run(story())


def test_options_are_checked() -> None:
    for bad in (
        {"ping_s": 0},
        {"credit_rows": 0},
        {"retries_max": -1},
        {"give_up_s": -1},
        {"credit_rows": 1.5},
    ):
        with pytest.raises(UsageError, match="E191"):
            Options(**bad)  # type: ignore[arg-type]
    assert QUICK.give_up_s is None


@pytest.mark.parametrize("seed", range(8))
def test_whatever_breaks_when_everything_is_stored_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)

    async def story() -> None:
        async with connected() as (node, client):

            def unreliable(peer: Peer, message: Publish) -> None:
                fate = chance.random()
                if fate < 0.1:
                    peer.drop()
                elif fate < 0.2:
                    node.store(message)
                    peer.drop()
                elif fate < 0.25:
                    node.store(message)
                    peer.write([b"nonsense" * 8])
                else:
                    node.store(message)
                    node.receipt(peer, message)

            node.on_publish = unreliable
            publications = []
            for price in range(1_000):
                publications.append(client.publish("trades", event(price)))
                if chance.random() < 0.05:
                    await publications[chance.randrange(len(publications))]
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
            ticks = [(await each).tick for each in publications]
            assert ticks == list(range(1_000, 2_000))
            assert node.prices == [float(price) for price in range(1_000)]

    run(story())
