"""Is anything sent for nothing? What crosses the links, compared with what was asked for and what is needed.

A protocol may keep every promise and still waste the network. This checker knows four kinds of waste:

| waste | the rule |
| --- | --- |
| questions | a broker asks for a tick once in `nack_repeat_min_ms`, however many below it lack it |
| silence | a message without a row answers somebody of the cell that it goes to |
| rows | a row crosses to a cell once, and then only for questions from there |
| conditions | once all is quiet, a broker advertises no more conditions than covering leaves |

A broker that may hold only a few rows or runs forgets what it has sent and asked for, and one that may
compare only a few conditions at a time advertises some that are covered. So the rules for questions and rows,
and for conditions, are for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gapless.sim.checkers import Violation
from gapless.sim.conditions import Between, Both, Condition, Either, Everything
from gapless.sim.observer import Advertised, Observer, Wish
from gapless.sim.plan import Plan

Span: TypeAlias = tuple[int, int]
#: A cell that knowledge leaves, the cell that it goes to, and the pubend.
Crossing: TypeAlias = tuple[str, str, str]

#: A message may arrive twice, and be answered or passed on twice.
ARRIVALS_MAX = 2


@dataclass(slots=True)
class _Said:
    """What a broker has advertised towards one root, version by version."""

    versions: dict[int, frozenset[tuple[str, object]]] = field(default_factory=dict)
    #: The parts that were sent so far, by version and base.
    added: dict[tuple[int, int | None], set[tuple[str, object]]] = field(default_factory=dict)
    removed: dict[tuple[int, int | None], set[tuple[str, object]]] = field(default_factory=dict)


@dataclass(slots=True)
class _Live:
    """A live subscription: where it is, and what it asked for last."""

    edge: str
    topic: str
    condition: Condition


class Cost(Observer):
    """Watches all links for waste."""

    def __init__(
        self,
        plan: Plan,
        time_us: Callable[[], int],
        *,
        repeat_min_ms: int,
        is_roomy: bool,
        is_thorough: bool,
    ) -> None:
        self._plan = plan
        self._time_us = time_us
        #: Moments that are so far apart may be a repetition interval apart for a clock of milliseconds.
        self._repeat_us = (repeat_min_ms - 1) * 1_000
        #: Brokers never forget because of their bounds.
        self._is_roomy = is_roomy
        #: Brokers compare all conditions at once.
        self._is_thorough = is_thorough
        #: By broker and pubend, what was asked for and neither heard of nor acked since, and when.
        self._open: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        #: The log that a broker has heard of last, and the life of its host then.
        self._logs: dict[tuple[str, str], tuple[str, int]] = {}
        self._asked: dict[Crossing, list[Span]] = {}
        #: By sender, receiver, cell and pubend, the past last called final: two of a cell may both need it.
        self._final: dict[tuple[str, str, str, str], int] = {}
        self._copies: Counter[tuple[Crossing, int]] = Counter()
        #: How often a broker of the one cell asked another to pass a row on to the other cell.
        self._aside: Counter[tuple[Crossing, int]] = Counter()
        self._said: dict[tuple[str, str], _Said] = {}
        self._live: dict[str, _Live] = {}

    # ---- questions -----------------------------------------------------------------------------------

    def nack_sent(self, sender: str, receiver: str, pubend: str, start: int, stop: int) -> None:
        """The same was not asked for just before, unless the answer has come since."""
        now = self._time_us()
        recent = [each for each in self._open.get((sender, pubend), ()) if each[2] > now - self._repeat_us]
        for low, high, at in recent if self._is_roomy else ():
            # At one moment the same question may go to all brokers of a cell.
            if at < now and low < stop and start < high:
                text = f"asked for {start}..{stop} only {(now - at) // 1_000} ms after {low}..{high}"
                raise Violation("cost", text, subject=f"{sender}->{receiver}", pubend=pubend)
        self._open[sender, pubend] = [*recent, (start, stop, now)]
        cells = self._plan.cell_of
        self._asked.setdefault((cells[receiver], cells[sender], pubend), []).append((start, stop))

    def knowledge_heard(self, broker: str, pubend: str, spans: Sequence[Span]) -> None:
        """What has been answered may be forgotten, and asked for again."""
        questions = self._open.get((broker, pubend))
        if questions:
            self._open[broker, pubend] = _without(questions, spans)

    def log_heard(self, broker: str, pubend: str, log: str, life: int) -> None:
        """What was asked of a log that is lost has to be asked of the one that took its place."""
        if self._logs.get((broker, pubend)) != (log, life):
            self._logs[broker, pubend] = (log, life)
            self._open.pop((broker, pubend), None)

    def ack_sent(self, sender: str, pubend: str, before: int) -> None:
        """What nobody needs any more may be wanted by a newcomer."""
        self.knowledge_heard(sender, pubend, [(-(2**63), before)])

    def crashed(self, broker: str) -> None:
        """A broker that restarts knows nothing of what it has asked for, and says anew what is wanted."""
        # Under lower versions than before, if it has lost its folder and nobody remembers them.
        self._said = {key: value for key, value in self._said.items() if key[0] != broker}
        self._open = {key: value for key, value in self._open.items() if key[0] != broker}
        self._final = {key: value for key, value in self._final.items() if key[0] != broker}

    # ---- knowledge -----------------------------------------------------------------------------------

    def silence_sent(self, sender: str, receiver: str, cell: str, pubend: str, spans: Sequence[Span]) -> None:
        """Somebody of the cell asked for some of it."""
        *runs, (past, final) = spans
        told = self._final.get((sender, receiver, cell, pubend), past) if runs else past
        self._final[sender, receiver, cell, pubend] = final
        asked = self._asked.get((self._plan.cell_of[sender], cell, pubend), ())
        news = [*runs, (told, final)]
        if not any(max(low, start) < min(high, stop) for low, high in news for start, stop in asked):
            text = f"told of silence in {runs}, for which nobody in {cell} has asked"
            raise Violation("cost", text, subject=f"{sender}->{receiver}", pubend=pubend)

    def rows_sent(self, sender: str, receiver: str, cell: str, pubend: str, ticks: Sequence[int]) -> None:
        """A row crosses again only as often as it is asked for."""
        cells = self._plan.cell_of
        if not self._is_roomy:
            return
        crossing = (cells[sender], cell, pubend)
        counts = self._copies if cells[receiver] == cell else self._aside
        for tick in ticks:
            counts[crossing, tick] += 1
            copies = self._copies[crossing, tick]
            if copies > 1:
                questions = sum(start <= tick < stop for start, stop in self._asked.get(crossing, ()))
                if copies > 1 + ARRIVALS_MAX * (questions + self._aside[crossing, tick]):
                    text = f"sent to {cell} {copies} times, with {questions} questions from there"
                    raise Violation("cost", text, subject=f"{sender}->{receiver}", pubend=pubend, tick=tick)

    # ---- conditions ----------------------------------------------------------------------------------

    def subscribed(self, wish: Wish) -> None:
        """One more condition that may have to be advertised."""
        self._live[wish.subscription] = _Live(wish.edge, wish.topic, wish.condition)

    def changing(self, subscription: str, condition: Condition) -> None:
        """In the end the last condition alone is wanted."""
        self._live[subscription].condition = condition

    def asked(self, subscription: str, condition: Condition) -> None:
        """One that comes back may ask for what several conditions need."""
        self._live[subscription].condition = condition

    def roamed(self, subscription: str, edge: str) -> None:
        """Its condition is needed at another edge from now on."""
        self._live[subscription].edge = edge

    def ended(self, subscription: str) -> None:
        """One condition less."""
        del self._live[subscription]

    def advertised(self, said: Advertised) -> None:
        """Put the parts and the differences of an advertisement together."""
        known = self._said.setdefault((said.broker, said.root), _Said())
        key = (said.version, said.base)
        added, removed = known.added.setdefault(key, set()), known.removed.setdefault(key, set())
        added |= set(said.added)
        removed |= set(said.removed)
        if said.total is None or len(added) + len(removed) == said.total:
            before = frozenset() if said.base is None else known.versions.get(said.base)
            if before is not None:
                known.versions[said.version] = (before - removed) | added

    def unfinished(self) -> Violation | None:
        """Somebody who advertises what is covered, though nothing changes: a violation if it stays so."""
        for (broker, root), said in self._said.items() if self._is_thorough else ():
            if not said.versions:
                continue
            advertised = Counter(topic for topic, _ in said.versions[max(said.versions)])
            for topic, count in sorted(advertised.items()):
                needed = _uncovered(self._wanted_below(broker, root, topic))
                if count > len(needed):
                    text = f"advertises {count} conditions on {topic}; needed: {', '.join(map(str, needed))}"
                    return Violation("cost", text, subject=broker)
        return None

    def _wanted_below(self, broker: str, root: str, topic: str) -> list[Condition]:
        """What the live subscriptions at and behind a broker want, seen from a root."""
        cell = self._plan.cell_of[broker]
        return [
            each.condition
            for each in self._live.values()
            if each.topic == topic and cell in self._way(self._plan.cell_of[each.edge], root)
        ]

    def _way(self, cell: str, root: str) -> list[str]:
        """The cells from one to a root; links form a tree, so there is one way."""
        ways = [[root]]
        for way in ways:  # grows while we walk it
            if way[-1] == cell:
                return way
            for one, other in self._plan.links:
                for here, there in ((one, other), (other, one)):
                    if here == way[-1] and there not in way:
                        ways.append([*way, there])
        return []


def _without(questions: Iterable[tuple[int, int, int]], spans: Iterable[Span]) -> list[tuple[int, int, int]]:
    """The same questions without these ticks."""
    left = list(questions)
    for low, high in spans:
        cut: list[tuple[int, int, int]] = []
        for start, stop, at in left:
            cut += [
                (first, last, at)
                for first, last in ((start, min(stop, low)), (max(start, high), stop))
                if first < last
            ]
        left = cut
    return left


def _uncovered(conditions: Iterable[Condition]) -> list[Condition]:
    """The conditions that no other one covers, by a covering that finds the plain cases only."""
    left: list[Condition] = []
    for condition in conditions:
        if not any(_covers(other, condition) for other in left):
            left = [other for other in left if not _covers(condition, other)] + [condition]
    return left


def _covers(wide: Condition, narrow: Condition) -> bool:
    if wide == narrow or isinstance(wide, Everything):
        return True
    if isinstance(narrow, Both) and (_covers(wide, narrow.one) or _covers(wide, narrow.other)):
        return True
    if isinstance(wide, Either) and (_covers(wide.one, narrow) or _covers(wide.other, narrow)):
        return True
    if isinstance(wide, Between) and isinstance(narrow, Between):
        return wide.column == narrow.column and wide.low <= narrow.low and narrow.high <= wide.high
    return False
