"""What does this broker know of one event, and of one subscription? Answers for people who ask why.

Like `figures`, this only looks: nothing in the protocol reads it, and asking changes nothing. Together, the
answers of all brokers between a pubend and an edge tell the story of an event: whether it is known here,
through which filters it must go, and where a subscription stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from gapless.model.batch import EventBatch
from gapless.model.epochs import EPOCH_NONE, Epoch, Epochs
from gapless.model.ids import BrokerId, CellId, PubendId, SubscriptionId
from gapless.model.ticks import TICK_MIN, Tick
from gapless.protocol.broker import Broker

#: So many conditions of a filter are told.
CONDITIONS_TOLD_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class WayDown:
    """The filter towards one cell below, and what it does to the event."""

    cell: CellId
    #: The brokers of the cell that can be reached now, and the one that would get the event.
    up: tuple[BrokerId, ...]
    route: BrokerId | None
    #: Of the conditions that the cell has advertised for the topic the first few, and how many they are.
    conditions: tuple[str, ...]
    conditions_count: int
    #: Per edge below, the newest subscriptions that the filter speaks for.
    epochs: dict[BrokerId, Epoch]
    #: Whether the filter accepts the event; None when the event is not here to be tried.
    accepts: bool | None
    #: Everything below is settled: acknowledged, or rejected by the filter.
    settled: Tick | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a broker knows of one tick of a pubend."""

    #: `event`, `silence` (no event, or none that this broker was to get) or `unknown`.
    known: str
    #: Of silence: per edge, up to which subscriptions it was made for them; empty when it is for all.
    epochs: dict[BrokerId, Epoch]
    is_for_all: bool
    #: One past the last tick that anything is known of, and the tick below which nobody needs anything.
    frontier: Tick | None
    final_before: Tick
    #: Whether it was asked for upstream, and not answered yet.
    asked: bool
    #: The event, when it is held in memory.
    row: EventBatch | None
    ways: tuple[WayDown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a subscription stands on one pubend."""

    #: The condition that decides of the tick, and the first epoch of the edge's subscriptions that has it.
    condition: str
    birth: Epoch
    #: Whether the pubend has granted a start tick.
    is_granted: bool
    #: Everything below was handed to the subscriber, and everything below was taken.
    handed: Tick
    taken: Tick
    is_lagging: bool
    is_slow: bool
    is_away: bool
    #: The ticks below are known well enough for this subscription.
    resolved: Tick


def sight(broker: Broker, pubend: PubendId, tick: Tick, row: EventBatch | None = None) -> Sight:
    """What a broker knows of a tick; `row` is the event, if the caller has it from the log."""
    path = broker.inspect().paths[pubend]
    stream = path.istream.stream
    rows = stream.rows.between(tick, tick + 1)
    run = stream.known.run_at(tick)
    stamp = None if run is None else run[1]
    row = rows[0] if rows else row
    known = "event" if rows else ("unknown" if stamp is None else "silence")
    return Sight(
        known=known,
        epochs={} if stamp is None else _told(stamp),
        is_for_all=stamp is not None and stamp.default > EPOCH_NONE,
        frontier=_known(path.istream.frontier),
        final_before=path.istream.final_before,
        asked=bool(path.istream.asked.ticks(tick, tick + 1)),
        row=row,
        ways=tuple(_way(broker, pubend, cell, row) for cell in path.ostreams),
    )


def _way(broker: Broker, pubend: PubendId, cell: CellId, row: EventBatch | None) -> WayDown:
    parts = broker.inspect()
    path = parts.paths[pubend]
    wants = parts.filter_of(path, pubend, cell)
    settled = path.ostreams[cell].acked()
    conditions = wants.accepts.conditions
    brokers = broker.network.cells[cell]
    return WayDown(
        cell=cell,
        up=tuple(each for each in brokers if parts.links.is_up(each)),
        route=parts.links.route(pubend, cell, path.tree.children[cell]),
        conditions=tuple(str(each) for each in islice(conditions, CONDITIONS_TOLD_MAX)),
        conditions_count=len(conditions),
        epochs=_told(wants.epochs),
        accepts=None if row is None else bool(wants.accepts.mask(row)[0]),
        settled=settled[-1][0] if settled else None,
    )


def stand(broker: Broker, subscription: SubscriptionId, pubend: PubendId, tick: Tick) -> Stand | None:
    """Where a subscription stands; None when this broker has none of that name for this pubend."""
    edge = broker.inspect().edge
    if edge is None:
        return None
    subend = edge.inspect().subends.get(subscription)
    group = edge.group_of(subscription, pubend)
    if subend is None or group is None:
        return None
    phase, _ = subend.in_force(pubend, tick)
    door = edge.inspect().doors[pubend]
    lag = group.laggards.get(subscription) or group.parked.get(subscription)
    horizon = group.horizon if lag is None else lag.handed[pubend]
    return Stand(
        condition=str(phase.condition),
        birth=phase.birth,
        is_granted=pubend in phase.granted,
        handed=horizon,
        taken=group.acked(pubend) if lag is None else lag.taken[pubend],
        is_lagging=lag is not None,
        is_slow=subend.slow,
        is_away=subend.away,
        resolved=door.lane.resolved_under(horizon, phase.birth),
    )


def _told(stamp: Epochs) -> dict[BrokerId, Epoch]:
    return dict(stamp.items())


def _known(tick: Tick) -> Tick | None:
    return None if tick <= TICK_MIN else tick
