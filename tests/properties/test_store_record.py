"""Flipped bits: of a record on the disk, any one to four of them are found, wherever they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import example, given

from gapless.protocol.effects import ReleaseRecord
from gapless.store.record import BadFrame, batch_payload, control_payload, framed, frames
from tests.contracts.events import events, start
from tests.contracts.faulty import FaultyFiles

SALT = 7
NAMES = ("release", "start", "notes", "sparse", "large")


@cache
def record(name: str) -> bytes:
    payload = {
        "release": lambda: control_payload(ReleaseRecord(before=12)),
        "start": lambda: control_payload(start("edge", 9, 12, wanted=3)),
        "notes": lambda: batch_payload(events([5, 6]), [(5, b"abc"), (6, b"")]),
        "sparse": lambda: batch_payload(events([1, 5, 99])),
        "large": lambda: batch_payload(events(range(8_000))),
    }[name]()
    return b"".join(bytes(part) for part in framed(payload, salt=SALT, offset=0, group=0))


def is_valid(data: bytes) -> bool:
    file = FaultyFiles().create(Path("/file"))
    file.write(0, data)
    try:
        return len(list(frames(file, salt=SALT, start=0, stop=len(data)))) == 1
    except BadFrame:
        return False


@given(st.sampled_from(NAMES), st.sets(st.integers(0, 2**40), min_size=1, max_size=4))
# Two bits of one block of numbers, 64 apart and in the highest place: weights are odd, so their sums agreed.
@example("large", {8 * 40_007 + 7, 8 * 40_015 + 7})
def test_one_to_four_flipped_bits_are_found(name: str, places: set[int]) -> None:
    data = bytearray(record(name))
    for place in {each % (8 * len(data)) for each in places}:
        data[place // 8] ^= 1 << place % 8
    assert is_valid(record(name))
    assert not is_valid(bytes(data))


def test_every_two_flipped_bits_of_a_small_record_are_found() -> None:
    good = record("release")
    for first in range(8 * len(good)):
        for second in range(first + 1, 8 * len(good), 7):
            data = bytearray(good)
            data[first // 8] ^= 1 << first % 8
            data[second // 8] ^= 1 << second % 8
            assert not is_valid(bytes(data)), (first, second)
