"""The second act of the demo: a ticket sale with a live view."""
