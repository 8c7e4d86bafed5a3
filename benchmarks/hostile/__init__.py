"""What does a well-behaved client notice while another one attacks the node? `python -m benchmarks.hostile`.

- `good`: the client that behaves: a publisher at a steady pace and a subscriber, each in its own process
- `attacks`: the client that does not, in a third process, with bytes of its own making
- `conditions`: the most expensive conditions that are legal
- `__main__`: the node, the runs, the table and the plot
"""
