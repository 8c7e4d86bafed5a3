"""Where does knowledge come from? The pubend: it gives each event its tick, and only it never forgets.

A pubend knows its whole past: the events in its log, and silence everywhere else. It assigns ticks
that ascend whatever the clock does, tells nobody of an event before the log has flushed it, answers
curiosity from the log, turns idle time into silence, grants start ticks to new subscriptions, and
releases what nobody needs any more.

Three promises must survive a crash, so they are logged before they are made: that no new event gets a
tick below announced silence (`ReserveRecord`), that nothing an edge was granted will be released without
its ack (`StartRecord`), and that what was called final is never offered again (`ReleaseRecord`).

Implements docs/protocol.md, sections 5, 7 and 9.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
import pyarrow as pa

from gapless.errors import SupersededError
from gapless.model.batch import EventBatch
from gapless.model.epochs import ALWAYS, EPOCH_NONE, Epoch, Epochs, incarnation_of
from gapless.model.ids import BrokerId, PubendId
from gapless.model.logs import UNNAMED, LogLife
from gapless.model.packed import PackedRows
from gapless.model.stream import Run
from gapless.model.ticks import EMPTY, TICK_MAX, TICK_MIN, TICKS_PER_MS, Tick, TickSet
from gapless.protocol.acks import AckRuns
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    BatchRecord,
    Effect,
    ReadRecords,
    Record,
    RefusePublish,
    ReleaseRecord,
    ReserveRecord,
    StartRecord,
    TrimLog,
)
from gapless.protocol.events import Now, PublishRequested, RecordsRead
from gapless.protocol.marks import mark, reached
from gapless.protocol.messages import (
    LIVES_TOLD_MAX,
    KnowledgeMessage,
    LogKnownMessage,
    StartGrantMessage,
    StartRequestMessage,
)
from gapless.protocol.parameters import Parameters

#: A pubend that nobody wants tells so much silence more.
UNWANTED_MAX = 2
IDLE_SILENCE = mark("idle_silence", "a pubend turned idle time into silence")
CLOCK_HELD = mark("clock_held", "the clock was behind the last tick, and ticks went on ascending")
TIME_FOLLOWED = mark("time_followed", "a pubend was asked for ticks beyond its time, and its time followed")
GRANT_REPEATED = mark("grant_repeated", "a start request was repeated and got the same answer")
GRANT_EARLY = mark("grant_early", "a start request came before the advertisement it speaks of, and waited")
GRANT_IN_PAST = mark("grant_in_past", "a start tick in the past was granted")
ACK_CAPPED = mark("ack_capped", "an ack made under older epochs was not believed beyond a newer start tick")
ACK_EXPECTED = mark("ack_expected", "a pubend missed acks and said so")
CURIOSITY_IN_LOG = mark("curiosity_in_log", "curiosity was answered by reading the log")
PUBLISH_FAILED = mark("publish_failed", "a record could not be written and its events were refused")
OLD_LOG_PASSED = mark("old_log_passed", "a new log went on above the ticks that edges had of the old one")
FELL_BEHIND = mark("fell_behind", "a broker heard of a life of its own that is not behind it, and ended")
OLDER_COPY = mark("older_copy", "a pubend heard that others know more of its log than there is")
RECOVERED = mark("pubend_recovered", "a pubend started from a log with history")

#: Start ticks kept per edge; beyond, the two oldest become one that is at least as careful.
STARTS_MAX = 64
#: Grants remembered per edge for repeated requests.
GRANTS_MAX = 256
#: From this many events on, a batch gets its own message: joining it with others would copy it.
TELL_ROWS_WORTH = 512
#: The same in bytes, and the maximum that is joined.
TELL_BYTES_WORTH = 2**18
#: Start requests that wait for their advertisement; beyond, they are dropped and the edge repeats them.
EARLY_MAX = 256
#: Each reservation of an idle pubend covers twice the time of the previous one, up to this many times
#: `reserve_ms`: what a crash skips stays in proportion to the idle time.
RESERVE_GROWTH_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What the log of one pubend still says after a restart. A new log: all defaults."""

    #: One past the highest tick of any event in the log.
    next_tick: Tick = 0
    #: The largest `before` of any ReserveRecord.
    reserved: Tick = 0
    #: The largest `before` of any ReleaseRecord.
    released: Tick = 0
    starts: tuple[StartRecord, ...] = ()
    #: From this tick on the host keeps events although everybody has them.
    kept_from: Tick = TICK_MAX
    #: Of the events below, the host knows that some are lost which not everybody had acked. When the log was
    #: an older copy, what others have of the log that is lost ends here.
    lost_before: Tick = TICK_MIN
    #: The id that the host gave the log, and the tick at which it began; see `LogLife`.
    log_id: str = ""
    began: Tick = TICK_MIN
    #: Nothing was told at or above this tick, whatever was reserved: the host knows it of the life before.
    untold_from: Tick = TICK_MAX

    @property
    def floor(self) -> Tick:
        """No new event gets a tick below this one."""
        # A start in the future that somebody wished for binds nobody else; one that was given "from now on"
        # was the next tick then, and what is published now comes after it.
        given = [record.start for record in self.starts if record.wanted is None]
        # Whoever goes on in this log after another was lost gets nothing below its beginning; and the clock
        # may have been set back since.
        return max([self.next_tick, self.reserved, self.released, self.began, self.lost_before, *given])


