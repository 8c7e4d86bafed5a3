"""The program that computes views ends with the node that has started it."""

import subprocess
import sys

#: A program that waits for ever for an answer of its node.
WAITING = """
import threading
from gapless.cli import pipeline

pipeline.GONE_SECONDS = 0.01
stop = threading.Event()
threading.Thread(target=pipeline._until_input_ends, args=[stop], daemon=True).start()
stop.wait()
print("told", flush=True)
threading.Event().wait()
"""


def test_a_program_that_waits_for_a_node_that_is_gone_is_ended() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WAITING], input="", capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "told\n", "")
