"""What does a node report about itself? One JSON object, for `gapless status`, `gapless top` and `/status`.

docs/operating.md describes every field. Lists are bounded: of many clients and subscriptions those are
shown that need attention first.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gapless.model.ids import BrokerId, PubendId, SubscriptionId
from gapless.model.ticks import TICKS_PER_MS, Tick
from gapless.node.folder import usually_ahead
from gapless.protocol.figures import behind, hosted, laggards, stream_figures
from gapless.protocol.network import Network

if TYPE_CHECKING:
    from gapless.node.clock import WallClock
    from gapless.node.sessions import Sessions
    from gapless.node.storage import LogFigures
    from gapless.protocol.broker import Broker
    from gapless.protocol.sessions.subscriptions import EdgeSubscription

#: The states of a subscription, in the order in which they are listed.
_URGENT = ("unconfirmed", "lagging", "parked", "holding", "live")
#: Of a condition so much is shown.
WHERE_CHARACTERS_MAX = 200
#: Maximum number of clients, and of subscriptions, listed individually.
LISTED_MAX = 100


def roles(network: Network, broker: BrokerId) -> list[str]:
    """What a broker does in its network: `repository`, `router`, `edge`, or several of them.

    >>> network = Network.load('''
    ... cells = {P = ["p"], B = ["b"], S = ["s"]}
    ... links = ["P--B", "B--S"]
    ... topics.t = {x = "int"}
    ... pubends.u = {topic = "t", broker = "p"}
    ... edges = ["s"]
    ... ''')
    >>> [roles(network, BrokerId(name)) for name in "pbs"]
    [['repository'], ['router'], ['edge']]
    """
    cell = network.cell_of[broker]
    found: list[str] = []
    if any(place.broker == broker for place in network.pubends.values()):
        found.append("repository")
    if any(
        tree.parent.get(cell) is not None and any(tree.edges[below] for below in tree.children[cell])
        for tree in network.trees.values()
    ):
        found.append("router")
    if broker in network.edges:
        found.append("edge")
    return found


def upstream_missing(network: Network, broker: BrokerId, up: Iterable[BrokerId]) -> list[str]:
    """The cells on the way to some pubend of which no broker is connected.

    >>> network = Network.load('''
    ... cells = {P = ["p"], B = ["b1", "b2"], S = ["s"]}
    ... links = ["P--B", "B--S"]
    ... topics.t = {x = "int"}
    ... pubends.u = {topic = "t", broker = "p"}
    ... ''')
    >>> upstream_missing(network, BrokerId("s"), []), upstream_missing(network, BrokerId("s"), ["b2"])
    (['B'], [])
    """
    cell = network.cell_of[broker]
    above = {tree.parent[cell] for tree in network.trees.values() if cell in tree.parent}
    connected = {network.cell_of[each] for each in up}
    return sorted(above - connected)


def process_status() -> dict[str, int]:
    """What the operating system reports about this process."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return {"id": os.getpid(), "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE")}


def pubends_status(
    broker: Broker, logs: Mapping[PubendId, LogFigures], clock: Tick
) -> list[dict[str, object]]:
    """How far the stream of each pubend is, here."""
    found: list[dict[str, object]] = []
    for figures in stream_figures(broker):
        source = figures.source
        entry: dict[str, object] = {
            "pubend": figures.pubend,
            "topic": figures.topic,
            "broker": broker.network.pubends[figures.pubend].broker,
            "here": source is not None,
            "log": figures.log,
            "frontier": figures.frontier,
            "events_stop": figures.events_stop,
            "horizon": figures.horizon,
            "horizon_lag_ms": _behind_ms(broker, figures.pubend, figures.horizon),
            "horizon_lag_events": _behind_events(broker, figures.pubend, figures.horizon),
            "acked": figures.acked if source is None else source.acked,
            "gaps": figures.gaps,
            "asked": figures.asked,
            "laggards": figures.laggards,
            "laggards_lag_ms": _behind_ms(broker, figures.pubend, figures.laggards_at),
            "laggards_lag_events": _behind_events(broker, figures.pubend, figures.laggards_at),
            "rows": figures.rows,
            "row_bytes": figures.row_bytes,
        }
        if source is not None:
            log = logs[figures.pubend]
            entry |= {
                "last_tick": source.last_tick,
                "last_age_ms": _lag_ms(clock, source.last_tick),
                "durable": source.durable,
                "released": source.released,
                "pending": source.pending,
                "ticks_ahead_ms": _lag_ms(source.next_tick, clock),
                "asked_beyond": source.asked_beyond,
                "log_bytes": log.log_bytes,
                "oldest_tick": log.oldest_tick,
                "retention": log.retention,
            }
        found.append(entry)
    return found


def clock_status(clock: WallClock) -> dict[str, object]:
    """The leaps of the wall clock."""
    return {
        "leaps": clock.leaps,
        "last_leap_s": clock.last_leap / (1_000 * TICKS_PER_MS),
        "held_s": clock.held / (1_000 * TICKS_PER_MS),
    }


class Ahead(NamedTuple):
    """A pubend whose ticks are ahead of the clock, or would be if it had done as it was asked."""

    pubend: PubendId
    ahead_s: float
    #: How far ahead the highest tick is that was asked for and was too far; 0 for none.
    asked_beyond_s: float


