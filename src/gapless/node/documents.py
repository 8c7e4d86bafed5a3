"""Which documents does a node take? Those that it can match in a moment, whoever subscribes.

A document is parsed and matched inside a step of the broker, while everybody else waits. What that takes follows
its bytes and its *parts*: the tags, attributes, comments and sections in it, counted as the signs `<` that begin
no `</`, and the signs `=`. Both have a quota, which is checked when somebody publishes: a document that is over it
is refused, and not stored to match nothing.

A sign in a text counts as one in a tag does: to tell them apart, the document would have to be parsed. In UTF-16
a `</` counts too, and what only looks like a sign.

Implements docs/content.md, section 9.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gapless.errors import ContentError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.node.config import Limits

__all__ = ["DocumentQuota", "parts_of"]

_OPENING, _CLOSING, _EQUALS = b"</="


class DocumentQuota:
    """Checks what is published into topics with columns of documents."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.document_bytes_max
        self._parts_max = limits.document_parts_max
        #: A document that is no longer than this is within both: each part has a byte at least.
        self._harmless_bytes_max = min(self._bytes_max, self._parts_max)
        #: Where each topic has its documents; the schema tells whether that is still so.
        self._columns: dict[TopicId, tuple[Schema, tuple[int, ...]]] = {}

    def check(self, schema: Schema, rows: pa.RecordBatch) -> None:
        """Raise ContentError E176 if a document is over a quota. The rows must be of the schema."""
        known = self._columns.get(schema.topic)
        if known is None or known[0] is not schema:
            columns = tuple(at for at, column in enumerate(schema.columns) if column.type == "xml")
            known = self._columns[schema.topic] = (schema, columns)
        for at in known[1]:
            self._check_column(schema, schema.columns[at].name, rows.column(at))

    def _check_column(self, schema: Schema, name: str, array: pa.Array) -> None:
        if not len(array):
            return
        _, offsets_buffer, data_buffer = array.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, len(array) + 1, 4 * array.offset)
        lengths = np.diff(offsets)
        if lengths.max() <= self._harmless_bytes_max:
            return
        data = np.frombuffer(data_buffer, np.uint8)
        # Only large documents get here, and an event has room for few of them.
        for row in np.flatnonzero(lengths > self._harmless_bytes_max).tolist():
            if not array[row].is_valid:
                continue
            size = int(lengths[row])
            if size > self._bytes_max:
                raise _refused(schema, name, row, f"{size} bytes", self._bytes_max, "document_bytes_max")
            parts = parts_of(data[offsets[row] : offsets[row + 1]])
            if parts > self._parts_max:
                raise _refused(
                    schema, name, row, f"{parts} parts (signs < and =)", self._parts_max, "document_parts_max"
                )


def parts_of(document: npt.NDArray[np.uint8]) -> int:
    """How many parts a document has at most.

    >>> parts_of(np.frombuffer(b"<a b='1'><!-- --><c>=</c></a>", np.uint8))
    5
    """
    opening = document == _OPENING
    opening[:-1] &= document[1:] != _CLOSING
    return int(np.count_nonzero(opening) + np.count_nonzero(document == _EQUALS))


def _refused(schema: Schema, column: str, row: int, has: str, most: int, limit: str) -> ContentError:
    return ContentError(
        "E176",
        f"row {row} for topic '{schema.topic}': the document in column '{column}' has {has}, this node takes "
        f"{most}: split it, or raise limits.{limit}",
    )
