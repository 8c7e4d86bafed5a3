"""`python -m tests.fuzz`: millions of mutated frames and payloads against a running node.

All inputs are drawn from the seed. The exit status is 0 when the node lived through it and served everybody
else as it should, 1 when not (the last inputs are kept when it was wrong), and 2 when the arguments make no
sense.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.fuzz.campaign import Campaign, Result


def main(arguments: list[str]) -> int:
    """Run one campaign; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="decides all inputs")
    parser.add_argument("--lanes", type=int, default=2, help="attackers at a time")
    parser.add_argument("--json", action="store_true", help="the account as JSON on standard output")
    chosen = parser.parse_args(arguments)
    if chosen.inputs < 1 or chosen.seed < 0 or chosen.lanes < 1:
        parser.error("--inputs and --lanes take a number from 1 on, --seed one from 0 on")
    began = time.monotonic()
    progress = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        progress.print(f"{time.monotonic() - began:6.1f} s  {text}", soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="gapless-fuzz-") as folder:
        result = Campaign(Path(folder), chosen.inputs, chosen.seed, chosen.lanes, say).play()
    if chosen.json:
        Console(soft_wrap=True, highlight=False).print_json(json.dumps(result.figures()))
    else:
        _show(result, Console(highlight=False))
    if result.wrong:
        kept = Path(f"fuzz-{chosen.seed}.txt").resolve()
        kept.write_text(result.evidence)
        again = f"python -m tests.fuzz --inputs {chosen.inputs} --seed {chosen.seed} --lanes {chosen.lanes}"
        progress.print(f"reproduce: {again}\nthe last inputs of each lane are in {kept}", soft_wrap=True)
    return 1 if result.wrong or result.stalls else 0


def _show(result: Result, console: Console) -> None:
    figures = result.figures()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    say(f"\n{'input':24}{'sent':>12}{'%':>8}{'went on':>12}  ended the connection")
    for kind, row in figures["kinds"].items():
        ended = ", ".join(f"{code} {number:,}" for code, number in row["ended"].items())
        say(f"{kind:24}{row['sent']:>12,}{row['percent']:>8.2f}{row['went_on']:>12,}  {ended}")
    say("\nanswers: " + ", ".join(f"{name} {number:,}" for name, number in figures["answers"].items()))
    say("refused: " + ", ".join(f"{code} {number:,}" for code, number in figures["refused"].items()))
    share = figures["percent"]
    say(f"accepted {share['accepted']} %, refused {share['refused']} %, cut off {share['cut']} %")
    say(
        f"\n{figures['inputs']:,} inputs in {figures['minutes']:.1f} minutes "
        f"({figures['inputs_per_second']:,}/s), {figures['connections']:,} connections, "
        f"seed {figures['seed']}\nprocessor for each: {figures['node_cpu_us_per_input']} us of the node, "
        f"{figures['fuzzer_cpu_us_per_input']} us of the attackers"
    )
    say(
        f"another client: {figures['witness_events']:,} events, "
        f"each came once and in order: {'no' if figures['wrong'] else 'yes'}"
    )
    for phase, ms in figures["witness_ms"].items():
        say(
            f"  {phase:7} p50 {ms['p50']} ms, p99 {ms['p99']} ms, max {ms['max']} ms; "
            f"without waits for a processor p99 {ms['net_p99']} ms, max {ms['net_max']} ms"
        )
    say(
        f"  more than 100 ms without waits for a processor: {figures['stalls_above_100_ms']:,} events, "
        f"{figures['stalls_of_the_disk']:,} of them mostly while the disk kept a sync of 512 bytes waiting"
    )
    memory = figures["memory_mb"]
    say(
        f"memory of the node: {memory['start']} MB at first, {memory['max']} MB at most, "
        f"{memory['end']} MB at the end; in between {', '.join(map(str, memory['curve']))}"
    )
    for wrong in figures["wrong"]:
        say(f"WRONG: {wrong}")
    if result.stalls:
        say(f"WRONG: another client waited for more than 100 ms, {figures['stalls_above_100_ms']:,} times")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
