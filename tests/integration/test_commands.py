"""The command line against a real node in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "gapless"]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A node with one topic, and where it listens."""
    topic = "trades:sym=string,price=float,sent=timestamp?"
    arguments = ["up", "--topic", topic, "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    node = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    try:
        yield json.loads(node.stdout.readline())["listens"]
    finally:
        node.terminate()
        assert node.wait(timeout=30) == 0, "a node that is asked to stop stops in order"
        node.stdout.close()


def gapless(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_is_published_is_printed(address: str, tmp_path: Path) -> None:
    arguments = ["sub", "trades", "--where", "price > 5", "--limit", "3", "--to", address]
    reader = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert reader.stderr is not None
    assert reader.stderr.readline() == "subscribed to trades\n"
    file = tmp_path / "more.jsonl"
    file.write_text('{"sym": "B", "price": 7}\n{"sym": "C", "price": 2}\n')
    single = gapless(
        "pub", "trades", '{"sym": "A", "price": 6, "sent": "2026-01-31"}', str(file), "--to", address
    )
    assert (single.returncode, single.stderr) == (0, "published 3 to trades\n")
    lines = gapless("pub", "trades", "--json", "--to", address, stdin='{"sym": "D", "price": 9.5}\n\n')
    assert json.loads(lines.stdout) == {"topic": "trades", "published": 1}
    printed, _ = reader.communicate(timeout=60)
    assert [json.loads(line)["sym"] for line in printed.splitlines()] == ["A", "B", "D"]
    assert json.loads(printed.splitlines()[0])["sent"] == "2026-01-31T00:00:00+00:00"
    status = json.loads(gapless("status", "--json", "--to", address).stdout)
    assert status["broker"] == "node"
    assert status["topics"] == {"trades": {"sym": "string", "price": "float", "sent": "timestamp?"}}


def test_mistakes_are_one_line_and_status_two(address: str) -> None:
    wrong = [
        (["pub", "news", "{}"], "error: E141 there is no topic 'news'"),
        (["pub", "trades", '{"prise": 3}'], "error: E111 the event: topic 'trades' has no column 'prise'"),
        (["pub", "trades", '{"price": "x"}'], "error: E158 the event: column 'price'"),
        (["pub", "trades", "nothing.jsonl"], "error: E156"),
        (["sub", "trades", "--where", "prise > 3"], "error: E161"),
        (["sub", "trades", "--from", "monday"], "error: E150 --from takes"),
    ]
    for arguments, reason in wrong:
        result = gapless(*arguments, "--to", address)
        assert result.returncode == 2, result
        assert result.stderr.startswith(reason), result.stderr
        assert not result.stdout
