"""Subscribing: once and in order over lost connections, credit, acknowledgements, changes of the filter."""

import asyncio
import logging

import pytest

from gapless.client import Event, Options, Subscription
from gapless.client.options import AckMode
from gapless.errors import ContentError, LinkError, UsageError
from gapless.model.ids import PubendId
from gapless.protocol.events import Order
from gapless.protocol.sessions.messages import (
    Acknowledge,
    ChangeFilter,
    Confirmed,
    Credit,
    Publish,
    RequestRefused,
    Subscribe,
    Unsubscribe,
)
from gapless.wire.handshake import Refuse
from tests.unit.client.fake_node import PUBEND, TRADES, FakeNode, Peer, connected, event, run

OTHER = PubendId("trades-2")


async def take(subscription: Subscription, count: int) -> list[int]:
    """The ticks of the next events."""
    found: list[int] = []
    async for each in subscription:
        found.append(each.tick)
        if len(found) == count:
            break
    return found


async def heard_from(node: FakeNode, kind: type[Subscribe] = Subscribe) -> Subscribe:
    return await node.hear(kind)


@pytest.mark.parametrize("as_columns", [False, True])
def test_an_event_is_a_mapping_with_a_name(as_columns: bool) -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", "price > 3", start=5) as trades:
            asked = await heard_from(node)
            assert (asked.topic, asked.where, asked.start, asked.order) == (
                "trades",
                "price > 3",
                5,
                Order.PUBLISHER,
            )
            node.peer.deliver(7, [10], as_columns=as_columns)
            found = await anext(aiter(trades))
            assert dict(found) == {"sym": "t10", "price": 10.0, "note": None}
            assert (found.pubend, found.tick, found.topic, len(found)) == (PUBEND, 10, "trades", 3)
            assert "Event(trades-1 10 {'sym': 't10'" in repr(found)
            with pytest.raises(KeyError):
                found["prise"]
            assert trades.positions == {PUBEND: 11}

    run(story())


@pytest.mark.parametrize("as_columns", [False, True])
def test_what_came_before_is_dropped_and_what_is_missing_comes(as_columns: bool) -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", start=5) as trades:
            await heard_from(node)
            node.peer.deliver(7, [10, 11, 12], as_columns=as_columns)
            assert await take(trades, 2) == [10, 11]
            node.peer.drop()
            again = await heard_from(node)
            # It has everything below 13, though the program has not taken all of it.
            assert again.start == {PUBEND: 13}
            node.peer.deliver(7, [11, 12, 13], as_columns=as_columns)
            node.peer.deliver(7, [11, 12], as_columns=as_columns)
            node.peer.deliver(7, [14], as_columns=as_columns)
            assert await take(trades, 3) == [12, 13, 14]
            assert trades.positions == {PUBEND: 15}

    run(story())


def test_a_subscription_lost_before_its_confirmation_starts_over() -> None:
    async def story() -> None:
        async with connected() as (node, client):

            def half(peer: Peer, message: Subscribe) -> None:
                node.on_subscribe = whole
                peer.confirm(message.request, 7, 50, pubends=(PUBEND,))

            def confirm_one_of_two(peer: Peer, message: Subscribe) -> None:
                node.on_subscribe = half
                from gapless.protocol.sessions.messages import Confirmed
                from tests.unit.client.fake_node import TRADES

                peer.send(
                    Confirmed(
                        request=message.request,
                        subscription=7,
                        source=0,
                        pubends=2,
                        pubend=PUBEND,
                        schema=TRADES,
                        start=40,
                    )
                )
                peer.deliver(7, [41])
                peer.drop()

            whole = node.on_subscribe
            node.on_subscribe = confirm_one_of_two
            async with client.subscribe("trades", start="earliest") as trades:
                assert [(await heard_from(node)).start for _ in range(2)] == ["earliest", "earliest"]
                assert trades.positions == {PUBEND: 50}
                node.peer.deliver(7, [51])
                assert await take(trades, 1) == [51]

    run(story())


