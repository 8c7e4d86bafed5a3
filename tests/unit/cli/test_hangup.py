"""A SIGHUP while `gapless up` is still loading its modules does not end it."""

from __future__ import annotations

import subprocess
import sys

#: Runs the command line as `gapless` does, with a SIGHUP as soon as its first module is loaded.
PROGRAM = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "gapless.cli.main":
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, Finder())
sys.argv = ["gapless", *sys.argv[1:]]
from gapless.__main__ import main
main()
"""


def test_a_hangup_at_the_very_start_does_not_end_a_node() -> None:
    command = [sys.executable, "-c", PROGRAM, "up", "--log", "neither"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "E150" in done.stderr, "it went on to check its options"
