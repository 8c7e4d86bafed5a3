"""Does one subscription cover another? The three possible answers."""

from __future__ import annotations

from enum import Enum

__all__ = ["Cover"]


class Cover(Enum):
    """The answer to "does `a` accept everything that `b` accepts?".

    YES and NO are proofs. UNKNOWN means that nobody found one, and counts as not covering: a subscription
    that is sent upstream although another covers it costs a little, one that is held back although none
    covers it loses events.

    >>> Cover.YES.is_proven, Cover.UNKNOWN.is_proven
    (True, False)
    """

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"

    @property
    def is_proven(self) -> bool:
        """Whether `a` certainly accepts everything that `b` accepts."""
        return self is Cover.YES
