"""What does Prometheus get to see? Counters as they are, and gauges that are read on request.

Nothing is kept twice: this is a collector that reads the node's own counters and figures at scrape time, so
metrics cost nothing between two scrapes. docs/operating.md lists every metric.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gapless.node.counters import FLUSH_SECONDS, TOTALS
from gapless.node.status import subscription_counts
from gapless.protocol.figures import stream_figures

if TYPE_CHECKING:
    from gapless.node.node import Node

#: What a counter counts, by its name; those that are not named here say it in their name.
_MEANINGS = {
    "steps": "Steps of the broker.",
    "events_published": "Events that clients asked to store.",
    "events_accepted": "Events that became durable.",
    "events_refused": "Events that were not stored.",
    "events_quarantined": "Events in the log that are too large to be told: their ticks are final.",
    "event_bytes": "Bytes of events that were handed to the logs.",
    "rows_delivered": "Rows delivered, one for each subscription that got it.",
    "slow_reports": "How often a subscription was taken off the live path.",
    "messages_dropped": "Messages dropped because a neighbour did not read.",
    "connections_refused": "Connections that were cut off with an error code.",
}


class NodeCollector(Collector):
    """Reads one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        yield from self._counters()
        yield from self._gauges()
        yield from self._links()
        yield from self._pubends()

    def _counters(self) -> Iterator[Metric]:
        counters = self._node.counters
        totals = counters.totals()
        for name in TOTALS:
            if name not in ("flushes", "flush_seconds"):
                meaning = _MEANINGS.get(name, f"{name.replace('_', ' ').capitalize()}.")
                yield CounterMetricFamily(f"gapless_{name}", meaning, value=totals[name])
        refusals = CounterMetricFamily(
            "gapless_refusals", "Connections that were cut off, by error code.", labels=["code"]
        )
        for code, count in sorted(counters.refusals.items()):
            refusals.add_metric([code], count)
        yield refusals
        bounds = [*map(str, FLUSH_SECONDS), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(counters.flush_buckets)), strict=True))
        yield HistogramMetricFamily(
            "gapless_flush_seconds",
            "How long flushes of the logs took.",
            buckets=buckets,
            sum_value=counters.flush_seconds,
        )

    def _gauges(self) -> Iterator[Metric]:
        node = self._node
        yield _gauge("ready", "Whether the node serves.", not node.waiting_for())
        yield _gauge("uptime_seconds", "For how long the node has been up.", node.uptime_s)
        held_s = node.clock_held / 1_000_000
        yield _gauge("clock_held_seconds", "A leap of the clock that is not believed.", held_s)
        yield _gauge("clients", "Connected clients.", len(node.sessions))
        if node.certificate_expires is not None:
            yield _gauge(
                "certificate_expiry_timestamp_seconds",
                "When this broker's certificate expires.",
                node.certificate_expires,
            )
        subscriptions = GaugeMetricFamily(
            "gapless_subscriptions", "Subscriptions held here, by kind.", labels=["kind"]
        )
        for kind, count in subscription_counts(node.sessions, node.broker).items():
            if kind != "count":
                subscriptions.add_metric([kind], count)
        yield subscriptions
        for name, value in asdict(node.broker.memory()).items():
            yield _gauge(f"memory_{name}", f"What the broker holds: {name.replace('_', ' ')}.", value)

    def _links(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("gapless_link_up", "Whether a link is up.", labels=["neighbour"])
        backlog = GaugeMetricFamily(
            "gapless_link_backlog_bytes", "Bytes for a neighbour that have not left.", labels=["neighbour"]
        )
        trip = GaugeMetricFamily(
            "gapless_link_round_trip_seconds", "How long the last ping took.", labels=["neighbour"]
        )
        for link in self._node.links.figures():
            up.add_metric([link.broker], float(link.up))
            backlog.add_metric([link.broker], link.backlog_bytes)
            if link.round_trip_ms is not None:
                trip.add_metric([link.broker], link.round_trip_ms / 1_000)
        yield from (up, backlog, trip)

    def _pubends(self) -> Iterator[Metric]:
        found: dict[str, GaugeMetricFamily] = {}

        def add(name: str, meaning: str, pubend: str, value: float | None) -> None:
            family = found.get(name)
            if family is None:
                family = found[name] = GaugeMetricFamily(f"gapless_pubend_{name}", meaning, labels=["pubend"])
            if value is not None:
                family.add_metric([pubend], value)

        logs = self._node.storage.figures()
        clock = self._node.clock
        for stream in stream_figures(self._node.broker):
            name = stream.pubend
            add("frontier_tick", "One past the last tick that was heard of.", name, stream.frontier)
            add("horizon_tick", "Where subscribers here stand that keep up.", name, stream.horizon)
            add("acked_tick", "Everything below is acknowledged.", name, stream.acked)
            add("gaps", "Ranges that hold subscribers here back.", name, stream.gaps)
            add("laggards", "Subscribers here that are behind.", name, stream.laggards)
            if stream.source is not None:
                add("last_tick", "The last durable event.", name, stream.source.last_tick)
                add("durable_tick", "Everything below is durable.", name, stream.source.durable)
                add(
                    "released_tick",
                    "Events below this tick can no longer be requested.",
                    name,
                    stream.source.released,
                )
                ahead_s = max(0, stream.source.next_tick - clock) / 1_000_000
                add("ticks_ahead_seconds", "How far its ticks are ahead of the clock.", name, ahead_s)
                add("log_bytes", "The size of the log.", name, logs[name].log_bytes)
                add("oldest_tick", "The events below are gone.", name, logs[name].oldest_tick)
        yield from found.values()


def exposition(node: Node) -> bytes:
    """All metrics of a node in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    return generate_latest(registry)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gapless_{name}", meaning, value=float(value))
