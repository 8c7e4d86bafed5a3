"""How does one broker live in real time? Events are fed in, effects are carried out, one at a time.

The host owns the only reference to the broker. Whatever happens (a frame, a flush, a timer) becomes an
event; the effects of a step go to links, storage and sessions, which may feed further events: those wait
until the step is done. A step that ends with a mistake of our own leaves effects undone that others wait
for, for ever: the host feeds the broker no more, and says so. A node that is gone can be replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, assert_never

from gapless.errors import PeerError, SupersededError, UsageError
from gapless.node.clock import WallClock
from gapless.node.counters import Counters
from gapless.protocol.broker import Broker
from gapless.protocol.creations import Creation
from gapless.protocol.effects import (
    AcceptPublish,
    AppendRecord,
    ConfirmChange,
    ConfirmSubscription,
    Deliver,
    Effect,
    ReadRecords,
    RefusePublish,
    RememberTopics,
    SendMessage,
    StartTimer,
    TellHorizon,
    TrimLog,
)
from gapless.protocol.events import Event, Now, PublishRequested, RecordDurable, TimerFired
from gapless.protocol.path import untold

if TYPE_CHECKING:
    from gapless.node.catalog import Catalog
    from gapless.node.links import BrokerConnections
    from gapless.node.sessions import Sessions
    from gapless.node.storage import Storage

log = logging.getLogger("gapless.host")

#: The events whose steps are charged to publishers.
_CAUSED = (PublishRequested, RecordDurable)


class Host:
    """The loop around one broker."""

    def __init__(self, failed: Callable[[BaseException], None], clock: WallClock) -> None:
        """`failed` hears of a mistake that ended a step in its middle."""
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self.clock = clock
        self._queue: deque[tuple[Event, Callable[[], None] | None]] = deque()
        self._stepping = False
        #: What wakes the broker, and when, in the loop's time.
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        #: When the broker wants to be woken: not before the timer.
        self._fire_at = 0.0
        self._stopped = False
        self._broker: Broker | None = None
        self._links: BrokerConnections | None = None
        self._storage: Storage | None = None
        self._sessions: Sessions | None = None
        self._catalog: Catalog | None = None
        self.counters = Counters()
        self._began = self._loop.time()

    def run(
        self, broker: Broker, links: BrokerConnections, storage: Storage, sessions: Sessions, catalog: Catalog
    ) -> None:
        """From now on events reach this broker, and its effects these."""
        self._broker, self._links, self._storage, self._sessions = broker, links, storage, sessions
        self._catalog = catalog

    def stop(self) -> None:
        """Feed nothing to the broker any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    @property
    def uptime_s(self) -> float:
        """For how long this host has been there."""
        return self._loop.time() - self._began

    def now(self) -> Now:
        """The time of a step."""
        return Now(int(self._loop.time() * 1_000), self.clock.now())

    def feed(self, event: Event, then: Callable[[], None] | None = None) -> None:
        """Let the broker take one step, carry out what it asks for, and call `then`.

        During a step the event waits until that is over. Raises UsageError or PeerError when the event was
        wrong; nothing has changed then.
        """
        if self._stopped:
            return
        if self._stepping:
            self._queue.append((event, then))
            return
        self._stepping = True
        try:
            self._step(event)
            if then is not None:
                then()
            while self._queue:
                queued, then = self._queue.popleft()
                try:
                    self._step(queued)
                    if then is not None:
                        then()
                except (UsageError, PeerError) as error:
                    # An event of our own making cannot be anybody else's mistake.
                    log.exception("refused: %s", error)
        except (UsageError, PeerError):
            raise
        except SupersededError as error:
            assert self._broker is not None
            error.untold = {str(each): tick for each, tick in untold(self._broker.inspect().paths).items()}
            self.stop()
            self._failed(error)
        except Exception as mistake:
            self.stop()
            self._failed(mistake)
            raise
        finally:
            self._stepping = False

    def _step(self, event: Event) -> None:
        assert self._broker is not None
        counters = self.counters
        counters.happened(event)
        # The time of the processor: nobody rests because the machine was busy elsewhere.
        began = thread_time()
        accepted: list[AcceptPublish] = []
        for effect in self._broker.step(event, self.now()):
            counters.asked(effect)
            if isinstance(effect, AcceptPublish):
                # After the deliveries: readers wait for the longer way.
                accepted.append(effect)
            else:
                self._perform(effect)
        for effect in accepted:
            self._perform(effect)
        if isinstance(event, _CAUSED):
            assert self._sessions is not None
            self._sessions.publishing.stepped(thread_time() - began, perf_counter())

    def _perform(self, effect: Effect) -> None:
        assert self._links is not None
        assert self._storage is not None
        assert self._sessions is not None
        match effect:
            case SendMessage():
                self._links.send(effect)
            case Deliver():
                self._sessions.delivery.deliver(effect)
            case TellHorizon():
                self._sessions.delivery.tell_horizon(effect)
            case AppendRecord():
                self._storage.append(effect)
            case AcceptPublish():
                self._sessions.publishing.accepted(effect)
            case RefusePublish():
                self._sessions.publishing.refused(effect)
            case ConfirmSubscription() | ConfirmChange():
                self._sessions.subscriptions.confirmed(effect)
            case ReadRecords():
                self._storage.read(effect)
            case TrimLog():
                self._storage.trim(effect, self.now().clock)
            case RememberTopics(creations=creations):
                # Not within the step: whoever is told of new topics must not be in the middle of old ones.
                self._loop.call_soon(self._learned, creations)
            case StartTimer():
                self._start_timer(effect)
            case _:
                assert_never(effect)

    def _learned(self, creations: tuple[Creation, ...]) -> None:
        assert self._catalog is not None
        if not self._stopped:
            try:
                self._catalog.learned(creations)
            except Exception as mistake:  # noqa: BLE001  # whoever is told of it in part must not go on
                self._failed(mistake)

    def _start_timer(self, effect: StartTimer) -> None:
        # A millisecond later than asked: a timer that fires too early, by the rounding of a clock, would do
        # nothing and not be set again.
        self._fire_at = at = effect.at_ms / 1_000 + 0.001
        if self._timer is not None:
            if self._timer_at <= at:
                # Under load the time is put off with every step: look at it again when the old one has come.
                return
            self._timer.cancel()
        self._call_at(at)

    def _call_at(self, at: float) -> None:
        self._timer, self._timer_at = self._loop.call_at(at, self._fire), at

    def _fire(self) -> None:
        self._timer = None
        if self._fire_at > self._loop.time():
            self._call_at(self._fire_at)
            return
        self.feed(TimerFired())
