"""Commands of `gapless` in the process of the test: starting one takes much longer than most of them do."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from gapless.cli.main import main
from tests.integration.said import Said


@pytest.fixture
def gapless(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs a command, as `gapless("pub", "trades", stdin="...")`."""

    def run(*arguments: str, stdin: str = "") -> Said:
        monkeypatch.setattr(sys, "argv", ["gapless", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(ended.value.code, *capsys.readouterr())

    return run
