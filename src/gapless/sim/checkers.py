"""Were the promises kept? Outside observers that share no code with what they judge.

Each checker compares what subscribers, publishers and links saw with the ground truth: the events that
are durable in the logs. The first broken promise is raised as a `Violation` that names the checker.

| checker | promise |
| --- | --- |
| exactly_once | nothing is taken twice, and nothing that is not in the log |
| order | ticks ascend per pubend; in total order, (tick, pubend) ascends over the topic |
| gapless | when an event is taken, every matching event before it was taken |
| filter | what is taken matches the condition that decides of its tick |
| start | nothing below the confirmed start; a start that was asked for is honoured |
| durability | nothing is accepted or shown to anybody before it is flushed |
| release | nothing is released that a live subscription still has to take |
| routing | a row crosses a link only if somebody behind it wants it |
| memory | brokers stay within the bounds of their parameters |
| liveness | once healed, everybody gets everything, and the logs are released |
| invariant | no assertion of a broker fails, and its effects make sense to a host |
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gapless.sim.conditions import Condition, Row
from gapless.sim.observer import Observer, Wish

CHECKERS = (
    "exactly_once",
    "order",
    "gapless",
    "filter",
    "start",
    "durability",
    "release",
    "routing",
    "memory",
    "liveness",
    "invariant",
)


#: Below all ticks.
_ALWAYS = -(2**63)


class Violation(Exception):  # noqa: N818  # it is the name of a finding, and not of an error in the simulator
    """A broken promise: which, to whom, and about which event."""

    def __init__(
        self, checker: str, text: str, *, subject: str, pubend: str | None = None, tick: int | None = None
    ) -> None:
        assert checker in CHECKERS, f"there is no checker {checker}"
        super().__init__(checker, text, subject, pubend, tick)
        self.checker = checker
        self.text = text
        #: The subscription, broker or pubend concerned.
        self.subject = subject
        self.pubend = pubend
        self.tick = tick

    def __str__(self) -> str:
        event = "" if self.pubend is None else f" {self.pubend}"
        event += "" if self.tick is None else f"@{self.tick}"
        return f"{self.checker}: {self.subject}{event}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the checkers know of a network beforehand, as plain names and numbers."""

    #: The topic of each pubend.
    topic_of: Mapping[str, str]
    #: The cell that each pubend lives in.
    root_of: Mapping[str, str]
    cell_of: Mapping[str, str]
    #: Pairs of linked cells, which form a tree.
    links: Sequence[tuple[str, str]]
    edges: frozenset[str]
    #: How many bytes of rows, and how many runs, each broker may hold.
    row_bytes_max: Mapping[str, int]
    runs_max: Mapping[str, int]


@dataclass(slots=True)
class _Truth:
    """What really happened at one pubend."""

    #: The ticks of all durable events, in the order in which they became durable.
    ticks: list[int] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    released: int = 0
    #: What the log was told to release; nobody can be promised less from then on.
    releasing: int = 0


@dataclass(slots=True)
class _Share:
    """What one subscription has had of one pubend."""

    start: int
    #: The moment when it was confirmed.
    moment: int
    #: All matching events before this position in the truth's ticks were taken.
    cursor: int
    #: The conditions it had, the last first, each with the tick from which on it decides.
    conditions: list[tuple[int, Condition]]
    taken: set[int] = field(default_factory=set)
    last: int = -1
    #: The moment of the last change.
    changed: int = -1

    def condition(self, tick: int) -> Condition:
        """The condition that decides of a tick."""
        return next(condition for since, condition in self.conditions if since <= tick)


@dataclass(slots=True)
class _View:
    """What one live subscription was promised and has had."""

    wish: Wish
    shares: dict[str, _Share] = field(default_factory=dict)
    #: The conditions it asked for instead, which may decide of some tick by now.
    changes: list[Condition] = field(default_factory=list)
    #: In total order, the last event it took.
    last: tuple[int, str] = (-1, "")

    @property
    def last_wish(self) -> Condition:
        """The condition that it asked for last."""
        return self.changes[-1] if self.changes else self.wish.condition


