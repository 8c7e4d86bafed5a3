"""What happens in the second act of the demo? A ticket sale on Spark loses a router, and then Spark itself.

The brokers and the Spark application are processes of their own. Traders and the two clients that watch the
view, one at each edge, are tasks of this process with connections of their own.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from time import perf_counter

from gapless.client import Client, connect
from gapless.client.publisher import Publisher
from gapless.client.receipts import Publication
from gapless.client.view import View
from gapless.demo.network import EDGES, REPOSITORY, router_of
from gapless.demo.run import AFTERWARDS_SECONDS, PACE_SECONDS, SEED, unwrapped
from gapless.demo.sale.account import Row, Sale, ShownState, Trade, Traded
from gapless.demo.sale.tickets import DESCRIPTION as NETWORK
from gapless.demo.sale.tickets import ITEMS, SQL, TRADERS, VIEW, VIEW_PUBEND, TraderPlan, trades_of
from gapless.demo.spark import SparkApplication
from gapless.errors import PipelineError
from gapless.fleet import Fleet
from gapless.model.ids import PubendId

#: Spark starts in seconds where there is nothing else to do, and in a minute where there is.
START_SECONDS_MAX = 300.0
#: What is not shown so long after publishing ended is missing.
PATIENCE_SECONDS = 120.0
#: Between the death of the Spark application and the next one, as with a node that starts it.
PAUSE_SECONDS = 1.0
#: Nothing is killed before every client has shown this many states of the sale, or this much time has passed.
WARM_STATES, WARM_SECONDS_MAX = 3, 30.0
#: How often to check that the Spark application still runs.
LOOK_SECONDS = 0.2
#: The time of everything before the sale opened.
BEFORE_S = -1.0

#: Told what has just happened, and the record so far.
Tell = Callable[[str, Sale], None]


class TicketSale:
    """One run of the sale."""

    def __init__(self, folder: Path, *, seconds: float, rate: float, tell: Tell) -> None:
        self._folder = folder
        self._seconds = seconds
        self._rate = rate
        self._tell = tell
        self._started: float | None = None
        #: Set when the doors open.
        self.started = asyncio.Event()
        #: The clients that have not shown anything yet that was published after Spark was killed.
        self._waiting = set(EDGES)
        #: Set when every client has shown enough for something to be killed.
        self._warm = asyncio.Event()
        #: What each client shows now, as its changes say.
        self.tables: dict[str, dict[str, Row]] = {edge: {} for edge in EDGES}
        self.sale = Sale(
            traded={plan.pubend: Traded() for plan in TRADERS},
            shown={edge: [] for edge in EDGES},
            victim=router_of(VIEW_PUBEND),
        )

    def now_s(self) -> float:
        """Seconds since the doors opened."""
        return BEFORE_S if self._started is None else perf_counter() - self._started

    def behind_s(self, edge: str) -> float:
        """For how long the oldest event has been waiting that an edge's client does not show yet."""
        shown = self.sale.shown[edge]
        horizons = shown[-1].horizons if shown else {}
        oldest_s = now_s = self.now_s()
        for pubend, traded in self.sale.traded.items():
            at = bisect_left(traded.ticks, horizons.get(pubend, 0))
            if at < len(traded.trades):
                oldest_s = min(oldest_s, traded.trades[at].sent_s)
        return now_s - oldest_s

    async def run(self) -> Sale:
        """Start everything, kill, restart, and end everything.

        Raises GaplessError when a node or Spark does not start, or an event is refused.
        """
        return await unwrapped(self._run())

    async def _run(self) -> Sale:
        async with (
            Fleet(NETWORK, self._folder) as fleet,
            SparkApplication(fleet.address(EDGES[0]), self._folder) as spark,
            AsyncExitStack() as stack,
        ):
            began = perf_counter()
            watchers = [
                await stack.enter_async_context(connect(fleet.address(edge), name=f"watcher-{edge}"))
                for edge in EDGES
            ]
            await watchers[0].create_view(VIEW, SQL)
            tables = [await stack.enter_async_context(each.view(VIEW)) for each in watchers]
            traders = [
                Trader(plan, await stack.enter_async_context(connect(fleet.address(REPOSITORY))), self)
                for plan in TRADERS
            ]
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(_look_after(spark))]
                for edge, table in zip(EDGES, tables, strict=True):
                    others.append(tasks.create_task(self._watch(edge, table)))
                await self._open(traders[0], tables)
                self.sale.start_s = perf_counter() - began
                self._started = perf_counter()
                self._tell("opened", self.sale)
                self.started.set()
                async with asyncio.TaskGroup() as publishing:
                    for trader in traders:
                        publishing.create_task(trader.trade(self._rate * trader.plan.share))
                    publishing.create_task(self._fail(fleet, spark))
                self.sale.stopped_s = self.now_s()
                self._tell("stopped", self.sale)
                with suppress(TimeoutError):
                    await self._shown(tables, PATIENCE_SECONDS)
                    await asyncio.sleep(AFTERWARDS_SECONDS)
                for other in others:
                    other.cancel()
        return self.sale

    async def _open(self, sellers: Trader, tables: Sequence[View]) -> None:
        """Offer each item once, and wait until every client sees it."""
        sellers.publish(len(ITEMS))
        await sellers.flush()
        try:
            await self._shown(tables, START_SECONDS_MAX)
        except TimeoutError:
            raise PipelineError(
                "E505", f"the view shows nothing after {START_SECONDS_MAX:g} seconds", retry=True
            ) from None

    async def _shown(self, tables: Sequence[View], seconds: float) -> None:
        """Wait until all that was published is shown everywhere."""
        horizons = {
            PubendId(pubend): each.ticks[-1] + 1 for pubend, each in self.sale.traded.items() if each.ticks
        }
        async with asyncio.timeout(seconds):
            for table in tables:
                await table.wait_until(horizons)

    def is_over(self, now_s: float) -> bool:
        """Whether publishing ends: in time, but not before Spark is back and has had something to do."""
        sale = self.sale
        latest_s = sale.spark_restarted_s + START_SECONDS_MAX
        enough_s = max(sale.spark_back_s, sale.router_back_s) + self._seconds / 4
        return now_s >= max(self._seconds, min(enough_s, latest_s))

    async def _watch(self, edge: str, table: View) -> None:
        """Be the client of an edge: apply what changes, and write down every state."""
        held = self.tables[edge]
        async for change in table.changes():
            for weight, row in change.rows():
                if weight < 0:
                    held.pop(row["item"], None)
                else:
                    held[row["item"]] = (row["price"], row["avail"])
            horizons = {str(pubend): tick for each in change.as_of.values() for pubend, tick in each.items()}
            self.sale.shown[edge].append(ShownState(self.now_s(), horizons, dict(held)))
            if all(self._states(each) >= WARM_STATES for each in EDGES):
                self._warm.set()
            if edge in self._waiting and self._is_new(horizons):
                self._waiting.remove(edge)
                if not self._waiting:
                    self.sale.spark_back_s = self.now_s()
                    self._tell("spark back", self.sale)

    def _states(self, edge: str) -> int:
        """How many states a client has shown since the doors opened."""
        return sum(state.at_s >= 0 for state in self.sale.shown[edge][-WARM_STATES:])

    def _is_new(self, horizons: dict[str, int]) -> bool:
        """Whether a state has events of every trader that were published after Spark was killed."""
        for pubend, traded in self.sale.traded.items():
            at = bisect_left(traded.trades, self.sale.spark_killed_s, key=lambda trade: trade.sent_s)
            if at >= len(traded.ticks) or horizons.get(pubend, 0) <= traded.ticks[at]:
                return False
        return True

    async def _fail(self, fleet: Fleet, spark: SparkApplication) -> None:
        """Kill the router, then Spark while the router is away, and start both again."""
        sale, fifth_s = self.sale, self._seconds / 5
        await asyncio.sleep(fifth_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._warm.wait(), WARM_SECONDS_MAX)
        sale.router_killed_s = self.now_s()
        self._tell("router killed", sale)
        await fleet.kill(sale.victim)
        await asyncio.sleep(fifth_s)
        sale.spark_killed_s = self.now_s()
        self._tell("spark killed", sale)
        await spark.kill()
        await asyncio.sleep(PAUSE_SECONDS)
        sale.spark_restarted_s = self.now_s()
        self._tell("spark restarted", sale)
        await spark.start()
        await asyncio.sleep(fifth_s)
        await fleet.start(sale.victim)
        sale.router_back_s = self.now_s()
        self._tell("router back", sale)


