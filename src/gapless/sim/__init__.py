"""Does the protocol keep its promises? Whole networks in virtual time, from one seed.

The simulator hosts the very same `protocol.Broker` as a real node. Everything that a host may do to it
is drawn from one random stream, so that a seed is a whole history and can be told again.
"""
