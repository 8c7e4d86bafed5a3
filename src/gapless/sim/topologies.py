"""Which networks are simulated? The one of the paper, and random ones.

Implements the setting of section 4.2 of the Gryphon paper (its Figure 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from gapless.protocol.network import Network

#: The columns of every simulated topic; `id` is unique over a whole run.
COLUMNS: Mapping[str, str] = {"id": "int", "group": "int", "price": "float?", "name": "string?"}

#: The pubends of Figure 3. Hashed onto two brokers of a cell, two go to each.
FIGURE3_PUBENDS = ("hkex", "lse", "nyse", "tse")


def figure3(parameters: Mapping[str, object] | None = None) -> Network:
    """The ten brokers in eight cells of the paper's failure experiments."""
    cells = {"PHB": ["p1"], "IB1": ["b1", "b2"], "IB2": ["b3", "b4"]}
    edges = [f"s{number}" for number in range(1, 6)]
    cells.update({edge.upper(): [edge] for edge in edges})
    return Network.parse(
        {
            "cells": cells,
            "links": ["PHB--IB1", "PHB--IB2", "IB1--S1", "IB1--S2", "IB2--S3", "IB2--S4", "IB2--S5"],
            "topics": {"trades": COLUMNS},
            "pubends": {name: {"topic": "trades", "broker": "p1"} for name in FIGURE3_PUBENDS},
            "edges": edges,
            "parameters": dict(parameters or {}),
        }
    )


def random_network(random: Random, brokers_max: int) -> Network:
    """A random tree of cells with a few roots, topics and edges, and random parameters."""
    members = _random_cells(random, brokers_max)
    names = list(members)
    links = [f"{names[random.randrange(at)]}--{names[at]}" for at in range(1, len(names))]
    # Only a broker that is alone in its cell may host pubends or subends.
    alone = [brokers[0] for brokers in members.values() if len(brokers) == 1]
    topics = [f"t{number}" for number in range(1, 1 + random.choice((1, 1, 1, 2, 3)))]
    roots = random.sample(alone, min(len(alone), random.choice((1, 1, 2, 3))))
    pubends: dict[str, dict[str, str]] = {}
    for topic in topics:
        for number in range(1, 1 + random.choice((1, 1, 2, 3))):
            pubends[f"{topic}-{number}"] = {"topic": topic, "broker": random.choice(roots)}
    others = [broker for broker in alone if broker not in roots]
    edges = random.sample(others, min(len(others), random.randint(1, 6)))
    edges += [root for root in roots if not others or random.random() < 0.2]
    return Network.parse(
        {
            "cells": members,
            "links": links,
            "topics": dict.fromkeys(topics, COLUMNS),
            "pubends": pubends,
            "edges": sorted(edges),
            "parameters": random_parameters(random),
        }
    )


def _random_cells(random: Random, brokers_max: int) -> dict[str, list[str]]:
    luck = random.random()
    if luck < 0.1:
        size = 1
    elif luck < 0.8:
        size = random.randint(2, 8)
    elif luck < 0.98 or brokers_max <= 16:
        size = random.randint(8, 15)
    else:
        size = random.randint(16, brokers_max)
    size = max(1, min(size, brokers_max))
    members: dict[str, list[str]] = {}
    made = 0
    while made < size:
        # The first cell is a single broker, so that there is always a place for a pubend.
        wanted = random.choice((1, 1, 1, 2, 2, 3)) if made else 1
        count = min(wanted, size - made)
        members[f"c{len(members)}"] = [f"n{number}" for number in range(made, made + count)]
        made += count
    return members


def random_parameters(random: Random) -> dict[str, object]:
    """Timers scaled down to keep runs short, and bounds that are sometimes small enough to be reached."""
    repeat_min = random.choice((50, 100, 200, 600))
    status = random.choice((200, 400))
    parameters: dict[str, object] = {
        "gap_curiosity_ms": random.choice((10, 50, 200)),
        "nack_repeat_min_ms": repeat_min,
        "nack_repeat_max_ms": repeat_min * random.choice((1, 4, 8)),
        "delay_curiosity_ms": random.choice(("infinite", "infinite", 300, 1_000)),
        "ack_expected_ms": random.choice((300, 1_000, 2_000)),
        "idle_silence_ms": random.choice((100, 300, 1_000)),
        "reserve_ms": random.choice((50, 300, 1_000)),
        "ack_delay_ms": random.choice((10, 50, 100)),
        "horizon_ms": 300,
        "link_status_ms": status,
        "link_silent_ms": status * random.choice((3, 6)),
        "advertise_repeat_ms": random.choice((100, 300, 500)),
        "nack_ticks_max": random.choice((100_000, 200_000, 500_000, 500_000)),
        "nack_parts_max": random.choice((2, 16)),
    }
    if random.random() < 0.3:
        parameters["message_rows_max"] = random.choice((4, 16, 64))
    if random.random() < 0.3:
        parameters["message_conditions_max"] = random.choice((1, 2, 3))
    if random.random() < 0.3:
        stream_bytes = random.choice((4_000, 10_000, 40_000))
        parameters["stream_bytes_max"] = stream_bytes
        # Fewer streams than a network has pubends may be full at the same time.
        parameters["broker_bytes_max"] = 3 * stream_bytes // 2
    if random.random() < 0.3:
        parameters["stream_runs_max"] = random.choice((4, 8, 64))
    if random.random() < 0.3:
        parameters["deliveries_waiting_max"] = random.choice((2, 4, 16))
        # No number of its own is drawn for it: that would make other runs of all seeds.
        parameters["step_pairs_max"] = parameters["deliveries_waiting_max"]
    if random.random() < 0.3:
        parameters["compare_work_max"] = parameters["place_work_max"] = random.choice((1, 20, 100))
    return parameters
