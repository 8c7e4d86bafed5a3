"""How is a long condition read without a stall? In a thread, one at a time, the principals taking turns.

Reading a condition of a hundred kilobytes, or a short one with many ANDs of ORs, takes up to a few hundred
milliseconds. The result depends only on the text and the schema, so a thread reads it while the event loop
serves everybody else. The frame that carries the condition, and all frames behind it, wait in their
connection (`Connection.hold`). When the condition has been read, the frame is handled again as if it had just
arrived, and finds the result here.

The thread reads one condition of a principal at a time, and after a long one the principal rests, as it does
after a long request. So if one principal sends thousands of conditions, the others wait for at most one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TypeAlias

from gapless.content.condition import Condition
from gapless.content.evaluate import prepare
from gapless.content.language import parse_condition
from gapless.errors import GaplessError, UsageError
from gapless.model.schema import Schema
from gapless.node.guard import Guard
from gapless.node.logs import event_log
from gapless.node.principals import LONG_SECONDS, Principal
from gapless.node.worker import Worker

log = event_log("gapless.reading")

#: Conditions up to this length are read on the event loop: nearly all take 0.2 ms, the worst about 10 ms.
SHORT_CHARACTERS = 200
#: Maximum number of results that wait to be fetched; a client that must wait its turn fetches its own late.
#: Beyond this, the oldest is dropped, and its condition is read again when the frame is handled.
READ_MAX = 64

#: After a long condition, its principal rests this many times as long as reading it took.
REST = 3

Result: TypeAlias = Condition | GaplessError


class NotReadYetError(Exception):
    """A condition must be read in the thread first. Raised before anything has changed."""

    def __init__(self, where: str, schema: Schema) -> None:
        super().__init__(f"a condition of {len(where)} characters")
        self.where = where
        self.schema = schema


@dataclass(slots=True, eq=False)
class _Job:
    client: object
    where: str
    schema: Schema
    #: Called on the loop when the condition is read.
    then: Callable[[], None]
    is_dropped: bool = False
    seconds: float = 0.0

    def read(self) -> Result:
        """Read it; in the thread."""
        began = perf_counter()
        try:
            condition = read_now(self.where, self.schema)
            prepare(condition)
        except GaplessError as error:
            # Its traceback would keep everything alive that was parsed from the text.
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)
        finally:
            self.seconds = perf_counter() - began
        return condition


class Reading:
    """Reads the conditions that clients send."""

    def __init__(self, guard: Guard | None = None) -> None:
        """`guard` is told of our own bugs."""
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        #: Made when the first long condition comes.
        self._worker: Worker | None = None
        self._is_closed = False
        #: Results by client, until they are fetched.
        self._read: OrderedDict[object, tuple[str, Schema, Result]] = OrderedDict()
        #: What waits to be read, at most one condition per client. A principal that rests has an entry, too.
        self._jobs: dict[Principal, deque[_Job]] = {}
        self._by_client: dict[object, _Job] = {}
        #: The principals that are ready to have a condition read, the next one first.
        self._turns: deque[Principal] = deque()
        self._is_busy = False

    def condition(self, client: object, where: str, schema: Schema) -> Condition:
        """The condition that a client sent. Raises UsageError if it is not valid.

        Raises NotReadYetError if reading takes long: call `read`, and ask again when it is done.
        """
        if len(where) <= SHORT_CHARACTERS:
            return read_now(where, schema)
        found = self._read.pop(client, None)
        if found is None or (found[0], found[1]) != (where, schema):
            raise NotReadYetError(where, schema)
        result = found[2]
        if isinstance(result, GaplessError):
            try:
                raise result
            finally:
                # The error and this stack frame refer to each other, and would keep megabytes of text alive.
                del found, result
        return result

    def read(
        self, principal: Principal, client: object, unread: NotReadYetError, then: Callable[[], None]
    ) -> None:
        """Have a condition read, and call `then` when it is. The client has no other one waiting."""
        assert client not in self._by_client, "the frames of a client wait behind the one that is read"
        job = self._by_client[client] = _Job(client, unread.where, unread.schema, then)
        waiting = self._jobs.get(principal)
        if waiting is None:
            waiting = self._jobs[principal] = deque()
            self._turns.append(principal)
        waiting.append(job)
        self._next()

    def forget(self, client: object) -> None:
        """A client is gone."""
        self._read.pop(client, None)
        job = self._by_client.pop(client, None)
        if job is not None:
            job.is_dropped = True

    def trouble(self) -> str | None:
        """What is wrong with the thread; None when all is well."""
        return None if self._worker is None else self._worker.trouble()

    async def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        if self._worker is not None:
            await self._worker.close()

    def _next(self) -> None:
        """Hand the next condition to the thread, if it is free."""
        while self._turns and not self._is_busy and not self._is_closed:
            principal = self._turns.popleft()
            waiting = self._jobs[principal]
            while waiting and waiting[0].is_dropped:
                waiting.popleft()
            if not waiting:
                del self._jobs[principal]
                continue
            job = waiting.popleft()
            self._is_busy = True
            done = partial(self._done, principal, job)
            self._thread().do(job.read, done if self._guard is None else self._guard.call(done))

    def _thread(self) -> Worker:
        if self._worker is None:
            died = None if self._guard is None else self._guard.mistaken
            self._worker = Worker("gapless-conditions", died)
        return self._worker

    def _done(self, principal: Principal, job: _Job, result: Result, error: BaseException | None) -> None:
        self._is_busy = False
        if error is not None:
            raise error
        if job.seconds < LONG_SECONDS:
            self._again(principal)
        else:
            again = self._again if self._guard is None else self._guard.call(self._again)
            self._loop.call_later(REST * job.seconds, again, principal)
            self._next()
        if not job.is_dropped:
            del self._by_client[job.client]
            self._read[job.client] = (job.where, job.schema, result)
            if len(self._read) > READ_MAX:
                self._read.popitem(last=False)
            job.then()

    def _again(self, principal: Principal) -> None:
        """The principal has rested."""
        self._turns.append(principal)
        self._next()


def read_now(where: str, schema: Schema, *, is_kept: bool = False) -> Condition:
    """Read a condition. With `is_kept`, it was accepted before, perhaps by an earlier version."""
    try:
        return parse_condition(where, schema, is_written=is_kept)
    except GaplessError:
        raise
    except Exception as error:
        # Reading changes no state, so only the sender is told, and the node goes on.
        log.error("request_failed", code="E181", reason=repr(error))
        raise UsageError(
            "E181", "internal error while reading this condition; see the log of the node"
        ) from error