@pytest.mark.parametrize("as_columns", [False, True])
def test_positions_to_go_on_from_are_kept_where_the_node_begins_earlier(as_columns: bool) -> None:
    """A node has one start for all pubends, the least; what came before is not repeated."""

    async def story() -> None:
        async with connected() as (node, client):
            node.on_subscribe = lambda peer, message: peer.confirm(
                message.request, 7, 5, pubends=(PUBEND, OTHER)
            )
            async with client.subscribe("trades", start={PUBEND: 5, OTHER: 12}) as trades:
                assert trades.positions == {PUBEND: 5, OTHER: 12}
                # The node waits for what it hands out to be acknowledged, also for what nobody wants again.
                assert (await node.hear(Acknowledge)).positions == {PUBEND: 5, OTHER: 12}
                node.peer.deliver(7, [10, 11, 12, 13], as_columns=as_columns, sources=[0, 1, 1, 0])
                got = [(each.pubend, each.tick) for each in [await anext(trades) for _ in range(3)]]
                assert got == [(PUBEND, 10), (OTHER, 12), (PUBEND, 13)]

    run(story())


def test_total_order_of_several_pubends_is_kept() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            node.on_subscribe = lambda peer, message: peer.confirm(
                message.request, 7, 5, pubends=(PUBEND, OTHER)
            )
            async with client.subscribe("trades", order="total", start=5) as trades:
                assert (await heard_from(node)).order is Order.TOTAL
                node.peer.deliver(7, [10, 10, 11], as_columns=True, sources=[0, 1, 1])
                node.peer.deliver(7, [10, 11, 12, 13], as_columns=True, sources=[1, 1, 0, 1])
                node.peer.deliver(7, [14, 15], sources=[1, 0])
                got = []
                async for each in trades:
                    got.append((each.pubend, each.tick))
                    if each.tick == 15:
                        break
                assert got == [
                    *((PUBEND, 10), (OTHER, 10), (OTHER, 11), (PUBEND, 12)),
                    *((OTHER, 13), (OTHER, 14), (PUBEND, 15)),
                ]
                assert trades.positions == {PUBEND: 16, OTHER: 15}

    run(story())


def test_batches_come_as_columns() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", start=5) as trades:
            await heard_from(node)
            node.peer.deliver(7, list(range(10, 20)), as_columns=True)
            node.peer.deliver(7, [20, 21])
            assert await take(trades, 1) == [10]
            batches = trades.batches()
            rest = await anext(batches)
            assert rest.columns.column("price").to_pylist() == [float(tick) for tick in range(11, 20)]
            assert rest.to_arrow().column_names == ["_pubend", "_tick", "sym", "price", "note"]
            assert [each["sym"] for each in rest] == [f"t{tick}" for tick in range(11, 20)]
            few = await anext(batches)
            assert (few.ticks.tolist(), few.pubends, few.topic) == ([20, 21], [PUBEND, PUBEND], "trades")
            assert few.by_pubend()[PUBEND].columns.column("sym").to_pylist() == ["t20", "t21"]
            # Asking for the last acknowledged all before it.
            assert (await node.hear(Acknowledge)).positions == {PUBEND: 20}
            await batches.aclose()  # type: ignore[attr-defined]
        assert (await node.hear(Acknowledge)).positions == {PUBEND: 22}
        await node.hear(Unsubscribe)

    run(story())


def test_an_event_is_acknowledged_when_the_next_is_asked_for() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", start=5) as trades:
            await heard_from(node)
            node.peer.deliver(7, [10, 11])
            events = aiter(trades)
            await anext(events)
            await anext(events)
            assert (await node.hear(Acknowledge)).positions == {PUBEND: 11}
            waiting = asyncio.create_task(anext(events))  # type: ignore[arg-type]
            assert (await node.hear(Acknowledge)).positions == {PUBEND: 12}
            node.peer.deliver(7, [12])
            assert (await waiting).tick == 12  # type: ignore[attr-defined]

    run(story())


def test_leaving_with_an_error_does_not_acknowledge_the_event_in_hand() -> None:
    async def story() -> None:
        async with connected() as (node, client):

            async def stumble() -> None:
                async with client.subscribe("trades", start=5) as trades:
                    await heard_from(node)
                    node.peer.deliver(7, [10, 11])
                    async for each in trades:
                        if each.tick == 11:
                            raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await stumble()
            await node.hear(Unsubscribe)
            acks = [seen for seen in node.seen if isinstance(seen, Acknowledge)]
            assert acks[-1].positions == {PUBEND: 11}

    run(story())


