"""How is the header of a frame laid out, and its payload checked? One format for each version of a segment.

Version 2 is written. It checks payloads with XXH3, 64 bits: flipped bits go unnoticed once in 2^64. Headers
have their own CRC-32, which finds any four flipped bits in so few bytes.

Version 1 is only read. It had 32 bits for the payload. Of a large Arrow message it summed up each 32 KiB: the
64-bit numbers of a block, each times an odd weight of its own. Two flipped bits of one block can cancel out,
hence version 2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from gapless.store.files import Data

#: Of version 1: this payload was summed up.
SUMMED = 2
#: More parts than this are joined before they are summed.
PARTS_MAX = 4
_BLOCK_WORDS = 4_096
_WORD = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Form:
    """One version of the frames of a segment."""

    version: int
    #: crc, sum, mark, kind, flags, back, rows, note, length, first, last
    header: struct.Struct
    mark_at: int
    length: struct.Struct
    #: The sum of a payload, given how many bytes lie before its Arrow message, and its flags.
    checksum: Callable[[memoryview, int, int], int]
    #: Whether the bytes after a payload must be zeros.
    checks_padding: bool


def payload_sum(parts: Sequence[Data]) -> int:
    """The sum of a payload that is to be written."""
    if len(parts) == 1:
        return xxhash.xxh3_64_intdigest(parts[0])
    if len(parts) > PARTS_MAX:
        # Many small parts: one call for all of them costs less than one for each.
        return xxhash.xxh3_64_intdigest(b"".join(parts))
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()


def _xxh3(payload: memoryview, _before: int, _flags: int) -> int:
    return xxhash.xxh3_64_intdigest(payload)


def _summed(payload: memoryview, before: int, flags: int) -> int:
    if not flags & SUMMED:
        return zlib.crc32(payload)
    crc, message = zlib.crc32(payload[:before]), payload[before:]
    blocks = len(message) // (_BLOCK_WORDS * _WORD.itemsize)
    words = np.frombuffer(message, dtype=_WORD, count=blocks * _BLOCK_WORDS).reshape(blocks, _BLOCK_WORDS)
    sums = np.einsum("ij,j->i", words, _WEIGHTS)
    return zlib.crc32(message[words.nbytes :], zlib.crc32(sums.astype(_WORD).tobytes(), crc))


def _weights() -> npt.NDArray[np.uint64]:
    """A fixed odd number for each position of a block: the first values of SplitMix64."""
    found = np.arange(1, _BLOCK_WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (found ^ (found >> np.uint64(31))) | np.uint64(1)


_WEIGHTS = _weights()

_V1 = Form(1, struct.Struct("<II4sBBxxIIIIqq"), 8, struct.Struct("<28xI"), _summed, checks_padding=False)
#: What is written.
NEWEST = Form(2, struct.Struct("<I4xQ4sBBxxIIIIqq"), 16, struct.Struct("<36xI"), _xxh3, checks_padding=True)
#: What can be read, by version.
FORMS = {each.version: each for each in (_V1, NEWEST)}
