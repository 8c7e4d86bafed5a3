"""Which rows does anybody want? A union of conditions, as a link's filter is.

The set is immutable: a change of subscriptions makes a new one. A few conditions are simply evaluated;
many are put into an index.

Implements docs/content.md, section 6.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gapless.content.condition import EVERYTHING, Condition
from gapless.content.evaluate import mask
from gapless.content.index.index import Index
from gapless.content.rows import RowMask, Rows
from gapless.model.batch import EventBatch

#: More conditions than this are worth an index.
EVALUATED_MAX = 4


class Selection:
    """An immutable union of conditions: accepts what any of them accepts."""

    __slots__ = ("_index", "conditions")

    def __init__(self, conditions: Iterable[Condition]) -> None:
        self.conditions = frozenset(conditions)
        self._index: Index | None = None

    def mask(self, batch: EventBatch) -> RowMask:
        """Which rows at least one condition accepts."""
        if EVERYTHING in self.conditions:
            return np.ones(len(batch), np.bool_)
        rows = batch.derived(Rows)
        accepted = np.zeros(len(batch), np.bool_)
        if len(self.conditions) <= EVALUATED_MAX:
            for condition in self.conditions:
                accepted |= mask(condition, rows)
        else:
            if self._index is None:
                self._index = Index()
                for slot, condition in enumerate(sorted(self.conditions, key=str)):
                    self._index.add(slot, condition)
            found, _ = self._index.match(rows)
            accepted[found] = True
        return accepted

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and self.conditions == other.conditions

    def __hash__(self) -> int:
        return hash(self.conditions)

    def __str__(self) -> str:
        return " OR ".join(sorted(str(each) for each in self.conditions)) or "nothing"


#: Accepts no event.
NO_SELECTION = Selection(())
