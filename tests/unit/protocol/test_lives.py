"""A life that no clock can have given is believed by nobody: at the bound, one below it and one above it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gapless.errors import PeerError, SupersededError
from gapless.model.epochs import (
    ALWAYS,
    CLOCK_LIVES_MAX,
    EPOCH_ALL,
    EPOCH_MAX,
    LIFE_STEP,
    LIVES_AHEAD_MAX,
    LIVES_MAX,
    Epochs,
    clock_at,
    first_epoch,
    incarnation_of,
    life_at,
    lives_max,
)
from gapless.model.ids import BrokerId, CellId, PubendId
from gapless.model.logs import LogLife
from gapless.model.ticks import TICK_MAX, TICK_MIN, Tick, TickRange
from gapless.protocol.broker import Broker
from gapless.protocol.events import BrokerStarted, LinkUp, MessageReceived, Now
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    KnowledgeMessage,
    LogKnownMessage,
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from gapless.protocol.network import Network
from gapless.protocol.peers import Peers
from gapless.protocol.pubend import Recovered
from gapless.wire.broker_codec import BrokerDecoder, BrokerEncoder
from gapless.wire.frames import FROM_BROKER, FrameReader

NETWORK = Network.parse(
    {
        "cells": {"P": ["p"], "B": ["b1", "b2"], "S": ["s"]},
        "links": ["P--B", "B--S"],
        "topics": {"trades": {"price": "int"}},
        "pubends": {"trades": {"topic": "trades", "broker": "p"}},
        "edges": ["s"],
    }
)
TRADES, P, B1, B2, S = PubendId("trades"), *map(BrokerId, ("p", "b1", "b2", "s"))
ROOT = CellId("P")
#: 2026-11-17, 1970 and the end of time.
NOW: Tick = 1_794_945_600_000_000
CLOCKS = [NOW, 0, TICK_MAX]


def named(life: int) -> LogLife:
    return LogLife("log", life, 0, 0, 0)


def last_epoch(life: int) -> int:
    return first_epoch(life + 1) - 1


def knowledge(stamp: Epochs = ALWAYS, life: int = 1) -> KnowledgeMessage:
    return KnowledgeMessage(
        pubend=TRADES, runs=((0, 5, stamp),), batch=None, first_time=True, final_before=0, log=named(life)
    )


def grant(life: int = 1) -> StartGrantMessage:
    return StartGrantMessage(
        pubend=TRADES, edge=S, epoch=1, wanted=None, start=1, until=1, log=named(life), lives=()
    )


def advertisement(version: int, epochs: Epochs) -> AdvertisementMessage:
    nothing: frozenset[tuple[object, object]] = frozenset()
    return AdvertisementMessage(
        root=ROOT,
        origin=S,
        version=version,
        base=None,
        added=nothing,  # type: ignore[arg-type]
        removed=nothing,  # type: ignore[arg-type]
        epochs=epochs,
    )


#: To whom, from whom, whose life, and a message that tells of it.
TELLING: dict[str, tuple[BrokerId, BrokerId, str, Callable[[int], Message]]] = {
    "Knowledge.log": (B1, P, "p", lambda life: knowledge(life=life)),
    "Knowledge.stamp": (S, B1, "s", lambda life: knowledge(Epochs({S: last_epoch(life)}))),
    "Knowledge.stamp of others": (B1, P, "s", lambda life: knowledge(Epochs({S: last_epoch(life)}))),
    "Knowledge.stamp of all": (B1, P, "an edge", lambda life: knowledge(Epochs({}, last_epoch(life)))),
    "Ack.stamp": (B1, S, "s", lambda x: AckMessage(pubend=TRADES, runs=((9, Epochs({S: last_epoch(x)})),))),
    "AckExpected.log": (B1, P, "p", lambda x: AckExpectedMessage(pubend=TRADES, before=9, log=named(x))),
    "LogKnown": (P, B1, "p", lambda x: LogKnownMessage(pubend=TRADES, log=named(x), known=0, events=0)),
    "StartRequest.epoch": (
        *(B1, S, "s"),
        lambda life: StartRequestMessage(pubend=TRADES, edge=S, epoch=last_epoch(life), wanted=None),
    ),
    "StartGrant.log": (S, B1, "p", grant),
    "StartGrant.epoch": (S, B1, "s", lambda life: replace(grant(), epoch=last_epoch(life))),
    "StartGrant.seen": (S, B1, "s", lambda life: replace(grant(), seen=last_epoch(life))),
    "StartGrant.lives": (S, B1, "s", lambda life: replace(grant(), lives=(life, 1))),
    "Advertisement.version": (B1, S, "s", lambda life: advertisement(last_epoch(life), Epochs({S: 1}))),
    "Advertisement.stamp": (B1, S, "s", lambda life: advertisement(1, Epochs({S: last_epoch(life)}))),
    "AdvertisementAck.version": (
        *(S, B1, "s"),
        lambda life: AdvertisementAckMessage(root=ROOT, origin=S, version=last_epoch(life)),
    ),
    "Sideways": (B2, B1, "p", lambda x: SidewaysMessage(cell=CellId("S"), message=knowledge(life=x))),
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("what", TELLING)
def test_a_life_beyond_every_clock_is_refused(what: str, clock: Tick) -> None:
    receiver, sender, whose, telling = TELLING[what]
    peers, end = Peers(NETWORK, receiver), lives_max(clock)
    for life in (end - 1, end):
        assert peers.check(sender, telling(life), clock)
    for life in (end + 1, LIVES_MAX):
        with pytest.raises(PeerError, match=f"'{sender}' tells of life {life} of '{whose}'") as caught:
            peers.check(sender, telling(life), clock)
        assert caught.value.code == "E204"


@pytest.mark.parametrize("what", TELLING)
def test_what_is_believed_can_be_sent(what: str) -> None:
    """Or a broker that counts on could not tell of it."""
    decoder = BrokerDecoder.of(NETWORK)
    for life in (lives_max(TICK_MAX), LIVES_MAX - 1, LIVES_MAX):
        message = TELLING[what][3](life)
        frames = FrameReader(FROM_BROKER).feed(b"".join(BrokerEncoder().encode(message)))
        assert [decoder.decode(frame) for frame in frames] == [message]


@pytest.mark.parametrize(
    "message",
    [
        StartRequestMessage(pubend=TRADES, edge=S, epoch=EPOCH_ALL, wanted=None),
        advertisement(1, Epochs({S: EPOCH_ALL})),
    ],
)
def test_no_edge_is_beyond_all_its_epochs(message: Message) -> None:
    with pytest.raises(PeerError, match="E204"):
        Peers(NETWORK, B1).check(S, message, NOW)


def test_silence_for_all_epochs_is_believed() -> None:
    peers = Peers(NETWORK, B1)
    for stamp in (ALWAYS, Epochs({S: EPOCH_ALL})):
        assert peers.check(P, knowledge(stamp), NOW)
        assert peers.check(S, AckMessage(pubend=TRADES, runs=((9, Epochs({S: EPOCH_ALL})),)), NOW)
    assert peers.check(S, NackMessage(pubend=TRADES, ticks=TickRange(1, 5)), NOW)
    # Nothing is advertised yet, and nothing was seen.
    assert Peers(NETWORK, S).check(B1, AdvertisementAckMessage(root=ROOT, origin=S, version=None), NOW)
    assert Peers(NETWORK, S).check(B1, grant(), NOW)


@pytest.mark.parametrize(
    "what", ["Knowledge.stamp", "LogKnown", "StartGrant.seen", "AdvertisementAck.version"]
)
@pytest.mark.parametrize("clock", CLOCKS[:2])
def test_a_broker_that_is_told_of_the_last_life_can_count_on_for_ever(what: str, clock: Tick) -> None:
    receiver, sender, _, telling = TELLING[what]
    for _ in range(20):
        broker = Broker(NETWORK, receiver, 1, {TRADES: Recovered(log_id="log")} if receiver == P else {})
        broker.step(BrokerStarted(), Now(0, clock))
        broker.step(LinkUp(neighbour=sender), Now(0, clock))
        with pytest.raises(SupersededError) as caught:
            broker.step(MessageReceived(sender=sender, message=telling(lives_max(clock))), Now(0, clock))
        # By the clocks of its neighbours a quarter of a second has passed, or it is not 2024 yet.
        clock = max(clock, clock_at(0)) + 250_000
        assert caught.value.incarnation + LIFE_STEP <= lives_max(clock)


def test_the_bounds_leave_room() -> None:
    starts = 2**20 * LIFE_STEP
    # Of a life that the clock gives, for neighbours whose clocks say 1970.
    assert CLOCK_LIVES_MAX + starts < lives_max(0) == LIVES_AHEAD_MAX
    # Of any life that is believed, for what can be written.
    assert lives_max(TICK_MAX) + starts < LIVES_MAX
    assert last_epoch(LIVES_MAX) == EPOCH_MAX < EPOCH_ALL
    assert incarnation_of(EPOCH_MAX) == LIVES_MAX
    # A clock that was a century ahead once.
    century = NOW + 100 * 31_557_600 * 1_000_000
    assert life_at(century) + starts < lives_max(NOW)
    assert lives_max(TICK_MIN) == lives_max(clock_at(0)) == lives_max(clock_at(1)) - 1
