"""Millions of wrong inputs against a running node, while a well-behaved client looks how it is served."""
