"""Which error does a node's refusal become? The one its code belongs to."""

from __future__ import annotations

from gapless.errors import (
    ContentError,
    GaplessError,
    LinkError,
    PeerError,
    SchemaError,
    StoreError,
    UsageError,
)
from gapless.protocol.sessions.messages import RequestRefused

_BRANCHES: dict[str, type[GaplessError]] = {
    "E11": SchemaError,
    "E1": UsageError,
    "E2": PeerError,
    "E3": StoreError,
    "E4": LinkError,
}


def error_of(code: str, message: str, *, retry: bool = False) -> GaplessError:
    """The error a node reported, as if it had been raised here.

    >>> error_of("E113", "topic 'trades': column 'price' is null in row 3")
    SchemaError('E113', "topic 'trades': column 'price' is null in row 3")
    >>> type(error_of("E301", "the disk is full", retry=True)).__name__
    'StoreError'
    """
    if code.startswith(("E16", "E17")):
        error: GaplessError = ContentError(code, message)
        error.retry = retry
        return error
    kind = _BRANCHES.get(code[:3]) or _BRANCHES.get(code[:2]) or GaplessError
    return kind(code, message, retry=retry)


def refusal_error(refused: GaplessError | RequestRefused) -> GaplessError:
    """What a subscription has failed with, as an error."""
    if isinstance(refused, RequestRefused):
        return error_of(refused.code, refused.message, retry=refused.retry)
    return refused
