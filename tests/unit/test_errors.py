"""Errors: a stable code, a branch of the tree, and whether a retry can help."""

import pickle

import pytest

from gapless.errors import (
    GaplessError,
    NetworkDescriptionError,
    ParameterError,
    PeerError,
    SchemaError,
    UsageError,
)


def test_the_text_of_an_error_is_its_code_and_its_message() -> None:
    assert str(UsageError("E101", "no topic 'trade'")) == "E101 no topic 'trade'"


@pytest.mark.parametrize("kind", [SchemaError, NetworkDescriptionError, ParameterError])
def test_a_mistake_of_the_caller_is_caught_as_a_usage_error(kind: type[UsageError]) -> None:
    with pytest.raises(UsageError, match=r"^E110 bad$"):
        raise kind("E110", "bad")


def test_a_mistake_of_a_peer_is_not_a_mistake_of_the_caller() -> None:
    assert issubclass(PeerError, GaplessError)
    assert not issubclass(PeerError, UsageError)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(UsageError, "E201"), (PeerError, "E101"), (UsageError, "E1"), (GaplessError, "101"), (PeerError, "")],
)
def test_a_code_of_another_branch_is_a_bug(kind: type[GaplessError], code: str) -> None:
    with pytest.raises(AssertionError, match="cannot have the code"):
        kind(code, "message")


def test_retrying_helps_only_where_the_error_says_so() -> None:
    assert not PeerError("E201", "frame without an end").retry
    assert PeerError("E202", "closed while we wrote", retry=True).retry


def test_an_error_survives_the_way_from_a_worker_process() -> None:
    sent = SchemaError("E102", "column 'price' holds text", retry=True)
    received = pickle.loads(pickle.dumps(sent))
    assert type(received) is SchemaError
    assert (received.code, received.message, received.retry) == (sent.code, sent.message, sent.retry)
