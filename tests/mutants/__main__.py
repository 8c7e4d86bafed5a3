"""`python -m tests.mutants`: break the machines on purpose, and see that the simulator notices.

    make mutants                         every mutant, up to 500 seeds each
    python -m tests.mutants NAME ...     only these
    python -m tests.mutants --file FILE  keep results in a file, and go on from it the next time

All mutants are hunted through a few seeds before any is hunted through many. The exit status is 0 when every
one was caught.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants.declared import MUTANTS
from tests.mutants.hunting import KNOWN, SEEDS_MAX, STRETCHES, Hunt, hunt, known_seeds


def main(arguments: list[str]) -> int:
    """Hunt the mutants; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which mutants; all without any")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many for each at most")
    parser.add_argument("--seconds", type=float, default=3_600, help="processor time for each at most")
    parser.add_argument("--processes", type=int, default=2, help="hunts at a time")
    parser.add_argument("--file", type=Path, help="where results are kept and taken from")
    parser.add_argument(
        "--remember", action="store_true", help="try the seeds that caught them first, from now on"
    )
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in MUTANTS]
    if unknown:
        parser.error(f"no such mutant: {', '.join(unknown)}")
    began = time.monotonic()
    progress = Console(stderr=True, highlight=False, markup=False)

    def say(text: str) -> None:
        progress.print(f"{time.monotonic() - began:7.1f} s  {text}", soft_wrap=True)

    hunts = {name: Hunt(name=name) for name in chosen.names or MUTANTS}
    if chosen.file is not None and chosen.file.exists():
        lines = [Hunt(**json.loads(line)) for line in chosen.file.read_text(encoding="utf-8").splitlines()]
        hunts |= {each.name: each for each in lines if each.name in hunts}
    stretches = [*(each for each in STRETCHES if each < chosen.seeds), chosen.seeds]
    with multiprocessing.Pool(chosen.processes) as pool:
        for stop in stretches:
            open_hunts = [
                each
                for each in hunts.values()
                if not each.is_over and each.seeds < stop and each.seconds < chosen.seconds
            ]
            if open_hunts:
                say(f"{len(open_hunts)} mutants up to {stop} seeds each")
            for result in pool.imap_unordered(partial(hunt, stop=stop), open_hunts):
                hunts[result.name] = result
                say(str(result))
                _keep(chosen.file, result)
    if chosen.remember:
        found = {each.name: each.seed for each in hunts.values() if each.seed is not None}
        kept = {name: seed for name, seed in known_seeds().items() if name in MUTANTS}
        KNOWN.write_text(json.dumps(kept | found, indent=4, sort_keys=True) + "\n", encoding="utf-8")
    _show(hunts, Console(highlight=False).print)
    return 0 if all(each.is_caught for each in hunts.values()) else 1


def _keep(file: Path | None, result: Hunt) -> None:
    if file is not None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(result.as_json()) + "\n")


def _show(hunts: dict[str, Hunt], say: Callable[[Table | str], None]) -> None:
    table = Table("mutant", "what is wrong", "meant for", "caught by", "seed", "seeds", "seconds")
    for each in sorted(hunts.values(), key=lambda each: (not each.is_caught, each.seeds)):
        chosen = MUTANTS[each.name]
        table.add_row(
            each.name,
            chosen.wrong,
            ", ".join(sorted(chosen.noticed_by)),
            each.checker if each.is_caught else "[red]nobody[/red]",
            str(each.seed) if each.is_caught else "-",
            str(each.seeds),
            f"{each.seconds:.0f}",
        )
    say(table)
    caught = sum(each.is_caught for each in hunts.values())
    say(f"{caught} of {len(hunts)} mutants caught")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
