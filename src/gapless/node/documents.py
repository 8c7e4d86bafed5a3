"""Which documents does a node take? Those that it can match quickly, whatever the subscriptions.

A document is parsed and matched within a step of the broker, while all other work waits. The time depends on
its size in bytes and on its *parts*: tags, attributes, comments and sections, counted as the characters `<`
that do not begin a `</`, plus the characters `=`. Both have a quota, checked when the document is published:
one that exceeds it is refused, rather than stored and never matched. A document within the quota has a
*weight*: the number of rows without documents that take about as long. A batch that is too heavy for one step
is split.

A `<` or `=` in text counts like one in a tag: to tell them apart, the document would have to be parsed. In
UTF-16 a `</` counts as well, and so do bytes that only look like one of these characters.

Implements docs/content.md, section 9.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gapless.errors import ContentError
from gapless.model.ids import TopicId
from gapless.model.schema import Schema
from gapless.node.config import Limits

__all__ = ["DocumentQuota", "Weights", "parts_of"]

#: One number per row, or per document.
Weights: TypeAlias = npt.NDArray[np.int64]

#: The weight of a part: with a handful of patterns, parsing and matching it takes about 5 microseconds. Rows
#: that are stored together weigh at most 65,536, about as much as the largest document.
PART_WEIGHT = 13
#: This many bytes weigh as much as a row.
ROW_BYTES = 40

_OPENING, _CLOSING, _EQUALS = b"</="


class DocumentQuota:
    """Checks what is published into topics with columns of documents."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.document_bytes_max
        self._parts_max = limits.document_parts_max
        #: Documents of no more bytes than this in total are within both quotas: a part has at least one byte.
        self._harmless_bytes_max = min(self._bytes_max, self._parts_max)
        #: The columns of each topic that hold documents, and the schema for which that is so.
        self._columns: dict[TopicId, tuple[Schema, tuple[int, ...]]] = {}

    def check(self, schema: Schema, rows: pa.RecordBatch) -> Weights | None:
        """The weight of the documents in each row; None if the topic has none.

        Raises ContentError E176 if a document exceeds a quota. The rows must match the schema.
        """
        known = self._columns.get(schema.topic)
        if known is None or known[0] is not schema:
            columns = tuple(at for at, column in enumerate(schema.columns) if column.type == "xml")
            known = self._columns[schema.topic] = (schema, columns)
        if not known[1] or not rows.num_rows:
            return None
        weights = [self._check_column(schema, at, rows.column(at)) for at in known[1]]
        return sum(weights[1:], weights[0])

    def _check_column(self, schema: Schema, at: int, array: pa.Array) -> Weights:
        _, offsets_buffer, data_buffer = array.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, len(array) + 1, 4 * array.offset)
        sizes = np.diff(offsets).astype(np.int64)
        if offsets[-1] - offsets[0] <= self._harmless_bytes_max:
            # Too small to be worth counting: most parts have at least four bytes.
            return sizes * PART_WEIGHT // 4
        if array.null_count:
            # Bytes behind a null are not a document.
            sizes[np.asarray(array.is_null().to_numpy(zero_copy_only=False))] = 0
        row = int(sizes.argmax())
        if sizes[row] > self._bytes_max:
            limit = "document_bytes_max"
            raise _refused(schema, at, row, f"{sizes[row]} bytes, this node takes {self._bytes_max}", limit)
        parts = parts_of(np.frombuffer(data_buffer, np.uint8), offsets)
        parts[sizes == 0] = 0
        row = int(parts.argmax())
        if parts[row] > self._parts_max:
            has = f"{parts[row]} parts (signs < and =), this node takes {self._parts_max}"
            raise _refused(schema, at, row, has, "document_parts_max")
        return sizes // ROW_BYTES + PART_WEIGHT * parts


def parts_of(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32]) -> Weights:
    """An upper bound for the parts of each document; the first is `data[offsets[0]:offsets[1]]`.

    >>> data = b"<a b='1'><!-- --><c>=</c></a><a/>"
    >>> parts_of(np.frombuffer(data, np.uint8), np.array([0, 29, 29, 33], np.int32)).tolist()
    [5, 0, 1]
    """
    start = int(offsets[0])
    data = data[start : offsets[-1]]
    signs = data == _OPENING
    signs[:-1] &= data[1:] != _CLOSING
    signs |= data == _EQUALS
    counts: Weights = np.diff(np.searchsorted(np.flatnonzero(signs), offsets - start))
    return counts


def _refused(schema: Schema, at: int, row: int, has: str, limit: str) -> ContentError:
    column = schema.columns[at].name
    return ContentError(
        "E176",
        f"row {row} for topic '{schema.topic}': the document in column '{column}' has {has}: split it, "
        f"or raise limits.{limit}",
    )
