"""How do records become durable without blocking the event loop? Threads flush them, log by log.

Records appended during a flush make up the next one: a busy log flushes in large groups, an idle log at once.
While the disk is quick, nothing else waits for it and there is little to write, the loop itself flushes: an
event is then stored, confirmed and delivered in one turn of the loop, without a hop to a thread and back.
Large flushes have a thread of their own, so that small ones need not wait for them. So do reads and trims, so
that new events never wait for history.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gapless.errors import StoreError
from gapless.model.batch import EventBatch
from gapless.model.ids import PubendId
from gapless.model.ticks import TICK_MAX, Tick, TickRange
from gapless.node.guard import Guard
from gapless.node.logs import event_log
from gapless.node.quarantine import Quarantine
from gapless.node.telling import Durable, DurableRecords
from gapless.node.turn import NextTurn
from gapless.node.worker import Worker, WorkThread
from gapless.protocol.effects import AppendRecord, BatchRecord, ReadRecords, TrimLog
from gapless.protocol.events import Event, RecordFailed, RecordsRead, RetentionMoved
from gapless.protocol.pubend import Recovered
from gapless.store.contract import Flushed, RecordLog
from gapless.store.keyed import KeyedLog
from gapless.store.log import Log, SegmentArchive

log = event_log("gapless.storage")

#: Trims are collected for this long, because each costs a write to the node's database.
TRIM_SECONDS = 1.0
#: How long to wait before retrying a trim that the disk refused.
TRIM_AGAIN_SECONDS = 2.0
#: Flushes up to this size are quick; larger ones have a thread of their own. After a large flush, the log's
#: next one waits for as long as that took if another log was flushed within `OTHERS_SECONDS`, because they
#: share the disk.
QUICK_BYTES_MAX = 1 * 2**20
OTHERS_SECONDS = 0.1
#: The loop itself does a flush of no more rows and bytes than this if the disk is quick: a thread and a turn
#: of the loop would take longer. More rows are worth overlapping with the disk.
AT_ONCE_ROWS_MAX, AT_ONCE_BYTES_MAX = 8, 16 * 2**10
#: A flush that kept the loop for longer than that was slow. Then a thread does all flushes, for this many
#: times as long as it took: a disk that stalls has at most one part in 25 of the loop.
SLOW_SECONDS, SLOW_TIMES = 0.004, 25
#: A read or trim, or an archiving or tidying run, that takes longer than this is stuck.
READ_SECONDS_MAX = 30.0
ARCHIVE_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """The log of one pubend, for people."""

    log_bytes: int
    #: Events below this tick are gone.
    oldest_tick: Tick
    #: How long events are kept that everybody has, as people write it.
    retention: str


class Storage:
    """The logs of the pubends that live here."""

    def __init__(
        self,
        logs: Mapping[PubendId, RecordLog],
        feed: Callable[[Event], None],
        broken: Callable[[StoreError], None],
        *,
        before_trim: Callable[[], Coroutine[Any, Any, Mapping[PubendId, Tick]]] | None = None,
        flushed: Callable[[float], None] = lambda _: None,
        archives: Mapping[PubendId, SegmentArchive] | None = None,
        make_room: Callable[[], bool] = lambda: False,
        guard: Guard | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        """`feed` receives events for the broker; `broken` is called when a log can no longer be trusted.

        `before_trim` is awaited before a log drops events and their notes; it returns, per pubend, the tick
        up to which notes are no longer needed. `flushed` receives the duration of each flush in seconds.
        `archives` holds the archive of each log that has one. `make_room` frees reserved disk space, and
        returns whether there was any. `guard` is told of everything else that goes wrong, `quarantine` of
        events that are too large to be delivered.
        """
        self._make_room = make_room
        self._guard = guard or Guard(_raised)
        self._quarantine = quarantine or Quarantine()
        self._archives = archives or {}
        #: The highest archived segment of each pubend.
        self._archived: dict[PubendId, int] = {}
        #: The tick from which retention keeps the events of each log, as last reported to the broker.
        self._kept_from: dict[PubendId, Tick] = {}
        self._flush_took = flushed
        self._before_trim = before_trim
        #: Trims that are due: per pubend, the tick below which events may go.
        self._trims: dict[PubendId, Tick] = {}
        self._trimmer: asyncio.TimerHandle | None = None
        self._trimming: asyncio.Task[None] | None = None
        self._now: Tick = 0
        self._logs = dict(logs)
        self._feed = feed
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        # One thread for small flushes and one for large: syncing more logs at once would only make them wait
        # for the same disk, but small flushes need not wait for large ones.
        self._writer = Worker("gapless-flush", self._guard.mistaken)
        self._bulk_writer = Worker("gapless-flush-bulk", self._guard.mistaken)
        self.reader = WorkThread("gapless-read", patience_s=READ_SECONDS_MAX)
        # Converting a segment to Parquet takes seconds; nothing else should wait for it.
        self.archivist = WorkThread("gapless-archive", patience_s=ARCHIVE_SECONDS_MAX)
        self._archiving = False
        #: The task that removes superseded rows, while it runs.
        self._tidying: asyncio.Task[None] | None = None
        #: Logs with a flush under way, or about to begin.
        self._flushing: set[PubendId] = set()
        #: The log that was flushed last, and when that began; then the same for the last one of another log.
        self._last_flush: tuple[PubendId, float] = (PubendId(""), -OTHERS_SECONDS)
        self._last_other = self._last_flush
        #: Until when the loop does no flush because the disk was slow.
        self._slow_until = 0.0
        #: Number of flushes under way.
        self._flushes = 0
        #: Logs with records that no flush has been started for.
        self._appended: dict[PubendId, None] = {}
        #: Records that are not flushed yet, with their rows and bytes; then those to report to the broker.
        self._weights: dict[PubendId, deque[Durable]] = {}
        self._next_turn = NextTurn(self._flush_appended, self._guard)
        self._telling = DurableRecords(feed, self._look_whether_idle, self._guard)
        #: Set while nothing is under way.
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def add(self, pubend: PubendId, log: RecordLog, now: Tick) -> Recovered:
        """Add the log of a pubend that was created here. Returns what the broker must know of it."""
        self._logs[pubend] = log
        return self._recovered(pubend, now)

    def recovered(self, now: Tick) -> dict[PubendId, Recovered]:
        """What a starting broker must know of the logs; `now` is the clock."""
        found = {pubend: self._recovered(pubend, now) for pubend in self._logs}
        # Trims that an earlier run had no time or no room for.
        for pubend, each in found.items():
            if each.released > 0:
                self._trim_in(TRIM_SECONDS, pubend, each.released, now)
        return found

    def _recovered(self, pubend: PubendId, now: Tick) -> Recovered:
        found = self._logs[pubend]
        self._kept_from[pubend] = kept_from = found.kept_from(now)
        return replace(found.recover(), kept_from=kept_from)

    def tick(self, now: Tick) -> None:
        """Called once a second: release what retention no longer keeps, and archive sealed segments."""
        self._now = now
        for pubend, each in self._logs.items():
            kept_from = each.kept_from(now)
            # Each move costs a record, so one that frees less than a hundredth of the log can wait.
            if kept_from >= self._kept_from[pubend] + each.retention.step:
                self._kept_from[pubend] = kept_from
                self._feed(RetentionMoved(pubend=pubend, kept_from=kept_from))
        if self._archives and not self._archiving:
            self._archiving = True
            self.archivist.do(self._archive).add_done_callback(self._guard.call(self._was_archived))
        if self._tidying is None and any(isinstance(each, KeyedLog) for each in self._logs.values()):
            self._tidying = self._guard.task(self._tidy(), "tidy")

    async def _tidy(self) -> None:
        """Remove superseded rows from logs that have many, once they are archived and their notes written."""
        try:
            keyed = {p: each for p, each in self._logs.items() if isinstance(each, KeyedLog)}
            # In the same thread as the archiving, so that no segment is rewritten while it is archived.
            untidy = await self.archivist.do(self._untidy, keyed)
            remembered = await self._remember() if untidy and not self._closed else {}
            for pubend, numbers_up_to in untidy.items():
                if not self._closed:
                    up_to = remembered.get(pubend, TICK_MAX)
                    await self.archivist.do(keyed[pubend].tidy, up_to, numbers_up_to)
        except StoreError as error:
            # It is retried a second later.
            log.repeated("tidy_failed", by=error.code, code=error.code, reason=error.message)
        finally:
            self._tidying = None

    def _untidy(self, logs: Mapping[PubendId, KeyedLog]) -> dict[PubendId, int]:
        """The logs worth tidying, each with the last segment that may be rewritten. Runs in a thread."""
        found: dict[PubendId, int] = {}
        for pubend, each in logs.items():
            up_to = self._archived.get(pubend, 0) if pubend in self._archives else TICK_MAX
            if each.is_untidy(up_to):
                found[pubend] = up_to
        return found

    def _archive(self) -> None:
        """Archive the segments sealed since the last run. Runs in a thread."""
        for pubend, archive in self._archives.items():
            found = on_disk(self._logs[pubend])
            if found is not None:
                self._archived[pubend] = found.archive(archive, self._archived.get(pubend, 0))

    def _was_archived(self, done: asyncio.Future[None]) -> None:
        self._archiving = False
        error = done.exception()
        if isinstance(error, StoreError):
            # It is retried a second later, and nothing is deleted until it succeeds.
            log.repeated("archive_failed", by=error.code, code=error.code, reason=error.message)
        elif error is not None:
            raise error

    def figures(self) -> dict[PubendId, LogFigures]:
        """How large the logs are, and how far back they go."""
        return {
            pubend: LogFigures(
                log_bytes=each.log_bytes, oldest_tick=each.oldest, retention=str(each.retention)
            )
            for pubend, each in self._logs.items()
        }

    @property
    def logs(self) -> Mapping[PubendId, RecordLog]:
        """The logs, for readers other than the broker. Logs are only ever added."""
        return self._logs

    def append(self, effect: AppendRecord) -> None:
        """Append a record and have it flushed."""
        record = effect.record
        note, rows, nbytes, weight = b"", 0, 0, 0
        if isinstance(record, BatchRecord):
            note, weight = record.note, record.weight
            rows, nbytes = len(record.batch) + weight, record.batch.nbytes
        self._logs[effect.pubend].append(effect.token, record, note)
        self._weights.setdefault(effect.pubend, deque()).append(Durable(effect.token, rows, nbytes, weight))
        if effect.pubend not in self._flushing:
            self._flushing.add(effect.pubend)
            self._idle.clear()
            if not self._appended:
                # In the next turn of the loop, so that other records can join; or earlier, by `flush`.
                self._next_turn.ask()
            self._appended[effect.pubend] = None

    def flush(self) -> None:
        """Flush what was appended without waiting for the next turn of the loop: now, if that is quick."""
        self._flush_appended(at_once=len(self._appended) == 1)

    def _flush_appended(self, *, at_once: bool = False) -> None:
        appended, self._appended = self._appended, {}
        for pubend in appended:
            self._flush(pubend, at_once=at_once)

    def read(self, effect: ReadRecords) -> None:
        """Read records. The result arrives as an event."""
        read = self._logs[effect.pubend].read
        task = self.reader.do(read, effect.ticks, effect.rows_max)
        task.add_done_callback(self._guard.call(lambda done: self._was_read(effect, done)))

    def trim(self, effect: TrimLog, now: Tick) -> None:
        """Drop what nobody needs any more, together with other trims of the next `TRIM_SECONDS`."""
        self._trim_in(TRIM_SECONDS, effect.pubend, effect.before, now)

    def _trim_in(self, seconds: float, pubend: PubendId, before: Tick, now: Tick) -> None:
        self._now = max(self._now, now)
        self._trims[pubend] = max(before, self._trims.get(pubend, before))
        if self._trimmer is None and self._trimming is None:
            self._trimmer = self._loop.call_later(seconds, self._guard.call(self._begin_trim))

    def _begin_trim(self) -> None:
        self._trimmer = None
        if not self._closed:
            self._trimming = self._guard.task(self._trim(), "trim")

    async def _trim(self) -> None:
        # Trims that come in from now on wait for the next run: this one's commit may not cover their notes.
        trims, self._trims = self._trims, {}
        try:
            await self._remember()
        except StoreError as error:
            # Freeing disk space takes a little disk space.
            seconds = 0.0 if self._make_room() else TRIM_AGAIN_SECONDS
            self._trimming = None
            for pubend, before in trims.items():
                self._trim_failed(pubend, before, error, seconds)
            return
        self._trimming = None
        if self._trims and not self._closed:
            self._trimmer = self._loop.call_later(TRIM_SECONDS, self._guard.call(self._begin_trim))
        for pubend, before in trims.items():
            if not self._closed:
                self._trim_one(pubend, before)

    async def _remember(self) -> Mapping[PubendId, Tick]:
        return {} if self._before_trim is None else await self._before_trim()

    def _trim_one(self, pubend: PubendId, before: Tick) -> None:
        found, archive = self._logs[pubend], self._archives.get(pubend)
        disk = on_disk(found)
        if archive is not None and disk is not None:
            # In the same thread as the archiving, so that a segment is archived once.
            task = self.archivist.do(disk.trim, before, self._now, archive)
        else:
            task = self.reader.do(found.trim, before, self._now)

        def trimmed(done: asyncio.Future[None]) -> None:
            error = done.exception()
            if isinstance(error, StoreError):
                self._trim_failed(pubend, before, error, TRIM_AGAIN_SECONDS)
            elif error is not None:
                raise error

        task.add_done_callback(self._guard.call(trimmed))

    def _trim_failed(self, pubend: PubendId, before: Tick, error: StoreError, seconds: float) -> None:
        """A trim failed: nothing is lost, it is retried."""
        log.repeated("trim_failed", by=error.code, code=error.code, reason=error.message)
        if not self._closed:
            self._trim_in(seconds, pubend, before, self._now)

    def troubles(self) -> list[str]:
        """The threads that have died or are stuck."""
        writers = (self._writer.trouble(), self._bulk_writer.trouble())
        found = (*writers, self.reader.trouble(), self.archivist.trouble())
        return [trouble for trouble in found if trouble is not None]

    @property
    def is_dead(self) -> bool:
        """Whether nothing will ever become durable again."""
        return self._writer.is_dead or self._bulk_writer.is_dead

    async def idle(self) -> None:
        """Return when every appended record is durable or has failed."""
        await self._idle.wait()

    async def close(self) -> None:
        """Wait for what is under way, and close the logs."""
        self._closed = True
        for task in (self._tidying, self._trimming):
            if task is not None:
                await asyncio.wait([task])
        await self._writer.close()
        await self._bulk_writer.close()
        await self.reader.close()
        await self.archivist.close()
        for each in self._logs.values():
            each.close()

    def _flush(self, pubend: PubendId, *, at_once: bool = False) -> None:
        began = time.perf_counter()
        weights = self._weights[pubend]
        nbytes = sum(each.nbytes for each in weights)
        is_quick = nbytes <= QUICK_BYTES_MAX
        if pubend != self._last_flush[0]:
            self._last_other = self._last_flush
        self._last_flush = (pubend, began)
        self._flushes += 1
        work, then = self._logs[pubend].flush, partial(self._flushed, pubend, began, is_quick=is_quick)
        if at_once and self._flushes == 1 and self._is_done_at_once(pubend):
            self._flush_at_once(work, then, began)
        else:
            (self._writer if is_quick else self._bulk_writer).do(work, then)

    def _is_done_at_once(self, pubend: PubendId) -> bool:
        """Whether a flush is small enough, and the disk quick enough, for the loop to do it."""
        weights = self._weights[pubend]
        return (
            time.perf_counter() >= self._slow_until
            and sum(each.nbytes for each in weights) <= AT_ONCE_BYTES_MAX
            and sum(each.rows for each in weights) <= AT_ONCE_ROWS_MAX
        )

    def _flush_at_once(
        self,
        work: Callable[[], Flushed],
        then: Callable[[Flushed, BaseException | None], None],
        began: float,
    ) -> None:
        flushed, error = Flushed(), None
        try:
            flushed = work()
        except BaseException as raised:  # noqa: BLE001  # as if a thread had done it: an exit, too
            error = raised
        took_s = time.perf_counter() - began
        if took_s > SLOW_SECONDS:
            self._slow_until = began + took_s * (1 + SLOW_TIMES)
        then(flushed, error)

    def _flushed(
        self, pubend: PubendId, began: float, flushed: Flushed, error: BaseException | None, *, is_quick: bool
    ) -> None:
        self._flushes -= 1
        seconds = time.perf_counter() - began
        self._flush_took(seconds)
        if isinstance(error, StoreError):
            self._broken(error)
        elif error is not None:
            self._guard.mistaken(error)
        else:
            try:
                self._was_flushed(pubend, flushed, 0.0 if is_quick else seconds)
            except Exception as mistake:  # noqa: BLE001  # publishers wait for what comes of it
                self._guard.mistaken(mistake)

    def _was_flushed(self, pubend: PubendId, flushed: Flushed, pause_s: float) -> None:
        # Events published after ones that failed must not be stored before those are.
        later = self._logs[pubend].take_back() if flushed.failed else ()
        failed = (*flushed.failed, *later)
        if failed:
            weights = self._weights[pubend]
            self._weights[pubend] = deque(each for each in weights if each.token not in failed)
        durable = self._durable(pubend, flushed)
        if self._weights[pubend] and pause_s and self._others_flush(pubend):
            self._loop.call_later(pause_s, self._guard.call(self._flush), pubend)
        elif self._weights[pubend] and self._is_done_at_once(pubend):
            # First those hear of it whose records are durable.
            self._loop.call_soon(self._guard.call(partial(self._flush, at_once=True)), pubend)
        elif self._weights[pubend]:
            self._flush(pubend)
        else:
            self._flushing.discard(pubend)
        error = flushed.error
        if error is not None:
            self._make_room()
            # Publishers are told as well, but only an operator can make room.
            log.repeated(
                "append_failed", by=(pubend, error.code), pubend=pubend, code=error.code, reason=error.message
            )
        reason = "" if error is None else str(error)
        for token in failed:
            self._feed(RecordFailed(pubend=pubend, token=token, reason=reason))
        self._telling.add(pubend, durable)
        self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if not self._flushing and self._telling.is_done:
            self._idle.set()

    def _others_flush(self, pubend: PubendId) -> bool:
        """Whether another log was flushed recently."""
        last = self._last_other if self._last_flush[0] == pubend else self._last_flush
        return time.perf_counter() - last[1] < OTHERS_SECONDS

    def _durable(self, pubend: PubendId, flushed: Flushed) -> list[Durable]:
        """The records that a flush has made durable."""
        weights = self._weights[pubend]
        durable: list[Durable] = []
        while weights and flushed.token is not None and weights[0].token <= flushed.token:
            durable.append(weights.popleft())
        return durable

    def _was_read(
        self, effect: ReadRecords, done: asyncio.Future[tuple[TickRange, EventBatch | None]]
    ) -> None:
        error = done.exception()
        if error is not None:
            if not isinstance(error, StoreError):
                raise error
            self._broken(error)
            return
        ticks, batch = done.result()
        if batch is not None:
            batch = self._quarantine.without(effect.pubend, batch)
        self._feed(RecordsRead(pubend=effect.pubend, ticks=ticks, batch=batch))


def _raised(mistake: BaseException) -> None:
    raise mistake


def on_disk(log: RecordLog) -> Log | None:
    """The log on disk behind this one; None if it is in memory."""
    found = log.log if isinstance(log, KeyedLog) else log
    return found if isinstance(found, Log) else None
