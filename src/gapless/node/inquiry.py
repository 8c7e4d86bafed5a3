"""How does a node answer `why`? With what it knows of one event, and of one subscription.

A question costs one look at the broker and, where the pubend lives, one read of one row of the log, in the
thread that reads history: so no question delays an event. Only a few are answered at a time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from gapless.errors import StoreError, UsageError
from gapless.model.batch import EventBatch
from gapless.model.epochs import epoch_text
from gapless.model.ids import BrokerId, PubendId
from gapless.model.python_values import rows_of, time_text
from gapless.model.ticks import Tick, TickRange
from gapless.node.logs import event_log
from gapless.protocol.inquiry import Sight, WayDown, sight, stand
from gapless.protocol.sessions.messages import AskStatus

if TYPE_CHECKING:
    from gapless.node.node import Node
    from gapless.protocol.sessions.subscriptions import EdgeSubscription

log = event_log("gapless.inquiry")

#: Maximum number of questions that wait for the disk.
QUESTIONS_MAX = 64
#: Maximum number of characters shown of a text or document in an event.
VALUE_CHARACTERS_MAX = 100_000


class Inquiry:
    """Answers questions about single events and subscriptions of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: set[asyncio.Task[None]] = set()

    def answer(
        self,
        asked: AskStatus,
        reply: Callable[[str], None],
        refuse: Callable[[UsageError | StoreError], None],
    ) -> None:
        """Answer a question, now or when the disk has. Raises UsageError when it makes no sense."""
        if asked.event is None:
            reply(json.dumps({**self._self(), "subscription": self._subscription(asked, None)}))
            return
        pubend, tick = asked.event
        if pubend not in self._node.broker.network.pubends:
            known = ", ".join(sorted(self._node.broker.network.pubends)) or "none"
            raise UsageError("E143", f"there is no pubend '{pubend}': there is {known}")
        if len(self._waiting) >= QUESTIONS_MAX:
            raise UsageError("E181", "too many questions at a time: ask again", retry=True)
        task = asyncio.get_running_loop().create_task(self._later(asked, pubend, tick, reply, refuse))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _later(
        self,
        asked: AskStatus,
        pubend: PubendId,
        tick: Tick,
        reply: Callable[[str], None],
        refuse: Callable[[UsageError | StoreError], None],
    ) -> None:
        try:
            reply(json.dumps(await self._report(asked, pubend, tick)))
        except StoreError as error:
            refuse(error)
        except Exception as error:  # noqa: BLE001
            # A question changes nothing: its sender gets the error, and other clients are served.
            log.error("request_failed", code="E181", reason=repr(error))
            refuse(UsageError("E181", "internal error; see the log of the node"))

    async def _report(self, asked: AskStatus, pubend: PubendId, tick: Tick) -> dict[str, object]:
        in_log, row = await self._read(pubend, tick)
        broker = self._node.broker
        seen = sight(broker, pubend, tick, row)
        return {
            **self._self(),
            "event": {
                "pubend": pubend,
                "tick": tick,
                "topic": broker.network.pubends[pubend].topic,
                "path": list(
                    _path(broker.network.tree_of(pubend).parent, broker.network.cell_of[broker.broker])
                ),
                **_sight(seen),
                "source": self._source(pubend, in_log=in_log),
            },
            "subscription": self._subscription(asked, (pubend, tick)),
        }

    def _self(self) -> dict[str, object]:
        config = self._node.config
        network = self._node.broker.network
        up = set(self._node.links.up())
        return {
            "broker": config.broker,
            "cell": network.cell_of[config.broker],
            "cells": {cell: list(brokers) for cell, brokers in network.cells.items()},
            "links": {name: name in up for name in network.neighbours(config.broker)},
        }

    async def _read(self, pubend: PubendId, tick: Tick) -> tuple[bool, EventBatch | None]:
        """Whether the log has the event, and the event; released ones as long as they are there."""
        storage = self._node.storage
        found_log = storage.logs.get(pubend)
        if found_log is None:
            return False, None
        _, batch = await storage.reader.do(found_log.read, TickRange(tick, tick + 1), 1, history=True)
        found = batch is not None and len(batch) > 0
        return found, batch if found else None

    def _source(self, pubend: PubendId, *, in_log: bool) -> dict[str, object] | None:
        source = self._node.broker.inspect().paths[pubend].pubend
        if source is None:
            return None
        return {
            "in_log": in_log,
            "durable": source.told,
            "next_tick": source.next_tick,
            "released": source.released,
            "oldest_tick": self._node.storage.figures()[pubend].oldest_tick,
        }

    def _subscription(self, asked: AskStatus, event: tuple[PubendId, Tick] | None) -> dict[str, Any] | None:
        found = None if asked.subscription is None else self._found(asked.subscription)
        if found is None:
            return None
        report: dict[str, Any] = {
            "subscription": found.name,
            "name": found.asked.name,
            "client": None if found.client is None else found.client.name,
            "topic": found.asked.topic,
            "where": found.asked.where,
            "order": found.asked.order.value,
            "mode": found.asked.mode,
            "starts": found.starts,
            "pubends": list(found.pubends),
        }
        if found.reader is not None:
            report["acknowledged"] = self._node.sessions.delivery.session.positions(found.reader)
        if event is not None:
            here = stand(self._node.broker, found.name, *event)
            report["stand"] = None
            if here is not None:
                report["stand"] = {
                    "condition": here.condition,
                    "birth": here.birth,
                    "birth_text": epoch_text(here.birth),
                    "granted": here.is_granted,
                    "handed": here.handed,
                    "taken": here.taken,
                    "lagging": here.is_lagging,
                    "slow": here.is_slow,
                    "away": here.is_away,
                    "resolved": here.resolved,
                }
        return report

    def _found(self, name: str) -> EdgeSubscription | None:
        """A subscription by the name that a client gave it, or by the one that the status lists."""
        return self._node.sessions.subscriptions.session.found(name)


