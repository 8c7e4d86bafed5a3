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
| receipt | what has a receipt is in the log, at the tick that the receipt names |
| one_to_one | a row, and a number of a publisher, is in the logs at most once |
| publisher_order | the numbers of a publisher ascend, in the log and for every subscriber |
| refused | what was refused for good is never stored, and nothing is taken as given up that was not |
| release | nothing is released that a live subscription still has to take |
| gap | of a lost log every subscriber is told, and of no gap that is none |
| routing | a row crosses a link only if somebody behind it wants it |
| memory | brokers stay within the bounds of their parameters |
| cost | nothing is sent that nobody asked for or needs (`cost.py`) |
| liveness | once healed, everybody gets everything, and the logs are released |
| invariant | no assertion of a broker fails, and its effects make sense to a host |
"""

from __future__ import annotations

import traceback
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gapless.sim.conditions import Condition, Row
from gapless.sim.observer import Observer, Wish
from gapless.sim.plan import Below, Plan

CHECKERS = (
    "exactly_once",
    "order",
    "gapless",
    "filter",
    "start",
    "durability",
    "receipt",
    "one_to_one",
    "publisher_order",
    "refused",
    "release",
    "gap",
    "routing",
    "memory",
    "cost",
    "liveness",
    "resumption",
    "credit",
    "acks",
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


def invariant_broken(error: Exception, subject: str) -> Violation:
    """The violation that an assertion of a machine has found."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"
    return Violation("invariant", text, subject=subject)


@dataclass(slots=True)
class _Truth:
    """What really happened at one pubend."""

    #: The ticks of all durable events, in the order in which they became durable.
    ticks: list[int] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    released: int = 0
    #: What the log was told to release; nobody can be promised less from then on.
    releasing: int = 0
    #: How often it lost events; the logs that it had, each with how often that was before it began.
    losses: int = 0
    logs: dict[str, int] = field(default_factory=dict)
    #: Whoever reads a log that began before this loss has to be told of it.
    noticeable: int = 0
    #: The events that were lost, with the tick of each and the loss.
    gone: dict[int, tuple[int, int, Row]] = field(default_factory=dict)

    def gone_at(self, tick: int) -> bool:
        """Whether an event with this tick was lost."""
        return any(tick == each for each, _, _ in self.gone.values())


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
    #: The ids of the rows that were taken.
    taken: set[int] = field(default_factory=set)
    #: The ids of rows that its program had before it lost its memory, and may get again.
    spared: set[int] = field(default_factory=set)
    #: Of logs that are lost: the ids and ticks of the rows that were taken.
    taken_lost: set[tuple[int, int]] = field(default_factory=set)
    last: int = -1
    #: The moment of the last change.
    changed: int = -1
    #: The log that it reads, and the one that it has just left; how many losses there had been when it began.
    log: str = ""
    moved_from: str | None = None
    first_loss: int = 0
    #: The gaps that it was told of: after which loss, from where on it gets nothing of the old log, and where
    #: the new one begins.
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    #: The gaps of a log that is not lost: what was released before it came back.
    skipped: list[tuple[int, int]] = field(default_factory=list)

    def is_told_of(self, tick: int) -> bool:
        """Whether it knows that it does not get a tick."""
        gaps = (*((lost_from, start) for _, lost_from, start in self.gaps), *self.skipped)
        return any(lost_from <= tick < start for lost_from, start in gaps)

    def take(self, row_id: int, tick: int, *, is_gone: bool) -> None:
        """A row was taken, perhaps of a log that is lost."""
        if is_gone:
            self.taken_lost.add((row_id, tick))
        else:
            self.taken.add(row_id)

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
    #: What it asks its edge for, if that is more than its last condition.
    asked: Condition | None = None
    #: In total order, the last event it took.
    last: tuple[int, str] = (-1, "")
    #: The last number that it took of each publisher.
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def last_wish(self) -> Condition:
        """The condition that it asked for last."""
        if self.asked is not None:
            return self.asked
        return self.changes[-1] if self.changes else self.wish.condition


