"""What did an experiment of the paper show, and what did the paper see?

The numbers that section 4.2 of the paper speaks of, taken from one experiment. A nack range is what the paper
calls so: the milliseconds of ticks that were asked for, over all pubends and all nacks of a broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gapless.sim.paper import PaperResult

#: What the text of the paper says, by experiment and row; it says nothing about the others.
IN_THE_PAPER: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "b1-s1-link": {
            "worst latency at s1": "2.5 s",
            "worst latency at s2": "unaffected",
            "first nack": "over 2 s after the stall",
            "stall": "2 to 3 s",
            "failure": "10 s",
        },
        "b1-crash": {
            "worst latency at s2": "similar to s1",
            "nack range of s1": "about 5,500 ms",
            "nack range of s2": "about 5,500 ms",
            "nack range of b2": "about half of both",
            "b2 / (s1 + s2)": "about 0.5",
            "stall": "about 2.75 s",
            "failure": "30 s",
        },
        "p1-crash": {
            "worst latency at s1": "high, a partial saw-tooth",
            "worst latency at s2": "similar to s1",
            "nack range of s2": "similar to s1",
            "first nack": "none before the repair",
            "stall": "2 to 3 s",
            "failure": "about 20 s",
        },
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table of an experiment."""

    what: str
    measured: str
    in_the_paper: str


def worst_s(result: PaperResult, edge: str) -> float:
    """The longest that a message took to the subscriber at an edge."""
    return max((each.latency_s for each in result.latencies[edge]), default=0.0)


def nack_count(result: PaperResult, broker: str) -> int:
    """How many nacks a broker sent."""
    return len(result.nacks.get(broker, ()))


def nack_range_ms(result: PaperResult, *brokers: str) -> float:
    """How many milliseconds of ticks these brokers asked for."""
    return sum(nack.range_ms for broker in brokers for nack in result.nacks.get(broker, ()))


def consolidation(result: PaperResult, *routers: str) -> float | None:
    """What the routers asked for, as a share of what s1 and s2 asked for; None when those did not ask.

    Two edges that ask for the same ticks are perfectly consolidated at 0.5.
    """
    asked_ms = nack_range_ms(result, "s1", "s2")
    return nack_range_ms(result, *routers) / asked_ms if asked_ms else None


def rows(result: PaperResult) -> list[Row]:
    """The table of an experiment."""
    measured = {f"worst latency at {edge}": duration(worst_s(result, edge)) for edge in ("s1", "s2")}
    # Only the crash of p1 makes edges ask b1: otherwise it is the one that failed.
    brokers = ("s1", "s2", "b1", "b2") if nack_count(result, "b1") else ("s1", "s2", "b2")
    for broker in brokers:
        range_ms, count = nack_range_ms(result, broker), nack_count(result, broker)
        measured[f"nack range of {broker}"] = f"{range_ms:,.0f} ms in {count} nacks" if count else "no nacks"
    measured["b2 / (s1 + s2)"] = _share(consolidation(result, "b2"))
    if nack_count(result, "b1"):
        measured["(b1 + b2) / (s1 + s2)"] = _share(consolidation(result, "b1", "b2"))
    measured["first nack"] = _first_nack(result)
    measured["stall"] = f"{result.failed_s - result.stalled_s:g} s"
    measured["failure"] = f"{result.repaired_s - result.failed_s:g} s"
    measured["messages published"] = f"{result.published:,}"
    measured["messages lost"] = f"{result.lost}"
    measured["messages duplicated"] = f"{result.duplicated}"
    paper = IN_THE_PAPER[result.name]
    return [
        Row(what=what, measured=text, in_the_paper=paper.get(what, "")) for what, text in measured.items()
    ]


def _share(value: float | None) -> str:
    return "nobody asked" if value is None else f"{value:.2f}"


def _first_nack(result: PaperResult) -> str:
    times = [nack.time_s for nacks in result.nacks.values() for nack in nacks]
    if not times:
        return "none"
    first_s = min(times)
    if first_s >= result.repaired_s:
        return f"{duration(first_s - result.repaired_s)} after the repair"
    return f"{duration(first_s - result.stalled_s)} after the stall"


def duration(seconds: float) -> str:
    """A length of time in the unit that suits it.

    >>> duration(2.7312), duration(0.0071)
    ('2.73 s', '7 ms')
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1_000:.0f} ms"


def as_json(result: PaperResult) -> dict[str, object]:
    """The numbers of an experiment for a program to read."""
    return {
        "kind": "scenario",
        "scenario": result.name,
        "ok": is_good(result),
        "stalled_s": result.stalled_s,
        "failed_s": result.failed_s,
        "repaired_s": result.repaired_s,
        "worst_latency_ms": {edge: round(worst_s(result, edge) * 1_000, 3) for edge in result.latencies},
        "nacks": {broker: len(nacks) for broker, nacks in sorted(result.nacks.items())},
        "nack_range_ms": {broker: nack_range_ms(result, broker) for broker in sorted(result.nacks)},
        "b2_share": consolidation(result, "b2"),
        "b1_b2_share": consolidation(result, "b1", "b2"),
        "published": result.published,
        "delivered": {edge: len(taken) for edge, taken in result.latencies.items()},
        "lost": result.lost,
        "duplicated": result.duplicated,
        "violation": None if result.violation is None else str(result.violation),
    }


def is_good(result: PaperResult) -> bool:
    """Whether every promise was kept."""
    return result.violation is None and not result.lost and not result.duplicated
