"""What does a message look like from outside? Messages of the protocol as plain names and numbers.

Observers share no code with the brokers, so they are told of messages in values of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model.ids import BrokerId
from gapless.model.ticks import TICK_MIN
from gapless.protocol.messages import (
    AckExpectedMessage,
    AckMessage,
    AdvertisementMessage,
    KnowledgeMessage,
    LogKnownMessage,
    Message,
    NackMessage,
    SidewaysMessage,
    StartGrantMessage,
)
from gapless.protocol.network import Network
from gapless.sim.observer import Advertised, Observer


def report_sent(
    observers: Sequence[Observer], network: Network, sender: BrokerId, to: BrokerId, message: Message
) -> None:
    """Tell observers what a broker sends, whether or not it arrives."""
    cell = network.cell_of[to]
    if isinstance(message, SidewaysMessage):
        cell, message = message.cell, message.message
    match message:
        case KnowledgeMessage(pubend=pubend, batch=batch):
            ticks = [] if batch is None else batch.ticks.tolist()
            for observer in observers:
                if ticks:
                    observer.rows_sent(sender, to, cell, pubend, ticks)
                elif message.runs:
                    # One without runs only names the log, when a link comes up or another log has begun.
                    observer.silence_sent(sender, to, cell, pubend, _spans(message))
        case NackMessage(pubend=pubend, ticks=asked):
            for observer in observers:
                observer.nack_sent(sender, to, pubend, asked.start, asked.stop)
        case AckMessage(pubend=pubend, runs=runs) if runs:
            for observer in observers:
                observer.ack_sent(sender, pubend, runs[-1][0])
        case AdvertisementMessage() if message.origin == sender:
            advertised = Advertised(
                broker=sender,
                root=message.root,
                version=message.version,
                base=message.base,
                added=message.added,
                removed=message.removed,
                total=message.total,
            )
            for observer in observers:
                observer.advertised(advertised)
        case _:
            pass


def report_heard(observers: Sequence[Observer], broker: BrokerId, messages: Sequence[Message]) -> None:
    """Tell observers of the knowledge that a broker takes in, and of the logs that it is about."""
    for message in messages:
        if isinstance(message, KnowledgeMessage | AckExpectedMessage | StartGrantMessage | LogKnownMessage):
            for observer in observers:
                observer.log_heard(broker, message.pubend, message.log.id, message.log.life)
        if isinstance(message, KnowledgeMessage):
            spans = _spans(message)
            for observer in observers:
                observer.knowledge_heard(broker, message.pubend, spans)


def _spans(message: KnowledgeMessage) -> list[tuple[int, int]]:
    """The ticks that a message speaks of. That the past is final is said beside them."""
    return [*((start, stop) for start, stop, _ in message.runs), (TICK_MIN, message.final_before)]
