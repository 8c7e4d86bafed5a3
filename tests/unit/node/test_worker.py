"""Work in a thread: who hears of its end, and when."""

import asyncio
import threading

import pytest

from gapless.node.worker import Worker

#: Far longer than the work of these tests takes.
PATIENCE_S = 30.0


def test_quick_work_is_answered_before_the_call_returns() -> None:
    async def story() -> None:
        worker = Worker("test")
        answers: list[object] = []
        ended = worker.do_quickly(lambda: 7, lambda *answer: answers.append(answer), PATIENCE_S)
        assert ended
        assert answers == [(7, None)]
        await worker.close()

    asyncio.run(story())


def test_slow_work_is_answered_by_the_loop_once() -> None:
    async def story() -> None:
        worker = Worker("test")
        go = threading.Event()
        answers: list[object] = []
        answered = asyncio.Event()

        def then(*answer: object) -> None:
            answers.append(answer)
            answered.set()

        assert not worker.do_quickly(lambda: go.wait(PATIENCE_S), then, 0.0)
        assert answers == []
        go.set()
        await asyncio.wait_for(answered.wait(), PATIENCE_S)
        await worker.close()
        assert answers == [(True, None)]

    asyncio.run(story())


def test_an_error_of_quick_work_reaches_its_caller() -> None:
    async def story() -> None:
        worker = Worker("test")
        errors: list[BaseException | None] = []

        def fail() -> None:
            raise OSError("injected")

        assert worker.do_quickly(fail, lambda _, error: errors.append(error), PATIENCE_S)
        assert [str(error) for error in errors] == ["injected"]
        await worker.close()

    asyncio.run(story())


@pytest.mark.parametrize("pieces", [200])
def test_every_piece_is_answered_once_when_patience_and_work_end_together(pieces: int) -> None:
    async def story() -> None:
        worker = Worker("test")
        answers: list[int] = []
        for number in range(pieces):
            worker.do_quickly(lambda number=number: number, lambda got, _: answers.append(got), 2e-5)  # type: ignore[misc]
        await worker.close()
        await asyncio.sleep(0)
        assert sorted(answers) == list(range(pieces))

    asyncio.run(story())
