"""What must hold of a node that was attacked? It lives, is ready, and has served its other client.

A campaign starts a node and a witness, lets the witness run alone for a while, attacks, and puts everything
together that was seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from tests.fuzz.inputs import TOPICS, attacker
from tests.fuzz.run import Lane, Tally, attack
from tests.fuzz.witness import COLUMNS as CALM
from tests.hostile.victim import Victim

#: Nobody else may wait for longer than this.
STALL_SECONDS_MAX = 0.1
#: More memory than this is a leak, whatever was sent.
MEMORY_BYTES_MAX = 2**30


def network(lanes: int) -> str:
    """The network file: one node, with a topic of each kind, and the witness's own."""
    lines = ['cells = {all = ["n1"]}', 'edges = ["n1"]']
    for topic, columns in {**TOPICS, "calm": CALM}.items():
        told = ", ".join(f'{name} = "{kind}"' for name, kind in columns.items())
        lines += [f"topics.{topic} = {{{told}}}", f'pubends.{topic}-1 = {{topic = "{topic}", broker = "n1"}}']
    # Each of them is a principal of its own, with quotas and a share of the node.
    for token in (*map(attacker, range(lanes)), "readers", "witness"):
        digest = hashlib.sha256(token.encode()).hexdigest()
        rights = 'publish = ["*"], subscribe = ["*"], admin = true'
        lines.append(f'tokens.{token} = {{sha256 = "{digest}", {rights}}}')
    return "\n".join(lines) + "\n"


class Took(NamedTuple):
    """How long an event of the witness took, and how much of that the machine let somebody wait."""

    at: float
    seconds: float
    machine: float
    #: For how much of it a sync of 512 bytes by somebody else was under way; only known of slow events.
    disk: float

    @property
    def net(self) -> float:
        """How long the node let it wait."""
        return max(0.0, self.seconds - self.machine)