def test_manual_acknowledgements_may_come_in_any_order() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", start=5, ack="manual") as trades:
            await heard_from(node)
            node.peer.deliver(7, [10, 11, 12])
            held: list[Event] = []
            async for each in trades:
                held.append(each)
                if len(held) == 3:
                    break
            await held[1].ack()
            await held[0].ack()
            assert (await node.hear(Acknowledge)).positions == {PUBEND: 12}
            await held[2].ack()
            assert (await node.hear(Acknowledge)).positions == {PUBEND: 13}
            node.peer.deliver(7, [13, 14], as_columns=True)
            batch = await trades.next_batch()
            assert batch is not None
            node.peer.drop()
            await heard_from(node)
            assert (await node.hear(Acknowledge)).positions == {PUBEND: 13}
            await batch.ack()
            assert (await node.hear(Acknowledge)).positions == {PUBEND: 15}

    run(story())


def test_credit_is_granted_for_what_the_program_takes() -> None:
    async def story() -> None:
        async with (
            connected() as (node, client),
            client.subscribe("trades", start=5, credit_rows=4) as trades,
        ):
            assert (await heard_from(node)).credit_rows == 4
            node.peer.deliver(7, [10, 11, 12])
            node.peer.deliver(7, [13])
            # Nothing was taken: nothing is granted, whatever else is said.
            await client.publish("trades", event(1))
            await node.hear(Publish)
            assert not any(isinstance(seen, Credit) for seen in node.seen)
            assert await take(trades, 1) == [10]
            assert (await node.hear(Credit)).rows == 3
            node.peer.drop()
            # One row still waits here.
            assert (await heard_from(node)).credit_rows == 3
            # What comes twice costs credit, and gives it back.
            node.peer.deliver(7, [11, 12])
            assert (await node.hear(Credit)).rows == 2
            assert await take(trades, 3) == [11, 12, 13]

    run(story())


def test_a_node_that_ignores_credit_altogether_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.protocol.sessions.subscriber.EXCESS_ROWS_MAX", 3)

    async def story() -> None:
        async with (
            connected() as (node, client),
            client.subscribe("trades", start=5, credit_rows=2) as trades,
        ):
            await heard_from(node)
            node.peer.deliver(7, list(range(10, 16)))
            assert (await node.hear(Refuse)).code == "E241"
            await heard_from(node)
            assert await take(trades, 6) == list(range(10, 16))

    run(story())


def test_a_refused_subscription_raises_when_it_is_entered() -> None:
    async def story() -> None:
        async with connected(Options(backoff_min_s=0.001, backoff_max_s=0.002, retries_max=1)) as (
            node,
            client,
        ):
            requests = 0

            def refuse(peer: Peer, message: Subscribe) -> None:
                nonlocal requests
                requests += 1
                peer.send(
                    RequestRefused(request=message.request, code="E161", message="no column", retry=True)
                )

            node.on_subscribe = refuse
            with pytest.raises(ContentError, match=r"^E161 no column$"):
                async with client.subscribe("trades", "prise > 3"):
                    pass
            assert requests == 2

    run(story())


def test_ticks_that_are_no_longer_kept_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with connected() as (node, client):
            node.on_subscribe = lambda peer, message: peer.confirm(message.request, 7, 20)
            async with client.subscribe("trades", start=5) as trades:
                assert trades.gaps == [(PUBEND, 5, 20)]
                node.on_subscribe = lambda peer, message: peer.confirm(message.request, 7, 90)
                node.peer.drop()
                await heard_from(node)
                again = await heard_from(node)
                assert again.start == {PUBEND: 20}
                node.peer.deliver(7, [95])
                assert await take(trades, 1) == [95]
                assert trades.gaps[1] == (PUBEND, 20, 90)

    with caplog.at_level(logging.WARNING):
        run(story())
    assert "no longer keeps ticks 20..90" in caplog.text


def test_ticks_that_are_no_longer_kept_can_be_an_error() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", start=5, gaps="raise") as trades:
            await heard_from(node)
            node.peer.deliver(7, [10])
            assert await take(trades, 1) == [10]
            node.on_subscribe = lambda peer, message: peer.confirm(message.request, 7, 90)
            node.peer.drop()
            with pytest.raises(LinkError, match=r"E410 .* 11\.\.90"):
                await take(trades, 1)

    run(story())


# ---- changes of the filter ----------------------------------------------------------------------------