class Checkers(Observer):
    """All checkers at once, because they look at the same truth."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._truths = {pubend: _Truth() for pubend in plan.topic_of}
        self._views: dict[str, _View] = {}
        self._pubends: dict[str, list[str]] = {}
        for pubend, topic in sorted(plan.topic_of.items()):
            self._pubends.setdefault(topic, []).append(pubend)
        self._below = _Below(plan)
        #: Every condition that a subscription at an edge ever had, by (edge, topic).
        self._ever: dict[tuple[str, str], dict[Condition, None]] = {}
        #: Edges of which it is known that some subscription wanted the event.
        self._wanted: dict[tuple[str, int], set[str]] = {}
        #: Counts the steps of all brokers: the effects of one step happen at one moment.
        self._moment = 0
        #: Set when nothing has changed for long enough that only live subscriptions may attract rows.
        self.settled = False
        self.published = 0
        self.delivered = 0

    def stepped(self, broker: str) -> None:  # noqa: ARG002  # one count for all brokers
        """Tell what happens now from what happened before."""
        self._moment += 1

    # ---- what is true --------------------------------------------------------------------------------

    def durable(self, pubend: str, ticks: Sequence[int], rows: Sequence[Row]) -> None:
        """The log's ticks ascend, and none is below what was released."""
        truth = self._truths[pubend]
        self.published += len(ticks)
        for tick, row in zip(ticks, rows, strict=True):
            if truth.ticks and tick <= truth.ticks[-1]:
                text = f"logged after {truth.ticks[-1]}"
                raise Violation("order", text, subject=pubend, pubend=pubend, tick=tick)
            if tick < truth.released:
                text = f"logged below the released horizon {truth.released}"
                raise Violation("release", text, subject=pubend, pubend=pubend, tick=tick)
            truth.ticks.append(tick)
            truth.rows[tick] = row

    def ticks_of(self, topic: str) -> list[int]:
        """The ticks of all durable events of a topic, sorted."""
        return sorted(tick for pubend in self._pubends[topic] for tick in self._truths[pubend].ticks)

    # ---- publishers ----------------------------------------------------------------------------------

    def accepted(self, pubend: str, ids: Sequence[int], ticks: Sequence[int]) -> None:
        """What is accepted is durable, whole, and not below the start of anybody who was promised it."""
        truth = self._truths[pubend]
        if len(ids) != len(ticks):
            text = f"{len(ids)} rows were published and {len(ticks)} accepted"
            raise Violation("durability", text, subject=pubend, pubend=pubend)
        for row_id, tick in zip(ids, ticks, strict=True):
            row = truth.rows.get(tick)
            if row is None or row["id"] != row_id:
                text = "accepted, but not flushed" if row is None else "accepted with the tick of another row"
                raise Violation("durability", text, subject=pubend, pubend=pubend, tick=tick)
        for view in self._views.values():
            share = view.shares.get(pubend)
            if share is None or share.moment == self._moment or not ticks:
                continue
            if min(ticks) < share.start and (view.wish.wanted is None or view.wish.wanted < share.start):
                text = f"accepted after the subscription was confirmed from {share.start} on"
                subject = view.wish.subscription
                raise Violation("start", text, subject=subject, pubend=pubend, tick=min(ticks))
            if not view.wish.total and share.changed != self._moment and min(ticks) < share.conditions[0][0]:
                text = f"accepted after the condition was confirmed to change at {share.conditions[0][0]}"
                subject = view.wish.subscription
                raise Violation("filter", text, subject=subject, pubend=pubend, tick=min(ticks))

    def releasing(self, pubend: str, before: int) -> None:
        """From now on nobody is owed events below `before` who was not confirmed to get them."""
        truth = self._truths[pubend]
        truth.releasing = max(truth.releasing, before)

    def released(self, pubend: str, before: int) -> None:
        """Nothing is released that a live subscription has not taken."""
        truth = self._truths[pubend]
        if before <= truth.released:
            return
        truth.released = before
        for view in self._views.values():
            missing = self._missing(view, pubend, before)
            if missing is not None:
                text = f"released up to {before} before it was taken"
                subject = view.wish.subscription
                raise Violation("release", text, subject=subject, pubend=pubend, tick=missing)

    # ---- links ---------------------------------------------------------------------------------------

    def rows_sent(self, sender: str, receiver: str, cell: str, pubend: str, ticks: Sequence[int]) -> None:
        """Rows that travel are durable, travel away from their root, and are wanted where they go."""
        truth = self._truths[pubend]
        here = self._plan.cell_of[sender]
        edges = self._below.edges(self._plan.root_of[pubend], here, cell) if here != cell else None
        link = f"{sender}->{receiver}"
        if here != cell and edges is None:
            text = f"a row was sent towards cell {cell}, which is not below {here}"
            raise Violation("routing", text, subject=link, pubend=pubend)
        for tick in ticks:
            if tick not in truth.rows:
                raise Violation("durability", "sent, but not flushed", subject=link, pubend=pubend, tick=tick)
            if edges is not None and not self._is_wanted(pubend, tick, edges):
                text = "nobody below this link wants the row" + (" any more" if self.settled else "")
                raise Violation("routing", text, subject=link, pubend=pubend, tick=tick)

    def _is_wanted(self, pubend: str, tick: int, edges: frozenset[str]) -> bool:
        topic, row = self._plan.topic_of[pubend], self._truths[pubend].rows[tick]
        if self.settled:
            return any(
                view.wish.edge in edges and view.wish.topic == topic and view.last_wish.accepts(row)
                for view in self._views.values()
            )
        wanted = self._wanted.setdefault((pubend, tick), set())
        if not wanted.isdisjoint(edges):
            return True
        for edge in sorted(edges):
            if any(condition.accepts(row) for condition in self._ever.get((edge, topic), ())):
                wanted.add(edge)
                return True
        return False

    # ---- subscribers ---------------------------------------------------------------------------------

    def subscribed(self, wish: Wish) -> None:
        """Somebody is owed something from now on."""
        self._views[wish.subscription] = _View(wish)
        self._ever.setdefault((wish.edge, wish.topic), {})[wish.condition] = None

    def ended(self, subscription: str) -> None:
        """Nothing is owed any more."""
        del self._views[subscription]

    def confirmed(self, subscription: str, pubend: str, start: int) -> None:
        """A start is given once, and takes nothing away that was asked for and still there."""
        view, truth = self._views[subscription], self._truths[pubend]
        if pubend in view.shares:
            text = f"confirmed from {start} on, after it was from {view.shares[pubend].start}"
            raise Violation("start", text, subject=subscription, pubend=pubend)
        cursor = bisect_left(truth.ticks, start)
        view.shares[pubend] = _Share(start, self._moment, cursor, [(_ALWAYS, view.wish.condition)])
        owed = self._missing(view, pubend, truth.released)
        if owed is not None:
            text = f"confirmed from {start} on, but released up to {truth.released}"
            raise Violation("release", text, subject=subscription, pubend=pubend, tick=owed)
        wanted = view.wish.wanted
        if wanted is not None and wanted < start:
            first = bisect_left(truth.ticks, max(wanted, truth.releasing))
            for tick in truth.ticks[first:cursor]:
                if view.wish.condition.accepts(truth.rows[tick]):
                    text = f"wanted from {wanted} on and still there, but confirmed from {start}"
                    raise Violation("start", text, subject=subscription, pubend=pubend, tick=tick)

    def changing(self, subscription: str, condition: Condition) -> None:
        """Rows that the new condition accepts may travel from now on."""
        view = self._views[subscription]
        view.changes.append(condition)
        self._ever.setdefault((view.wish.edge, view.wish.topic), {})[condition] = None

    def changed(self, subscription: str, pubend: str, condition: Condition, since: int) -> None:
        """A change comes after those before it, and leaves alone what was taken."""
        view, truth = self._views[subscription], self._truths[pubend]
        share = view.shares.get(pubend)
        if share is None:
            text = "changed before the subscription was confirmed"
            raise Violation("start", text, subject=subscription, pubend=pubend)
        if since <= share.last or since < share.conditions[0][0]:
            text = f"changed from {since} on, after {share.last} was taken and {share.conditions[0]} decided"
            raise Violation("filter", text, subject=subscription, pubend=pubend, tick=since)
        others = [view.shares[p].conditions for p in self._pubends[view.wish.topic] if p in view.shares]
        ahead = [conditions for conditions in others if len(conditions) > len(share.conditions)]
        if view.wish.total and any(since != each[-1 - len(share.conditions)][0] for each in ahead):
            text = f"changed from {since} on, and of another pubend from another tick on, in total order"
            raise Violation("order", text, subject=subscription, pubend=pubend, tick=since)
        share.conditions.insert(0, (since, condition))
        share.cursor = min(share.cursor, bisect_left(truth.ticks, since))
        share.changed = self._moment

    def taken(self, subscription: str, pubend: str, tick: int, row_id: int) -> None:
        """The event is real, new, wanted, in order, and nothing before it is missing."""
        self.delivered += 1
        view, truth = self._views[subscription], self._truths[pubend]

        def broken(checker: str, text: str, at: int = tick, of: str = pubend) -> Violation:
            return Violation(checker, text, subject=subscription, pubend=of, tick=at)

        share = view.shares.get(pubend)
        row = truth.rows.get(tick)
        if share is None:
            raise broken("start", "taken before the subscription was confirmed")
        if row is None or row["id"] != row_id:
            raise broken("exactly_once", "taken, but the log has no such event")
        if tick < share.start:
            raise broken("start", f"taken, but the start is {share.start}")
        if not share.condition(tick).accepts(row):
            raise broken("filter", f"taken, but {dict(row)} is not {share.condition(tick)}")
        if tick in share.taken:
            raise broken("exactly_once", "taken twice")
        if tick < share.last:
            raise broken("order", f"taken after {share.last}")
        if view.wish.total and (tick, pubend) < view.last:
            raise broken("order", f"taken after {view.last[1]}@{view.last[0]}, in total order")
        for each in self._pubends[view.wish.topic] if view.wish.total else (pubend,):
            # In total order an equal tick of a pubend with a smaller name comes first, too.
            missing = self._missing(view, each, tick + 1 if each < pubend else tick)
            if missing is not None:
                raise broken("gapless", f"not taken before {pubend}@{tick}", missing, each)
        share.taken.add(tick)
        share.last = tick
        view.last = (tick, pubend)

    def _missing(self, view: _View, pubend: str, before: int) -> int | None:
        """The first matching event of `pubend` below `before` that is owed and was not taken."""
        share = view.shares.get(pubend)
        if share is None:
            return None
        truth = self._truths[pubend]
        ticks = truth.ticks
        while share.cursor < len(ticks) and ticks[share.cursor] < before:
            tick = ticks[share.cursor]
            # A start may lie in the future, above events that are still to come.
            owed = tick >= share.start and tick not in share.taken
            if owed and share.condition(tick).accepts(truth.rows[tick]):
                return tick
            share.cursor += 1
        return None

    # ---- brokers -------------------------------------------------------------------------------------

    def weighed(self, broker: str, row_bytes: int, runs: int) -> None:
        """A broker holds no more than its parameters allow."""
        plan = self._plan
        if row_bytes > plan.row_bytes_max[broker]:
            text = f"{row_bytes} bytes of rows, at most {plan.row_bytes_max[broker]}"
            raise Violation("memory", text, subject=broker)
        if runs > plan.runs_max[broker]:
            raise Violation("memory", f"{runs} runs, at most {plan.runs_max[broker]}", subject=broker)

    # ---- after healing -------------------------------------------------------------------------------

    def unfinished(self) -> Violation | None:
        """What is still owed to somebody, as the violation that it would be if it stayed so."""
        for subscription, view in self._views.items():
            for pubend in self._pubends[view.wish.topic]:
                if pubend not in view.shares:
                    return Violation("liveness", "never confirmed", subject=subscription, pubend=pubend)
                share = view.shares[pubend]
                if len(share.conditions) <= len(view.changes):
                    text = "a change of its condition was never confirmed"
                    return Violation("liveness", text, subject=subscription, pubend=pubend)
                ticks = self._truths[pubend].ticks
                tick = self._missing(view, pubend, ticks[-1] + 1) if ticks else None
                if tick is not None:
                    text = f"never taken ({share.condition(tick)})"
                    return Violation("liveness", text, subject=subscription, pubend=pubend, tick=tick)
        for pubend, truth in self._truths.items():
            if truth.ticks and truth.released <= truth.ticks[-1]:
                text = f"never released: the horizon is {truth.released}"
                return Violation("liveness", text, subject=pubend, pubend=pubend, tick=truth.ticks[-1])
        return None


