"""What is said of a chaos run? A table for people, JSON for programs, a plot, the story of a lost event."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gapless.sim.checkers import Violation
from tests.chaos.history import History
from tests.chaos.plan import MEASURED
from tests.chaos.run import Outcome
from tests.chaos.stage import SMALL

#: Recovery after the death of a router, while its sibling is up, is meant to stay below this.
TARGET_S = 1.0
#: How much of the brokers' logs a story shows, around the time of its event.
STORY_S = 6.0
STORY_LINES_MAX = 60


def command_of(outcome: Outcome, faults: int) -> str:
    """The command that strikes the same blows again."""
    return f"python -m tests.chaos --seed {outcome.seed} --faults {faults}"


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def figures(outcome: Outcome, faults: int) -> dict[str, Any]:
    """Everything, for a program."""
    verdict = outcome.verdict
    samples = [each for death in outcome.recoveries for each in death]
    return {
        "seed": outcome.seed,
        "command": command_of(outcome, faults),
        "seconds": round(outcome.seconds, 1),
        "faults": dict(sorted(outcome.faults.items())),
        "faults_total": sum(outcome.faults.values()),
        "published": verdict.published,
        "accepted": verdict.accepted,
        "refused": verdict.refused,
        "delivered": verdict.delivered,
        "lost": verdict.count("lost"),
        "duplicated": verdict.count("duplicated"),
        "out_of_order": verdict.count("out of order"),
        "not_wanted": verdict.count("not wanted"),
        "forfeited": verdict.forfeited,
        "recovery_s": {
            "deaths": len(outcome.recoveries),
            "samples": len(samples),
            "p50": round(quantile(samples, 0.5), 3),
            "p90": round(quantile(samples, 0.9), 3),
            "max": round(max(samples, default=0.0), 3),
            "target": TARGET_S,
        },
        "caught_up_s_max": round(max(outcome.caught_up_s, default=0.0), 1),
        "violations": [str(each) for each in verdict.violations],
        "notes": outcome.notes,
    }


def show(outcome: Outcome, faults: int, console: Console) -> None:
    """The account of a run, for people."""
    told = figures(outcome, faults)
    table = Table("fault", "times", title=f"{told['faults_total']} faults in {told['seconds']:.0f} s")
    table.columns[1].justify = "right"
    for kind, times in told["faults"].items():
        table.add_row(kind, str(times))
    console.print(table)
    account = Table(title="what became of the events")
    row = []
    for name in ("published", "accepted", "refused", "delivered", "lost", "duplicated", "out_of_order"):
        account.add_column(name.replace("_", " "), justify="right")
        row.append(f"{told[name]:,}")
    account.add_row(*row)
    console.print(account)
    recovery = told["recovery_s"]
    console.print(
        f"{MEASURED}: {recovery['deaths']} deaths, next delivery after p50 {recovery['p50']:.2f} s, "
        f"p90 {recovery['p90']:.2f} s, max {recovery['max']:.2f} s (target {TARGET_S:.0f} s)"
    )
    console.print(f"all caught up at most {told['caught_up_s_max']:.1f} s after everything was mended")
    if told["forfeited"]:
        console.print(
            f"{told['forfeited']} events were gone when subscriptions without a name came back after the "
            "death of their edge, and they were told so: name a subscription to keep its events through that"
        )
    for note in told["notes"]:
        console.print(note)
    for violation in outcome.verdict.violations:
        console.print(f"[red]VIOLATION[/red] {violation}", highlight=False)
    console.print(f"seed {told['seed']}; again: {told['command']}", highlight=False)


def plot(outcome: Outcome, file: Path) -> None:
    """The share of subscriptions that had something new, over the time since a router died."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for death in outcome.recoveries:
        shares = [(at + 1) / len(death) for at in range(len(death))]
        axes.step([0.0, *death], [0.0, *shares], where="post", color="tab:blue", alpha=0.4)
    axes.axvline(TARGET_S, color="tab:red", linestyle="--", label=f"target: {TARGET_S:.0f} s")
    axes.set_xlabel("seconds since a router was killed, its sibling being up")
    axes.set_ylabel("subscriptions with a new event")
    axes.set_title(f"Recovery after {len(outcome.recoveries)} deaths of a router (seed {outcome.seed})")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)


# ---- stories ---------------------------------------------------------------------------------------------


def keep(outcome: Outcome, folder: Path) -> None:
    """What a search for the cause needs: the histories are there; add the small disk, and the stories."""
    small = outcome.folder / SMALL
    if small.is_mount():
        shutil.copytree(small, folder / f"{SMALL}-data", dirs_exist_ok=True)
    assert outcome.history is not None
    for number, violation in enumerate(outcome.verdict.violations):
        text = "\n".join(story(violation, outcome.history, outcome.folder))
        (folder / f"story-{number}.txt").write_text(text + "\n", encoding="utf-8")


def story(violation: Violation, history: History, folder: Path) -> list[str]:
    """What is known of the event of a violation: from its publisher to the logs of the brokers."""
    lines = [str(violation)]
    at: float | None = None
    for event in history.published.values():
        if event.tick is not None and (event.pubend, event.tick) == (violation.pubend, violation.tick):
            at = event.at
            lines.append(f"{at:.3f} {event.publisher} published {event.row} as its event {event.number}")
            if event.receipt_at is not None:
                lines.append(f"{event.receipt_at:.3f} receipt: {event.pubend}@{event.tick}")
    for subscribed in history.subscribed.values():
        for stretch in subscribed.stretches:
            for taken in stretch.taken:
                if (taken.pubend, taken.tick) == (violation.pubend, violation.tick):
                    lines.append(f"{taken.at:.3f} {subscribed.name} got it")
    concerned = history.subscribed.get(violation.subject.split("/")[0])
    if concerned is not None:
        for number, stretch in enumerate(concerned.stretches):
            lines.append(
                f"{stretch.at:.3f} {concerned.name} stretch {number}: from {stretch.starts}, "
                f"{len(stretch.taken)} taken"
            )
    lines += [
        f"{fault.at:.3f} fault {fault.number}: {fault.what} {fault.target}"
        + ("" if fault.mended_at is None else f", mended at {fault.mended_at:.3f}")
        for fault in history.faults.values()
        if at is None or abs(fault.at - at) < 3 * STORY_S
    ]
    return lines + _log_lines(folder, None if at is None else history.epoch + at)


def _log_lines(folder: Path, around: float | None) -> list[str]:
    """What the nodes logged around a time, in its order; without one, the last lines of each."""
    lines: list[tuple[float, str]] = []
    for file in sorted(folder.glob("*.log")):
        told = [
            (_logged_at(line), f"{file.stem}: {line}")
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        near = [each for each in told if around is not None and abs(each[0] - around) < STORY_S]
        lines += near or told[-STORY_LINES_MAX:]
    return [line for _, line in sorted(lines)]


def _logged_at(line: str) -> float:
    """When a node logged a line, in seconds since 1970; 0 for a line that is not of a node."""
    try:
        return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    except (ValueError, KeyError, TypeError):
        return 0.0