def test_a_filter_changes_at_the_tick_that_the_node_names() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", "price < 50", start=5) as trades:
            change = asyncio.create_task(trades.change("price >= 50"))
            asked = await node.hear(ChangeFilter)
            assert (asked.subscription, asked.where) == (7, "price >= 50")
            node.peer.confirm(asked.request, 7, 40)
            assert await change == {PUBEND: 40}
            assert trades.where == "price >= 50"
            with pytest.raises(ContentError, match="E161"):
                await trades.change("prise > 3")

    run(story())


def test_a_connection_lost_after_a_change_loses_and_repeats_nothing() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", "price < 50", start=5) as trades:
            await heard_from(node)
            change = asyncio.create_task(trades.change("price > 20 AND price < 90"))
            asked = await node.hear(ChangeFilter)
            node.peer.confirm(asked.request, 7, 40)
            await change
            node.peer.deliver(7, [10])
            assert await take(trades, 1) == [10]
            node.peer.drop()
            # The old condition decides up to 40, the new one from there on.
            again = await heard_from(node)
            assert again.start == {PUBEND: 11}
            assert again.where == "price < 90.0"
            node.peer.deliver(7, [12, 39, 45, 60], as_columns=True)
            node.peer.deliver(7, [70, 89])
            assert await take(trades, 6) == [12, 39, 45, 60, 70, 89]
            node.peer.drop()
            assert (await heard_from(node)).where == "price > 20 AND price < 90"

    run(story())


def test_events_that_only_the_other_condition_wants_are_judged_here() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", "price < 30", start=5) as trades:
            await heard_from(node)
            change = asyncio.create_task(trades.change("price > 60"))
            asked = await node.hear(ChangeFilter)
            node.peer.confirm(asked.request, 7, 20)
            await change
            node.peer.drop()
            assert (await heard_from(node)).where == "(price < 30.0 OR price > 60.0)"
            # The price is the tick: 25 is wanted by the old condition alone, which no longer decides.
            node.peer.deliver(7, [10, 25, 61], as_columns=True)
            node.peer.deliver(7, [70])
            assert await take(trades, 3) == [10, 61, 70]

    run(story())


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_what_is_judged_here_is_acknowledged_whatever_the_judgement(ack: AckMode) -> None:
    """The log keeps what is not acknowledged, whether or not the program ever sees it."""

    async def story() -> None:
        async with (
            connected() as (node, client),
            client.subscribe("trades", "price < 30", start=5, ack=ack) as trades,
        ):
            await heard_from(node)
            change = asyncio.create_task(trades.change("price > 60"))
            asked = await node.hear(ChangeFilter)
            node.peer.confirm(asked.request, 7, 1_000)
            await change
            node.peer.drop()
            await heard_from(node)
            node.peer.deliver(7, [70, 71])
            while (await node.hear(Acknowledge)).positions != {PUBEND: 72}:
                pass
            node.peer.deliver(7, [80, 1_010, 1_011])
            first, second = [await anext(trades) for _ in range(2)]
            assert (first.tick, second.tick) == (1_010, 1_011)
            node.peer.deliver(7, [1_020])
            if ack == "manual":
                # Not before the program is done with what it has, and then with all that came.
                await first.ack()
                assert (await node.hear(Acknowledge)).positions == {PUBEND: 1_011}

    run(story())


def test_a_change_decides_where_it_is_confirmed_though_other_pubends_have_not_confirmed_it() -> None:
    """The node goes by the new condition there; who judges by the old one would lose what it sends."""

    async def story() -> None:
        async with connected() as (node, client):
            pubends = (PUBEND, OTHER)
            node.on_subscribe = lambda peer, message: peer.confirm(message.request, 7, 5, pubends=pubends)
            async with client.subscribe("trades", "price < 30", start=5) as trades:
                change = asyncio.create_task(trades.change("price > 2000"))
                node.peer.confirm((await node.hear(ChangeFilter)).request, 7, 1_000, pubends=pubends)
                await change
                node.peer.drop()
                await heard_from(node)
                change = asyncio.create_task(trades.change("price > 60"))
                asked = await node.hear(ChangeFilter)
                node.peer.send(confirmed_change(asked, PUBEND, 1_010))
                node.peer.deliver(7, [1_005, 1_011, 1_020], sources=[0, 1, 0])
                assert (await anext(trades)).tick == 1_020
                node.peer.send(confirmed_change(asked, OTHER, 1_030))
                assert await change == {PUBEND: 1_010, OTHER: 1_030}
                node.peer.deliver(7, [1_029, 1_040], sources=[1, 1])
                assert (await anext(trades)).tick == 1_040

    run(story())


