"""Work in a thread: who hears of its end, and when."""

import asyncio
import threading

from gapless.node.worker import Worker

#: Far longer than the work of these tests takes.
PATIENCE_S = 30.0


def test_work_is_answered_by_the_loop_once_and_in_order() -> None:
    async def story() -> None:
        worker = Worker("test")
        go = threading.Event()
        answers: list[object] = []
        worker.do(lambda: go.wait(PATIENCE_S), lambda *answer: answers.append(answer))
        worker.do(lambda: 7, lambda *answer: answers.append(answer))
        assert answers == []
        go.set()
        await worker.close()
        await asyncio.sleep(0)
        assert answers == [(True, None), (7, None)]

    asyncio.run(story())


def test_an_error_of_the_work_reaches_its_caller() -> None:
    async def story() -> None:
        worker = Worker("test")
        errors: list[BaseException | None] = []

        def fail() -> None:
            raise OSError("injected")

        worker.do(fail, lambda _, error: errors.append(error))
        await worker.close()
        await asyncio.sleep(0)
        assert [str(error) for error in errors] == ["injected"]

    asyncio.run(story())
