"""Section 9 of docs/protocol.md: what an edge learns of its other lives, and of what a pubend has lost."""

from dataclasses import replace

import pytest

from gapless.errors import SupersededError
from gapless.model.epochs import first_epoch, incarnation_of
from gapless.model.ids import BrokerId, CellId
from gapless.model.ticks import TICK_MIN
from gapless.protocol.effects import ConfirmSubscription, StartRecord
from gapless.protocol.events import MessageReceived, Now
from gapless.protocol.messages import (
    LIVES_TOLD_MAX,
    AdvertisementAckMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from gapless.protocol.parameters import Parameters
from gapless.protocol.pubend import Pubend, Recovered
from tests.spec.hand import FIRST, PUBEND, Hand, network

S, B = BrokerId("s"), BrokerId("b")


def confirmed(hand: Hand, name: str) -> ConfirmSubscription:
    return next(effect for _, effect in hand.of(ConfirmSubscription) if effect.subscription == name)


def test_a_grant_names_the_last_life_of_the_edge_before_this_one() -> None:
    """Clause 9.30."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    assert confirmed(hand, "alice").lives == ()
    hand.crash("s")
    # The log of the pubend keeps it.
    hand.crash("p")
    hand.start("p")
    hand.start("s")
    hand.link_up("p", "b")
    hand.link_up("b", "s")
    hand.subscribe("bob")
    hand.wait(1_000)
    assert confirmed(hand, "bob").lives == (1,)
    # Another request of the same life is no other life.
    hand.subscribe("carol")
    hand.wait(1_000)
    assert confirmed(hand, "carol").lives == (1,)
    assert incarnation_of(hand.sent(StartGrantMessage)[-1].seen) == 1


def test_a_grant_names_the_newest_other_lives_of_the_edge() -> None:
    """Clause 9.30."""
    lives = [16 * life for life in range(1, LIVES_TOLD_MAX + 3)]
    starts = tuple(StartRecord(edge=S, epoch=first_epoch(life) + 1, wanted=5, start=5) for life in lives)
    pubend = Pubend.recover(PUBEND, Parameters(), Recovered(starts=starts), Now(ms=0, clock=FIRST))
    epoch = starts[-1].epoch
    request = StartRequestMessage(pubend=PUBEND, edge=S, epoch=epoch, wanted=5)
    _, [grant] = pubend.start_requested(request, epoch)
    assert grant.lives == tuple(reversed(lives[1:-1]))


def test_an_edge_takes_the_word_of_a_pubend_that_names_only_the_newest_life() -> None:
    """Clause 9.30."""
    hand = Hand.started(network())
    hand.crash("s")
    hand.start("s")
    hand.link_up("b", "s")

    def forgets(_sender: str, to: str, message: object) -> bool:
        if to == "s" and isinstance(message, StartGrantMessage):
            grants.append(message)
        return to == "s" and isinstance(message, StartGrantMessage)

    grants: list[StartGrantMessage] = []
    hand.loses = forgets
    hand.subscribe("bob")
    hand.wait(1_000)
    hand.loses = lambda *_: False
    older = replace(grants[-1], seen=first_epoch(1) + 1, lives=())
    effects = hand.step("s", MessageReceived(sender=B, message=older))
    assert [each.lives for each in effects if isinstance(each, ConfirmSubscription)] == [(1,)]


def test_an_edge_that_hears_of_a_later_life_ends() -> None:
    """Clause 9.31."""
    hand = Hand.started(network())
    hand.subscribe("alice")
    grant = StartGrantMessage(
        pubend=PUBEND, edge=S, epoch=first_epoch(1), wanted=5, start=5, until=5, seen=first_epoch(3) + 2
    )
    with pytest.raises(
        SupersededError, match="E311 others have seen life 3 of 's', and this is life 1"
    ) as caught:
        hand.brokers["s"].step(MessageReceived(sender=B, message=grant), Now(ms=0, clock=FIRST))
    assert caught.value.incarnation == 3


def test_a_broker_whose_later_life_has_advertised_ends() -> None:
    """Clause 9.31."""
    hand = Hand.started(network())
    ack = AdvertisementAckMessage(root=CellId("P"), origin=S, version=first_epoch(2), staged=None)
    with pytest.raises(SupersededError, match="E311"):
        hand.brokers["s"].step(MessageReceived(sender=B, message=ack), Now(ms=0, clock=FIRST))


def test_a_pubend_that_has_lost_events_says_so_with_every_start() -> None:
    """Clause 9.32."""
    now = Now(ms=0, clock=0)
    log = Recovered(next_tick=50, released=100, lost_before=100)
    pubend = Pubend.recover(PUBEND, Parameters(), log, now)
    assert pubend.next_tick >= 100
    request = StartRequestMessage(pubend=PUBEND, edge=S, epoch=1, wanted=20)
    (append,), _ = pubend.start_requested(request, known_epoch=1)
    _, _, (grant,) = pubend.durable(append.token, now)  # type: ignore[union-attr]
    assert (grant.start, grant.lost_before) == (100, 100)
    whole = Pubend.recover(PUBEND, Parameters(), Recovered(next_tick=50), now)
    (append,), _ = whole.start_requested(request, known_epoch=1)
    _, _, (grant,) = whole.durable(append.token, now)  # type: ignore[union-attr]
    assert (grant.start, grant.lost_before) == (20, TICK_MIN)
