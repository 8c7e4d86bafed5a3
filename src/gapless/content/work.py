"""How much work may be done before something else has its turn? Counted, never timed.

Comparing conditions is quadratic in what they say, and whoever subscribes decides how much that is. So the
work is counted while it is done, in units of about a microsecond, and ends where it was said to end. Counts
are the same on every machine and in every run; what is left undone is either left for later or not needed.

Implements docs/content.md, section 10.
"""

from __future__ import annotations


class OutOfWorkError(Exception):
    """The work budget is used up. Caught by whoever set it."""


class Work:
    """A budget of work.

    >>> work = Work(3)
    >>> work.spend(2)
    >>> work.left, work.is_done
    (1, False)
    >>> work.part(5).left
    1
    """

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def spend(self, units: int) -> None:
        """Do so much of it. Raises OutOfWorkError when that is more than was left."""
        self.left -= units
        if self.left < 0:
            raise OutOfWorkError

    def part(self, most: int) -> Work:
        """A part of it, for one of many who need some; `spend` what it took when it is over."""
        return Work(max(0, min(self.left, most)))


#: A budget that nothing uses up.
UNBOUNDED = 2**62
