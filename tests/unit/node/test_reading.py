"""Long conditions are read in a thread, one of each principal at a time, and nobody waits for them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.language import parse_condition
from gapless.errors import ContentError, UsageError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.node import reading
from gapless.node.config import Limits
from gapless.node.guard import Guard
from gapless.node.principals import Principals
from gapless.node.reading import READ_MAX, SHORT_CHARACTERS, NotReadYetError, Reading

SCHEMA = Schema.parse(TopicId("trades"), {"price": "int", "sym": "string"})
PATIENCE_SECONDS = 10


def long(number: int) -> str:
    """A condition that is not read at once."""
    return f"price = {number} AND sym <> '{'x' * SHORT_CHARACTERS}'"


class Slow:
    """Reads conditions when it is let, and remembers the numbers in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        self.go_on = threading.Semaphore(0)
        monkeypatch.setattr(reading, "read_now", self)

    def __call__(self, where: str, schema: Schema) -> Condition:
        assert threading.current_thread() is not threading.main_thread()
        assert self.go_on.acquire(timeout=PATIENCE_SECONDS)
        self.read.append(where.split()[2])
        return EVERYTHING


class Asker:
    """Asks for conditions as sessions do."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.reading = Reading(guard)
        self.known = Principals(Limits())
        self.done: asyncio.Queue[object] = asyncio.Queue()

    def ask(self, principal: str, client: object, where: str) -> None:
        with pytest.raises(NotReadYetError) as unread:
            self.reading.condition(client, where, SCHEMA)
        self.reading.read(
            self.known.of(principal), client, unread.value, lambda: self.done.put_nowait(client)
        )

    async def heard(self, count: int) -> list[object]:
        return [await asyncio.wait_for(self.done.get(), PATIENCE_SECONDS) for _ in range(count)]


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_a_short_condition_is_read_at_once_and_without_a_thread() -> None:
    async def story() -> None:
        asker = Asker()
        assert asker.reading.condition("a", "price = 7", SCHEMA) == parse_condition("price = 7", SCHEMA)
        with pytest.raises(ContentError):
            asker.reading.condition("a", "cost = 7", SCHEMA)
        assert asker.reading._worker is None
        await asker.reading.close()

    run(story)


def test_a_long_condition_is_there_when_its_frame_comes_again_and_once_only() -> None:
    async def story() -> None:
        asker = Asker()
        asker.ask("token a", "a", long(7))
        assert await asker.heard(1) == ["a"]
        assert asker.reading.condition("a", long(7), SCHEMA) == parse_condition(long(7), SCHEMA)
        with pytest.raises(NotReadYetError):
            asker.reading.condition("a", long(7), SCHEMA)
        await asker.reading.close()

    run(story)


def test_what_is_wrong_with_a_long_condition_is_told_when_its_frame_comes_again() -> None:
    async def story() -> None:
        asker = Asker()
        asker.ask("token a", "a", long(7) + " AND cost = 3")
        await asker.heard(1)
        with pytest.raises(ContentError, match="no column"):
            asker.reading.condition("a", long(7) + " AND cost = 3", SCHEMA)
        await asker.reading.close()

    run(story)


def test_an_internal_error_while_reading_a_condition_is_sent_to_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> Condition:
        raise ZeroDivisionError

    async def story() -> None:
        asker = Asker()
        monkeypatch.setattr(reading, "parse_condition", broken)
        asker.ask("token a", "a", long(7))
        await asker.heard(1)
        with pytest.raises(UsageError, match="internal error"):
            asker.reading.condition("a", long(7), SCHEMA)
        assert asker.reading.trouble() is None
        await asker.reading.close()

    run(story)


def test_principals_take_turns_however_much_one_of_them_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        slow, asker = Slow(monkeypatch), Asker()
        for at in range(3):
            asker.ask("token mallory", f"m{at}", long(at))
        for at in range(10, 12):
            asker.ask("token alice", f"a{at}", long(at))
        for _ in range(5):
            slow.go_on.release()
        await asker.heard(5)
        assert slow.read == ["0", "10", "1", "11", "2"]
        assert not asker.reading._jobs
        await asker.reading.close()

    run(story)


def test_a_principal_rests_after_a_long_one_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(reading, "REST", 1e6)

    async def story() -> None:
        slow, asker = Slow(monkeypatch), Asker()
        asker.ask("token mallory", "m0", long(0))
        asker.ask("token mallory", "m1", long(1))
        slow.go_on.release(3)
        assert await asker.heard(1) == ["m0"]
        asker.ask("token alice", "a", long(2))
        assert await asker.heard(1) == ["a"]
        assert slow.read == ["0", "2"]
        await asker.reading.close()

    run(story)


def test_a_client_that_is_gone_is_not_read_for_and_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        slow, asker = Slow(monkeypatch), Asker()
        for at, client in enumerate("abc"):
            asker.ask("token a", client, long(at))
        asker.reading.forget("a")
        asker.reading.forget("b")
        slow.go_on.release(2)
        assert await asker.heard(1) == ["c"]
        assert slow.read == ["0", "2"], "the first was being read already"
        assert [*asker.reading._read] == ["c"]
        asker.reading.forget("c")
        assert not asker.reading._read
        assert not asker.reading._by_client
        await asker.reading.close()

    run(story)


def test_conditions_that_are_not_fetched_are_dropped_and_read_again() -> None:
    async def story() -> None:
        asker = Asker()
        for at in range(READ_MAX + 1):
            asker.ask(f"token {at}", at, long(at))
        await asker.heard(READ_MAX + 1)
        assert len(asker.reading._read) == READ_MAX
        asker.ask("token 0", 0, long(0))
        await asker.heard(1)
        assert asker.reading.condition(0, long(0), SCHEMA)
        await asker.reading.close()

    run(story)


def test_a_mistake_after_reading_stops_the_node() -> None:
    async def story() -> None:
        mistakes: asyncio.Queue[BaseException] = asyncio.Queue()
        asker = Asker(Guard(mistakes.put_nowait))

        def then() -> None:
            raise ZeroDivisionError

        unread = NotReadYetError(long(7), SCHEMA)
        asker.reading.read(asker.known.of("token a"), "a", unread, then)
        found = await asyncio.wait_for(mistakes.get(), PATIENCE_SECONDS)
        assert isinstance(found, ZeroDivisionError)
        await asker.reading.close()

    run(story)


def test_reading_can_be_closed_while_a_condition_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        slow, asker = Slow(monkeypatch), Asker()
        asker.ask("token a", "a", long(0))
        asker.ask("token b", "b", long(1))
        closing = asyncio.create_task(asker.reading.close())
        slow.go_on.release()
        await asyncio.wait_for(closing, PATIENCE_SECONDS)
        assert slow.read == ["0"], "the others are not read any more"

    run(story)


def test_the_error_of_a_condition_keeps_nothing_of_its_text_alive() -> None:
    """Otherwise hundreds of megabytes wait for the garbage collector."""

    async def story() -> None:
        asker, client = Asker(), object()
        where = "price = 1 AND " + " AND ".join("nothing = 1" for _ in range(100))
        asker.ask("p", client, where)
        await asker.heard(1)
        [(_, _, error)] = asker.reading._read.values()
        assert isinstance(error, ContentError | UsageError)
        assert error.__traceback__ is error.__cause__ is error.__context__ is None
        with pytest.raises((ContentError, UsageError)) as raised:
            asker.reading.condition(client, where, SCHEMA)
        assert "result" not in raised.traceback[-1].frame.f_locals
        await asker.reading.close()

    asyncio.run(story())
