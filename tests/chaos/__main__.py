"""`python -m tests.chaos`: break a network of real processes, again and again, and see that nothing is lost.

Everything is drawn from the seed. The exit status is 0 when every promise was kept, 1 when one was broken
(the histories are kept then), and 2 when the arguments make no sense.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.chaos.disk import in_own_namespace
from tests.chaos.report import figures, keep, plot, show
from tests.chaos.run import Run


def main(arguments: list[str]) -> int:
    """Play one run; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=1, help="decides which faults strike when, and the load")
    parser.add_argument("--faults", type=int, default=200, help="how many")
    parser.add_argument("--json", action="store_true", help="the account as JSON on standard output")
    parser.add_argument("--plot", type=Path, help="write the plot of the recovery times to this file")
    parser.add_argument("--keep", type=Path, help="keep the histories in this folder, whatever happens")
    chosen = parser.parse_args(arguments)
    if chosen.faults < 1 or chosen.seed < 0:
        parser.error("--faults takes a number from 1 on, --seed one from 0 on")
    if chosen.keep is not None and chosen.keep.exists():
        parser.error(f"--keep: {chosen.keep} is there already")
    in_own_namespace("tests.chaos", arguments)
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="gapless-chaos-"))
    began = time.monotonic()
    progress = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        progress.print(f"{time.monotonic() - began:6.1f} s  {text}", soft_wrap=True)

    run = Run(chosen.seed, chosen.faults, folder, say)
    outcome = asyncio.run(run.play(waits_for_release=chosen.faults >= 50))
    if chosen.plot is not None:
        plot(outcome, chosen.plot)
    if not outcome.is_good:
        keep(outcome, folder)
    if chosen.json:
        Console(soft_wrap=True, highlight=False).print_json(json.dumps(figures(outcome, chosen.faults)))
    else:
        show(outcome, chosen.faults, Console())
    if outcome.is_good and chosen.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    elif not outcome.is_good:
        progress.print(f"histories, logs and stories are in {folder}")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
