"""How large may an event be? One budget, and what every hop on its way adds to it at most.

The *size* of an event is the bytes of its values: those of its texts, binaries and documents, and
`FIXED_BYTES` for each other column, null or not. It is the same however the event travels: as a MessagePack
row or as Arrow columns, in a frame, in the log, in a Parquet file. What an encoding adds to the values
depends only on the columns of the topic and stays below `HOP_BYTES`, so every event that a node accepts fits
wherever it goes. Several events that are together too large for a hop are split by rows: one always fits.

| hop | what it may carry | what the event needs |
| --- | --- | --- |
| frame of a client | `CLIENT_FRAME_BYTES_MAX` | `EVENT_BYTES_MAX + HOP_BYTES`, by definition |
| what a node stores in one step | `TOGETHER_BYTES_MAX` | one frame of a client |
| frame between brokers, also sideways; delivery | `FRAME_BYTES_MAX`, cut at `BATCH_BYTES_MAX` | the same |
| record of the log, row group of an archive, bulk read | 1 GiB or more | the same |

Implements docs/wire.md, section 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from gapless.model.batch import EventBatch

#: The largest event.
EVENT_BYTES_MAX: Final = 15 * 2**20
#: Bytes counted for a column that is not a text, binary or document.
FIXED_BYTES: Final = 16
#: What any encoding of an event adds to its values: at most `COLUMN_BYTES` for each of `COLUMNS_MAX` columns
#: (in Arrow two tables of 64 bytes, validity, offsets and padding; a decimal as text), names, stamps and
#: lengths.
HOP_BYTES: Final = 2**20
COLUMN_BYTES: Final = 160

#: The longest frame that a client may send.
CLIENT_FRAME_BYTES_MAX: Final = EVENT_BYTES_MAX + HOP_BYTES
#: Larger batches are split before they are put into a frame, unless there is only one row.
BATCH_BYTES_MAX: Final = CLIENT_FRAME_BYTES_MAX
#: The longest frame between brokers, or from a node: its head may also be long.
FRAME_BYTES_MAX: Final = 4 * BATCH_BYTES_MAX
#: Maximum number of bytes, of what clients publish in one turn of the event loop, that are stored together.
TOGETHER_BYTES_MAX: Final = BATCH_BYTES_MAX

#: Maximum size of an XML document, in bytes and in elements, comments and processing instructions. A node
#: accepts less unless configured (`[limits]`); anything beyond this is never read.
DOCUMENT_BYTES_MAX: Final = 4 * 2**20
NODES_MAX: Final = 100_000


def event_sizes(columns: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The size of each row. Array work, but it visits every text: call it only if one may be too large.

    >>> event_sizes(pa.RecordBatch.from_pydict({"price": [1.5, 2.5], "note": ["ab", None]})).tolist()
    [18, 16]
    """
    sizes = np.zeros(columns.num_rows, dtype=np.int64)
    for column in columns.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            # By its offsets: bytes behind a null are also carried along.
            _, offsets, _ = column.buffers()
            if offsets is not None and len(column):
                at = np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1, offset=4 * column.offset)
                sizes += np.diff(at.astype(np.int64))
        else:
            sizes += FIXED_BYTES
    return sizes


def cut_to(batch: EventBatch, bytes_max: int) -> Iterator[EventBatch]:
    """The same rows in order, in batches of at most this size, unless it is a single row."""
    if len(batch) < 2 or batch.weighs_at_most(bytes_max):
        yield batch
        return
    middle = len(batch) // 2
    yield from cut_to(batch.slice(0, middle), bytes_max)
    yield from cut_to(batch.slice(middle, len(batch)), bytes_max)
