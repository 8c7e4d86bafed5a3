"""What is the worst that one principal can do to another client of the same node, with the default quotas?

    .venv/bin/python -m benchmarks.hostile [--seconds N] [--only NAME ...] [--quick] [--json]

A good client publishes 2,000 events a second and subscribes to them. After a baseline without anybody else,
one attack after the other is made on a fresh node, with a token of its own, for some seconds. Told of each:

- the good client's latency (p50, p99, max) from the moment when an event was due to its arrival, while the
  attack goes on and for a while after the attackers have left; what never comes counts until the end
- how late the publisher itself was: what its own process, or the machine, added
- the most memory that the node took; events that were lost, refused or came twice; whether the node lived

Asked for: p99 below 50 ms and less than 1 GB of memory, whatever the attack. Four processes want two cores or
more; what others take of the machine is told as `foreign`. An attacker has a machine of its own in real life:
its process runs at a lower priority (nice 10), so that it attacks the node and not the scheduler.

About 8 minutes; with --quick 3.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console

from benchmarks import ours
from benchmarks.hostile.attacks import ATTACKS, EVIL, FLAGS
from benchmarks.hostile.good import GRACE_S
from benchmarks.machine import (
    Process,
    Window,
    free_port,
    load_client,
    resident_bytes,
    wait_until_quiet,
    workspace,
)
from benchmarks.report import Asked, console_for, new_figure, options, save, show, tell

BASELINE = "nobody"
RATE = 2_000.0
P99_MAX_MS = 50.0
MEMORY_MAX_MB = 1_000.0
#: The good client is alone for so long first, and again after the attack.
BEFORE_S = 1.0
AFTER_S = 4.0
#: An attacker that has not ended so long after its time is killed.
OVERTIME_S = 15.0
GOOD_TOKEN, EVIL_TOKEN = "good-token", "evil-token"

NETWORK = """
cells = {{all = ["node"]}}
edges = ["node"]
topics.bench = {bench}
topics.evil = {evil}
topics.flags = {flags}
pubends.bench-1 = {{topic = "bench", broker = "node"}}
pubends.evil-1 = {{topic = "evil", broker = "node"}}
pubends.flags-1 = {{topic = "flags", broker = "node"}}

[tokens]
good = {{sha256 = "{good}", publish = ["bench"], subscribe = ["bench"]}}
mallory = {{sha256 = "{mallory}", publish = ["evil", "flags"], subscribe = ["*"], admin = true}}
"""


@dataclass(slots=True)
class Run:
    """One attack, and what the good client noticed of it."""

    name: str
    point: str = ""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    #: How late the publisher was by itself.
    late_p99_ms: float = 0.0
    late_max_ms: float = 0.0
    memory_mb: float = 0.0
    due: int = 0
    confirmed: int = 0
    taken: int = 0
    twice: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    #: Cores that the node, the good client, the attacker, and everybody else took.
    cores: dict[str, float] = field(default_factory=dict)
    #: What the attacker did, and what came of it.
    attack: dict[str, int] = field(default_factory=dict)
    #: (seconds, worst latency in ms).
    worst_ms: list[tuple[float, float]] = field(default_factory=list)
    #: What went wrong beyond that: the node died, a client said nothing.
    trouble: str = ""

    @property
    def lost(self) -> int:
        """Events with a receipt that never came."""
        return max(0, self.confirmed - self.taken)

    @property
    def is_fine(self) -> bool:
        """Whether the good client was served as asked."""
        served = self.confirmed == self.due and not (self.lost or self.twice or self.trouble)
        return served and self.p99_ms < P99_MAX_MS and self.memory_mb < MEMORY_MAX_MB


def start_node(folder: Path, port: int, descriptors: int) -> Process:
    """A node with tokens and default quotas, perhaps with few descriptors."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "network.toml"
    file.write_text(
        NETWORK.format(
            bench=ours.columns_toml(),
            evil=_columns(EVIL),
            flags=_columns(FLAGS),
            good=hashlib.sha256(GOOD_TOKEN.encode()).hexdigest(),
            mallory=hashlib.sha256(EVIL_TOKEN.encode()).hexdigest(),
        )
    )
    command = [*ours.NODE, "up", file, "--data", folder / "data", "--listen", f"127.0.0.1:{port}"]
    if descriptors:
        command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
    node = Process([str(each) for each in command], log=folder / "node.log")
    node.line()
    return node


def _columns(columns: dict[str, str]) -> str:
    return "{" + ", ".join(f'{name} = "{kind}"' for name, kind in columns.items()) + "}"