class Trader:
    """Publishes offers or buys, and keeps their ticks."""

    def __init__(self, plan: TraderPlan, client: Client, sale: TicketSale) -> None:
        self.plan = plan
        self._sale = sale
        self._publisher: Publisher = client.publisher(plan.topic, pubend=plan.pubend)
        self._traded = sale.sale.traded[plan.pubend]
        self._make = trades_of(plan, SEED)
        self._on_the_way: list[Publication] = []

    async def trade(self, rate: float) -> None:
        """Publish at a steady rate until it is over."""
        before = len(self._traded.trades)
        while not self._sale.is_over(now_s := self._sale.now_s()):
            self.publish(int(now_s * rate) + 1 - (len(self._traded.trades) - before))
            await self._publisher.ready()
            await asyncio.sleep(PACE_SECONDS)
            await self._confirm()
        await self.flush()

    def publish(self, count: int) -> None:
        """Publish this many events."""
        traded = self._traded
        for _ in range(count):
            event = self._make(len(traded.trades))
            traded.trades.append(Trade(event["item"], event["qty"], event.get("price"), self._sale.now_s()))
            self._on_the_way.append(self._publisher.publish(event))

    async def flush(self) -> None:
        """Wait until everything is durable. Raises when an event was refused."""
        await self._publisher.flush()
        await self._confirm()

    async def _confirm(self) -> None:
        """Write down the ticks of what is durable by now."""
        count = 0
        for publication in self._on_the_way:
            if not publication.done():
                break
            tick = (await publication).tick
            assert tick is not None, "the repository was not restarted, and knows where every event is"
            self._traded.ticks.append(tick)
            count += 1
        del self._on_the_way[:count]


async def _look_after(spark: SparkApplication) -> None:
    """Raise PipelineError when the Spark application ends by itself."""
    while True:
        spark.check()
        await asyncio.sleep(LOOK_SECONDS)
