"""Killing the driver, a router and the repository in turn: right answers, and nothing published twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.spark.failures import kill_driver, kill_repository, kill_router, survive


@pytest.mark.long
def test_views_are_right_and_nothing_is_published_twice_after_any_kill(tmp_path: Path) -> None:
    told = asyncio.run(survive(tmp_path, [kill_router, kill_driver, kill_repository]))
    assert told["starts"] >= 2, "the driver was killed, and started again"
    assert told["states"] >= 20
    assert told["changes"] >= 20
