"""A short attack of each kind: the node lives, and its other client gets everything exactly once."""

from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign
from tests.fuzz.inputs import EVENTS, HARMFUL, Source


def test_inputs_are_a_function_of_the_seed() -> None:
    first, again, other = (Source(seed, 0).draw(500, EVENTS[0]) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_every_kind_of_input_is_drawn() -> None:
    source = Source(1, 0)
    kinds = {drawn.kind for event in EVENTS for drawn in source.draw(round(10 / HARMFUL), event)}
    assert len(kinds) == 16, sorted(kinds)


@pytest.mark.slow
def test_a_node_lives_through_a_short_attack_and_serves_its_other_client(tmp_path: Path) -> None:
    result = Campaign(tmp_path, inputs=5_000, seed=3, lanes=3, say=lambda _: None).play()
    assert not result.wrong, "\n".join(result.wrong)
    figures = result.figures()
    assert figures["inputs"] >= 5_000
    assert figures["witness_events"] > 100
    assert len(figures["kinds"]) == 16
    assert {"RECEIPT", "REQUEST_REFUSED", "REFUSE", "to readers: COLUMNS"} <= set(figures["answers"])
