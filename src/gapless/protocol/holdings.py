"""How much do all streams of a broker hold together, and which of them forgets beyond the bound?

Implements docs/protocol.md, clause 6.14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gapless.model.ids import PubendId
from gapless.model.ticks import Tick
from gapless.protocol.marks import mark, reached
from gapless.protocol.path import Path

LARGEST_FORGOT = mark(
    "largest_forgot", "the streams of a broker reached their bound together, and the largest forgot rows"
)
#: Beyond the bound, streams forget until this part of it is free: else they would forget with every step.
FREE_PART = 8


class Holdings:
    """The bytes of rows that each stream of a broker holds."""

    def __init__(self) -> None:
        self._bytes: dict[PubendId, int] = {}
        self._total = 0

    def settle(
        self,
        paths: Mapping[PubendId, Path],
        changed: Iterable[PubendId],
        bytes_max: int,
        positions: Callable[[PubendId], tuple[Tick, Tick]],
    ) -> list[PubendId]:
        """Let the largest streams forget until all together are within the bound; returns those.

        `changed` are the streams that may hold more or less than before. `positions` tells below which tick
        all who are in step have had everything, and where the lowest of the others is.
        """
        for pubend in changed:
            self._put(pubend, paths[pubend])
        forgot: list[PubendId] = []
        if self._total > bytes_max:
            reached(LARGEST_FORGOT)
            left_max = bytes_max - bytes_max // FREE_PART
            while self._total > left_max:
                pubend = min(self._bytes, key=lambda each: (-self._bytes[each], each))
                before = self._bytes[pubend]
                paths[pubend].forget_to_bounds(
                    *positions(pubend), max(before // 2, before - (self._total - left_max))
                )
                self._put(pubend, paths[pubend])
                assert self._bytes[pubend] < before, f"{pubend} forgets nothing of {before} bytes"
                forgot.append(pubend)
        return forgot

    def _put(self, pubend: PubendId, path: Path) -> None:
        nbytes = path.istream.stream.rows.nbytes
        self._total += nbytes - self._bytes.get(pubend, 0)
        self._bytes[pubend] = nbytes
