"""Was the last mile kept? What subscribers that come and go over connections were promised.

These outside observers share no code with what they judge, and extend those of `checkers`.

| checker | promise |
| --- | --- |
| resumption | a subscription that an edge holds loses nothing, and resumes at its horizon |
| credit | a connection brings no more rows than the subscriber had room for, which never grows |
| acks | nothing is acknowledged that the program is not done with |
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gapless.model.ids import PubendId
from gapless.sim.checkers import Checkers, Violation
from gapless.sim.conditions import Condition
from gapless.sim.plan import Plan


@dataclass(slots=True)
class _Conversation:
    """What is known of one subscriber's connections."""

    #: What holds its subscription at some edge; empty when nothing does.
    holder: str = ""
    is_named: bool = False
    #: The folder of its edge was lost since it was told that it stands.
    is_forgotten: bool = False
    #: The folder of its edge was replaced by an older copy that has the name, at the positions of then.
    is_older: bool = False
    #: Per pubend, the horizon that it was told.
    told: dict[str, int] = field(default_factory=dict)
    #: Rows that it has room for on this connection, less those that have come; and how many it had at first.
    room: int = 0
    room_max: int = 0
    #: Per pubend, the rows that have come.
    arrived: dict[str, set[int]] = field(default_factory=dict)
    #: Per pubend, the events that the program is done with.
    finished: dict[str, set[int]] = field(default_factory=dict)
    #: Per pubend, where the search for unfinished events goes on.
    cursors: dict[str, int] = field(default_factory=dict)