class Memory:
    """The most memory that a process took, looked at now and then: it may be gone when somebody asks."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak_bytes = 0
        self.is_gone = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            try:
                self.peak_bytes = max(self.peak_bytes, resident_bytes(self._pid))
                state = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError, IndexError):
                state = "Z"
            if state == "Z":
                self.is_gone = True
                return


def measure(name: str, seconds: float, folder: Path, *, quick: bool) -> Run:
    """One attack on a fresh node, or none for the baseline."""
    attack = ATTACKS.get(name)
    found = Run(name, attack.point if attack else "")
    if not quick:
        wait_until_quiet()
    port = free_port()
    node = start_node(folder, port, attack.descriptors if attack else 0)
    address = f"gapless://127.0.0.1:{port}"
    total_s = BEFORE_S + seconds + AFTER_S
    good = ("benchmarks.hostile.good",)
    subscriber = load_client(*good, "subscribe", address, GOOD_TOKEN, log=folder / "subscribe.log")
    publisher = load_client(
        *good,
        "publish",
        address,
        GOOD_TOKEN,
        "--rate",
        RATE,
        "--seconds",
        total_s,
        log=folder / "publish.log",
    )
    attacker = None
    if attack is not None:
        attacker = load_client(
            *("benchmarks.hostile.attacks", name, port, EVIL_TOKEN, "--seconds", seconds),
            log=folder / "attack.log",
        )
    processes = [each for each in (node, publisher, subscriber, attacker) if each is not None]
    try:
        for each in processes[1:]:
            each.line()
        with Memory(node.pid) as memory, Window(*(each.pid for each in processes)) as window:
            publisher.say("go")
            time.sleep(BEFORE_S)
            if attacker is not None:
                attacker.say("go")
            _collect(found, publisher, subscriber, total_s)
        found.memory_mb = memory.peak_bytes / 2**20
        names = ("node", "publisher", "subscriber", "attacker")
        found.cores = dict(zip(names, window.cores, strict=False)) | {"foreign": window.foreign_cores}
        if memory.is_gone:
            found.trouble = f"the node died: {_last_line(folder / 'node.log')}"
        if attacker is not None:
            _collect_attack(found, attacker)
    finally:
        for each in reversed(processes):
            each.stop(patience_s=2.0 if each is attacker else 10.0)
    return found


def _collect(found: Run, publisher: Process, subscriber: Process, total_s: float) -> None:
    """What the two halves of the good client say, if they say anything."""
    try:
        said = publisher.line(total_s + GRACE_S + OVERTIME_S)
        found.due, found.confirmed, found.refused = said["due"], said["confirmed"], said["refused"]
        found.late_p99_ms, found.late_max_ms = said["late_p99_ms"], said["late_max_ms"]
        subscriber.say(json.dumps(said))
        said = subscriber.line(GRACE_S + OVERTIME_S)
        found.taken, found.twice = said["taken"], said["twice"]
        found.p50_ms, found.p99_ms, found.max_ms = said["p50_ms"], said["p99_ms"], said["max_ms"]
        found.worst_ms = [(at, each) for at, each in said["worst_ms"]]
    except RuntimeError as error:
        found.trouble = f"the good client ended: {error}"[:300]
        found.p50_ms = found.p99_ms = found.max_ms = total_s * 1_000


def _collect_attack(found: Run, attacker: Process) -> None:
    try:
        found.attack = attacker.line(OVERTIME_S)["counts"]
    except RuntimeError as error:
        found.attack = {"did not end": 1}
        if not found.trouble and "Traceback" in str(error):
            found.trouble = f"the attacker failed: {error}"[-200:]


def _last_line(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
    return lines[-1][:200] if lines else "without a word"


def tell_table(console: Console, runs: list[Run]) -> None:
    """What the good client noticed of each attack."""
    columns = (
        *("attack", "point", "p50 ms", "p99 ms", "max ms", "late p99", "late max", "MB"),
        *("refused", "lost", "twice", "node", "foreign", "verdict"),
    )
    rows = []
    for run in runs:
        verdict = "[green]fine[/green]" if run.is_fine else "[red]HURT[/red]"
        rows.append(
            (
                *(run.name, run.point, f"{run.p50_ms:,.1f}", f"{run.p99_ms:,.1f}", f"{run.max_ms:,.0f}"),
                *(f"{run.late_p99_ms:,.1f}", f"{run.late_max_ms:,.0f}", f"{run.memory_mb:,.0f}"),
                *(f"{run.due - run.confirmed:,}", f"{run.lost:,}", f"{run.twice:,}"),
                *(f"{run.cores.get('node', 0):.2f}", f"{run.cores.get('foreign', 0):.2f}", verdict),
            )
        )
    show(console, f"a good client at {RATE:,.0f} events/s beside an attacker", columns, rows)
    if not runs[0].is_fine:
        console.print(
            "[red]the machine is too busy[/red]: the good client is not served as asked even by itself"
        )
    for run in runs:
        done = ", ".join(f"{what} {count:,}" for what, count in run.attack.items())
        if done or run.trouble:
            console.print(
                f"{run.name}: {done}{'; ' if run.trouble and done else ''}{run.trouble}", markup=False
            )


def draw(runs: list[Run], seconds: float) -> None:
    """Percentiles and memory of every attack, and how the worst latency went over time."""
    figure = new_figure(3, width=5.8, height=max(4.2, 0.34 * len(runs) + 1.6))
    latency, memory, course = figure.subplots(1, 3, width_ratios=(1.0, 0.6, 1.2))
    places = range(len(runs))
    colors = mpl.colormaps["tab20"].colors  # type: ignore[attr-defined]
    for run, at in zip(runs, places, strict=True):
        values = [max(each, 0.1) for each in (run.p50_ms, run.p99_ms, run.max_ms)]
        color = "tab:blue" if run.is_fine else "tab:red"
        latency.plot([values[0], values[2]], [at, at], color=color, linewidth=1.2)
        latency.plot(values[0], at, marker="|", color=color, markersize=9)
        latency.plot(values[1], at, marker="o", color=color, markersize=6)
        latency.plot(values[2], at, marker=">", color=color, markersize=5)
        memory.barh(at, run.memory_mb, color=color, height=0.6)
        if run.worst_ms:
            hurt = not run.is_fine
            course.plot(
                [each[0] for each in run.worst_ms],
                [max(each[1], 0.1) for each in run.worst_ms],
                color="black" if run.name == BASELINE else colors[at % len(colors)],
                linewidth=2.0 if run.name == BASELINE else 1.0,
                alpha=1.0 if hurt or run.name == BASELINE else 0.35,
                label=run.name if hurt or run.name == BASELINE else None,
            )
    latency.set_yticks(places, [f"{run.name}{'' if not run.trouble else ' †'}" for run in runs])
    memory.set_yticks(places, [])
    for axes in (latency, memory):
        axes.set_ylim(len(runs) - 0.5, -0.5)
        axes.grid(axis="x", alpha=0.3)
    latency.set_xscale("log")
    latency.axvline(P99_MAX_MS, color="gray", linestyle="--")
    latency.set_title("good client: | p50  ● p99  ▶ max (ms)")
    memory.axvline(MEMORY_MAX_MB, color="gray", linestyle="--")
    memory.set_title("node's memory (MB)")
    course.set_yscale("log")
    course.axvspan(BEFORE_S, BEFORE_S + seconds, color="tab:red", alpha=0.07)
    course.axhline(P99_MAX_MS, color="gray", linestyle="--")
    course.set_title("worst latency of every quarter second (ms)")
    course.set_xlabel("seconds; the attack is shaded")
    course.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, "hostile")


def main() -> None:
    """Measure, show, draw, tell."""
    parser = options(__doc__)
    parser.add_argument(
        "--seconds", type=float, default=None, help="how long each attack lasts (10; quick: 4)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="only attacks whose names begin so"
    )
    given = parser.parse_args()
    seconds = given.seconds or (4.0 if given.quick else 10.0)
    wanted = [name for name in ATTACKS if not given.only or name.startswith(tuple(given.only))]
    if not wanted:
        parser.error(f"no attack begins so: there are {', '.join(ATTACKS)}")
    # Load clients find this package as this process does.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(Path.cwd()), *filter(None, sys.path)]))
    console = console_for(as_json=given.json)
    runs: list[Run] = []
    with workspace() as folder:
        for number, name in enumerate([BASELINE, *wanted]):
            console.print(f"{name} ...", end=" ")
            runs.append(measure(name, seconds, folder / f"node-{number}", quick=given.quick))
            console.print(f"p99 {runs[-1].p99_ms:,.1f} ms, {runs[-1].memory_mb:,.0f} MB {runs[-1].trouble}")
    tell_table(console, runs)
    draw(runs, seconds)
    found: dict[str, Any] = {
        "rate": RATE,
        "seconds": seconds,
        "runs": [{**asdict(run), "lost": run.lost, "fine": run.is_fine} for run in runs],
    }
    attacked = [run for run in runs if run.name != BASELINE]
    p99_ms, memory_mb = max(run.p99_ms for run in attacked), max(run.memory_mb for run in attacked)
    asked = [
        Asked("p99 of the good client, the worst attack", p99_ms, P99_MAX_MS, at_most=True, unit="ms"),
        Asked("memory of the node, the worst attack", memory_mb, MEMORY_MAX_MB, at_most=True, unit="MB"),
        Asked("attacks that hurt", sum(not run.is_fine for run in attacked), 0, at_most=True),
    ]
    tell(console, "hostile", found, asked, as_json=given.json)


if __name__ == "__main__":
    main()
