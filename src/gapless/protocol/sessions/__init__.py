"""What do a client and its node owe each other? Two machines per conversation, one at each end.

The *edge session* is the node's half and the *client session* the client's. Nothing here knows of sockets,
threads or clocks: `gapless.node`, `gapless.client` and `gapless.sim` host the same machines. The messages
that they exchange are in `messages`.

Implements docs/protocol.md, section 13.
"""
