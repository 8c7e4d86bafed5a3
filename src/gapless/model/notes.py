"""What does a log know of publishers? The note beside each batch: who published it, and how far they are.

A note travels with its events from the request to the disk, so that after a crash either both are there or
neither is. What notes say is also written to the node's database now and then, as positions; then the log may
forget its notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from gapless.model.ids import PubendId
from gapless.model.ticks import Tick

#: Numbers from the first to the last, both included.
Hole: TypeAlias = tuple[int, int]


class PublisherState(msgspec.Struct, array_like=True, frozen=True):
    """All that a note can say of a publisher."""

    #: The number of its last event.
    last: int
    #: The principal that it belongs to; None for nobody.
    owner: str | None
    #: Whether its client made it up, and never comes back to it once it has ended.
    is_temporary: bool
    #: Numbers up to `last` that are not known to be stored, ascending.
    holes: tuple[Hole, ...]


#: Maximum number of bytes of one state in a note: a principal has a name and a few letters.
STATE_BYTES_MAX = 2_048

#: What the note of a batch says of a publisher: everything, or just the number of its last event when nothing
#: else is new.
NoteValue: TypeAlias = int | PublisherState


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherPosition:
    """What `publisher` numbered up to `catenation` is in the log of `pubend`, up to `tick`, but for holes."""

    publisher: str
    pubend: PubendId
    catenation: int
    tick: Tick
    owner: str | None = None
    is_temporary: bool = False
    holes: tuple[Hole, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(dict[str, int | PublisherState])


def encode_note(values: Mapping[str, NoteValue]) -> bytes:
    """The note of a batch."""
    return _encode(values)


def decode_note(note: bytes) -> dict[str, NoteValue]:
    """What a note says of each publisher."""
    return _decoder.decode(note)
