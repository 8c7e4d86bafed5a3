"""Publishes a view's rows by hand, as the pipeline does: changed rows, and a marker behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from gapless.client import Client
from gapless.client.receipts import BatchReceipt
from gapless.views.registry import AS_OF, GONE, KEY, KIND, MARKER, SHOWN, STAMP, Definition, stamp_of

STOCK = "SELECT item, sum(qty) AS total FROM sales GROUP BY item"
SALES = {"item": "string", "qty": "int"}


class Shown:
    """The rows of a view whose first column is its key, and what they were told to be."""

    def __init__(self, client: Client, definition: Definition, key: str = "item") -> None:
        self._client = client
        self._topic = definition.topic
        self._key = key
        self._stamps = count(1_000_003, 7_919)
        #: By key, what is shown and its stamp.
        self.rows: dict[Any, tuple[dict[str, Any], int]] = {}

    async def show(
        self,
        rows: Sequence[Mapping[str, Any]],
        as_of: Mapping[str, Mapping[str, int]] | None,
        gone: Sequence[Any] = (),
        *,
        stamp: int | None = None,
    ) -> BatchReceipt:
        """Publish rows, those that are gone, and a marker, unless there is no horizon."""
        told: list[dict[str, Any]] = []
        for row in rows:
            self.rows[row[self._key]] = (dict(row), next(self._stamps))
            key = json.dumps([row[self._key]])
            told.append({KIND: SHOWN, KEY: key, STAMP: self.rows[row[self._key]][1], **row})
        for key in gone:
            self.rows.pop(key, None)
            told.append({KIND: GONE, KEY: json.dumps([key])})
        if as_of is not None:
            total = stamp_of(each for _, each in self.rows.values()) if stamp is None else stamp
            told.append({KIND: MARKER, AS_OF: json.dumps(as_of), STAMP: total})
        return await self._client.publish_batch(self._topic, told)

    def all_rows(self) -> list[dict[str, Any]]:
        """What a reader should see."""
        return [self.rows[key][0] for key in sorted(self.rows)]
