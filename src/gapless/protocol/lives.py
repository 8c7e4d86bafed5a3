"""Which lives does a message tell of, and can they have begun? What is checked against the clock.

Lives, epochs and versions never go back. A broker that hears of a later life of its own goes on above it, and
one that hears of a later life of another takes that for the newest. So a number that a broken neighbour made
up would stay for ever, and one near the end would leave no room to count on. The clock bounds them all: see
`gapless.model.epochs.lives_max`.

Implements docs/protocol.md, clause 3.11.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias, assert_never

from gapless.model.epochs import EPOCH_ALL, Epoch, Epochs, first_epoch, incarnation_of
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    AdvertisementAckMessage,
    AdvertisementMessage,
    CellMessage,
    KnowledgeMessage,
    LogKnownMessage,
    NackMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from gapless.protocol.network import Network

#: A broker, or what is known of it, and a life of it.
Told: TypeAlias = tuple[str, int]


def life_beyond(
    message: CellMessage | AdvertisementMessage | AdvertisementAckMessage, network: Network, lives_max: int
) -> Told | None:
    """A life above `lives_max` that the message tells of, if there is one, and whose it is."""
    if isinstance(message, KnowledgeMessage) and message.log.life <= lives_max:
        # By far the most frequent ones, and nearly all of them are right.
        end = first_epoch(lives_max + 1)
        for _, _, stamp in message.runs:
            if stamp.newest >= end:
                break
        else:
            return None
    return next(_beyond(message, network, lives_max), None)


def _beyond(
    message: CellMessage | AdvertisementMessage | AdvertisementAckMessage, network: Network, lives_max: int
) -> Iterator[Told]:
    if isinstance(message, KnowledgeMessage | AckExpectedMessage | LogKnownMessage | StartGrantMessage):
        yield from _lives(network.pubends[message.pubend].broker, (message.log.life,), lives_max)
    match message:
        case KnowledgeMessage(runs=runs):
            yield from _stamped((stamp for _, _, stamp in runs), lives_max)
        case AckMessage(runs=acked):
            yield from _stamped((stamp for _, stamp in acked), lives_max)
        case StartRequestMessage(edge=edge, epoch=epoch):
            yield from _lives(edge, (incarnation_of(epoch),), lives_max)
        case StartGrantMessage(edge=edge, epoch=epoch, seen=seen):
            yield from _lives(edge, (incarnation_of(epoch), incarnation_of(seen), *message.lives), lives_max)
        case AdvertisementMessage(origin=origin, version=version, epochs=epochs):
            yield from _lives(origin, (incarnation_of(version),), lives_max)
            for edge, epoch in epochs.items():
                # No edge is beyond all its epochs: here even that is a number that somebody made up.
                yield from _lives(edge, (incarnation_of(epoch),), lives_max)
        case AdvertisementAckMessage(origin=origin, version=held):
            yield from _lives(origin, () if held is None else (incarnation_of(held),), lives_max)
        case NackMessage() | AckExpectedMessage() | LogKnownMessage():
            pass
        case _:
            assert_never(message)


def _lives(broker: str, lives: Iterable[int], lives_max: int) -> Iterator[Told]:
    return ((broker, life) for life in lives if life > lives_max)


def _stamped(stamps: Iterable[Epochs], lives_max: int) -> Iterator[Told]:
    end: Epoch = first_epoch(lives_max + 1)
    for stamp in stamps:
        if stamp.newest >= end:
            named = (edge for edge, epoch in stamp.items() if end <= epoch < EPOCH_ALL)
            yield next(named, "an edge"), incarnation_of(stamp.newest)
