"""What must survive a crash: the log of each pubend, its archive, and the node's database."""
