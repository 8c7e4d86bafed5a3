"""What can be said of a view before any event: how columns change, which rows may go, what is refused."""
