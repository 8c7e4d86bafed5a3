"""Subscriptions to continually updated relational views: what they mean, and how they are computed.

Pure like the rest of the core: SQL or the fluent algebra becomes a `Relation`, the relation is analysed,
rewritten and cut into stages. `gapless.spark` runs the stages; `gapless.node` hosts what comes out.
"""
