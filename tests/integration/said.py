"""What came of a command."""

from typing import NamedTuple


class Said(NamedTuple):
    """What a command said, and how it ended."""

    status: object
    out: str
    err: str
