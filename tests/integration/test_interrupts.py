"""Ctrl-C ends every command with the same status, and leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.cli.exits import EXIT_INTERRUPTED

COMMAND = [sys.executable, "-m", "gapless"]
PATIENCE_SECONDS = 60
#: Stands in for Spark: says that it runs, ignores Ctrl-C as Spark does, and never becomes ready.
SPARK = """#!/bin/sh
trap '' INT
echo started
exec sleep 600
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with one topic, and where it listens."""
    folder = str(tmp_path_factory.mktemp("data"))
    arguments = ["up", "--topic", "trades:price=float", "--data", folder, "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        yield json.loads(node.stdout.readline())["listens"]
        node.send_signal(signal.SIGINT)
        assert node.wait(PATIENCE_SECONDS) == EXIT_INTERRUPTED


def interrupted(arguments: list[str], first: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Send Ctrl-C to a command after its first line of output; its status and what it printed.

    Returns only when nobody holds its output any more: none of its children is left.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, **settings}
    with subprocess.Popen([*COMMAND, *arguments], text=True, env=environment, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(first)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def test_history_that_is_interrupted_while_spark_starts_leaves_no_process(
    address: str, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "spark-submit"
    script.write_text(SPARK)
    script.chmod(0o755)
    pytest.importorskip("pyspark")
    done = interrupted(["history", "trades", "--node", address], "started", SPARK_HOME=str(tmp_path))
    assert done.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in done.stderr


def test_java_ends_even_if_ctrl_c_is_swallowed() -> None:
    """Python swallows what is raised in a finaliser, for instance."""
    program = """
import os, signal, subprocess
from gapless.spark.session import no_java_left_behind
try:
    with no_java_left_behind():
        java = subprocess.Popen(["sleep", "600"])
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            pass
        raise RuntimeError(f"java ended with {java.wait()}")
except KeyboardInterrupt as interrupt:
    print(interrupt.__cause__)
"""
    output = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=PATIENCE_SECONDS)
    assert output == "java ended with -9\n"


def test_an_interrupted_subscription_ends_with_the_status_of_ctrl_c(address: str) -> None:
    subprocess.run([*COMMAND, "pub", "trades", '{"price": 1}', "--to", address], check=True, timeout=60)
    done = interrupted(["sub", "trades", "--from", "earliest", "--to", address], '{"price": 1.0}')
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, "subscribed to trades\n")


def test_progress_of_history_is_shown_on_a_terminal() -> None:
    program = """
from gapless.cli.history import progress
with progress() as tell:
    tell("starting [Spark]")
"""
    ours, theirs = os.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm"}
        subprocess.run(
            [sys.executable, "-c", program], stderr=theirs, env=environment, check=True, timeout=60
        )
        assert b"starting [Spark]" in os.read(ours, 4_096)
    finally:
        os.close(ours)
        os.close(theirs)
    quiet = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert quiet.stderr == b""
