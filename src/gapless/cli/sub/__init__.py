"""`gapless sub`: print events as lines or as a table, with or without history."""
