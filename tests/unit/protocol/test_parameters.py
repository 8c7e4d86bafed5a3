"""Parameters: every mistake is refused with one line that names the parameter."""

from dataclasses import fields

import pytest

from gapless.errors import ParameterError
from gapless.protocol.parameters import Parameters

NAMES = [each.name for each in fields(Parameters)]


def test_nothing_given_means_the_defaults_of_the_paper() -> None:
    parameters = Parameters.parse({})
    assert parameters == Parameters()
    assert parameters.gap_curiosity_ms == 200
    assert parameters.nack_repeat_min_ms == 600
    assert parameters.ack_expected_ms == 10_000
    assert parameters.delay_curiosity_ms is None


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_can_be_given_and_the_others_keep_their_defaults(name: str) -> None:
    value = 20_000 if name == "nack_repeat_max_ms" else 600
    parameters = Parameters.parse({name: value})
    changed = {each for each in NAMES if getattr(parameters, each) != getattr(Parameters(), each)}
    assert getattr(parameters, name) == value
    assert changed <= {name}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1.5, 200.0, "200", True, [200], {}, float("inf"), "forever"])
def test_what_is_no_whole_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(ParameterError) as caught:
        Parameters.parse({name: value})
    expected = f"parameter '{name}' must be a whole number, got {value!r}"
    assert (caught.value.code, caught.value.message) == ("E120", expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, 2**40 + 1])
def test_what_is_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(ParameterError) as caught:
        Parameters.parse({name: value})
    expected = f"parameter '{name}' must be from 1 to {2**40}, got {value}"
    assert (caught.value.code, caught.value.message) == ("E121", expected)


@pytest.mark.parametrize("value", [1, 2**40])
def test_the_ends_of_the_range_are_allowed(value: int) -> None:
    parameters = Parameters.parse(dict.fromkeys(NAMES, value))
    assert {getattr(parameters, name) for name in NAMES} == {value}


def test_only_the_delay_may_be_infinite() -> None:
    assert Parameters.parse({"delay_curiosity_ms": 50}).delay_curiosity_ms == 50
    assert Parameters.parse({"delay_curiosity_ms": "infinite"}).delay_curiosity_ms is None
    for name in NAMES:
        if name != "delay_curiosity_ms":
            with pytest.raises(ParameterError, match=f"^E120 parameter '{name}' must be .* got 'infinite'$"):
                Parameters.parse({name: "infinite"})
            with pytest.raises(ParameterError, match=f"^E120 parameter '{name}' must be .* got None$"):
                Parameters(**{name: None})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gap_curiosity", "did you mean 'gap_curiosity_ms'?"),
        ("nack_repeat_minimum_ms", "did you mean 'nack_repeat_min_ms'?"),
        ("ACK_DELAY_MS", "there are ack_delay_ms, ack_expected_ms, "),
        ("x", "there are ack_delay_ms, ack_expected_ms, "),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Parameters.parse({name: 1})
    assert caught.value.code == "E122"
    assert caught.value.message.startswith(f"unknown parameter '{name}': {hint}")


def test_an_unknown_name_of_several_lines_is_still_one_line() -> None:
    with pytest.raises(ParameterError) as caught:
        Parameters.parse({"ack\ndelay": 1})
    assert len(str(caught.value).splitlines()) == 1


def test_the_longest_repetition_is_not_below_the_shortest() -> None:
    assert Parameters(nack_repeat_min_ms=700, nack_repeat_max_ms=700).nack_repeat_max_ms == 700
    with pytest.raises(ParameterError) as caught:
        Parameters(nack_repeat_min_ms=700, nack_repeat_max_ms=699)
    assert str(caught.value) == (
        "E121 parameter 'nack_repeat_max_ms' (699) is below 'nack_repeat_min_ms' (700)"
    )
