"""Which machines does a broker consist of? What `inspect()` shows to status, `why` and traces.

Looking is all that is allowed: only `Broker.step` changes what is shown here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gapless.model.ids import CellId, PubendId, SubscriptionId

if TYPE_CHECKING:
    from gapless.protocol.door import PubendDoor
    from gapless.protocol.edge import Edge
    from gapless.protocol.links import Links
    from gapless.protocol.ostream import CellFilter
    from gapless.protocol.path import Path
    from gapless.protocol.subscription import Subend


class BrokerParts(NamedTuple):
    """The machines of a broker."""

    paths: Mapping[PubendId, Path]
    links: Links
    #: None where there are no subscribers.
    edge: Edge | None
    #: The filter of a path towards a cell below.
    filter_of: Callable[[Path, PubendId, CellId], CellFilter]


class EdgeParts(NamedTuple):
    """The machines of an edge."""

    doors: Mapping[PubendId, PubendDoor]
    subends: Mapping[SubscriptionId, Subend]
