"""How are many events read at once? Arrow Flight on a port of its own, and bounds for its callers."""
