"""Every command of docs/tutorial.md, in its order, prints what the tutorial says."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.nodes import PATIENCE_SECONDS, free_addresses
from tests.integration.test_quick_start import SPARK_SECONDS, plain
from tests.test_docs import agrees

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
_BLOCK = re.compile(
    r"^```bash\n(.*?)^```\n(?:\nIt prints:\n\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


def _text() -> str:
    """The tutorial with addresses that are free."""
    text = TUTORIAL.read_text(encoding="utf-8")
    addresses = free_addresses(["s1", "r1", "e1"])  # type: ignore[list-item]
    for port, address in zip(("7401", "7402", "7403"), addresses.values(), strict=True):
        text = text.replace(f"127.0.0.1:{port}", str(address))
    return text


@contextmanager
def _shell(script: str, folder: Path) -> "Iterator[subprocess.Popen[str]]":
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-euc", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


@contextmanager
def _broker(command: str, folder: Path) -> Iterator[None]:
    with _shell(f"exec {command}", folder) as process:
        assert process.stdout is not None
        assert "listens" in json.loads(process.stdout.readline())
        yield


@pytest.mark.long
def test_every_command_of_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    text = _text()
    (network,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "network.toml").write_text(network)
    blocks = _BLOCK.findall(text)
    store, router, edge = (command.strip() for command, _ in blocks[:3])
    rest = iter(blocks[3:])

    def run(script: str, printed: str, seconds: float = 4 * PATIENCE_SECONDS) -> None:
        with _shell(script, tmp_path) as process:
            answer, trouble = process.communicate(timeout=seconds)
            assert process.returncode == 0, trouble
            assert agrees(plain(printed), plain(answer)), f"{script}{answer}{trouble}"

    with _broker(store, tmp_path), _broker(edge, tmp_path):
        with _broker(router, tmp_path):
            run(*next(rest))
            run(*next(rest))
            run(*next(rest))
        # The router was stopped.
        run(*next(rest))
        with _broker(router, tmp_path):
            run(*next(rest))
            run(*next(rest), seconds=SPARK_SECONDS)
    assert next(rest, None) is None, "a command that nobody runs"