@dataclass(frozen=True, slots=True)
class _Published:
    """A row as its program published it."""

    program: str
    identity: str
    number: int


#: Refusals that say nothing of whether the event is stored: it was given up, or its topic is elsewhere.
_TAKEN_AS_GIVEN_UP = "E102"
_UNDECIDED = frozenset({_TAKEN_AS_GIVEN_UP, "E141", "E143"})


class Checkers(Observer):
    """All checkers at once, because they look at the same truth."""

    #: A change decides from no earlier tick on than those before it.
    _changes_ascend = True

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._truths = {pubend: _Truth() for pubend in plan.topic_of}
        self._views: dict[str, _View] = {}
        self._pubends: dict[str, list[str]] = {}
        for pubend, topic in sorted(plan.topic_of.items()):
            self._pubends.setdefault(topic, []).append(pubend)
        self._below = Below(plan)
        #: Every condition that a subscription at an edge ever had, by (edge, topic).
        self._ever: dict[tuple[str, str], dict[Condition, None]] = {}
        #: Edges of which it is known that some subscription wanted the event.
        self._wanted: dict[tuple[str, int], set[str]] = {}
        #: Counts the steps of all brokers: the effects of one step happen at one moment.
        self._moment = 0
        #: Who published each row, and each number of each program; and where the row is stored.
        self._published: dict[int, _Published] = {}
        self._ids: dict[tuple[str, int], int] = {}
        self._stored: dict[int, tuple[str, int]] = {}
        #: Where it was stored in a log that is lost.
        self._stored_lost: dict[int, tuple[str, int]] = {}
        #: The numbers of each identity that are stored, and the last one at each pubend.
        self._numbers: dict[tuple[str, int], int] = {}
        self._last_numbers: dict[tuple[str, str], int] = {}
        #: Rows without an outcome, by program; and rows that were refused for good.
        self._open: dict[str, dict[int, None]] = {}
        self._refused: dict[int, str] = {}
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
            self._check_stored(pubend, tick, row)

    def _check_stored(self, pubend: str, tick: int, row: Row) -> None:
        """A published row is stored once, in the order of its publisher, and not after it was refused."""
        row_id = row["id"]
        assert isinstance(row_id, int)
        published = self._published.get(row_id)
        if published is None:
            return

        def broken(checker: str, text: str) -> Violation:
            name = f"{published.program} {published.identity}#{published.number}"
            return Violation(checker, text, subject=name, pubend=pubend, tick=tick)

        if row_id in self._stored:
            raise broken("one_to_one", "stored again, after {}@{}".format(*self._stored[row_id]))
        number = (published.identity, published.number)
        if number in self._numbers:
            raise broken("one_to_one", f"another row is stored under this number: {self._numbers[number]}")
        if row_id in self._refused:
            raise broken("refused", f"stored, but it was refused with {self._refused[row_id]}")
        last = self._last_numbers.get((pubend, published.identity), -1)
        if published.number < last:
            raise broken("publisher_order", f"stored after number {last}")
        self._stored[row_id] = (pubend, tick)
        self._numbers[number] = row_id
        self._last_numbers[pubend, published.identity] = published.number

    # ---- lost logs -----------------------------------------------------------------------------------

    def log_began(self, pubend: str, log: str) -> None:
        """A log begins anew only when there was a loss."""
        truth = self._truths[pubend]
        if truth.logs and truth.losses <= max(truth.logs.values()):
            raise Violation("gap", "its log began anew, and nothing was lost", subject=pubend, pubend=pubend)
        truth.logs[log] = truth.losses

    def log_lost(self, pubend: str, kept: Sequence[int], *, noticeable: bool) -> None:
        """What is lost is owed to nobody, but whoever would have got it has to be told."""
        truth = self._truths[pubend]
        left = set(kept)
        lost: dict[int, int] = {}
        for tick in truth.ticks:
            if tick not in left:
                row = truth.rows.pop(tick)
                row_id = row["id"]
                assert isinstance(row_id, int)
                truth.gone[row_id] = (tick, truth.losses, row)
                lost[row_id] = tick
        truth.ticks = [tick for tick in truth.ticks if tick in left]
        self._publish_anew(pubend, lost)
        truth.released = truth.releasing = 0
        truth.losses += 1
        if noticeable:
            truth.noticeable = truth.losses
        self._wanted = {key: edges for key, edges in self._wanted.items() if key[0] != pubend}
        for view in self._views.values():
            share = view.shares.get(pubend)
            if share is not None:
                share.cursor = 0
                again = share.taken & lost.keys()
                share.taken -= again
                share.taken_lost.update((row_id, lost[row_id]) for row_id in again)

    def _publish_anew(self, pubend: str, lost: Mapping[int, int]) -> None:
        """What is lost may be published again: a publisher without a receipt sends its events once more."""
        for row_id, tick in lost.items():
            self._stored_lost[row_id] = (pubend, tick)
            published = self._published.get(row_id)
            if published is not None:
                self._stored.pop(row_id, None)
                self._numbers.pop((published.identity, published.number), None)
                self._last_numbers.pop((pubend, published.identity), None)
                for view in self._views.values():
                    view.numbers.pop(published.identity, None)
        for row in self._truths[pubend].rows.values():
            published = self._published.get(row["id"])  # type: ignore[arg-type]
            if published is not None:
                self._last_numbers[pubend, published.identity] = published.number

    def reads(self, subscription: str, pubend: str, log: str) -> None:
        """A subscription goes on in another log when it is told of a gap, and then alone."""
        share = self._views[subscription].shares.get(pubend)
        if share is not None and share.log != log:
            share.moved_from, share.log = share.log, log

    def gap(self, subscription: str, pubend: str, lost_from: int, start: int) -> None:
        """There is a gap between two logs, and one that grew is larger than it was."""
        share, truth = self._views[subscription].shares[pubend], self._truths[pubend]
        if share.moved_from is None and (not share.gaps or lost_from >= share.gaps[-1][1]):
            text = f"told of a gap {lost_from}..{start} in log {share.log}, and nothing was lost"
            raise Violation("gap", text, subject=subscription, pubend=pubend)
        share.moved_from = None
        share.gaps.append((truth.logs[share.log], lost_from, start))

    def _is_behind(self, share: _Share, truth: _Truth) -> bool:
        """Whether a subscription reads a log that has lost something.

        An older copy that nobody can tell from the log may have lost promises as well: nothing is asked of
        it for those who read it.
        """
        return truth.logs.get(share.log, 0) < truth.losses

    def _untold(self, subscription: str, pubend: str) -> Violation | None:
        """A loss that a subscriber has not been told of."""
        view, truth = self._views[subscription], self._truths[pubend]
        share = view.shares[pubend]
        if truth.logs.get(share.log, 0) < truth.noticeable:
            text = f"still reads {share.log}, which is lost"
            return Violation("gap", text, subject=subscription, pubend=pubend)
        if share.moved_from is not None:
            text = f"went on from log {share.moved_from} in {share.log} without being told"
            return Violation("gap", text, subject=subscription, pubend=pubend)
        # What an older copy lacked that was taken for the log until the next loss, nobody knew of.
        noticed = {after - 1 for after in truth.logs.values()}
        for row_id, (tick, loss, row) in truth.gone.items():
            is_known = (row_id, tick) in share.taken_lost or share.is_told_of(tick)
            if tick < share.start or is_known or not share.condition(tick).accepts(row):
                continue
            told = [f"{lost_from}..{start}" for after, lost_from, start in share.gaps if after > loss]
            if told and loss >= share.first_loss and loss in noticed:
                text = f"lost with its log, and in none of the gaps {', '.join(told)}"
                return Violation("gap", text, subject=subscription, pubend=pubend, tick=tick)
        return None

    def ticks_of(self, topic: str) -> list[int]:
        """The ticks of all durable events of a topic, sorted."""
        return sorted(tick for pubend in self._pubends[topic] for tick in self._truths[pubend].ticks)

    # ---- publishers ----------------------------------------------------------------------------------

    def numbered(self, program: str, identity: str, number: int, row_id: int) -> None:
        """Somebody owes the program an answer from now on."""
        self._published[row_id] = _Published(program, identity, number)
        self._ids[program, number] = row_id
        self._open.setdefault(program, {})[number] = None

    def receipted(self, program: str, number: int, pubend: str, tick: int | None) -> None:
        """What has a receipt is stored, and where the receipt says."""
        row_id = self._ids[program, number]
        self._open[program].pop(number, None)
        # A receipt may be under way while the log is lost.
        stored = self._stored.get(row_id, self._stored_lost.get(row_id))
        if stored is None:
            text = "has a receipt, but is not stored"
        elif stored[0] != pubend or tick not in {None, stored[1]}:
            text = "has a receipt for {}@{}, but is stored at {}@{}".format(pubend, tick, *stored)
        else:
            return
        raise Violation("receipt", text, subject=f"{program}#{number}", pubend=pubend, tick=tick)

    def unpublished(self, program: str, number: int, code: str, *, retry: bool) -> None:
        """What is refused for good is not stored, and never will be."""
        row_id = self._ids[program, number]
        is_first = number in self._open[program]
        self._open[program].pop(number, None)
        if code == _TAKEN_AS_GIVEN_UP and is_first:
            text = f"number {number} was refused as given up, but never was"
            raise Violation("refused", text, subject=program)
        if retry or code in _UNDECIDED:
            return
        self._refused[row_id] = code
        stored = self._stored.get(row_id)
        if stored is not None:
            text = f"refused with {code}, but it is stored"
            raise Violation("refused", text, subject=program, pubend=stored[0], tick=stored[1])

    def program_restarted(self, program: str, first: int) -> None:
        """What was refused may be stored when it is published again."""
        for row_id in [each for each in self._refused if self._published[each].program == program]:
            if self._published[row_id].number >= first:
                del self._refused[row_id]

    def program_ended(self, program: str) -> None:
        """Nobody is left to hear an answer."""
        self._open.pop(program, None)

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
            if share is None or share.moment == self._moment or not ticks or self._is_behind(share, truth):
                continue
            if share.is_told_of(min(ticks)):
                # Its start is of an earlier log, and in this one it goes on above what it had of that.
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
        # Also of an older copy of the log, which has the release of then, and events that were to be trimmed.
        truth.releasing = max(truth.releasing, before)
        for subscription in self._views:
            missing = self._unsafe(subscription, pubend, before)
            if missing is not None:
                text = f"released up to {before} before it was taken"
                raise Violation("release", text, subject=subscription, pubend=pubend, tick=missing)

    def _unsafe(self, subscription: str, pubend: str, before: int) -> int | None:
        """The first event below `before` that a subscription would not get if that were released."""
        return self._missing(self._views[subscription], pubend, before)

    def _move(self, subscription: str, edge: str) -> None:
        """A subscriber is at this edge from now on."""
        view = self._views[subscription]
        view.wish = replace(view.wish, edge=edge)
        for condition in (view.wish.condition, *view.changes):
            self._ever.setdefault((edge, view.wish.topic), {})[condition] = None

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
            if truth.gone and truth.gone_at(tick):
                continue
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

    def confirmed(self, subscription: str, pubend: str, start: int, log: str = "") -> None:
        """A start is given once, and takes nothing away that was asked for and still there."""
        view, truth = self._views[subscription], self._truths[pubend]
        if pubend in view.shares:
            text = f"confirmed from {start} on, after it was from {view.shares[pubend].start}"
            raise Violation("start", text, subject=subscription, pubend=pubend)
        cursor = bisect_left(truth.ticks, start)
        share = _Share(start, self._moment, cursor, [(_ALWAYS, view.wish.condition)], first_loss=truth.losses)
        share.log = log
        view.shares[pubend] = share
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

    def asked(self, subscription: str, condition: Condition) -> None:
        """Rows that this accepts may travel to it."""
        self._views[subscription].asked = condition

    def changed(self, subscription: str, pubend: str, condition: Condition, since: int) -> None:
        """A change comes after those before it, and leaves alone what was taken."""
        view, truth = self._views[subscription], self._truths[pubend]
        share = view.shares.get(pubend)
        if share is None:
            text = "changed before the subscription was confirmed"
            raise Violation("start", text, subject=subscription, pubend=pubend)
        if since <= share.last or (since < share.conditions[0][0] and self._changes_ascend):
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
        is_gone = row_id in truth.gone and truth.gone[row_id][0] == tick
        if is_gone:
            row = truth.gone[row_id][2]
        if row is None or row["id"] != row_id:
            raise broken("exactly_once", "taken, but the log has no such event")
        if tick < share.start:
            raise broken("start", f"taken, but the start is {share.start}")
        if not share.condition(tick).accepts(row):
            raise broken("filter", f"taken, but {dict(row)} is not {share.condition(tick)}")
        if (row_id, tick) in share.taken_lost if is_gone else row_id in share.taken:
            raise broken("exactly_once", "taken twice")
        if tick < share.last:
            raise broken("order", f"taken after {share.last}")
        if view.wish.total and (tick, pubend) < view.last:
            raise broken("order", f"taken after {view.last[1]}@{view.last[0]}, in total order")
        if not is_gone:
            self._check_publisher_order(view, row_id, broken)
        for each in self._pubends[view.wish.topic] if view.wish.total else (pubend,):
            # In total order an equal tick of a pubend with a smaller name comes first, too.
            missing = self._missing(view, each, tick + 1 if each < pubend else tick)
            if missing is not None:
                raise broken("gapless", f"not taken before {pubend}@{tick}", missing, each)
        share.take(row_id, tick, is_gone=is_gone)
        share.last = tick
        view.last = (tick, pubend)

    def _check_publisher_order(
        self, view: _View, row_id: int, broken: Callable[[str, str], Violation]
    ) -> None:
        """The numbers of a publisher ascend for whoever takes its events."""
        published = self._published.get(row_id)
        if published is not None:
            last = view.numbers.get(published.identity, -1)
            if published.number < last:
                text = f"number {published.number} of {published.identity} taken after {last}"
                raise broken("publisher_order", text)
            view.numbers[published.identity] = published.number

    def _missing(self, view: _View, pubend: str, before: int) -> int | None:
        """The first matching event of `pubend` below `before` that is owed and was not taken."""
        share = view.shares.get(pubend)
        if share is None:
            return None
        truth = self._truths[pubend]
        if self._is_behind(share, truth):
            return None
        ticks = truth.ticks
        while share.cursor < len(ticks) and ticks[share.cursor] < before:
            tick = ticks[share.cursor]
            # A start may lie in the future, above events that are still to come.
            owed = tick >= share.start and truth.rows[tick]["id"] not in share.taken
            owed = owed and not share.is_told_of(tick) and truth.rows[tick]["id"] not in share.spared
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
        for program, numbers in self._open.items():
            if numbers:
                text = f"number {next(iter(numbers))} never got an answer"
                return Violation("liveness", text, subject=program)
        for subscription, view in self._views.items():
            for pubend in self._pubends[view.wish.topic]:
                if pubend not in view.shares:
                    return Violation("liveness", "never confirmed", subject=subscription, pubend=pubend)
                share = view.shares[pubend]
                untold = self._untold(subscription, pubend)
                if untold is not None:
                    return untold
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
