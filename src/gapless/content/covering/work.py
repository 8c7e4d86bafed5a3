"""How much work may be done before other work gets its turn? Counted, never timed.

Comparing conditions is quadratic in their size, which subscribers decide. So the work is counted while it is
done, in units of about a microsecond, and stops at its limit. Counts are the same on every machine and in
every run; unfinished work is either done later or not needed.

Implements docs/content.md, section 10.
"""

from __future__ import annotations


class OutOfWorkError(Exception):
    """The work budget is used up. Caught where it was set."""


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
        """Spend this much. Raises OutOfWorkError when less was left."""
        self.left -= units
        if self.left < 0:
            raise OutOfWorkError

    def part(self, most: int) -> Work:
        """A part of it, for one of many users; `spend` what it took afterwards."""
        return Work(max(0, min(self.left, most)))


#: An unlimited budget.
UNBOUNDED = 2**62