def confirmed_change(asked: ChangeFilter, pubend: PubendId, tick: int) -> Confirmed:
    """One of two pubends confirms a change."""
    source = (PUBEND, OTHER).index(pubend)
    return Confirmed(
        request=asked.request,
        subscription=7,
        source=source,
        pubends=2,
        pubend=pubend,
        schema=TRADES,
        start=tick,
    )


def test_a_change_that_was_lost_with_its_connection_is_asked_for_again() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", "price < 30", start=5) as trades:
            await heard_from(node)
            node.peer.deliver(7, [10])
            assert await take(trades, 1) == [10]
            change = asyncio.create_task(trades.change("price > 60"))
            await node.hear(ChangeFilter)
            node.peer.drop()
            resumed = await heard_from(node)
            assert (resumed.where, resumed.start) == ("price < 30", {PUBEND: 11})
            again = await node.hear(ChangeFilter)
            node.peer.confirm(again.request, 7, 60)
            assert await change == {PUBEND: 60}
            node.peer.deliver(7, [61])
            assert await take(trades, 1) == [61]

    run(story())


def test_a_refused_change_leaves_the_filter_as_it_was() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", "price < 30") as trades:
            change = asyncio.create_task(trades.change("price > 60"))
            asked = await node.hear(ChangeFilter)
            node.peer.send(
                RequestRefused(request=asked.request, code="E181", message="not offered", retry=False)
            )
            with pytest.raises(UsageError, match="E181"):
                await change
            assert trades.where == "price < 30"

    run(story())


# ---- the end ------------------------------------------------------------------------------------------


def test_leaving_unsubscribes_and_forgetting_forgets() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            async with client.subscribe("trades", name="desk-3") as trades:
                assert (await heard_from(node)).name == "desk-3"
            assert not (await node.hear(Unsubscribe)).forget
            async with client.subscribe("trades", name="desk-3") as trades:
                await trades.forget()
                assert (await node.hear(Unsubscribe)).forget
                assert [each async for each in trades] == []
                with pytest.raises(UsageError, match="E193"):
                    await trades.change("price > 3")

    run(story())


def test_a_subscription_given_up_before_it_was_confirmed_is_ended_at_the_node() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            held: list[tuple[Peer, Subscribe]] = []
            node.on_subscribe = lambda peer, message: held.append((peer, message))
            entering = asyncio.create_task(client.subscribe("trades").__aenter__())
            await heard_from(node)
            entering.cancel()
            await asyncio.wait([entering])
            [(peer, message)] = held
            peer.confirm(message.request, 7, 50)
            assert (await node.hear(Unsubscribe)).subscription == 7

    run(story())


def test_a_subscription_is_used_inside_its_context_only() -> None:
    async def story() -> None:
        async with connected() as (_, client):
            trades = client.subscribe("trades")
            with pytest.raises(UsageError, match="E193"):
                await take(trades, 1)
            async with trades:
                with pytest.raises(UsageError, match="E193"):
                    await trades.__aenter__()

    run(story())


def test_waiting_for_events_ends_when_the_client_is_closed() -> None:
    async def story() -> None:
        async with connected() as (_, client):
            trades = await client.subscribe("trades").__aenter__()
            waiting = asyncio.create_task(take(trades, 1))
            await asyncio.sleep(0)
        with pytest.raises(LinkError, match="E402"):
            await waiting

    run(story())


def test_two_subscriptions_of_one_connection_each_get_their_own() -> None:
    async def story() -> None:
        async with connected() as (node, client):
            node.on_subscribe = lambda peer, message: peer.confirm(
                message.request, 1 if message.where else 2, 5
            )
            async with (
                client.subscribe("trades", "price > 3") as some,
                client.subscribe("trades") as everything,
            ):
                node.peer.deliver(1, [11], as_columns=True)
                node.peer.deliver(2, [10, 11])
                node.peer.deliver(9, [10, 11])
                assert await take(some, 1) == [11]
                assert await take(everything, 2) == [10, 11]

    run(story())