@dataclass(frozen=True, slots=True)
class _Pending:
    """An appended record that is not durable yet."""

    token: int
    record: Record
    publish_token: int = -1


@dataclass(slots=True)
class Starts:
    """From which tick on one edge may only be believed under which epoch."""

    #: Ascending epochs with their start ticks.
    entries: list[tuple[Epoch, Tick]] = field(default_factory=list)
    #: Acks of older epochs than this one are worth nothing any more.
    oldest: Epoch = EPOCH_NONE

    def add(self, epoch: Epoch, start: Tick) -> None:
        """Remember a promise: nothing from `start` on is released by an ack older than `epoch`."""
        self.entries = sorted([*self.entries, (epoch, start)])
        while len(self.entries) > STARTS_MAX:
            (_, one), (newer, other) = self.entries[:2]
            self.entries[:2] = [(newer, min(one, other))]

    def limit(self, epoch: Epoch) -> Tick:
        """Up to which tick an ack of this epoch may be believed."""
        if epoch < self.oldest:
            return TICK_MIN
        return min((start for other, start in self.entries if other > epoch), default=TICK_MAX)

    def prune(self, acked: Tick) -> None:
        """Drop entries that no longer matter: all they protect is acked under a newer epoch."""
        while len(self.entries) > 1 and self.entries[1][1] <= acked:
            self.entries.pop(0)
            self.oldest = self.entries[0][0]


