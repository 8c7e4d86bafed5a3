"""Attacks on a running node, with bytes made by hand: nothing here uses `gapless.wire` or the client."""
