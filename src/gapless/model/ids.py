"""How are things named? Distinct types for distinct things, never a bare string.

An event's permanent, global name is the pair (PubendId, Tick).
"""

from typing import NewType

#: One broker process. A broker that hosts subends is called an edge, and its id names it in epochs.
BrokerId = NewType("BrokerId", str)
#: A group of brokers that stand in for each other: the paper's virtual broker.
CellId = NewType("CellId", str)
#: One source of events: a stream of ticks with one order.
PubendId = NewType("PubendId", str)
#: A named kind of event with one schema; several pubends may feed it.
TopicId = NewType("TopicId", str)
#: One subscription of one subscriber, unique at its edge.
SubscriptionId = NewType("SubscriptionId", str)
