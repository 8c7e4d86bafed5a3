"""Who is fresher? The ticket sale with Gapless, with a Spark job written by hand, and with Pathway.

    python -m benchmarks.views_peers [--rates 1000,100000] [--items 100000] [--seconds 20]

One round is all three, one after the other, at the same rate and with the same items. What each is, and what
it does not do that a view does, is told in docs/benchmarks.md. Pathway is left out when it is not installed
in `build/pathway`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import Process, cpu_s, free_port, load_client, tree, wait_until_quiet, workspace
from benchmarks.ours import NODE
from benchmarks.report import Asked, console_for, new_figure, options, percentile, save, show, tell
from benchmarks.ticket_sale import WARM_S, round_of, sell, topic_options
from gapless.client import connect

PATHWAY = Path("build/pathway/bin/python")
#: The last batches of a job written by hand are waited for so long.
LAST_BATCHES_S = 8.0


def by_hand(folder: Path, rate: float, items: int, seconds: float) -> dict[str, Any]:
    """The job of `benchmarks.peers.foreach_batch` on a node like ours."""
    port = free_port()
    address = f"gapless://127.0.0.1:{port}"
    listen = ("--data", folder, "--listen", f"127.0.0.1:{port}")
    with Process([*NODE, "up", *topic_options(), *listen], log=folder.with_suffix(".log")) as node:
        node.line()
        asyncio.run(_offered(address, items))
        log = folder.with_suffix(".job.log")
        with load_client("benchmarks.peers.foreach_batch", address, log=log) as job:
            job.line()
            arguments = ("buy", address, "--rate", rate, "--items", items, "--seconds", seconds + WARM_S)
            with load_client("benchmarks.ticket_sale", *arguments, log=log) as buyer:
                buyer.line()
                buyer.say("")
                before = sum(map(cpu_s, [*tree(job.pid), node.pid]))
                bought = buyer.line()
                taken = sum(map(cpu_s, [*tree(job.pid), node.pid])) - before
                asyncio.run(asyncio.sleep(LAST_BATCHES_S))
            job.say("")
            shown = job.line()["shown"]
    began = min(called for called, *_ in bought["batches"])
    stale = sorted(
        next(at for at, last in shown if last >= tick) - called
        for called, _, tick, _ in bought["batches"]
        if called > began + WARM_S and tick <= shown[-1][1]
    )
    events = sum(rows for *_, rows in bought["batches"])
    return {
        "rate_made": events / bought["ended"],
        "p50_ms": percentile(stale, 0.5) * 1e3,
        "p99_ms": percentile(stale, 0.99) * 1e3,
        "cores": taken / (seconds + WARM_S),
    }


async def _offered(address: str, items: int) -> None:
    async with connect(address) as client:
        await sell(client, items)


def with_pathway(rate: float, items: int, seconds: float) -> dict[str, Any]:
    """Pathway in a process and an environment of its own."""
    command = [PATHWAY.absolute(), "-m", "benchmarks.peers.pathway_sale", rate, seconds, WARM_S, items]
    with Process(command) as process:
        found = process.line()
    found["cores"] = found.pop("cpu_s") / (seconds + WARM_S)
    return found


def main() -> None:
    """Measure."""
    parser = options(__doc__)
    parser.add_argument("--rates", default="1000,100000")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    seconds = 10.0 if given.quick else given.seconds
    console = console_for(as_json=given.json)
    found: list[dict[str, Any]] = []
    for rate in map(float, given.rates.split(",")):
        for name in ("Gapless view", "foreachBatch by hand", "Pathway"):
            if name == "Pathway" and not PATHWAY.exists():
                console.print("Pathway is not installed in build/pathway: left out", style="yellow")
                continue
            wait_until_quiet()
            with workspace() as folder:
                if name == "Gapless view":
                    result = round_of(folder / "node", rate, given.items, seconds)
                elif name == "Pathway":
                    result = with_pathway(rate, given.items, seconds)
                else:
                    result = by_hand(folder / "node", rate, given.items, seconds)
            found.append({**result, "name": name, "rate": rate})
            console.print(json.dumps(found[-1]), style="dim")
    show(
        console,
        f"the ticket sale, {given.items:,} items",
        ("system", "buys/s asked", "made", "staleness p50 ms", "p99 ms", "cores"),
        [
            [
                each["name"],
                *(f"{each[name]:,.0f}" for name in ("rate", "rate_made", "p50_ms", "p99_ms")),
                f"{each['cores']:.2f}",
            ]
            for each in found
        ],
    )
    draw(found)
    tell(console, "views_peers", {"rounds": found}, list[Asked](), as_json=given.json)


def draw(found: list[dict[str, Any]]) -> None:
    """Staleness of each, by rate."""
    figure = new_figure()
    axes = figure.add_subplot()
    for name in dict.fromkeys(each["name"] for each in found):
        of = [each for each in found if each["name"] == name]
        axes.plot([each["rate"] for each in of], [each["p50_ms"] for each in of], "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="buys a second", ylabel="staleness p50, ms")
    axes.set_title("The ticket sale")
    axes.legend()
    save(figure, "views_peers")


if __name__ == "__main__":
    main()
