"""Was every table right that the ticket sale showed? Recomputed from what was published, with plain dicts.

Nothing here asks a broker or Spark, and nothing is shared with the code of views. Each event has a tick, from
its receipt. Each state that was shown says how far it goes, a tick per pubend; so it must be the table that
the events below those ticks give, row for row, and the last one the table of all events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gapless.demo.account import LatencyFigures, Seconds, by_phase
from gapless.demo.sale.tickets import SELLERS, TRADERS

#: What a table says of an item: its price, and how many are left.
Row = tuple[float, int]


class Trade(NamedTuple):
    """An offer or a buy, as it was published."""

    item: str
    qty: int
    #: None for a buy.
    price: float | None
    #: When it was handed to the client library.
    sent_s: float


@dataclass(slots=True)
class Traded:
    """All that one trader has published, in order."""

    trades: list[Trade] = field(default_factory=list)
    #: The ticks of the first of them: those that have a receipt.
    ticks: list[int] = field(default_factory=list)


class ShownState(NamedTuple):
    """One state of the view, as a client showed it."""

    at_s: float
    #: By pubend: every event below the tick is included.
    horizons: Mapping[str, int]
    rows: Mapping[str, Row]


@dataclass(slots=True)
class Sale:
    """All that happened in one run. Times are seconds since the doors opened; before that, below 0."""

    traded: dict[str, Traded]
    #: By edge, what its client showed.
    shown: dict[str, list[ShownState]]
    #: The router that was killed: the one that carried the view.
    victim: str = ""
    router_killed_s: float = float("inf")
    router_back_s: float = float("inf")
    spark_killed_s: float = float("inf")
    spark_restarted_s: float = float("inf")
    #: When every client showed something that was published after Spark was killed.
    spark_back_s: float = float("inf")
    #: How long Spark took to show the first offers, and when publishing ended.
    start_s: float = float("inf")
    stopped_s: float = float("inf")

    @property
    def events(self) -> int:
        """How many were published."""
        return sum(len(each.trades) for each in self.traded.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAccount:
    """What one client was shown, beside what it should have been."""

    edge: str
    states: int
    #: States with a wrong row, and all wrong rows of all states: missing, too many, or with other values.
    states_wrong: int
    rows_wrong: int
    #: States that include less than one before them.
    states_back: int
    #: The last state: its rows, those that differ from the table of all events, and the events it lacks.
    rows: int
    rows_differ: int
    events_missing: int
    staleness: Mapping[str, LatencyFigures]

    @property
    def kept(self) -> bool:
        """Whether everything was as it should be."""
        return not (self.rows_wrong or self.states_back or self.rows_differ or self.events_missing)


class Ledger:
    """The table, computed from one event after the other."""

    def __init__(self, traded: Mapping[str, Traded]) -> None:
        self._traded = traded
        self._next = dict.fromkeys(traded, 0)
        self._price: dict[str, float] = {}
        self._offered: dict[str, int] = {}
        self._bought: dict[str, int] = {}

    def advance(self, horizons: Mapping[str, int] | None) -> None:
        """Take in all events below the horizons; all that there are, with None."""
        for pubend, traded in self._traded.items():
            at, ticks = self._next[pubend], traded.ticks
            stop = None if horizons is None else horizons.get(pubend, 0)
            while at < len(traded.trades) and (stop is None or ticks[at] < stop):
                self._take(traded.trades[at])
                at += 1
            self._next[pubend] = at

    def _take(self, trade: Trade) -> None:
        if trade.price is None:
            self._bought[trade.item] = self._bought.get(trade.item, 0) + trade.qty
        else:
            self._price[trade.item] = trade.price
            self._offered[trade.item] = self._offered.get(trade.item, 0) + trade.qty

    def table(self) -> dict[str, Row]:
        """What is left of each item that has something left."""
        left = {item: offered - self._bought.get(item, 0) for item, offered in self._offered.items()}
        return {item: (self._price[item], count) for item, count in left.items() if count > 0}


def differing(one: Mapping[str, Row], other: Mapping[str, Row]) -> int:
    """Of how many items two tables say different things.

    >>> differing({"Aida": (9.5, 3), "Tosca": (8.0, 1)}, {"Aida": (9.5, 2)})
    2
    """
    return sum(one.get(item) != other.get(item) for item in one.keys() | other.keys())


def account_of(edge: str, sale: Sale) -> WatchAccount:
    """Verify every state that one client has shown."""
    shown = sale.shown[edge]
    ledger = Ledger(sale.traded)
    reached: dict[str, int] = {}
    wrong: list[int] = []
    back = 0
    for state in shown:
        back += any(tick < reached.get(pubend, 0) for pubend, tick in state.horizons.items())
        reached = {**reached, **state.horizons}
        ledger.advance(state.horizons)
        wrong.append(differing(state.rows, ledger.table()))
    ledger.advance(None)
    last = shown[-1] if shown else ShownState(0.0, {}, {})
    return WatchAccount(
        edge=edge,
        states=len(shown),
        states_wrong=sum(map(bool, wrong)),
        rows_wrong=sum(wrong),
        states_back=back,
        rows=len(last.rows),
        rows_differ=differing(last.rows, ledger.table()),
        events_missing=sum(
            sum(tick >= last.horizons.get(pubend, 0) for tick in traded.ticks)
            for pubend, traded in sale.traded.items()
        ),
        staleness=by_phase(
            *staleness(shown, sale),
            min(sale.router_killed_s, sale.spark_killed_s),
            max(sale.router_back_s, sale.spark_back_s),
        ),
    )


def staleness(shown: Sequence[ShownState], sale: Sale) -> tuple[Seconds, Seconds]:
    """When each event was published, and when it was first shown; without what never was."""
    sent: list[Seconds] = []
    came: list[Seconds] = []
    at_s = np.array([state.at_s for state in shown], dtype=np.float64)
    for plan in TRADERS:
        traded = sale.traded[plan.pubend]
        horizons = np.array([state.horizons.get(plan.pubend, 0) for state in shown], dtype=np.int64)
        sent_s = np.array([trade.sent_s for trade in traded.trades], dtype=np.float64)
        ticks = np.array(traded.ticks, dtype=np.int64)
        place = np.searchsorted(np.maximum.accumulate(horizons), ticks, side="right")
        # What was offered before the doors opened waited for Spark to start.
        mask = (place < len(shown)) & (sent_s[: len(ticks)] >= 0)
        sent.append(sent_s[: len(ticks)][mask])
        came.append(at_s[place[mask]])
    return np.concatenate(sent), np.concatenate(came)


def counts(sale: Sale) -> tuple[int, int]:
    """How many offers and how many buys were published."""
    offers = len(sale.traded[SELLERS.pubend].trades)
    return offers, sale.events - offers
