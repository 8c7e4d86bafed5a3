"""Something is called once in the next turn of the loop, however often it was asked for."""

import asyncio

from gapless.node.turn import NextTurn


def test_many_asks_in_one_turn_are_one_call() -> None:
    async def story() -> list[str]:
        calls: list[str] = []
        turn = NextTurn(lambda: calls.append("called"))
        for _ in range(3):
            turn.ask()
        assert calls == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return calls

    assert asyncio.run(story()) == ["called"]


def test_what_asks_while_it_is_called_is_called_in_the_turn_after() -> None:
    async def story() -> list[int]:
        calls: list[int] = []

        def do() -> None:
            calls.append(len(calls))
            if len(calls) < 3:
                turn.ask()

        turn = NextTurn(do)
        turn.ask()
        seen = []
        for _ in range(4):
            await asyncio.sleep(0)
            seen.append(len(calls))
        return seen

    assert asyncio.run(story()) == [1, 2, 3, 3]