def _path(parent: Mapping[Any, Any], cell: Any) -> list[Any]:
    """The cells from the pubend down to this one."""
    found = [cell]
    while cell in parent:
        cell = parent[cell]
        found.append(cell)
    return found[::-1]


def _sight(seen: Sight) -> dict[str, object]:
    return {
        "known": seen.known,
        "made_for": {edge: epoch_text(epoch) for edge, epoch in seen.epochs.items()},
        "epochs": _plain_epochs(seen.epochs),
        "for_all": seen.is_for_all,
        "frontier": seen.frontier,
        "final_before": seen.final_before,
        "asked": seen.asked,
        "row": None if seen.row is None else _row(seen.row),
        "ways": [_way(way) for way in seen.ways],
    }


def _way(way: WayDown) -> dict[str, object]:
    return {
        "cell": way.cell,
        "up": list(way.up),
        "route": way.route,
        "conditions": list(way.conditions),
        "conditions_count": way.conditions_count,
        "epochs": _plain_epochs(way.epochs),
        "accepts": way.accepts,
        "settled": way.settled,
    }


def _plain_epochs(epochs: Mapping[BrokerId, int]) -> dict[str, int]:
    return {str(edge): epoch for edge, epoch in epochs.items()}


def _row(batch: EventBatch) -> dict[str, object]:
    """The values of one event as JSON has them: times and decimals as texts, bytes in base64."""
    return {name: _value(value) for name, value in rows_of(batch.columns.slice(0, 1))[0].items()}


def _value(value: Any) -> object:
    match value:
        case bytes():
            return base64.b64encode(value).decode()[:VALUE_CHARACTERS_MAX]
        case str():
            return value[:VALUE_CHARACTERS_MAX]
        case datetime() | np.datetime64():
            return time_text(value)
        case Decimal():
            return str(value)
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value
