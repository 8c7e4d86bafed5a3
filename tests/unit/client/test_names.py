"""Named subscriptions: a name lives at one edge, so the client never takes it to another."""

import pytest

from gapless.client import connect
from gapless.errors import UsageError
from gapless.protocol.sessions.messages import Subscribe
from gapless.wire.handshake import Hello, Welcome
from tests.unit.client.fake_node import QUICK, FakeNode, Peer, connected, run


def test_a_name_is_refused_to_a_client_with_several_addresses() -> None:
    async def story() -> None:
        async with (
            FakeNode() as one,
            FakeNode() as other,
            connect(f"{one.address},127.0.0.1:{other.port}", options=QUICK) as client,
        ):
            with pytest.raises(UsageError, match=r"^E109 .*'desk' .*one edge: connect to that edge alone"):
                client.subscribe("trades", name="desk")
            with pytest.raises(UsageError, match=r"^E109 .*'spark'"):
                client.hold("trades", "spark", {})
            async with client.subscribe("trades"):
                assert (await one.hear(Subscribe)).name is None

    run(story())


def test_a_named_subscription_comes_back_to_its_own_edge() -> None:
    async def story() -> None:
        async with connected() as (node, client), client.subscribe("trades", name="desk", start=5) as trades:
            assert (await node.hear(Subscribe)).name == "desk"
            node.peer.drop()
            assert (await node.hear(Subscribe)).name == "desk"
            node.peer.deliver(7, [10])
            assert (await anext(trades)).tick == 10

    run(story())


@pytest.mark.parametrize("is_held", [False, True])
def test_a_named_subscription_ends_when_its_address_leads_to_another_edge(is_held: bool) -> None:
    async def story() -> None:
        def welcome(peer: Peer, _hello: Hello) -> None:
            peer.link(Welcome(version=1, name="other", network="f"))

        async with connected() as (node, client):
            hold = client.hold("trades", "desk", {})
            trades = client.subscribe("trades", name="desk")
            await (hold if is_held else trades).__aenter__()
            await node.hear(Subscribe)
            node.on_hello = welcome
            node.peer.drop()
            match = r"^E109 subscription 'desk' lives at edge 'fake', and .* leads to 'other'"
            async with client.subscribe("trades"):
                # This one moves on, and the named one has been refused before it.
                assert (await node.hear(Subscribe)).name is None
                if is_held:
                    with pytest.raises(UsageError, match=match):
                        hold.acknowledge({})
                else:
                    with pytest.raises(UsageError, match=match):
                        await anext(trades)

    run(story())
