"""`gapless bench`: measure a node."""
