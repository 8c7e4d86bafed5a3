"""SQL conditions: their words, their grammar, their literals, and how they are printed."""
