"""The demo: a network of real processes that loses a router, then Spark, and no event."""
