"""The quick start of the README, pasted into two terminals, prints what the README says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.integration.nodes import PATIENCE_SECONDS, free_addresses
from tests.test_docs import agrees

ROOT = Path(__file__).parents[2]
#: Spark starts twice, on a machine that may be busy with other tests.
SPARK_SECONDS = 300.0


def plain(text: str) -> str:
    """Lines with something in them, however the cells are spaced."""
    lines = (" ".join(line.replace("─", " ").split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def test_the_quick_start_can_be_pasted(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    start = text.index("## Quick start")
    first, second, third = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"What is printed:\n\n```text\n(.*?)```", text[start:], re.DOTALL)
    (computed,) = re.findall(r"What Spark computes:\n\n```text\n(.*?)```", text[start:], re.DOTALL)
    [address] = free_addresses(["node"]).values()  # type: ignore[list-item]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "GAPLESS_LISTEN": str(address),
        "GAPLESS_TO": f"gapless://{address}",
    }

    def terminal(script: str) -> "subprocess.Popen[str]":
        # `exec` for the last command, so that a signal reaches it and not only the shell.
        return subprocess.Popen(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    node = terminal(f"exec {first}")
    try:
        assert node.stdout is not None
        assert json.loads(node.stdout.readline())["listens"] == f"gapless://{address}"
        answer, trouble = terminal(second).communicate(timeout=4 * PATIENCE_SECONDS)
        assert answer == printed, trouble
        answer, trouble = terminal(third).communicate(timeout=SPARK_SECONDS)
        assert agrees(plain(computed), plain(answer)), f"{answer}{trouble}"
    finally:
        node.terminate()
        node.communicate(timeout=PATIENCE_SECONDS)
    assert node.returncode == 0
