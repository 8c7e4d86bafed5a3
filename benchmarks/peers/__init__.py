"""The systems that a user could choose instead, started from the distribution's packages and loaded.

Their load clients speak the protocol of each over plain sockets and look at no more of an answer than they
must. So a peer is not measured through a client library: it gets more of the machine than in practice.
"""
