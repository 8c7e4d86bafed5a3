"""Which faults strike, when, and whom? Everything is drawn from one seed, before anything starts.

A run is a sequence of rounds. In each, faults strike one after the other, overlapping as chance has it; then
everything is mended, and everybody must have everything. Every round begins with the death of a router while
nothing else is wrong, which is where the time that recovery takes is measured.

What the processes make of it is up to the clock of the machine: the same seed strikes the same blows at the
same times, which is no replay of the same run.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: How many faults a round has, about.
ROUND_FAULTS = 20
#: Seconds between the beginnings of two faults, about.
PACE_S = 2.0
#: What is done to one target leaves it alone for so long afterwards, to let it come back at all.
REST_S = 1.5

#: Each kind of fault: how often it is chosen, and how long it lasts at least and at most.
KINDS: Mapping[str, tuple[int, float, float]] = {
    "router kill": (4, 0.2, 3.0),
    "repository kill": (3, 0.1, 2.5),
    "edge kill": (3, 0.1, 3.0),
    "all routers kill": (2, 0.2, 2.0),
    "broker stop": (5, 1.0, 5.0),
    "broker restart": (3, 0.1, 2.0),
    "link cut": (4, 0.0, 0.0),
    "link refuse": (3, 0.5, 4.0),
    "link swallow": (4, 0.5, 7.0),
    "link slow": (3, 1.0, 5.0),
    "client link cut": (3, 0.0, 0.0),
    "client link swallow": (3, 0.5, 5.0),
    "client link slow": (2, 1.0, 5.0),
    "disk full": (3, 0.3, 6.0),
    "reader stop": (4, 1.0, 5.0),
    "client kill": (3, 0.1, 1.5),
    "client stop": (2, 1.0, 5.0),
    "garbage": (4, 0.0, 0.0),
}
#: The fault with which every round begins, while nothing else is wrong.
MEASURED = "router kill, alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One fault, as it is planned."""

    number: int
    kind: str
    #: A broker, a gate, a client or a subscription.
    target: str
    #: Seconds after the round began, and how long it lasts.
    at_s: float
    for_s: float
    #: A number for whatever else has to be chosen.
    chance: int

    def __str__(self) -> str:
        return f"{self.kind} {self.target}" + (f" for {self.for_s:.1f} s" if self.for_s else "")


def plan(seed: int, faults: int, targets: Mapping[str, Sequence[str]]) -> list[list[Blow]]:
    """So many faults, in rounds. `targets` are the names that each kind may strike; none: it never does."""
    chance = random.Random(seed)
    kinds = [kind for kind in KINDS if targets.get(kind)]
    #: Chosen in turn from a shuffled deck, so that a run of some length has all kinds.
    deck: list[str] = []
    rounds: list[list[Blow]] = []
    number = 0
    while number < faults:
        count = min(ROUND_FAULTS, faults - number)
        blows = [_measured(number, targets, chance)]
        busy: dict[str, float] = {}
        at_s = blows[0].for_s + PACE_S
        while len(blows) < count:
            if not deck:
                deck = [kind for kind in kinds for _ in range(KINDS[kind][0])]
                chance.shuffle(deck)
            kind = deck.pop()
            at_s += chance.uniform(0.2, 2 * PACE_S - 0.2)
            blow = _drawn(kind, targets[kind], busy, chance, number=number + len(blows), at_s=at_s)
            blows.append(blow)
            for name in targets["router kill"] if kind == "all routers kill" else (blow.target,):
                busy[name] = blow.at_s + blow.for_s + REST_S
        rounds.append(blows)
        number += count
    return rounds


def _measured(number: int, targets: Mapping[str, Sequence[str]], chance: random.Random) -> Blow:
    return Blow(
        number=number,
        kind=MEASURED,
        target=chance.choice(targets["router kill"]),
        at_s=0.0,
        for_s=3.0,
        chance=chance.getrandbits(32),
    )


def _drawn(
    kind: str,
    targets: Sequence[str],
    busy: Mapping[str, float],
    chance: random.Random,
    *,
    number: int,
    at_s: float,
) -> Blow:
    """A fault that strikes a target that is free then, or the one that is free first."""
    _, low_s, high_s = KINDS[kind]
    for_s = chance.uniform(low_s, high_s)
    free = [target for target in targets if busy.get(target, 0.0) <= at_s]
    target = chance.choice(free) if free else min(targets, key=lambda each: busy[each])
    return Blow(
        number=number,
        kind=kind,
        target=target,
        at_s=max(at_s, busy.get(target, 0.0)),
        for_s=for_s,
        chance=chance.getrandbits(32),
    )
