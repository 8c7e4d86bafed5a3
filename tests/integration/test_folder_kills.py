"""kill -9 at any moment leaves a folder that fits together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gapless.client import connect
from tests.hostile.victim import Victim


@pytest.mark.parametrize("rounds", [2, pytest.param(6, marks=pytest.mark.long)])
def test_a_killed_node_always_starts_again(rounds: int, tmp_path: Path) -> None:
    async def publish(port: int, rows: int) -> None:
        async with (
            connect(f"gapless://127.0.0.1:{port}") as client,
            client.subscribe("mine", name="desk") as mine,
        ):
            for _ in range(rows):
                await client.publish("mine", {"price": 1.0, "note": None})
                await anext(mine)
            assert mine.gaps == []

    with Victim(tmp_path) as victim:
        for round_number in range(rounds):
            asyncio.run(publish(victim.port, 1 + 10 * round_number))
            victim.kill()
            victim.start()
        assert victim.page("/readyz")[0] == 200