class _Below:
    """Which edges are behind a link, seen from a root? In a tree: all that cannot be reached without it."""

    def __init__(self, plan: Plan) -> None:
        self._near: dict[str, list[str]] = {cell: [] for cell in plan.cell_of.values()}
        for one, other in plan.links:
            self._near[one].append(other)
            self._near[other].append(one)
        self._edges: dict[str, list[str]] = {}
        for edge in sorted(plan.edges):
            self._edges.setdefault(plan.cell_of[edge], []).append(edge)
        self._known: dict[tuple[str, str, str], frozenset[str] | None] = {}

    def edges(self, root: str, here: str, there: str) -> frozenset[str] | None:
        """The edges at and behind the neighbour cell `there`; None when it is not below `here`."""
        key = (root, here, there)
        if key not in self._known:
            self._known[key] = self._found(root, here, there)
        return self._known[key]

    def _found(self, root: str, here: str, there: str) -> frozenset[str] | None:
        if there not in self._near[here]:
            return None
        behind = [there]
        for cell in behind:  # grows while we walk it
            behind += [near for near in self._near[cell] if near != here and near not in behind]
        if root in behind:
            return None
        return frozenset(self._edges_of(behind))

    def _edges_of(self, cells: Iterable[str]) -> Iterable[str]:
        for cell in cells:
            yield from self._edges.get(cell, ())