class SessionCheckers(Checkers):
    """The checkers of subscribers that come over connections."""

    #: Of a change that was not confirmed when its connection broke, the client decides: from what has not
    #: arrived on. A change before it may have been confirmed for a later tick.
    _changes_ascend = False

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._conversations: dict[str, _Conversation] = {}
        #: What holds a subscription and has heard of its last change.
        self._heard: set[str] = set()

    def _of(self, subscription: str) -> _Conversation:
        return self._conversations.setdefault(subscription, _Conversation())

    def _unsafe(self, subscription: str, pubend: str, before: int) -> int | None:
        """An edge that holds a subscription holds what has not come to it. The rest it has, taken or not."""
        conversation = self._of(subscription)
        if not conversation.holder:
            return None
        if conversation.is_named or super()._unsafe(subscription, pubend, before) is None:
            return super()._unsafe(subscription, pubend, before)
        view, truth = self._views[subscription], self._truths[pubend]
        share, arrived = view.shares[pubend], conversation.arrived.get(pubend, set())
        for tick in truth.ticks[share.cursor : bisect_left(truth.ticks, before)]:
            row_id = truth.rows[tick]["id"]
            has = row_id in share.taken or row_id in arrived or tick < share.start or share.is_told_of(tick)
            if not has and self._is_held(subscription, pubend, tick):
                return tick
        return None

    def _is_held(self, subscription: str, pubend: str, tick: int) -> bool:
        """Whether its edge must keep an event for it.

        By the last condition it may want only some of what it wanted before, from a tick on of which the
        subscriber has not heard, and never will if the connection breaks now.
        """
        view, row = self._views[subscription], self._truths[pubend].rows[tick]
        share, has_heard = view.shares[pubend], self._of(subscription).holder in self._heard
        heard = view.changes[len(share.conditions) - 1 :] if has_heard else []
        return all(each.accepts(row) for each in (share.condition(tick), *heard))

    def changing(self, subscription: str, condition: Condition) -> None:
        """No edge has heard of it yet."""
        super().changing(subscription, condition)
        self._heard.discard(self._of(subscription).holder)

    def change_heard(self, holder: str) -> None:
        """From some tick on the edge keeps what the new condition accepts."""
        self._heard.add(holder)

    def arrived(self, subscription: str, pubend: str, row_id: int) -> None:
        """It has the row until its program takes it."""
        self._of(subscription).arrived.setdefault(pubend, set()).add(row_id)

    def ended(self, subscription: str) -> None:
        """Nothing is owed any more."""
        super().ended(subscription)
        self._conversations.pop(subscription, None)

    def roamed(self, subscription: str, edge: str) -> None:
        """Rows that it wants may travel to that edge from now on."""
        self._move(subscription, edge)
        self._of(subscription)

    def held(self, subscription: str, holder: str, *, is_named: bool) -> None:
        """An edge holds it from now on."""
        conversation = self._of(subscription)
        conversation.holder, conversation.is_named = holder, is_named
        conversation.is_forgotten = conversation.is_older = False

    def let_go(self, holder: str) -> None:
        """That edge holds it no longer."""
        for conversation in self._conversations.values():
            if conversation.holder == holder and not conversation.is_named:
                conversation.holder = ""

    def horizon(self, subscription: str, before: Mapping[PubendId, int]) -> None:
        """From there on it resumes, should its connection break."""
        self._of(subscription).told.update({str(pubend): tick for pubend, tick in before.items()})

    def name_lost(self, subscription: str, *, is_gone: bool) -> None:
        """Its edge holds it no longer as it was; whoever comes with the name and no memory begins anew."""
        conversation = self._conversations.get(subscription)
        if conversation is not None:
            conversation.holder = ""
            conversation.is_forgotten |= is_gone
            conversation.is_older |= not is_gone

    def log_lost(self, pubend: str, kept: Sequence[int], *, noticeable: bool) -> None:
        """What was told of the log that is lost holds no longer."""
        super().log_lost(pubend, kept, noticeable=noticeable)
        left = set(kept)
        for conversation in self._conversations.values():
            conversation.told.pop(pubend, None)
            conversation.cursors.pop(pubend, None)
            if pubend in conversation.finished:
                conversation.finished[pubend] &= left

    def gap(self, subscription: str, pubend: str, lost_from: int, start: int) -> None:
        """A gap lies beyond what the subscriber was told, and an edge that holds it has kept all it wants.

        Unless a log was lost.
        """
        view, conversation = self._views[subscription], self._of(subscription)
        share = view.shares[pubend]
        if share.moved_from is not None or (share.gaps and lost_from < share.gaps[-1][1]):
            super().gap(subscription, pubend, lost_from, start)
            return
        told = conversation.told.get(pubend, lost_from)
        if lost_from < told:
            text = f"a gap {lost_from}..{start} was reported, but it was told that it has all below {told}"
            raise Violation("resumption", text, subject=subscription, pubend=pubend, tick=lost_from)
        lost = self._unsafe(subscription, pubend, start)
        if lost is not None:
            text = f"lost in a gap {lost_from}..{start}, but {conversation.holder} held it"
            raise Violation("resumption", text, subject=subscription, pubend=pubend, tick=lost)
        # What came before the gap it has, though its program may not have taken it.
        share.skipped.append((lost_from, start))

    def reborn(self, subscription: str, pubend: str, start: int) -> None:
        """Without a memory it may get again what it was not done with, and must get everything after that."""
        view, truth = self._views[subscription], self._truths[pubend]
        conversation, share = self._of(subscription), view.shares[pubend]
        lost = self._unfinished(subscription, pubend, start)
        if lost is not None and not conversation.is_forgotten:
            text = f"goes on at {start}, and was not done with that"
            raise Violation("resumption", text, subject=subscription, pubend=pubend, tick=lost)
        if conversation.is_forgotten:
            # Neither its edge nor the program knows of an earlier log, nor of an earlier start in this one.
            share.start, share.moved_from, share.first_loss = start, None, truth.losses
        elif conversation.is_older:
            # The copy may be of a name that was forgotten since and begun anew, at a later start than this.
            share.start = min(share.start, start)
        first = bisect_left(truth.ticks, start)
        had = {truth.rows[tick]["id"]: tick for tick in truth.ticks[:first]}
        # Its edge writes positions down now and then, and the log need not have kept what it is done with.
        finished = conversation.finished.setdefault(pubend, set())
        spared = (truth.rows[tick]["id"] for tick in truth.ticks[first:] if tick in finished)
        share.spared.update(row_id for row_id in spared if isinstance(row_id, int))
        share.taken = {row_id for row_id in share.taken if row_id in had}
        share.taken_lost = {each for each in share.taken_lost if each[1] < start}
        share.last = max((had[row_id] for row_id in share.taken), default=-1)
        share.cursor = min(share.cursor, first)
        view.last = (-1, "")
        view.numbers.clear()
        conversation.cursors[pubend] = first

    def credit(self, subscription: str, rows: int, *, is_new: bool) -> None:
        """So much room there is, and never more than at first."""
        conversation = self._of(subscription)
        conversation.room = rows if is_new else conversation.room + rows
        conversation.room_max = conversation.room_max or conversation.room
        if conversation.room > conversation.room_max:
            text = f"asks for {conversation.room} rows, and has room for {conversation.room_max}"
            raise Violation("credit", text, subject=subscription)

    def rows_arrived(self, subscription: str, rows: int) -> None:
        """No more rows come than there is room for."""
        conversation = self._of(subscription)
        conversation.room -= rows
        if conversation.room < 0:
            text = f"{-conversation.room} rows came beyond its credit"
            raise Violation("credit", text, subject=subscription)

    def finished(self, subscription: str, pubend: str, tick: int) -> None:
        """The program is done with it."""
        self._of(subscription).finished.setdefault(pubend, set()).add(tick)

    def acknowledged(self, subscription: str, positions: Mapping[PubendId, int]) -> None:
        """The program is done with everything that is acknowledged."""
        if subscription not in self._views:
            return
        for pubend, before in positions.items():
            early = self._unfinished(subscription, pubend, before)
            if early is not None:
                text = f"acknowledged up to {before}, and the program was not done with that"
                raise Violation("acks", text, subject=subscription, pubend=pubend, tick=early)

    def _unfinished(self, subscription: str, pubend: str, before: int) -> int | None:
        """The first matching event below `before` that the program was owed and is not done with."""
        view, truth = self._views[subscription], self._truths[pubend]
        share = view.shares.get(pubend)
        if share is None or self._is_behind(share, truth):
            return None
        conversation = self._of(subscription)
        finished = conversation.finished.setdefault(pubend, set())
        at = conversation.cursors.get(pubend, 0)
        while at < len(truth.ticks) and truth.ticks[at] < before:
            tick = truth.ticks[at]
            if (
                tick >= share.start
                and tick not in finished
                and not share.is_told_of(tick)
                and share.condition(tick).accepts(truth.rows[tick])
            ):
                return tick
            at += 1
            conversation.cursors[pubend] = at
        return None
