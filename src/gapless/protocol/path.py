"""What does a broker have for one pubend? A path: the istream, an ostream for each cell below, the ack.

Implements docs/protocol.md, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.model.epochs import Epoch
from gapless.model.ids import BrokerId, CellId
from gapless.model.ticks import Tick
from gapless.protocol.acks import AckRuns
from gapless.protocol.istream import Istream
from gapless.protocol.network import Tree
from gapless.protocol.ostream import Ostream
from gapless.protocol.pubend import Pubend


@dataclass(slots=True)
class Path:
    """Everything a broker has for one pubend."""

    tree: Tree
    istream: Istream
    ostreams: dict[CellId, Ostream]
    #: The next cell towards the pubend; None at the pubend's own cell.
    upstream: CellId | None
    pubend: Pubend | None = None
    #: The broker of the upstream cell that last sent knowledge.
    last_sender: BrokerId | None = None
    #: The ack that was last sent, and when.
    ack_sent: AckRuns = ()
    ack_sent_ms: int | None = None
    #: Where there is no cell below: what the local subends had acked, and as of which epoch, for that ack.
    ack_of: tuple[Tick, Epoch] | None = None
    #: Something happened that may change the ack.
    ack_dirty: bool = False
