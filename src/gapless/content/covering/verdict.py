"""Does one subscription cover another? The three possible answers."""

from __future__ import annotations

from enum import Enum

__all__ = ["Cover"]


class Cover(Enum):
    """The answer to "does `a` accept everything that `b` accepts?".

    YES and NO are proofs. UNKNOWN means that none was found, and counts as not covering: a subscription that
    is sent upstream although another covers it costs a little, one that is held back although none covers it
    loses events.
    """

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
