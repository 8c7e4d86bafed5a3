"""A node with TLS and tokens, as processes: the commands come in with both, and say why not otherwise."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.node.security import token_hash
from tests.integration.authority import Authority
from tests.integration.nodes import PATIENCE_SECONDS

NETWORK = f"""
cells = {{all = ["n1"]}}
topics.trades = {{price = "float"}}
pubends.trades-1 = {{topic = "trades", broker = "n1"}}
addresses = {{n1 = "127.0.0.1:0"}}
tls = {{certificate = "{{broker}}.pem", key = "{{broker}}.key", authority = "ca.pem"}}
tokens.boss = {{sha256 = "{token_hash("secret")}", publish = ["*"], subscribe = ["*"], admin = true}}
"""


def gapless(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gapless", *arguments]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    Authority(tmp_path).issue("n1")
    (tmp_path / "network.toml").write_text(NETWORK)
    running = subprocess.Popen(
        gapless("up", str(tmp_path / "network.toml"), "--data", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate(timeout=PATIENCE_SECONDS)


def address(node: subprocess.Popen[str]) -> str:
    assert node.stdout is not None
    told: str = json.loads(node.stdout.readline())["listens"]
    assert told.startswith("gapless+tls://127.0.0.1:")
    return told


def test_commands_come_in_with_an_authority_and_a_token(node: subprocess.Popen[str], tmp_path: Path) -> None:
    to = address(node)

    def run(*arguments: str, token: str = "secret") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            gapless(*arguments, "--to", to),
            env={**os.environ, "GAPLESS_TOKEN": token},
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_SECONDS,
        )

    authority = ["--ca", str(tmp_path / "ca.pem")]
    done = run("pub", "trades", '{"price": 1.5}', *authority, "--json")
    assert done.returncode == 0, done.stderr
    status = run("status", "--json", *authority)
    assert status.returncode == 0, status.stderr
    assert '"events_accepted": 1' in status.stdout
    for refused, reason in [
        (
            run("status"),
            "error: E404 the node's certificate is not accepted: its CA is not trusted: ",
        ),
        (run("status", *authority, token="guess"), "error: E185 this network does not know the token"),
    ]:
        assert refused.returncode == 2, refused
        assert refused.stderr.startswith(reason), refused.stderr
        assert len(refused.stderr.splitlines()) == 1