def ahead(broker: Broker, clock: Tick) -> list[Ahead]:
    """The pubends here whose ticks are ahead of the clock by more than is usual after a restart."""
    found: list[Ahead] = []
    usual = usually_ahead(broker.network.parameters)
    for each in hosted(broker):
        beyond = max(0, each.asked_beyond - clock)
        if beyond or max(each.next_tick, each.reserved) > clock + usual:
            found.append(Ahead(each.pubend, _seconds(each.next_tick - clock), _seconds(beyond)))
    return found


def clients_status(sessions: Sessions, clients_max: int) -> dict[str, object]:
    """Who is connected; of many, those with the most unsent bytes."""
    clients = sessions.clients()
    # Few are congested, and very many may be connected: only the few are looked at closely.
    congested = [each for each in clients if each.connection.is_congested]
    shown = heapq.nlargest(LISTED_MAX, congested, key=lambda each: each.connection.backlog_bytes)
    calm = (each for each in clients if not each.connection.is_congested)
    shown += islice(calm, LISTED_MAX - len(shown))
    return {
        "count": len(clients),
        "max": clients_max,
        "list": [
            {
                "name": each.name,
                "peer": each.connection.peer,
                "subscriptions": len(each.subscriptions),
                "backlog_bytes": each.connection.backlog_bytes,
                "token": each.rights.name,
            }
            for each in shown
        ],
    }


def subscriptions_status(sessions: Sessions, broker: Broker) -> dict[str, object]:
    """The subscriptions held here; of many, those that wait for a start, lag, or are parked."""
    lagging = laggards(broker)
    streams = {each.pubend: each for each in stream_figures(broker)}
    listed = []
    for each in _most_urgent(_held(sessions), lagging):
        own = lagging.get(each.name, {})
        positions = {pubend: own.get(pubend, streams[pubend].horizon) for pubend in each.starts}
        lags = {
            pubend: None if at is None else behind(broker, pubend, at) for pubend, at in positions.items()
        }
        listed.append(
            {
                "subscription": each.name,
                "client": None if each.client is None else each.client.name,
                "topic": each.asked.topic,
                "where": each.asked.where[:WHERE_CHARACTERS_MAX],
                "name": each.asked.name,
                "owner": each.owner.name,
                "order": each.asked.order.value,
                "mode": each.asked.mode,
                "state": _state(each, lagging),
                "starts": each.starts,
                "awaited": each.awaited,
                "positions": positions,
                "lag_ms": {pubend: lag and lag.ticks / TICKS_PER_MS for pubend, lag in lags.items()},
                "lag_events": {pubend: lag and lag.events for pubend, lag in lags.items()},
            }
        )
    return {**subscription_counts(sessions, broker), "list": listed}


def subscription_counts(sessions: Sessions, broker: Broker) -> dict[str, int]:
    """How many subscriptions of which kind there are here."""
    held = _held(sessions)
    lagging = laggards(broker)
    best_effort = sum(each.asked.mode == "best-effort" for each in held)
    return {
        "count": len(held),
        "guaranteed": len(held) - best_effort,
        "best_effort": best_effort,
        "named": sum(each.asked.name is not None for each in held),
        "parked": sum(each.client is None for each in held),
        "lagging": sum(_state(each, lagging) == "lagging" for each in held),
    }


def _most_urgent(
    held: Collection[EdgeSubscription], lagging: Mapping[SubscriptionId, object]
) -> Iterator[EdgeSubscription]:
    """At most `LISTED_MAX` of them, in one pass: there may be very many."""
    found: dict[str, list[EdgeSubscription]] = {state: [] for state in _URGENT}
    for each in held:
        alike = found[_state(each, lagging)]
        if len(alike) < LISTED_MAX:
            alike.append(each)
    return islice(chain.from_iterable(found.values()), LISTED_MAX)


def _held(sessions: Sessions) -> Collection[EdgeSubscription]:
    return sessions.subscriptions.held()


def _state(subscription: EdgeSubscription, lagging: Mapping[SubscriptionId, object]) -> str:
    if subscription.client is None:
        return "parked"
    if subscription.reader is None:
        return "unconfirmed"
    if subscription.name not in lagging:
        return "live"
    # A hold takes no events: it keeps them for somebody who reads them from the log, such as a view.
    return "holding" if subscription.asked.mode == "holding" else "lagging"


def report_json(report: Mapping[str, object]) -> str:
    """A status as text."""
    return json.dumps(report, separators=(",", ":"))


def _seconds(ticks: Tick) -> float:
    return round(max(0, ticks) / (1_000 * TICKS_PER_MS), 1)


def _behind_ms(broker: Broker, pubend: PubendId, at: Tick | None) -> float | None:
    return None if at is None else behind(broker, pubend, at).ticks / TICKS_PER_MS


def _behind_events(broker: Broker, pubend: PubendId, at: Tick | None) -> int | None:
    return None if at is None else behind(broker, pubend, at).events


def _lag_ms(ahead: Tick | None, behind: Tick | None) -> float | None:
    if ahead is None or behind is None:
        return None
    return max(0, ahead - behind) / TICKS_PER_MS