@dataclass(slots=True)
class Pubend:
    """The source of one stream of knowledge."""

    pubend: PubendId
    parameters: Parameters
    #: Every tick below is known: an event in the log, or silence for ever. Only grows.
    told: Tick = 0
    #: What is told next begins here: at `told`, but for the first time after a restart. What an earlier life
    #: said above its last event may not have reached everybody, and is silence.
    tell_from: Tick = 0
    #: The next event gets this tick or a later one. Invariant: never below `told`.
    next_tick: Tick = 0
    #: Silence may be told up to here without further logging. Durable.
    reserved: Tick = 0
    #: The events below are not needed by anybody, and the log says so. Durable. Only grows.
    released: Tick = 0
    #: What the last ReleaseRecord in the log says, durable or not. Never below `released`.
    releasing: Tick = 0
    #: The events below were acked by everybody and are promised to nobody. Never below `releasing`.
    releasable: Tick = 0
    #: What is released ends here, whatever was acked: the host wants to keep the rest. Only grows.
    kept_from: Tick = TICK_MAX
    #: Of the events below, some were lost before everybody had acked them.
    lost_before: Tick = TICK_MIN
    #: One past the last durable event.
    events_stop: Tick = TICK_MIN
    pending: deque[_Pending] = field(default_factory=deque)
    starts: dict[BrokerId, Starts] = field(default_factory=dict)
    #: Per edge, the newest grants by (epoch, wanted), for requests that are repeated.
    granted: dict[BrokerId, dict[tuple[Epoch, Tick | None], Tick]] = field(default_factory=dict)
    #: Start requests whose advertisement has not arrived yet.
    early: dict[tuple[BrokerId, Epoch, Tick | None], StartRequestMessage] = field(default_factory=dict)
    #: Asked for and to be read from the log.
    owed: TickSet = EMPTY
    reading: bool = False
    #: Up to here somebody is curious about ticks that are not told yet.
    curious_until: Tick = TICK_MIN
    #: Pairs (ms, told): what had been told when, for AckExpected. At most a few per AET.
    milestones: deque[tuple[int, Tick]] = field(default_factory=deque)
    ack_expected_at_ms: int = 0
    idle_at_ms: int = 0
    #: How many times in a row it was idle and nobody had subscribed to its topic.
    unwanted: int = 0
    token: int = 0
    #: The pubend's own time: never behind the clock, never running backwards.
    time_tick: Tick = 0
    #: The same, had nobody asked for later ticks: what bounds how far `time_tick` may follow such wishes.
    clock_tick: Tick = 0
    time_ms: int = 0
    #: How many times `reserve_ms` the next reservation covers.
    reserve_growth: int = 1
    #: The highest tick that was asked for and lay too far beyond the clock to be followed.
    asked_beyond: Tick = TICK_MIN
    #: The name of its log in this life.
    log: LogLife = UNNAMED
    #: The time when this life began: no event that it adds to the log has a lower tick.
    life_from: Tick = TICK_MIN

    @staticmethod
    def recover(
        pubend: PubendId, parameters: Parameters, log: Recovered, now: Now, incarnation: int = 0
    ) -> Pubend:
        """A pubend that goes on where its log ends."""
        floor = log.floor
        self = Pubend(pubend, parameters, told=floor, next_tick=floor, reserved=log.reserved)
        if log.log_id:
            self.log = LogLife(log.log_id, incarnation, min(floor, log.untold_from), log.next_tick, log.began)
        self.released = self.releasing = self.releasable = log.released
        self.kept_from, self.lost_before = log.kept_from, log.lost_before
        self.events_stop = log.next_tick
        # Not of what was lost: somebody may hold those events, and they were no silence.
        self.tell_from = min(max(log.next_tick, log.released, log.lost_before), floor)
        for record in log.starts:
            self._promise(record)
            self._remember_grant(record)
        self.time_tick, self.clock_tick, self.time_ms = max(floor, now.clock), now.clock, now.ms
        self.life_from = self.time_tick
        # Whatever was told before the crash is as old as AET: ask for its acks at once.
        self.milestones.append((now.ms - parameters.ack_expected_ms, floor))
        self.ack_expected_at_ms = now.ms
        # Announce the silence up to now at once: a subscription "from now on" shall not begin in the past.
        self.idle_at_ms, self.curious_until = now.ms, self.time_tick
        if log.next_tick > 0:
            reached(RECOVERED)
        return self

    def publish(self, event: PublishRequested, rows: pa.RecordBatch | PackedRows, now: Now) -> list[Effect]:
        """Give the rows their ticks and log them. Nobody hears of them before they are durable.

        `rows` are those of the event, in the schema of the topic. Refused while the log is too far behind:
        what waits for the disk is held in memory. Refused also while ticks are too far ahead of time: every
        other pubend in a total order has to follow them.
        """
        waiting = sum(p.record.batch.nbytes for p in self.pending if isinstance(p.record, BatchRecord))
        if waiting > self.parameters.stream_bytes_max:
            reason = f"the log is behind by {waiting} bytes: try again when it has caught up"
            return [RefusePublish(pubend=self.pubend, token=event.token, reason=reason)]
        time = self._time(now)
        ahead_ms = (self.next_tick - time) // TICKS_PER_MS
        if ahead_ms > self.parameters.publish_ahead_ms:
            reason = f"more than one event a microsecond: ticks are {ahead_ms} ms ahead: try again later"
            return [RefusePublish(pubend=self.pubend, token=event.token, reason=reason)]
        self.reserve_growth = 1
        first = max(self.next_tick, time)
        if now.clock < self.next_tick:
            reached(CLOCK_HELD)
        ticks = np.arange(first, first + rows.num_rows, dtype=np.int64)
        self.next_tick = first + rows.num_rows
        encoded = event.encoded if rows is event.rows else None
        batch = EventBatch(ticks, rows, encoded=encoded)
        return [self._append(BatchRecord(batch=batch, note=event.note, weight=event.weight), event.token)]

    def durable(
        self, token: int, now: Now
    ) -> tuple[list[Effect], list[KnowledgeMessage], list[StartGrantMessage]]:
        """All records up to `token` are flushed: now, and only now, tell."""
        effects: list[Effect] = []
        released, reserved = self.released, self.reserved
        batches: list[EventBatch] = []
        grants: list[StartGrantMessage] = []
        while self.pending and self.pending[0].token <= token:
            done = self.pending.popleft()
            match done.record:
                case BatchRecord(batch=batch):
                    batches.append(batch)
                    # One request gets ticks that follow each other.
                    ticks = range(batch.first, batch.last + 1)
                    effects.append(AcceptPublish(pubend=self.pubend, token=done.publish_token, ticks=ticks))
                case ReserveRecord(before=before):
                    self.reserved = max(self.reserved, before)
                case StartRecord():
                    self._remember_grant(done.record)
                    grants.append(self._grant(done.record))
                case ReleaseRecord(before=before):
                    self.released = before
                    self.owed = self.owed.clip(before, TICK_MAX)
                    effects.append(TrimLog(pubend=self.pubend, before=before))
                    effects += self._release()
                case _:
                    assert_never(done.record)
        knowledge = [self._first_time(batch, now) for batch in _told_together(batches)]
        if self.curious_until > self.told:
            knowledge += self._silence(now)
            if self.reserved > reserved:
                # What was asked for while this reservation was on its way may lie beyond it.
                effects += self._reserve(now)
        if self.released > released:
            knowledge.append(self.final())
        return effects, knowledge, grants

    def failed(self, token: int, reason: str) -> list[Effect]:
        """A record was not written: its events were never published, its promise never made."""
        effects: list[Effect] = []
        for pending in list(self.pending):
            if pending.token == token:
                self.pending.remove(pending)
                if isinstance(pending.record, ReleaseRecord):
                    self.releasing = self.released
                if isinstance(pending.record, BatchRecord):
                    reached(PUBLISH_FAILED)
                    effects.append(
                        RefusePublish(pubend=self.pubend, token=pending.publish_token, reason=reason)
                    )
        return effects

    def asked(self, ticks: TickSet, now: Now) -> tuple[list[Effect], list[KnowledgeMessage]]:
        """Somebody below is curious: answer from the log, or with silence up to now."""
        knowledge: list[KnowledgeMessage] = []
        # What is released is known as final to everything in this broker: nobody asks for it here.
        self.owed |= ticks.clip(self.released, self.told)
        if len(self.owed) > self.parameters.stream_runs_max:
            self.owed = TickSet.of(*list(self.owed)[: self.parameters.stream_runs_max // 2])
        effects = self._read_next()
        if ticks.stop > self.told:
            self.curious_until = max(self.curious_until, ticks.stop)
            self._follow(ticks.stop, now)
            knowledge += self._silence(now)
            effects += self._reserve(now)
        return effects, knowledge

    def read(self, event: RecordsRead) -> tuple[list[Effect], list[KnowledgeMessage]]:
        """The log answered: pass it on to whoever is curious, and read on."""
        self.reading = False
        done = TickSet.between(event.ticks.start, event.ticks.stop)
        self.owed -= done
        reached(CURIOSITY_IN_LOG)
        return self._read_next(), [self._retransmission(done, event.batch)]

    def contradicted(self, broker: BrokerId, message: LogKnownMessage) -> None:
        """Somebody knows something else of this pubend than what this log says.

        Raises SupersededError when it is right: this life has fallen behind, or the log is an older copy.
        What this life has added to an older copy is kept: the log begins anew where the copy ends. Whatever
        was lost lies between that and the time when this life began, unless somebody knows of later ticks.
        """
        known, own = message.log, self.log
        has_more = message.known > own.floor or message.events > own.events
        is_behind = known.life > own.life or (known.life == own.life and known != own)
        is_older_copy = known.id == own.id and (is_behind or (has_more and known.life < own.life))
        if is_behind or is_older_copy:
            reached(OLDER_COPY if is_older_copy else FELL_BEHIND)
            # Nobody makes ticks run further ahead of the clock than they may follow.
            seen = min(max(message.known, message.events), self.clock_tick + self._ahead_max)
            raise SupersededError(
                broker,
                own.life,
                max(known.life, own.life),
                older_copy=self.pubend if is_older_copy else None,
                began=own.floor,
                lost_before=max(self.life_from, seen),
            )

    def pass_old_log(self, request: StartRequestMessage, now: Now) -> None:
        """Go on above the ticks that an edge had of an earlier log: it takes nothing below for new."""
        if request.log not in ("", self.log.id) and request.beyond >= self.next_tick:
            reached(OLD_LOG_PASSED)
            self._follow(request.beyond + 1, now)
            self.next_tick = max(self.next_tick, min(request.beyond + 1, self.time_tick))

    def start_requested(
        self, request: StartRequestMessage, known_epoch: Epoch
    ) -> tuple[list[Effect], list[StartGrantMessage]]:
        """An edge asks for a start tick; granted once its subscriptions have arrived here."""
        key = (request.edge, request.epoch, request.wanted)
        before = self.granted.get(request.edge, {}).get((request.epoch, request.wanted))
        if before is not None:
            reached(GRANT_REPEATED)
            record = StartRecord(edge=request.edge, epoch=request.epoch, wanted=request.wanted, start=before)
            return [], [self._grant(record)]
        if known_epoch < request.epoch:
            reached(GRANT_EARLY)
            if len(self.early) < EARLY_MAX:
                self.early[key] = request
            return [], []
        self.early.pop(key, None)
        if any(isinstance(p.record, StartRecord) and _key(p.record) == key for p in self.pending):
            return [], []
        start = self.next_tick
        if request.wanted is not None:
            start = max(request.wanted, self.releasing)
            if start < self.next_tick:
                reached(GRANT_IN_PAST)
        record = StartRecord(edge=request.edge, epoch=request.epoch, wanted=request.wanted, start=start)
        # The promise binds from here on, even though it is made only when the record is durable.
        self._promise(record)
        return [self._append(record)], []

    def advertised(self, known: Epochs) -> tuple[list[Effect], list[StartGrantMessage]]:
        """Subscriptions have arrived here: requests that came before them can be granted."""
        effects: list[Effect] = []
        grants: list[StartGrantMessage] = []
        for request in [r for r in self.early.values() if known.get(r.edge) >= r.epoch]:
            more_effects, more_grants = self.start_requested(request, known.get(request.edge))
            effects += more_effects
            grants += more_grants
        return effects, grants

    def acked(self, runs: AckRuns) -> list[Effect]:
        """Everybody below has acked these runs: release what no promise protects."""
        acked = min(self._believed(runs), self.told)
        for starts in self.starts.values():
            starts.prune(acked)
        self.releasable = max(self.releasable, acked)
        return self._release()

    def retention_moved(self, kept_from: Tick) -> list[Effect]:
        """The host keeps less: release what was acked, and kept for no other reason."""
        self.kept_from = max(self.kept_from, kept_from)
        return self._release()

    def woken(
        self, now: Now, *, wanted: bool = True
    ) -> tuple[list[Effect], list[KnowledgeMessage], Tick | None]:
        """Time has passed: idle silence, reservations, and the tick whose ack is expected, if any.

        When nobody has subscribed to the topic for a while, there is nobody to tell silence to and no need to
        write to the disk for it: there may be very many topics like that.
        """
        effects: list[Effect] = []
        knowledge: list[KnowledgeMessage] = []
        if now.ms >= self.idle_at_ms:
            self.idle_at_ms = now.ms + self.parameters.idle_silence_ms
            self.unwanted = 0 if wanted else self.unwanted + 1
            if self.unwanted <= UNWANTED_MAX:
                knowledge += self._silence(now)
                effects += self._reserve(now)
            effects += self._release()
            if knowledge:
                reached(IDLE_SILENCE)
        return effects, knowledge, self._ack_expected(now)

    def final(self) -> KnowledgeMessage:
        """The past that nobody needs any more, told to those who still ask for it."""
        return self._knowledge((), None, first_time=False)

    def deadline_ms(self) -> int:
        """When `woken` wants to be called."""
        return min(self.idle_at_ms, self.ack_expected_at_ms)

    def check(self) -> None:
        """Raise if an invariant is broken."""
        assert self.tell_from <= self.told <= self.next_tick, (self.tell_from, self.told, self.next_tick)
        ascending = [self.released, self.releasing, self.releasable, self.told]
        assert ascending == sorted(ascending), f"released, releasing, releasable, told: {ascending}"
        tokens = [pending.token for pending in self.pending]
        assert tokens == sorted(tokens), "pending records out of order"

    def _first_time(self, batch: EventBatch, now: Now) -> KnowledgeMessage:
        stop = batch.last + 1
        message = self._knowledge(((self.tell_from, stop, ALWAYS),), batch, first_time=True)
        self.told = self.tell_from = stop
        self.events_stop = stop
        self.idle_at_ms = now.ms + self.parameters.idle_silence_ms
        return message

    def _silence(self, now: Now) -> list[KnowledgeMessage]:
        stop = min(self._time(now), self.reserved)
        for pending in self.pending:
            if isinstance(pending.record, BatchRecord):
                stop = min(stop, pending.record.batch.first)
                break
        if stop <= self.told:
            return []
        message = self._knowledge(((self.tell_from, stop, ALWAYS),), None, first_time=True)
        self.told = self.tell_from = stop
        self.next_tick = max(self.next_tick, stop)
        return [message]

    def _reserve(self, now: Now) -> list[Effect]:
        time = self._time(now)
        if time < self.reserved or any(isinstance(p.record, ReserveRecord) for p in self.pending):
            return []
        before = max(time, self.told) + self.parameters.reserve_ms * self.reserve_growth * TICKS_PER_MS
        self.reserve_growth = min(2 * self.reserve_growth, RESERVE_GROWTH_MAX)
        return [self._append(ReserveRecord(before=before))]

    def _retransmission(self, ticks: TickSet, batch: EventBatch | None) -> KnowledgeMessage:
        runs = tuple((start, stop, ALWAYS) for start, stop in ticks.pairs())
        return self._knowledge(runs, batch, first_time=False)

    def _knowledge(
        self, runs: tuple[Run, ...], batch: EventBatch | None, *, first_time: bool
    ) -> KnowledgeMessage:
        return KnowledgeMessage(
            pubend=self.pubend,
            runs=runs,
            batch=batch if batch is not None and len(batch) else None,
            first_time=first_time,
            final_before=self.released,
            log=self.log,
        )

    def _append(self, record: Record, publish_token: int = -1) -> AppendRecord:
        self.token += 1
        self.pending.append(_Pending(self.token, record, publish_token))
        return AppendRecord(pubend=self.pubend, token=self.token, record=record)

    def _read_next(self) -> list[Effect]:
        if self.reading or not self.owed:
            return []
        self.reading = True
        first = next(iter(self.owed))
        return [ReadRecords(pubend=self.pubend, ticks=first, rows_max=self.parameters.message_rows_max)]

    def _release(self) -> list[Effect]:
        # One at a time: acks that come while it is under way are released together by the next. Silence alone
        # is not worth a record: it frees nothing.
        before = min(self.releasable, self.kept_from)
        if before <= self.releasing or self.releasing > self.released or self.events_stop <= self.released:
            return []
        self.releasing = before
        return [self._append(ReleaseRecord(before=self.releasing))]

    def _promise(self, record: StartRecord) -> None:
        self.starts.setdefault(record.edge, Starts()).add(record.epoch, record.start)
        self.releasable = max(self.releasing, min(self.releasable, record.start))

    def _remember_grant(self, record: StartRecord) -> None:
        grants = self.granted.setdefault(record.edge, {})
        grants[(record.epoch, record.wanted)] = record.start
        if len(grants) > GRANTS_MAX:
            del grants[next(iter(grants))]

    def _grant(self, record: StartRecord) -> StartGrantMessage:
        return StartGrantMessage(
            pubend=self.pubend,
            edge=record.edge,
            epoch=record.epoch,
            wanted=record.wanted,
            start=record.start,
            until=self.told,
            seen=self._seen(record),
            lost_before=self.lost_before,
            log=self.log,
            lives=self._lives(record),
        )

    def _seen(self, record: StartRecord) -> Epoch:
        """The newest epoch of another life of an edge that asked here for a start."""
        life = incarnation_of(record.epoch)
        epochs = (epoch for epoch, _ in self.granted.get(record.edge, ()) if incarnation_of(epoch) != life)
        return max(epochs, default=EPOCH_NONE)

    def _lives(self, record: StartRecord) -> tuple[int, ...]:
        """The other lives of an edge that asked here for a start, newest first."""
        lives = {incarnation_of(epoch) for epoch, _ in self.granted.get(record.edge, ()) if epoch >= 0}
        others = lives - {incarnation_of(record.epoch)}
        return tuple(sorted(others, reverse=True)[:LIVES_TOLD_MAX])

    def _believed(self, runs: AckRuns) -> Tick:
        acked = TICK_MIN
        for stop, stamp in runs:
            limit = min(
                (starts.limit(stamp.get(edge)) for edge, starts in self.starts.items()), default=TICK_MAX
            )
            if limit < stop:
                reached(ACK_CAPPED)
                return max(acked, limit)
            acked = stop
        return acked

    def _ack_expected(self, now: Now) -> Tick | None:
        if now.ms < self.ack_expected_at_ms:
            return None
        aet_ms = self.parameters.ack_expected_ms
        expected = TICK_MIN
        while self.milestones and self.milestones[0][0] + aet_ms <= now.ms:
            expected = self.milestones.popleft()[1]
        self.milestones.append((now.ms, self.told))
        if expected > TICK_MIN:
            # What was expected once stays expected until it is acked.
            self.milestones.appendleft((now.ms - aet_ms, expected))
        self.ack_expected_at_ms = now.ms + max(1, aet_ms // 4)
        expected = min(expected, self.events_stop)
        if self.releasable >= expected:
            return None
        reached(ACK_EXPECTED)
        return expected

    def _time(self, now: Now) -> Tick:
        # While it is ahead of the clock, time goes on at half the pace until the clock has caught up.
        passed = (now.ms - self.time_ms) * TICKS_PER_MS // 2
        self.clock_tick = max(now.clock, self.clock_tick + passed)
        self.time_tick = max(self.clock_tick, self.time_tick + passed)
        self.time_ms = now.ms
        return self.time_tick

    @property
    def _ahead_max(self) -> int:
        """How many ticks the time may be ahead of the clock because somebody asks for it."""
        return self.parameters.ticks_ahead_ms * TICKS_PER_MS

    def _follow(self, wanted: Tick, now: Now) -> None:
        """Somebody waits for silence up to a tick that has not come here: let it be that late here, too.

        In total order an event that ran ahead holds back those of all other pubends until they have come to
        its tick. The clock bounds this, not the time, so that no number of wishes adds up.
        """
        if wanted <= self._time(now):
            return
        if wanted > self.clock_tick + self._ahead_max:
            self.asked_beyond = max(self.asked_beyond, wanted)
            return
        reached(TIME_FOLLOWED)
        self.time_tick = wanted


def _key(record: StartRecord) -> tuple[BrokerId, Epoch, Tick | None]:
    return (record.edge, record.epoch, record.wanted)


def _told_together(batches: list[EventBatch]) -> list[EventBatch]:
    """The same events in order: small batches that follow each other as one, larger ones as they are."""
    told: list[EventBatch] = []
    small: list[EventBatch] = []
    size = 0
    for batch in batches:
        is_small = len(batch) < TELL_ROWS_WORTH and batch.nbytes < TELL_BYTES_WORTH
        if small and (not is_small or size + batch.nbytes > TELL_BYTES_WORTH):
            told.append(EventBatch.joined(small))
            small, size = [], 0
        if is_small:
            small.append(batch)
            size += batch.nbytes
        else:
            told.append(batch)
    return [*told, EventBatch.joined(small)] if small else told
