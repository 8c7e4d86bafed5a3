"""What do subscribers want? Filters over the columns of an event batch, and sets of them."""