@dataclass
class Result:
    """What was seen."""

    seed: int
    tally: Tally
    seconds: float
    #: Time of the processor that the node and the attackers took during the attack.
    cpu_seconds: float
    own_cpu_seconds: float
    #: Bytes that the node took, in time.
    memory: list[int]
    events: int
    #: The events of the witness before, during and after the attack.
    before: list[Took]
    during: list[Took]
    after: list[Took]
    wrong: list[str]
    evidence: str = ""

    @property
    def stalls(self) -> list[Took]:
        """The events that a node has let wait for too long; for how long the machine did so is taken off."""
        return [took for took in (*self.during, *self.after) if took.net > STALL_SECONDS_MAX]

    def figures(self) -> dict[str, Any]:
        """All of it, to be read by people and programs."""
        tally, inputs = self.tally, max(self.tally.inputs, 1)
        kinds: dict[str, Any] = {}
        for kind, sent in sorted(tally.sent.items()):
            ended = {code: n for (each, code), n in tally.cut.most_common() if each == kind}
            kinds[kind] = {
                "sent": sent, "percent": round(100 * sent / inputs, 2),
                "went_on": sent - sum(ended.values()), "ended": ended,
            }  # fmt: skip
        cut, refused = sum(tally.cut.values()), sum(tally.refused.values())
        shares = {"accepted": inputs - cut - refused, "refused": refused, "cut": cut}
        return {
            "inputs": tally.inputs,
            "seed": self.seed,
            "minutes": round(self.seconds / 60, 2),
            "inputs_per_second": round(tally.inputs / max(self.seconds, 1e-9)),
            "connections": tally.connections,
            "node_cpu_us_per_input": round(1e6 * self.cpu_seconds / inputs),
            "fuzzer_cpu_us_per_input": round(1e6 * self.own_cpu_seconds / inputs),
            "kinds": kinds,
            "percent": {name: round(100 * n / inputs, 2) for name, n in shares.items()},
            "answers": dict(tally.answers.most_common()),
            "refused": dict(tally.refused.most_common()),
            "reasons": tally.examples,
            "witness_events": self.events,
            "witness_ms": {
                "before": _percentiles(self.before),
                "during": _percentiles(self.during),
                "after": _percentiles(self.after),
            },
            "stalls_above_100_ms": len(self.stalls),
            "stalls_of_the_disk": sum(each.disk > each.seconds / 2 for each in self.stalls),
            #: When the longest of them were sent, on the clock that counts from the start of the machine.
            "longest": [
                {
                    "at_s": round(each.at, 3),
                    "ms": round(1_000 * each.seconds, 1),
                    "net_ms": round(1_000 * each.net, 1),
                    "disk_ms": round(1_000 * each.disk, 1),
                }
                for each in sorted(self.during, key=lambda each: -each.net)[:10]
            ],
            "memory_mb": {
                "start": self.memory[0] >> 20, "max": max(self.memory) >> 20, "end": self.memory[-1] >> 20,
                "curve": [each >> 20 for each in self.memory[:: max(1, len(self.memory) // 24)]],
            },
            "wrong": self.wrong,
        }  # fmt: skip


def _percentiles(took: list[Took]) -> dict[str, float]:
    """As the witness saw it; `net` is without what the machine let somebody wait."""
    if not took:
        return dict.fromkeys(("p50", "p99", "max", "net_p99", "net_max"), 0.0)
    whole, net = (
        [round(1000 * each, 1) for each in sorted(values)]
        for values in ([each.seconds for each in took], [each.net for each in took])
    )
    p99 = len(took) * 99 // 100
    return {
        "p50": whole[len(took) // 2], "p99": whole[p99], "max": whole[-1],
        "net_p99": net[p99], "net_max": net[-1],
    }  # fmt: skip


@dataclass
class Campaign:
    """One attack."""

    folder: Path
    inputs: int
    seed: int
    lanes: int
    say: Callable[[str], None]
    _wrong: list[str] = field(default_factory=list)

    def play(self) -> Result:
        """Attack a node."""
        with Victim(self.folder, network(self.lanes)) as victim:
            return self._played(victim)

    def _played(self, victim: Victim) -> Result:
        assert victim.process is not None
        command = [sys.executable, "-m", "tests.fuzz.witness", str(victim.port), str(victim.process.pid)]
        witness = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert witness.stdout is not None
        self.say("the witness runs alone")
        assert witness.stdout.readline() == "ready\n"
        tally = Tally(self.inputs)
        first = victim.resident_bytes
        began, cpu, own = time.monotonic(), _cpu_seconds(victim), time.process_time()
        watched, lanes, wrong = uvloop.run(
            attack(victim.port, self.seed, self.lanes, tally, look=lambda: _resident(victim), say=self.say)
        )
        ended, cpu = time.monotonic(), _cpu_seconds(victim) - cpu
        own = time.process_time() - own
        self.say(f"{tally.inputs:,} inputs were sent")
        if wrong is not None:
            self._wrong.append(f"after {tally.inputs:,} inputs: {wrong}")
        account = self._ended(witness)
        self._wrong += account["wrong"]
        took = [Took(*each) for each in account["took"]]
        memory = [first, *(size for _, size in watched.samples if size)]
        if max(memory) > MEMORY_BYTES_MAX:
            self._wrong.append(f"the node took {max(memory) >> 20} MB of memory")
        self._check(victim)
        return Result(
            seed=self.seed,
            tally=tally,
            seconds=ended - began,
            cpu_seconds=cpu,
            own_cpu_seconds=own,
            memory=memory,
            events=account["events"],
            before=[each for each in took if each.at < began],
            during=[each for each in took if began <= each.at < ended],
            after=[each for each in took if each.at >= ended],
            wrong=self._wrong,
            evidence=_evidence(lanes, victim) if self._wrong else "",
        )

    def _ended(self, witness: subprocess.Popen[str]) -> dict[str, Any]:
        try:
            output, _ = witness.communicate(timeout=90)
            account: dict[str, Any] = json.loads(output)
        except (subprocess.TimeoutExpired, ValueError) as error:
            witness.kill()
            return {"wrong": [f"the witness did not end well: {error!r}"], "took": [], "events": 0}
        return account

    def _check(self, victim: Victim) -> None:
        """Whether the node lives, is ready, and stops in order."""
        if not victim.is_alive:
            self._wrong.append(f"the node died: {victim.log.read_text()[-1500:]}")
            return
        try:
            status, text = victim.page("/readyz")
            if status != 200:
                self._wrong.append(f"/readyz says {status}: {text.strip()}")
        except OSError as error:
            self._wrong.append(f"/readyz does not answer: {error}")
        code = victim.stop()
        if code:
            self._wrong.append(f"the node ended with status {code}")
        bad = [
            line for line in victim.log.read_text().splitlines() if "Traceback" in line or '"error"' in line
        ]
        if bad:
            self._wrong.append(f"the log of the node has {len(bad)} errors, such as {bad[0][:400]}")


def _resident(victim: Victim) -> int:
    try:
        return victim.resident_bytes
    except OSError:
        return 0


def _cpu_seconds(victim: Victim) -> float:
    assert victim.process is not None
    try:
        fields = Path(f"/proc/{victim.process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _evidence(lanes: list[Lane], victim: Victim) -> str:
    lines = [
        f"lane {number}: {kind} {data.hex()}"
        for number, lane in enumerate(lanes)
        for kind, data, _ in lane.last
    ]
    return "\n".join([*lines, "", victim.log.read_text()[-20_000:]])
