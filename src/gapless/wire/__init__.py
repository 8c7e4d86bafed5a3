"""How do nodes and clients talk? Frames of bytes, and the messages inside them. No sockets here."""
