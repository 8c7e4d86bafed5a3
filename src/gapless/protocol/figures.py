"""How is a broker doing? Numbers for people who look at it from outside; nothing in the protocol reads them.

A host shows them as a status and as metrics. Looking changes nothing, and costs as much as there are
pubends, groups and laggards: not as much as there are subscriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gapless.model.ids import PubendId, SubscriptionId, TopicId
from gapless.model.ticks import TICK_MIN, TICKS_PER_MS, Tick
from gapless.protocol.broker import Broker
from gapless.protocol.edge import Edge
from gapless.protocol.pubend import Pubend

#: No broker's clock, and no pubend, is taken to be further ahead than this.
AHEAD_MS_MAX = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFigures:
    """A pubend, at the broker where it lives."""

    #: The tick of the last event that is durable; None before the first.
    last_tick: Tick | None
    #: Everything below is durable: events that subscribers may see, or silence.
    durable: Tick
    #: Everybody has acknowledged what is below.
    acked: Tick
    #: Nobody can ask for what is below any more.
    released: Tick
    #: Records that wait for the disk.
    pending: int
    #: The next event gets no earlier tick than this.
    next_tick: Tick
    #: The highest tick that was asked for and was too far ahead of the clock to be followed; None for none.
    asked_beyond: Tick | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures:
    """What a broker knows of one pubend, wherever that lives."""

    pubend: PubendId
    topic: TopicId
    #: The id of its log; empty when nothing was heard of it.
    log: str
    #: One past the last tick that anything is known of; None when nothing is.
    frontier: Tick | None
    #: One past the last event: of the pubend where it lives, else the last that came; None before the first.
    events_stop: Tick | None
    #: Up to here everything is acknowledged by all who get it through this broker; None before the first ack.
    acked: Tick | None
    #: How many ranges below the frontier the local readers lack, and how many ranges were asked for.
    gaps: int
    asked: int
    #: Rows that are held in memory, and their bytes.
    rows: int
    row_bytes: int
    #: Where the local readers that keep up stand; None when there are none.
    horizon: Tick | None
    #: How many local readers are behind it, and where the last of them stands.
    laggards: int
    laggards_at: Tick | None
    #: None where the pubend does not live.
    source: SourceFigures | None


class Behind(NamedTuple):
    """How far a position is behind the last event of a pubend."""

    ticks: Tick
    #: How many events that this broker got are from there on; None when it does not hold them all.
    events: int | None


def behind(broker: Broker, pubend: PubendId, at: Tick) -> Behind:
    """How far a position is behind the last event; silence does not count, nor does the time before the log.

    Where the pubend does not live and ticks from there on are unknown, any of them may be an event: then it
    is measured to the last tick that anything is known of.
    """
    path = broker.inspect().paths[pubend]
    istream, source = path.istream, path.pubend
    at = max(at, istream.log.began)
    is_known = istream.stream.known.reach(at, lambda _: True) >= istream.frontier
    if source is not None:
        stop = source.events_stop
    else:
        stop = istream.events_stop if is_known else istream.frontier
    if stop <= at:
        return Behind(0, 0)
    return Behind(stop - at, istream.stream.rows.count(at, stop) if is_known else None)


def stream_figures(broker: Broker) -> list[StreamFigures]:
    """One line for each pubend of the network, sorted by name."""
    return [_stream(broker, pubend) for pubend in sorted(broker.network.pubends)]


def hosted(broker: Broker) -> list[Pubend]:
    """The pubends that live here."""
    return [path.pubend for path in broker.inspect().paths.values() if path.pubend is not None]


def laggards(broker: Broker) -> dict[SubscriptionId, Mapping[PubendId, Tick]]:
    """The subscriptions that do not stand with the others, and what each was handed, per pubend."""
    found: dict[SubscriptionId, dict[PubendId, Tick]] = {}
    edge = broker.inspect().edge
    if edge is not None:
        for group in {id(g): g for door in edge.inspect().doors.values() for g in door.groups}.values():
            for name, lag in (*group.laggards.items(), *group.parked.items()):
                found.setdefault(name, {}).update(lag.handed)
    return dict(found)


def known_horizon(broker: Broker, pubend: PubendId) -> tuple[Tick, Tick]:
    """Of a pubend that lives here: one past the last durable event, and the tick below which all is known.

    Both only grow, and the first never passes the second. So other threads may ask, too: the first is looked
    at first.
    """
    source = broker.inspect().paths[pubend].pubend
    assert source is not None, f"{pubend} does not live here"
    stop = source.events_stop
    return stop, source.told


def stream_reach(broker: Broker, pubend: PubendId, clock: Tick) -> Tick:
    """The tick of a pubend beyond which nobody can have read anything, here or elsewhere.

    What is known here, and as much as the clock of another broker may be ahead, or a pubend that gives out
    ticks faster than they pass.
    """
    return max(broker.inspect().paths[pubend].istream.frontier, clock) + AHEAD_MS_MAX * TICKS_PER_MS


def _stream(broker: Broker, pubend: PubendId) -> StreamFigures:
    path = broker.inspect().paths[pubend]
    istream = path.istream
    horizon, behind, gaps = _readers(broker.inspect().edge, pubend)
    source = path.pubend
    return StreamFigures(
        pubend=pubend,
        topic=broker.network.pubends[pubend].topic,
        log=istream.log.id,
        frontier=_told(istream.frontier),
        events_stop=_told(istream.events_stop if source is None else source.events_stop),
        acked=path.ack_sent[-1][0] if path.ack_sent else None,
        gaps=gaps,
        asked=len(istream.asked),
        rows=istream.stream.rows.rows,
        row_bytes=istream.stream.rows.nbytes,
        horizon=horizon,
        laggards=len(behind),
        laggards_at=min(behind, default=None),
        source=None
        if source is None
        else SourceFigures(
            last_tick=source.events_stop - 1 if source.events_stop > 0 else None,
            durable=source.told,
            acked=source.releasable,
            released=source.released,
            pending=len(source.pending),
            next_tick=source.next_tick,
            asked_beyond=_told(source.asked_beyond),
        ),
    )


def _readers(edge: Edge | None, pubend: PubendId) -> tuple[Tick | None, list[Tick], int]:
    """The horizon of those in step, where each laggard stands, and how many ranges those in step lack."""
    if edge is None:
        return None, [], 0
    door = edge.inspect().doors[pubend]
    read = [group for group in door.groups if group.has_readers]
    horizon = min((group.horizon for group in read), default=None)
    behind = [lag.handed[pubend] for group in read for lag in group.laggards.values()]
    gaps = max((len(group.gaps(door.lane)) for group in read), default=0)
    return horizon, behind, gaps


def _told(tick: Tick) -> Tick | None:
    return None if tick <= TICK_MIN else tick
