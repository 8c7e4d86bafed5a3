"""What must survive a crash: the log of each pubend, its archive, and what a node remembers beyond them."""
