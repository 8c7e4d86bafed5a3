"""Section 11 of docs/protocol.md: the parameters, and the bounds that are constants."""

from dataclasses import fields

import pytest

from gapless.errors import ParameterError
from gapless.protocol import creations, edge, messages, ostream, pubend, routing
from gapless.protocol.parameters import Parameters
from gapless.protocol.sessions import losses
from tests.spec.document import clauses, names


def test_the_table_lists_every_parameter_with_its_default() -> None:
    """Clause 11.1."""
    listed = {names(row[0])[0]: row[2] for row in clauses()["11.1"].table()}
    defaults = {
        each.name: "infinite" if each.default is None else str(each.default) for each in fields(Parameters)
    }
    assert listed == defaults
    assert list(listed) == list(defaults)


@pytest.mark.parametrize("value", [0, -1, 2**40 + 1, 1.5, True, "infinite"])
def test_a_parameter_outside_its_values_is_refused(value: object) -> None:
    """Clause 11.1."""
    with pytest.raises(ParameterError):
        Parameters.parse({"gap_curiosity_ms": value})
    assert Parameters.parse({"delay_curiosity_ms": "infinite"}).delay_curiosity_ms is None


def test_the_other_bounds_are_those_of_the_table() -> None:
    """Clause 11.2."""
    listed = {names(row[0])[0]: int(row[1]) for row in clauses()["11.2"].table()}
    assert listed == {
        "ACK_RUNS_MAX": ostream.ACK_RUNS_MAX,
        "STARTS_MAX": pubend.STARTS_MAX,
        "GRANTS_MAX": pubend.GRANTS_MAX,
        "LIVES_TOLD_MAX": messages.LIVES_TOLD_MAX,
        "OWN_LIVES_MAX": losses.OWN_LIVES_MAX,
        "EARLY_MAX": pubend.EARLY_MAX,
        "RESERVE_GROWTH_MAX": pubend.RESERVE_GROWTH_MAX,
        "CHANGES_MAX": routing.CHANGES_MAX,
        "PART_BYTES_MAX": routing.PART_BYTES_MAX,
        "WANTS_MAX": routing.WANTS_MAX,
        "PHASES_MAX": edge.PHASES_MAX,
        "TOPICS_MAX": creations.TOPICS_MAX,
        "CREATIONS_MAX": creations.CREATIONS_MAX,
        "MESSAGE_CREATIONS_MAX": creations.MESSAGE_CREATIONS_MAX,
    }


def test_two_start_ticks_that_become_one_are_as_careful() -> None:
    """Clause 11.2."""
    starts = pubend.Starts()
    for epoch in range(pubend.STARTS_MAX + 2):
        starts.add(epoch, 1_000 - epoch)
    assert len(starts.entries) == pubend.STARTS_MAX
    plain = pubend.Starts(entries=[(epoch, 1_000 - epoch) for epoch in range(pubend.STARTS_MAX + 2)])
    for epoch in range(-1, pubend.STARTS_MAX + 2):
        assert starts.limit(epoch) <= plain.limit(epoch)
