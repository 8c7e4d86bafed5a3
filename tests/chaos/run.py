"""How does a chaos run go? Rounds of faults; after each, everything is mended and everybody catches up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gapless.client import Options, connect
from gapless.errors import GaplessError
from gapless.protocol.network import Network
from gapless.sim.checkers import Violation
from tests.chaos.history import History, Published, Subscribed
from tests.chaos.judge import Verdict, judge
from tests.chaos.plan import MEASURED, Blow, plan
from tests.chaos.stage import NETWORK, REPOSITORIES, Stage
from tests.chaos.strikes import Strikes, targets_of
from tests.chaos.wishes import InTurn

#: How long everybody may take to catch up once everything is mended. Generous: the machine may be busy.
PATIENCE_S = 120.0
#: How long the logs may take to release everything: subscriptions of lost connections are kept for a while.
RELEASE_PATIENCE_S = 90.0
#: The time that recovery may take is judged by events that were published so soon after the death.
PROMPT_S = 0.25


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    seed: int
    folder: Path
    verdict: Verdict = field(default_factory=Verdict)
    #: Faults that struck, by kind.
    faults: dict[str, int] = field(default_factory=dict)
    #: Per death of a router while nothing else was wrong: seconds until each subscription got something new.
    recoveries: list[list[float]] = field(default_factory=list)
    #: Seconds until everybody had caught up, per round.
    caught_up_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    history: History | None = None

    @property
    def is_good(self) -> bool:
        """Whether every promise was kept."""
        return not self.verdict.violations


class Run:
    """One run, from its seed."""

    def __init__(self, seed: int, faults: int, folder: Path, say: Callable[[str], None]) -> None:
        self._seed = seed
        self._faults = faults
        self._folder = folder
        self._say = say
        self._history = History(folder / "history")
        self._outcome = Outcome(seed, folder, history=self._history)
        self._began = time.monotonic()
        self._extra: list[Violation] = []

    async def play(self, *, waits_for_release: bool) -> Outcome:
        """Play it, and judge it."""
        outcome = self._outcome
        async with Stage.set_up(self._seed, self._folder) as stage:
            stage.recorder.write("clock", now=time.time())
            self._say(f"{len(stage.fleet.names)} brokers and {len(stage.clients)} client programs run")
            if stage.disk is None:
                outcome.notes.append("mounting is not allowed here: no disk was filled")
            strikes = Strikes(stage)
            watch = asyncio.create_task(self._watch(stage))
            try:
                for blows in plan(self._seed, self._faults, targets_of(stage)):
                    await self._round(stage, strikes, blows)
                    if not outcome.is_good:
                        break
                if outcome.is_good:
                    await self._finish(stage, waits_for_release=waits_for_release)
            finally:
                watch.cancel()
            outcome.seconds = time.monotonic() - self._began
            self._count()
        return outcome

    # ---- rounds --------------------------------------------------------------------------------------

    async def _round(self, stage: Stage, strikes: Strikes, blows: list[Blow]) -> None:
        began = time.monotonic()
        tasks: list[asyncio.Task[None]] = []
        for blow in blows:
            await asyncio.sleep(max(0.0, began + blow.at_s - time.monotonic()))
            if blow.kind != MEASURED and tasks and tasks[0].get_name() == MEASURED:
                await tasks.pop(0)
                # On a busy machine a broker takes its time to come back; the others keep their distance.
                began = max(began, time.monotonic() - blow.at_s)
            self._history.refresh()
            if self._history.broken:
                # A program has failed: what comes after proves nothing.
                break
            self._say(f"fault {blow.number + 1}/{self._faults}  {blow}")
            tasks.append(asyncio.create_task(strikes.strike(blow), name=blow.kind))
        for task in tasks:
            await task
        await stage.heal()
        mended = time.monotonic()
        await self._catch_up(stage, mended)
        outcome = self._outcome
        outcome.caught_up_s.append(time.monotonic() - mended)
        await self._judge(is_over=False)
        self._say(
            f"all caught up in {outcome.caught_up_s[-1]:.1f} s: {outcome.verdict.published:,} published, "
            f"{outcome.verdict.delivered:,} delivered, {len(outcome.verdict.violations)} violations"
        )

    async def _catch_up(self, stage: Stage, until: float) -> None:
        """Wait until everybody has everything that was published before a moment."""
        began = time.monotonic()
        while True:
            self._history.refresh()
            late = await asyncio.to_thread(self._late, until)
            if late is None or self._history.broken:
                return
            if time.monotonic() - began > PATIENCE_S:
                self._extra.append(late)
                await self._keep_status(stage)
                return
            await asyncio.sleep(0.3)

    async def _keep_status(self, stage: Stage) -> None:
        """What every broker tells of itself while somebody waits in vain."""
        for broker in stage.fleet.names:
            told = await _status(stage.fleet.address(broker))
            file = self._folder / f"{broker}-status.json"
            await asyncio.to_thread(file.write_text, json.dumps(told, indent=1), encoding="utf-8")

    def _late(self, until: float) -> Violation | None:
        """What somebody still has to get, of all that was published before a moment."""
        old = [event for event in self._history.published.values() if event.at < until]
        for event in old:
            if event.receipt_at is None:
                text = f"event {event.number} has no receipt {PATIENCE_S:.0f} s after all was mended"
                return Violation("liveness", text, subject=event.publisher)
        for subscribed in self._history.subscribed.values():
            if subscribed.asked:
                text = f"a changed filter is not confirmed {PATIENCE_S:.0f} s after all was mended"
                return Violation("liveness", text, subject=subscribed.name)
            owed = _last_owed(subscribed, old)
            if owed is not None:
                text = f"not taken {PATIENCE_S:.0f} s after all was mended"
                return Violation(
                    "liveness", text, subject=subscribed.name, pubend=owed.pubend, tick=owed.tick
                )
        return None

    async def _finish(self, stage: Stage, *, waits_for_release: bool) -> None:
        """No more events: now everybody must get everything, and the logs must let go of it."""
        stage.clients["publishers"].tell({"finish": True})
        await asyncio.sleep(0.5)
        await self._catch_up(stage, float("inf"))
        released = None
        if waits_for_release:
            self._say("waiting for the logs to release everything")
            released = await self._released(stage)
        await self._judge(is_over=True, released=released)

    async def _released(self, stage: Stage) -> dict[str, int]:
        """Per pubend the tick below which its log keeps nothing, once that is everything or time is up."""
        last: dict[str, int] = {}
        for event in self._history.published.values():
            if event.pubend is not None and event.tick is not None:
                last[event.pubend] = max(last.get(event.pubend, 0), event.tick)
        began = time.monotonic()
        found: dict[str, int] = {}
        while time.monotonic() - began < RELEASE_PATIENCE_S:
            for broker in REPOSITORIES:
                told = await _status(stage.fleet.address(broker))
                for pubend in told.get("pubends", ()):
                    if pubend["here"]:
                        found[pubend["pubend"]] = pubend["released"]
            if all(found.get(pubend, 0) > tick for pubend, tick in last.items()):
                break
            await asyncio.sleep(1.0)
        return found

    # ---- judging -------------------------------------------------------------------------------------

    async def _judge(self, *, is_over: bool, released: dict[str, int] | None = None) -> None:
        self._history.refresh()
        network = Network.parse(tomllib.loads(NETWORK))
        verdict = await asyncio.to_thread(judge, self._history, network, is_over=is_over, released=released)
        known = {each.subject for each in verdict.violations}
        verdict.violations += [each for each in self._extra if each.subject not in known]
        self._outcome.verdict = verdict

    async def _watch(self, stage: Stage) -> None:
        """A broker that goes by itself is a finding; it is started again so that the run can go on."""
        while True:
            await asyncio.sleep(0.5)
            for broker in stage.fleet.names:
                if stage.died(broker):
                    stage.down.add(broker)
                    await stage.fleet.kill(broker)
                    told = stage.fleet.log(broker).read_text(encoding="utf-8", errors="replace")
                    last = told.strip().splitlines()[-1:] or ["it said nothing"]
                    self._say(f"broker {broker} went by itself: {last[0]}")
                    self._extra.append(Violation("liveness", f"went by itself: {last[0]}", subject=broker))
                    await stage.up(broker)

    def _count(self) -> None:
        outcome, history = self._outcome, self._history
        for fault in history.faults.values():
            outcome.faults[fault.what] = outcome.faults.get(fault.what, 0) + 1
            if fault.what == MEASURED:
                outcome.recoveries.append(_recovery(history, fault.at))


async def _status(address: str) -> dict[str, Any]:
    """What a node tells of itself; nothing when it does not answer."""
    with contextlib.suppress(GaplessError):
        async with connect(address, options=Options(connect_timeout_s=5.0)) as client:
            return await client.status()
    return {}


def _last_owed(subscribed: Subscribed, old: list[Published]) -> Published | None:
    """The last event of a pubend that a subscription is owed, if it has not come."""
    if not subscribed.stretches:
        return None
    condition = InTurn(tuple(subscribed.turns))
    starts, positions = subscribed.stretches[-1].starts, subscribed.positions
    seen: set[str] = set()
    for event in reversed(old):
        if event.topic != subscribed.topic or event.tick is None or event.pubend is None:
            continue
        if event.pubend in seen or event.tick < starts.get(event.pubend, 0):
            continue
        if condition.accepts({**event.row, "_pubend": event.pubend, "_tick": event.tick}):
            seen.add(event.pubend)
            if event.tick >= positions.get(event.pubend, 0):
                return event
    return None


def _recovery(history: History, death: float) -> list[float]:
    """Per subscription: seconds from a death to the first delivery of an event published right after it."""
    found: list[float] = []
    for subscribed in history.subscribed.values():
        for stretch in () if subscribed.is_slow else subscribed.stretches:
            first = next(
                (
                    taken.at - death
                    for taken in stretch.taken
                    if taken.at > death
                    and (event := history.published.get(taken.id)) is not None
                    and death <= event.at <= death + PROMPT_S
                ),
                None,
            )
            if first is not None:
                found.append(first)
                break
    return sorted(found)
