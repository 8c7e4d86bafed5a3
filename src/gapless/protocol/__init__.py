"""The Gryphon protocol as deterministic machines: events in, effects out.

No sockets, disks, clocks or random numbers in here. `broker.Broker` composes the machines of one
node behind a single `step`; the simulator and the real node host that very same object.
"""
